//! PodLocators: the place of a Pod's addresses (KEP-536 "New PodLocator resource").

use super::Addresses;
use crate::key::{Name, PodKey};
use crate::labels::Labels;

/// A PodLocator. It has the namespace and the name of its Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locator {
    /// Namespace and name, the same as the Pod's.
    pub key: PodKey,
    /// `metadata.uid` of the owner, the Pod with the same name. Another Pod may get the same name
    /// later, so the UID identifies it. nearhop ignores a PodLocator without an owner, because the
    /// controller did not write it.
    pub owner: Option<Name>,
    /// The Pod's addresses.
    pub ips: Addresses,
    /// The node that it runs on; none if it has no node, or if the node was deleted.
    pub node: Option<Name>,
    /// The copied labels of that node.
    pub node_labels: Labels,
}

impl Locator {
    /// An empty PodLocator. The caller sets the other fields.
    pub fn new(key: PodKey) -> Self {
        let nowhere = Addresses::Many(Box::default());
        Self { key, owner: None, ips: nowhere, node: None, node_labels: Labels::default() }
    }
}
