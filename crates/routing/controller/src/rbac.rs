//! The permissions that the controller needs: `nearhop manifests` prints this list, and a test
//! compares it with the requests that the controller sends.

use nearhop_api::rbac::Rule;

/// Permissions in the whole cluster.
pub const CLUSTER_RULES: &[Rule] = &[
    Rule::new("", "namespaces", &["list", "watch"]),
    Rule::new("", "nodes", &["list", "watch"]),
    Rule::new("", "pods", &["list", "watch"]),
    // get: the controller reads the Service again before it deletes slices without a Service.
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
        verbs: &["create"],
        implied: &[("patch", "a repeated event is counted")],
    },
    Rule::new(
        "discovery.k8s.io",
        "endpointslices",
        &["create", "delete", "get", "list", "patch", "watch"],
    ),
    // Needed only if the feature gate PodLocator is on.
    Rule::new(
        nearhop_api::locator::GROUP,
        nearhop_core::Kind::Locator.resource(),
        &["create", "delete", "list", "patch", "watch"],
    ),
];

/// Permissions in the namespace of the lease.
pub const LEASE_RULES: &[Rule] =
    &[Rule::new("coordination.k8s.io", "leases", &["create", "get", "update"])];
