//! The resources that Kubernetes serves by default, from `facts/resources.txt`.

use std::sync::{Arc, LazyLock};

use nearhop_object::Schema;
use nearhop_object::builtin::schema_of;

use crate::resource::{Origin, Registry, Resource, SubresourceEntry};
use crate::service;
use crate::strategy::{Strategy, strategy_of};
use crate::table::Columns;
use crate::verb::{Subresource, Verb};

static FACTS: &str = include_str!("facts/resources.txt");

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let resources = parse(FACTS).expect("facts/resources.txt is part of the build and tested");
    Registry::new(resources.into_iter().map(Arc::new).collect())
});

/// All built-in resources.
pub fn registry() -> &'static Registry {
    &REGISTRY
}

fn parse(text: &str) -> Result<Vec<Resource>, String> {
    let mut resources = Vec::new();
    let (mut group, mut version) = ("", "");
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            None | Some("#") => {}
            Some("in") => {
                group = words.next().filter(|group| *group != "-").unwrap_or_default();
                version = words.next().ok_or_else(|| format!("no version: {line}"))?;
            }
            Some(plural) => {
                let row = parse_resource(group, version, plural, words);
                resources.push(row.ok_or_else(|| format!("cannot be read: {line}"))?);
            }
        }
    }
    Ok(resources)
}

fn parse_resource<'a>(
    group: &str,
    version: &str,
    plural: &str,
    mut words: impl Iterator<Item = &'a str>,
) -> Option<Resource> {
    let kind = words.next()?;
    let namespaced = match words.next()? {
        "namespaced" => true,
        "cluster" => false,
        _ => return None,
    };
    let api_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let strategy = strategy_of(&api_version, kind);
    let mut resource = Resource {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        plural: plural.into(),
        singular: kind.to_lowercase().into(),
        list_kind: format!("{kind}List").into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: verbs("create,delete,deletecollection,get,list,patch,update,watch")?,
        subresources: Vec::new(),
        storage: storage(group, plural, strategy),
        schema: extended_schema(group, version, kind),
        origin: Origin::BuiltIn,
        strategy,
        columns: Columns::of_kind(group, kind),
    };
    for word in words {
        match word.split_once('=')? {
            ("verbs", list) => resource.verbs = verbs(list)?,
            ("short", names) => resource.short_names = split(names),
            ("categories", names) => resource.categories = split(names),
            ("sub", text) => resource.subresources.push(parse_subresource(kind, text)?),
            _ => return None,
        }
    }
    Some(resource)
}

/// Kubernetes' schema; a Service has nearhop's own fields, too.
fn extended_schema(group: &str, version: &str, kind: &str) -> Option<Schema> {
    match (group, kind) {
        ("", "Service") => Some(service::schema()),
        _ => schema_of(group, version, kind),
    }
}

/// `NAME[:[GROUP/VERSION/]KIND][:VERBS]`.
fn parse_subresource(own_kind: &str, text: &str) -> Option<SubresourceEntry> {
    let mut parts = text.split(':');
    let name = Subresource::parse(parts.next()?)?;
    let kind = parts.next().filter(|kind| !kind.is_empty()).unwrap_or(own_kind);
    let verbs = verbs(parts.next().unwrap_or("get,patch,update"))?;
    let mut path = kind.rsplitn(3, '/');
    let kind = path.next().unwrap_or_default();
    let version = path.next().unwrap_or_default();
    let group = path.next().unwrap_or_default();
    Some(SubresourceEntry {
        name,
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        verbs,
    })
}

/// All versions of a group share a storage; so do resources that show the same objects.
fn storage(group: &str, plural: &str, strategy: &Strategy) -> Box<str> {
    match strategy.stored_form {
        Some(form) => form.storage.into(),
        None if group.is_empty() => plural.into(),
        None => format!("{plural}.{group}").into(),
    }
}

fn verbs(text: &str) -> Option<Vec<Verb>> {
    text.split(',').map(Verb::parse).collect()
}

fn split(text: &str) -> Vec<Box<str>> {
    text.split(',').map(Box::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_parsed_and_can_be_found() {
        let registry = registry();
        assert_eq!(registry.resources().len(), 68);
        for resource in registry.resources() {
            let found = registry.find(&resource.group, &resource.version, &resource.plural);
            assert!(found.is_some_and(|found| Arc::ptr_eq(found, resource)), "{resource:?}");
            let of_version = registry.of_version(&resource.group, &resource.version);
            let of_kind = of_version.filter(|other| other.kind == resource.kind).count();
            assert_eq!(of_kind, 1, "{resource:?}");
        }
        assert!(registry.resources().iter().all(|resource| resource.schema.is_some()));
        assert!(registry.find("", "v2", "services").is_none());
        assert!(registry.find("nope", "v1", "services").is_none());
    }

    #[test]
    fn the_columns_of_a_row_are_parsed() {
        let registry = registry();
        let pods = registry.find("", "v1", "pods").expect("pods are built in");
        assert_eq!((&*pods.kind, &*pods.singular, &*pods.list_kind), ("Pod", "pod", "PodList"));
        assert!(pods.namespaced && pods.verbs.len() == 8 && pods.subresources.len() == 10);
        let eviction = pods.subresource(Subresource::Eviction).expect("pods have this subresource");
        assert_eq!(
            (&*eviction.group, &*eviction.version, &*eviction.kind),
            ("policy", "v1", "Eviction")
        );
        let log = pods.subresource(Subresource::Log).expect("pods have this subresource");
        assert_eq!((&*log.group, &*log.kind, log.verbs.len()), ("", "Pod", 1));
        let deployments = registry.find("apps", "v1", "deployments").expect("the kind is built in");
        assert_eq!(deployments.qualified_plural(), "deployments.apps");
        assert_eq!(&*deployments.short_names, &[Box::from("deploy")]);
    }

    #[test]
    fn resources_with_the_same_objects_share_their_storage() {
        let registry = registry();
        let storage = |group, version, plural| {
            &*registry.find(group, version, plural).expect("the kind is built in").storage
        };
        assert_eq!(storage("", "v1", "events"), storage("events.k8s.io", "v1", "events"));
        let hpa = "horizontalpodautoscalers";
        assert_eq!(storage("autoscaling", "v1", hpa), storage("autoscaling", "v2", hpa));
        assert_eq!(storage("", "v1", "services"), "services");
        assert_eq!(storage("apps", "v1", "deployments"), "deployments.apps");
    }
}
