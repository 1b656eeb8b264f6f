//! The mode of the controller: which Services it manages, and the managed-by label of its slices.

use std::fmt;
use std::str::FromStr;

use nearhop_core::labels::well_known;

/// The value of `service.kubernetes.io/service-proxy-name` that selects nearhop for a Service.
pub const SERVICE_PROXY: &str = "nearhop";

/// Which Services the controller writes slices for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Services with the label `service.kubernetes.io/service-proxy-name: nearhop`; the cluster's
    /// own controller handles the others.
    Labelled,
    /// All Services with a selector, instead of the cluster's own controller.
    Replace,
}

impl Mode {
    /// The value of the managed-by label of slices in this mode.
    pub fn managed_by(self) -> &'static str {
        match self {
            Self::Labelled => well_known::NEARHOP_CONTROLLER,
            Self::Replace => well_known::IN_TREE_CONTROLLER,
        }
    }

    /// The value of the managed-by label of slices from the other mode that no controller updates
    /// now. The cluster's own controller updates the slices that `replace` leaves.
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

/// The text is not a mode.
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
