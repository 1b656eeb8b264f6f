//! Label sets, sorted and shared.
//!
//! Pods of one ReplicaSet have the same labels. The world interns whole sets, so a thousand Pods
//! need the memory of one set.

use std::sync::Arc;

use crate::key::Name;

/// Labels (or a selector) as sorted pairs with one reference count. A thin pointer, because every
/// Pod and slice has one.
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

    /// Whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether other values share this allocation.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether `self`, used as a selector, selects `labels`: every pair must be present.
    pub fn selects(&self, labels: &Self) -> bool {
        self.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl<K: Into<Name>, V: Into<Name>> FromIterator<(K, V)> for Labels {
    /// Sorts the pairs. If two pairs have the same key, the later wins, as in a JSON object.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let map: std::collections::BTreeMap<Name, Name> =
            pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self(Arc::new(map.into_iter().collect()))
    }
}

/// Well-known label, annotation and taint keys.
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
    pub(crate) const MASTER: &str = "node-role.kubernetes.io/master";
    /// Taint of a Node that the cluster autoscaler is about to remove.
    pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
    /// Label of a slice: the name of its Service.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// Label of a slice: the controller that writes it.
    pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
    /// Present, with an empty value, on slices of headless Services.
    pub const HEADLESS: &str = "service.kubernetes.io/headless";
    /// Annotation of a slice: the time of the change that caused it.
    pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
    /// Label of a Service: the name of a proxy that replaces the cluster's own for this Service.
    pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
    /// The in-tree controller's value of [`MANAGED_BY`].
    pub const IN_TREE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
    /// nearhop's value of [`MANAGED_BY`] if it runs beside the in-tree controller.
    pub const NEARHOP_CONTROLLER: &str = "nearhop.dev";
}
