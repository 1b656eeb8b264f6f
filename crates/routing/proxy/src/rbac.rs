//! What the proxy must be allowed to do: the one list that manifests are printed from and that a
//! test compares with what it really does.

use nearhop_api::rbac::Rule;

/// Rights in the whole cluster.
pub const CLUSTER_RULES: &[Rule] = &[
    // Only its own Node, which RBAC cannot say for lists.
    Rule::new("", "nodes", &["list", "watch"]),
    Rule::new("", "services", &["list", "watch"]),
    Rule::new("events.k8s.io", "events", &["create"]),
    Rule::new("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    Rule::new("networking.k8s.io", "servicecidrs", &["list", "watch"]),
];
