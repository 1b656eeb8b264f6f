//! The resources that are served: built-in ones from a table of facts, custom ones from their
//! definitions.

use std::cmp::Ordering;
use std::sync::Arc;

use nearhop_object::Schema;
use serde_json::Value;

use crate::strategy::Strategy;
use crate::table::Columns;
use crate::verb::{Subresource, Verb};

/// A resource: one row of discovery, with the shape of its objects.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: Box<str>,
    /// `v1`.
    pub version: Box<str>,
    /// `Service`.
    pub kind: Box<str>,
    /// `services`.
    pub plural: Box<str>,
    /// `service`.
    pub singular: Box<str>,
    /// `ServiceList`.
    pub list_kind: Box<str>,
    /// `svc`.
    pub short_names: Vec<Box<str>>,
    /// `all`.
    pub categories: Vec<Box<str>>,
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
    /// In the order of discovery.
    pub verbs: Vec<Verb>,
    /// In the order of discovery.
    pub subresources: Vec<SubresourceEntry>,
    /// Where its objects are stored: resources that show the same objects share it
    /// (`events` and `events.k8s.io`).
    pub storage: Box<str>,
    /// The shape of its objects. `None` keeps objects as they come.
    pub schema: Option<Schema>,
    /// Where it comes from.
    pub origin: Origin,
    /// How its objects are written.
    pub strategy: &'static Strategy,
    /// How its objects are shown as a Table.
    pub(crate) columns: Columns,
}

/// A subresource of a resource: one row of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubresourceEntry {
    /// Which one.
    pub name: Subresource,
    /// `autoscaling`; empty: as the resource's.
    pub group: Box<str>,
    /// `v1`; empty: as the resource's.
    pub version: Box<str>,
    /// `Scale`.
    pub kind: Box<str>,
    /// In the order of discovery.
    pub verbs: Vec<Verb>,
}

/// Where a resource comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Kubernetes itself.
    BuiltIn,
    /// A CustomResourceDefinition; its `spec.versions[]` entry that this resource is.
    Custom(Arc<Value>),
}

impl Resource {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `services`, `deployments.apps`.
    pub fn qualified_plural(&self) -> String {
        self.qualified(&self.plural)
    }

    /// `Service`, `Deployment.apps`.
    pub fn qualified_kind(&self) -> String {
        self.qualified(&self.kind)
    }

    fn qualified(&self, name: &str) -> String {
        if self.group.is_empty() { name.to_owned() } else { format!("{name}.{}", self.group) }
    }

    /// The entry of a subresource.
    pub fn subresource(&self, name: Subresource) -> Option<&SubresourceEntry> {
        self.subresources.iter().find(|sub| sub.name == name)
    }

    /// Whether it has a subresource.
    pub fn has(&self, subresource: Subresource) -> bool {
        self.subresource(subresource).is_some()
    }

    /// Whether it comes from a CustomResourceDefinition.
    pub fn is_custom(&self) -> bool {
        matches!(self.origin, Origin::Custom(_))
    }
}

/// All resources, in the order of discovery (which is the order of preference).
#[derive(Clone, Debug, Default)]
pub struct Registry {
    resources: Vec<Arc<Resource>>,
    /// Places in `resources`, sorted by group, version and plural: `find` runs on every request.
    by_path: Vec<usize>,
}

impl Registry {
    /// A registry of these resources. Of two with the same path the first is found.
    pub fn new(resources: Vec<Arc<Resource>>) -> Self {
        let mut by_path: Vec<usize> = (0..resources.len()).collect();
        by_path.sort_by(|&a, &b| path(&resources[a]).cmp(&path(&resources[b])));
        by_path.dedup_by(|b, a| path(&resources[*a]) == path(&resources[*b]));
        Self { resources, by_path }
    }

    /// The built-in resources, then these custom ones: groups by name, versions by preference.
    pub fn with_custom(&self, mut custom: Vec<Arc<Resource>>) -> Self {
        custom.sort_by(|a, b| {
            let groups = a.group.cmp(&b.group);
            let versions = || compare_versions(&a.version, &b.version);
            groups.then_with(versions).then_with(|| a.plural.cmp(&b.plural))
        });
        let built_in = self.resources.iter().filter(|r| !r.is_custom()).cloned();
        Self::new(built_in.chain(custom).collect())
    }

