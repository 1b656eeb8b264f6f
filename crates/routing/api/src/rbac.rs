//! Rights in a cluster, as values: manifests are printed from them, and tests compare them with
//! what is really asked for.

/// Rights on one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// Verbs that requests have.
    pub verbs: &'static [&'static str],
    /// Verbs that no request has, and that the server asks for all the same, with the reason.
    pub implied: &'static [(&'static str, &'static str)],
}

impl Rule {
    /// Rights that requests use as they are.
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
