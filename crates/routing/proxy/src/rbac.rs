//! The RBAC rules of the proxy. Manifests are generated from this list, and a test compares it with
//! the actual requests.

use nearhop_api::rbac::Rule;

/// Rules for the whole cluster.
pub const CLUSTER_RULES: &[Rule] = &[
    // The proxy needs only its own Node, but RBAC cannot restrict a list to one object.
    Rule::new("", "nodes", &["list", "watch"]),
    Rule::new("", "services", &["list", "watch"]),
    Rule {
        group: "",
        resource: "events",
        verbs: &["create"],
        implied: &[("patch", "a repeated event is counted")],
    },
    Rule::new("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    Rule::new("networking.k8s.io", "servicecidrs", &["list", "watch"]),
];
