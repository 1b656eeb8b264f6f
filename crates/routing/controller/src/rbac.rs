//! What the controller must be allowed to do: the one list that manifests are printed from and
//! that a test compares with what it really does.

use nearhop_api::rbac::Rule;

/// Rights in the whole cluster.
pub const CLUSTER_RULES: &[Rule] = &[
    Rule::new("", "namespaces", &["list", "watch"]),
    Rule::new("", "nodes", &["list", "watch"]),
    Rule::new("", "pods", &["list", "watch"]),
    // get: before slices without a Service are deleted, the server is asked for the Service.
    Rule::new("", "services", &["get", "list", "watch"]),
    Rule::new("", "services/status", &["patch"]),
    Rule {
        group: "",
        resource: "services/finalizers",
        verbs: &[],
        implied: &[(
            "update",
            "slices block the deletion of their owner (admission OwnerReferencesPermissionEnforcement)",
        )],
    },
    Rule {
        group: "",
        resource: "events",
        verbs: &["patch"],
        implied: &[("create", "an apply of what is not there yet creates it")],
    },
    Rule::new(
        "discovery.k8s.io",
        "endpointslices",
        &["create", "delete", "get", "list", "patch", "watch"],
    ),
    // Used only where the gate PodLocator is on.
    Rule::new(
        nearhop_api::locator::GROUP,
        nearhop_api::locator::RESOURCE,
        &["create", "delete", "list", "patch", "watch"],
    ),
];

/// Rights in the namespace of the lease.
pub const LEASE_RULES: &[Rule] =
    &[Rule::new("coordination.k8s.io", "leases", &["create", "get", "update"])];
