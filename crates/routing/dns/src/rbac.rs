//! The DNS server's RBAC rules. `nearhop manifests` prints them, and a test compares them with the
//! requests that the server sends.

use nearhop_api::rbac::Rule;

/// Cluster-wide rules; the server never writes.
pub const CLUSTER_RULES: &[Rule] = &[
    Rule::new("", "services", &["list", "watch"]),
    Rule::new("", "namespaces", &["list", "watch"]),
    Rule::new("", "nodes", &["list", "watch"]),
    Rule::new("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    // Watched only with the gate PodLocator.
    Rule::new("nearhop.dev", "podlocators", &["list", "watch"]),
];