    /// All of them.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// The resource at a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let wanted = (group, version, plural);
        let found = self.by_path.binary_search_by(|&at| path(&self.resources[at]).cmp(&wanted));
        found.ok().map(|at| &self.resources[self.by_path[at]])
    }

    /// The first resource whose objects are in a storage.
    pub fn of_storage(&self, storage: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|resource| &*resource.storage == storage)
    }

    /// Whether a group is served, in any version.
    pub fn has_group(&self, group: &str) -> bool {
        let at = self.by_path.partition_point(|&at| &*self.resources[at].group < group);
        self.by_path.get(at).is_some_and(|&at| &*self.resources[at].group == group)
    }

    /// The resources of one group version, in the order of discovery.
    pub(crate) fn of_version<'a, 'b>(
        &'a self,
        group: &'b str,
        version: &'b str,
    ) -> impl Iterator<Item = &'a Arc<Resource>> + use<'a, 'b> {
        self.resources.iter().filter(move |r| &*r.group == group && &*r.version == version)
    }

    /// All groups with their versions, both in the order of preference. The core group is the
    /// empty one.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for resource in &self.resources {
            let (group, version) = (&*resource.group, &*resource.version);
            match groups.iter_mut().find(|(name, _)| *name == group) {
                Some((_, versions)) if versions.contains(&version) => {}
                Some((_, versions)) => versions.push(version),
                None => groups.push((group, vec![version])),
            }
        }
        groups
    }
}

fn path(resource: &Resource) -> (&str, &str, &str) {
    (&resource.group, &resource.version, &resource.plural)
}

/// The order of preference: `v2`, `v1`, `v2beta1`, `v1alpha1`, then other names.
pub(crate) fn compare_versions(a: &str, b: &str) -> Ordering {
    match (version_rank(a), version_rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (2 stable, 1 beta, 0 alpha), then the two numbers of `v1beta2`.
fn version_rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let (stability, major, minor) = match (rest.split_once("alpha"), rest.split_once("beta")) {
        (Some((major, minor)), _) => (0, major, Some(minor)),
        (None, Some((major, minor))) => (1, major, Some(minor)),
        (None, None) => (2, rest, None),
    };
    let number = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    Some((stability, number(major)?, minor.map_or(Some(0), number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(group: &str, version: &str, plural: &str) -> Arc<Resource> {
        let registry = crate::builtin::registry();
        let pods = registry.find("", "v1", "pods").expect("the kind is built in");
        Arc::new(Resource {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            origin: Origin::Custom(Arc::new(Value::Null)),
            ..(**pods).clone()
        })
    }

    #[test]
    fn custom_resources_come_last_and_in_order_of_preference() {
        let registry = crate::builtin::registry();
        let with = registry.with_custom(vec![
            custom("z.example", "v1beta1", "b"),
            custom("a.example", "v1", "c"),
            custom("z.example", "v1", "b"),
            custom("z.example", "v1", "a"),
        ]);
        let tail: Vec<_> =
            with.resources().iter().filter(|r| r.is_custom()).map(|r| path(r)).collect();
        let expected = [
            ("a.example", "v1", "c"),
            ("z.example", "v1", "a"),
            ("z.example", "v1", "b"),
            ("z.example", "v1beta1", "b"),
        ];
        assert_eq!(tail, expected);
        assert_eq!(with.groups().last(), Some(&("z.example", vec!["v1", "v1beta1"])));
        assert!(with.has_group("z.example") && !registry.has_group("z.example"));
        let served = |version| with.of_version("z.example", version).count();
        assert_eq!((served("v1"), served("v1beta1"), served("v2")), (2, 1, 0));
        let again = with.with_custom(Vec::new());
        assert_eq!(again.resources().len(), registry.resources().len());
    }

    #[test]
    fn versions_are_preferred_by_stability_then_number() {
        let mut versions =
            ["foo", "v1alpha1", "v10", "v2beta1", "v1", "bar", "v11beta2", "v01", "v2"];
        versions.sort_by(|a, b| compare_versions(a, b));
        let expected = ["v10", "v2", "v1", "v11beta2", "v2beta1", "v1alpha1", "bar", "foo", "v01"];
        assert_eq!(versions, expected);
    }
}
