//! PodLocators: where a Pod's addresses are (KEP-536 "New PodLocator resource").

use super::Addresses;
use crate::key::{Name, PodKey};
use crate::labels::Labels;

/// A PodLocator. It has the namespace and the name of its Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locator {
    /// Namespace and name, the Pod's own.
    pub key: PodKey,
    /// `metadata.uid` of the Pod of its own name that owns it: a name may have several lives. One
    /// without is not the controller's, and its word does not count.
    pub owner: Option<Name>,
    /// The Pod's addresses.
    pub ips: Addresses,
    /// The node it runs on; none where it has none, or where that node is gone.
    pub node: Option<Name>,
    /// Labels of that node, as many as are copied.
    pub node_labels: Labels,
}

impl Locator {
    /// One that says nothing yet, to be filled in.
    pub fn new(key: PodKey) -> Self {
        let nowhere = Addresses::Many(Box::default());
        Self { key, owner: None, ips: nowhere, node: None, node_labels: Labels::default() }
    }
}
