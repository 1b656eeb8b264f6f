//! What the value of a field or annotation means in its place.

use std::fmt;

use super::{Intent, TopologyKeys};
use crate::gate::{Gate, Gates};
use crate::key::Name;
use crate::problem::quote;
use crate::routing::split_keys;

/// The setting of Balanced: how far above the mean load an endpoint may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxOverload {
    /// In thousandths of the mean (200 is 20 %).
    Permille(u32),
    /// No limit: the same as SameZone.
    Unlimited,
}

impl Default for MaxOverload {
    fn default() -> Self {
        Self::Permille(200)
    }
}

impl MaxOverload {
    /// Reads `20%`, `12.5%`, `0%` or `inf`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("inf") {
            return Some(Self::Unlimited);
        }
        let (whole, fraction) = match text.strip_suffix('%')?.split_once('.') {
            Some((whole, fraction)) => (whole, fraction),
            None => (text.strip_suffix('%')?, "0"),
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 1 {
            return None;
        }
        let permille =
            whole.parse::<u32>().ok()?.checked_mul(10)? + fraction.parse::<u32>().ok()?;
        (permille <= 100_000).then_some(Self::Permille(permille))
    }
}

impl fmt::Display for MaxOverload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("inf"),
            Self::Permille(permille) if permille % 10 == 0 => write!(f, "{}%", permille / 10),
            Self::Permille(permille) => write!(f, "{}.{}%", permille / 10, permille % 10),
        }
    }
}

/// What a value requests.
pub(super) enum Meaning {
    Intent(Intent),
    /// A known value that requests nothing (`Disabled`, `Default`, `Cluster`): the next place is
    /// read.
    Nothing,
    /// Counts as unset, with the reason.
    Refused(String),
}

pub(super) fn read_mode(value: &str) -> Meaning {
    match value {
        "Auto" | "auto" => Meaning::Intent(Intent::Auto),
        "Disabled" | "disabled" | "" => Meaning::Nothing,
        _ => Meaning::Refused(format!("{} is not Auto or Disabled", quote(value))),
    }
}

pub(super) fn read_policy(value: &str) -> Meaning {
    match value {
        "PreferZone" => Meaning::Intent(Intent::Auto),
        "Cluster" | "" => Meaning::Nothing,
        // The field comes from a draft of KEP-2086, which became `internalTrafficPolicy`. Without
        // the rest of that draft, `Local` has no effect, and to ignore it silently would send
        // traffic to other nodes that the user wants to keep.
        "Local" => Meaning::Refused(format!(
            "{} has no effect in this field; spec.internalTrafficPolicy: Local keeps traffic on \
             the node",
            quote(value)
        )),
        _ => Meaning::Refused(format!("{} is not PreferZone or Cluster", quote(value))),
    }
}

pub(super) fn read_keys(keys: &[Name]) -> Meaning {
    match split_keys(keys) {
        Ok((keys, soft)) => Meaning::Intent(Intent::Keys(TopologyKeys { keys, soft })),
        Err(cause) => Meaning::Refused(cause),
    }
}

/// The feature gate of nearhop's own values, in all places.
const OWN_VALUES: Gate = Gate::ServiceTrafficDistribution;

/// The value by which a Service opts out of the defaults of its Namespace and of the cluster.
pub const NO_PREFERENCE: &str = "nearhop.dev/None";

/// nearhop's own values, allowed in every place that allows a domain prefix.
fn read_own_value(value: &str, max_overload: MaxOverload) -> Option<Intent> {
    match value {
        "nearhop.dev/Balanced" => Some(Intent::Balanced(max_overload)),
        "nearhop.dev/Nearest" => Some(Intent::Keys(TopologyKeys::nearest())),
        "nearhop.dev/RequireZone" => Some(Intent::Keys(TopologyKeys::require_zone())),
        // A Service opts out of the defaults of its Namespace and of the cluster.
        NO_PREFERENCE => Some(Intent::Spread),
        _ => None,
    }
}

pub(super) fn read_distribution(value: &str, gates: &Gates, max_overload: MaxOverload) -> Meaning {
    let same = gates.on(Gate::PreferSameTrafficDistribution);
    match value {
        "PreferClose" => Meaning::Intent(Intent::SameZone),
        "PreferSameZone" if same => Meaning::Intent(Intent::SameZone),
        "PreferSameNode" if same => Meaning::Intent(Intent::SameNode),
        "PreferSameZone" | "PreferSameNode" => {
            let gate = Gate::PreferSameTrafficDistribution;
            Meaning::Refused(format!("{} needs the feature gate {gate}", quote(value)))
        }
        "" => Meaning::Nothing,
        _ => read_own_value(value, max_overload).map_or_else(
            || {
                Meaning::Refused(format!(
                    "{} is none of PreferSameZone, PreferSameNode, PreferClose, nearhop.dev/Balanced, \
                     nearhop.dev/Nearest, nearhop.dev/RequireZone and {NO_PREFERENCE}",
                    quote(value)
                ))
            },
            Meaning::Intent,
        ),
    }
}

/// Whether a value of `trafficDistribution` is valid; the error says what is wrong.
pub fn check_distribution(value: &str, gates: &Gates) -> Result<(), String> {
    match read_distribution(value, gates, MaxOverload::default()) {
        Meaning::Refused(why) => Err(why),
        Meaning::Intent(_) | Meaning::Nothing => Ok(()),
    }
}

pub(super) fn read_preference(value: &str, gates: &Gates, max_overload: MaxOverload) -> Meaning {
    match value {
        "Default" | "" => Meaning::Nothing,
        "Spread" => Meaning::Intent(Intent::Spread),
        "Zone" => Meaning::Intent(Intent::SameZone),
        _ => match read_own_value(value, max_overload) {
            Some(intent) if gates.on(OWN_VALUES) => Meaning::Intent(intent),
            Some(_) => {
                Meaning::Refused(format!("{} needs the feature gate {OWN_VALUES}", quote(value)))
            }
            None => Meaning::Refused(format!(
                "{} is none of Default, Spread, Zone, nearhop.dev/Balanced, nearhop.dev/Nearest, \
                 nearhop.dev/RequireZone and {NO_PREFERENCE}",
                quote(value)
            )),
        },
    }
}
