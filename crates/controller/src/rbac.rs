//! What the controller must be allowed to do: the one list that manifests are printed from and
//! that a test compares with what it really does.

/// Rights on one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// Verbs that requests of the controller have.
    pub verbs: &'static [&'static str],
    /// Verbs that no request has, and that the server asks for all the same, with the reason.
    pub implied: &'static [(&'static str, &'static str)],
}

const fn rule(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Rule {
    Rule { group, resource, verbs, implied: &[] }
}

/// Rights in the whole cluster.
pub const CLUSTER_RULES: &[Rule] = &[
    rule("", "namespaces", &["list", "watch"]),
    rule("", "nodes", &["list", "watch"]),
    rule("", "pods", &["list", "watch"]),
    // get: before slices without a Service are deleted, the server is asked for the Service.
    rule("", "services", &["get", "list", "watch"]),
    rule("", "services/status", &["patch"]),
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
    rule(
        "discovery.k8s.io",
        "endpointslices",
        &["create", "delete", "get", "list", "patch", "watch"],
    ),
];

/// Rights in the namespace of the lease.
pub const LEASE_RULES: &[Rule] =
    &[rule("coordination.k8s.io", "leases", &["create", "get", "update"])];

impl Rule {
    /// All verbs to grant, sorted.
    pub fn granted(&self) -> Vec<&'static str> {
        let mut verbs = self.verbs.to_vec();
        verbs.extend(self.implied.iter().map(|(verb, _)| *verb));
        verbs.sort_unstable();
        verbs
    }
}
