//! What the DNS server must be allowed to do: the one list that manifests are printed from and that a
//! test compares with what it really does.

use nearhop_api::rbac::Rule;

/// Rights in the whole cluster. It writes nothing.
pub const CLUSTER_RULES: &[Rule] = &[
    Rule::new("", "services", &["list", "watch"]),
    Rule::new("", "namespaces", &["list", "watch"]),
    Rule::new("", "nodes", &["list", "watch"]),
    Rule::new("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    // Watched behind its gate only.
    Rule::new("nearhop.dev", "podlocators", &["list", "watch"]),
];
