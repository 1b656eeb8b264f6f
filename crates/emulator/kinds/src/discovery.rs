//! Discovery documents: groups, versions and resources of a [`Registry`], in the aggregated form
//! that kubectl requests, and in the older form of one document per group version.

use std::collections::BTreeSet;

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512};

use crate::resource::{Origin, Registry, Resource, SubresourceEntry};
use crate::verb::Verb;

/// The aggregated document at `/api`: the core group.
pub fn aggregated_core(registry: &Registry) -> Value {
    aggregated(registry, |group| group.is_empty())
}

/// The aggregated document at `/apis`: all other groups.
pub fn aggregated_groups(registry: &Registry) -> Value {
    aggregated(registry, |group| !group.is_empty())
}

/// The older document at `/api`; `address` is this server's `host:port`.
pub fn core_versions(registry: &Registry, address: &str) -> Value {
    let versions = registry.groups().into_iter().find(|(group, _)| group.is_empty());
    json!({
        "kind": "APIVersions",
        "versions": versions.map(|(_, versions)| versions).unwrap_or_default(),
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// The older document at `/apis`.
pub fn group_list(registry: &Registry) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| !group.is_empty());
    let groups: Vec<Value> = groups.map(|(name, versions)| group_entry(name, &versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// The older document at `/apis/<group>`.
pub fn group(registry: &Registry, group: &str) -> Option<Value> {
    let mut groups = registry.groups().into_iter();
    let (name, versions) = groups.find(|(name, _)| !name.is_empty() && *name == group)?;
    let mut entry = group_entry(name, &versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// The older document at `/api/v1` (the empty group) and `/apis/<group>/<version>`.
pub fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for resource in registry.of_version(group, version) {
        resources.push(resource_entry(registry, resource));
        resources.extend(resource.subresources.iter().map(|sub| subresource_entry(resource, sub)));
    }
    if resources.is_empty() {
        return None;
    }
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version(group, version),
        "resources": resources,
    });
    // The core group's document does not have the key.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// The document at `/`: the paths of groups, and `others`.
pub fn paths(registry: &Registry, others: &[&str]) -> Value {
    let mut paths: BTreeSet<String> = others.iter().map(|path| (*path).to_owned()).collect();
    paths.extend(["/api", "/apis", "/apis/"].map(str::to_owned));
    for (group, versions) in registry.groups() {
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        paths.extend(versions.iter().map(|version| format!("{root}/{version}")));
        paths.insert(root);
    }
    json!({"paths": paths})
}

/// The hash of a document, for `ETag` and OpenAPI addresses.
pub fn content_hash(body: &[u8]) -> String {
    Sha512::digest(body).iter().map(|byte| format!("{byte:02X}")).collect()
}

fn aggregated(registry: &Registry, wanted: impl Fn(&str) -> bool) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| wanted(group));
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| aggregated_version(registry, group, version))
                .collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_version(registry: &Registry, group: &str, version: &str) -> Value {
    let resources: Vec<Value> =
        registry.of_version(group, version).map(|resource| aggregated_resource(resource)).collect();
    json!({"version": version, "freshness": "Current", "resources": resources})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|sub| {
            let kind = response_kind(resource, &sub.group, &sub.version, &sub.kind);
            json!({"subresource": sub.name, "responseKind": kind, "verbs": sub.verbs})
        })
        .collect();
    let entry = json!({
        "resource": resource.plural,
        "responseKind": response_kind(resource, "", "", &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
        "shortNames": resource.short_names,
        "categories": resource.categories,
        "subresources": subresources,
    });
    without_empty(entry)
}

/// Built-in kinds leave group and version empty where they are the resource's own; custom ones
/// spell them out.
fn response_kind(resource: &Resource, group: &str, version: &str, kind: &str) -> Value {
    let own = resource.is_custom() && version.is_empty();
    let (group, version) =
        if own { (&*resource.group, &*resource.version) } else { (group, version) };
    json!({"group": group, "version": version, "kind": kind})
}

fn group_entry(name: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

fn resource_entry(registry: &Registry, resource: &Resource) -> Value {
    let mut entry = without_empty(json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs,
        "shortNames": resource.short_names,
        "categories": resource.categories,
    }));
    if let Some(hash) = storage_version_hash(registry, resource) {
        entry["storageVersionHash"] = hash.into();
    }
    entry
}

fn subresource_entry(resource: &Resource, sub: &SubresourceEntry) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.plural, sub.name),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": sub.kind,
        "verbs": sub.verbs,
    });
    let own = sub.group == resource.group && sub.version == resource.version;
    if !sub.version.is_empty() && !own {
        entry["group"] = json!(sub.group);
        entry["version"] = json!(sub.version);
    }
    entry
}

/// A hash of the storage version. Resources that store nothing have none.
fn storage_version_hash(registry: &Registry, resource: &Resource) -> Option<String> {
    if !resource.verbs.contains(&Verb::Watch) {
        return None;
    }
    let stored = match resource.origin {
        // `group/version`, also for the core group, which makes it `/v1`.
        Origin::BuiltIn => match resource.strategy.storage_version {
            Some(version) => version.to_owned(),
            None => format!("{}/{}", resource.group, resource.version),
        },
        Origin::Custom(_) => custom_storage_version(registry, resource)?,
    };
    let digest = Sha256::digest(format!("{stored}/{}", resource.kind));
    let head: Vec<u8> = digest.iter().copied().take(8).collect();
    Some(base64::engine::general_purpose::STANDARD.encode(head))
}

fn custom_storage_version(registry: &Registry, resource: &Resource) -> Option<String> {
    let mut same = registry.resources().iter().filter(|r| r.storage == resource.storage);
    let stored = same.find(|r| match &r.origin {
        Origin::Custom(version) => version["storage"] == true,
        Origin::BuiltIn => false,
    })?;
    Some(format!("{}/{}", stored.group, stored.version))
}

/// Drops optional lists that are empty.
fn without_empty(mut entry: Value) -> Value {
    for key in ["shortNames", "categories", "subresources"] {
        if entry.get(key).is_some_and(|list| *list == json!([])) {
            crate::json::object(&mut entry).remove(key);
        }
    }
    entry
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
