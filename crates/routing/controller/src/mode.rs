//! Which Services are kept, and under whose name.

use std::fmt;
use std::str::FromStr;

use nearhop_core::labels::well_known;

/// Value of `service.kubernetes.io/service-proxy-name` by which a Service asks for nearhop.
pub const SERVICE_PROXY: &str = "nearhop";

/// Which Services the controller keeps slices for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Those labelled `service.kubernetes.io/service-proxy-name: nearhop`, beside the cluster's
    /// own controller.
    Labelled,
    /// All with a selector, instead of the cluster's own controller.
    Replace,
}

impl Mode {
    /// Value of the managed-by label of the slices it writes.
    pub fn managed_by(self) -> &'static str {
        match self {
            Self::Labelled => well_known::NEARHOP_CONTROLLER,
            Self::Replace => well_known::IN_TREE_CONTROLLER,
        }
    }

    /// Value of the managed-by label of slices that the other mode left and that nobody keeps now.
    /// The slices that `replace` leaves are the cluster's own controller's to keep.
    pub(crate) fn retired(self) -> Option<&'static str> {
        match self {
            Self::Labelled => None,
            Self::Replace => Some(well_known::NEARHOP_CONTROLLER),
        }
    }

    /// Which Services to watch.
    pub(crate) fn service_selector(self) -> Option<String> {
        match self {
            Self::Labelled => Some(format!("{}={SERVICE_PROXY}", well_known::SERVICE_PROXY_NAME)),
            Self::Replace => None,
        }
    }

    /// Which slices to watch.
    pub(crate) fn slice_selector(self) -> String {
        let label = well_known::MANAGED_BY;
        match self.retired() {
            None => format!("{label}={}", self.managed_by()),
            Some(retired) => format!("{label} in ({},{retired})", self.managed_by()),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Labelled => "labelled",
            Self::Replace => "replace",
        })
    }
}

/// Not a mode.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a mode: use labelled or replace")]
pub struct NotAMode(String);

impl FromStr for Mode {
    type Err = NotAMode;

    fn from_str(text: &str) -> Result<Self, NotAMode> {
        match text {
            "labelled" => Ok(Self::Labelled),
            "replace" => Ok(Self::Replace),
            _ => Err(NotAMode(text.to_owned())),
        }
    }
}
