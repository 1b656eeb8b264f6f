//! From a client's address to its place.
//!
//! PodLocators define the place of Pods (KEP-536 "DNS server changes"). Without a PodLocator, the
//! Pod CIDRs and the addresses of Nodes define it. This module also plans the content of
//! PodLocators.

mod find;
mod plan;

pub(crate) use find::NodeRanges;
pub use find::{How, Located, Locators};
pub use plan::{LabelKeys, LocatorLabels, LocatorLabelsError, LocatorPlan, plan_locator};
pub(crate) use plan::{WELL_KNOWN_KEYS, pod_differs};
