//! RBAC rules as values: manifests are printed from them, and tests compare them with the requests
//! that nearhop sends.

/// Permissions on one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// Verbs of the requests that nearhop sends.
    pub verbs: &'static [&'static str],
    /// Verbs that nearhop does not send but that the server requires, each with the reason.
    pub implied: &'static [(&'static str, &'static str)],
}

impl Rule {
    /// A rule without implied verbs.
    pub const fn new(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self { group, resource, verbs, implied: &[] }
    }

    /// All verbs to grant, sorted.
    pub fn granted(&self) -> Vec<&'static str> {
        let mut verbs = self.verbs.to_vec();
        verbs.extend(self.implied.iter().map(|(verb, _)| *verb));
        verbs.sort_unstable();
        verbs
    }
}
