//! Label sets, kept sorted and shared.
//!
//! Pods of one ReplicaSet carry the same labels; the world interns whole sets, so a thousand of
//! them cost one.

use std::sync::Arc;

use crate::key::Name;

/// Labels (or a selector) as sorted pairs behind one reference count. A thin pointer: there is
/// one in every Pod and slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Labels(Arc<Vec<(Name, Name)>>);

impl Labels {
    /// The value of one label.
    pub fn get(&self, key: &str) -> Option<&Name> {
        let at = self.0.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// All pairs, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.0.iter().map(|(k, v)| (k, v))
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether anybody else holds this allocation.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether `self`, read as a selector, selects `labels`: every pair must be there.
    pub fn selects(&self, labels: &Self) -> bool {
        self.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl<K: Into<Name>, V: Into<Name>> FromIterator<(K, V)> for Labels {
    /// Sorts; of two pairs with one key the later wins, as in a JSON object.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let map: std::collections::BTreeMap<Name, Name> =
            pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self(Arc::new(map.into_iter().collect()))
    }
}

/// Well-known keys, spelled once.
pub mod well_known {
    /// Zone of a Node.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// Region of a Node.
    pub const REGION: &str = "topology.kubernetes.io/region";
    /// Host name of a Node.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// Nodes with this label do not count as capacity.
    pub const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
    /// The older name of [`CONTROL_PLANE`].
    pub const MASTER: &str = "node-role.kubernetes.io/master";
    /// Taint of a Node that the cluster autoscaler is about to remove.
    pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
    /// Names a slice's Service.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// Names a slice's writer.
    pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
    /// Present, with an empty value, on slices of headless Services.
    pub const HEADLESS: &str = "service.kubernetes.io/headless";
    /// Annotation of a slice: when the change happened that it shows.
    pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
    /// Names the Service proxy that a Service wants instead of the cluster's own.
    pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
    /// The in-tree controller's value of [`MANAGED_BY`].
    pub const IN_TREE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
    /// nearhop's value of [`MANAGED_BY`] where it works beside the in-tree controller.
    pub const NEARHOP_CONTROLLER: &str = "nearhop.dev";
}
