//! From an address to a place: who asks, and where does it stand?
//!
//! PodLocators say it for Pods (KEP-536 "DNS server changes"); where there is none, Nodes say it
//! for the ranges that their Pods' addresses come from, and for their own addresses. What a
//! PodLocator is to say is planned here too.

mod find;
mod plan;

pub use find::{How, Located, Locators, NodeRanges};
pub(crate) use plan::pod_differs;
pub use plan::{
    LabelKeys, LocatorLabels, LocatorLabelsError, LocatorPlan, WELL_KNOWN_KEYS, plan_locator,
};
