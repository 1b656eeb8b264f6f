//! The resources that a CustomResourceDefinition defines: one for each version that is served.

use std::sync::Arc;

use nearhop_object::structural;
use serde_json::Value;

use super::{flag, list, schema, text, versions};
use crate::resource::compare_versions;
use crate::strategy::CUSTOM;
use crate::table::Columns;
use crate::{Origin, Resource, Subresource, SubresourceEntry, Verb};

/// In the order of discovery.
const VERBS: [Verb; 8] = [
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Create,
    Verb::Update,
    Verb::Watch,
];
const SUB_VERBS: [Verb; 3] = [Verb::Get, Verb::Patch, Verb::Update];

/// The resources of a CustomResourceDefinition, the preferred version first.
pub fn resources_of(crd: &Value) -> Vec<Resource> {
    let mut served: Vec<&Value> = versions(crd).iter().filter(|v| flag(v, "served")).collect();
    served.sort_by(|a, b| compare_versions(text(a, "/name"), text(b, "/name")));
    served.into_iter().map(|version| resource(crd, version)).collect()
}

fn resource(crd: &Value, version: &Value) -> Resource {
    let group = text(crd, "/spec/group");
    let accepted = crd.pointer("/status/acceptedNames").filter(|n| !text(n, "/plural").is_empty());
    let names = accepted.or_else(|| crd.pointer("/spec/names")).unwrap_or(&Value::Null);
    let plural = text(names, "/plural");
    let kind = text(names, "/kind");
    let boxed = |all: &[Value]| all.iter().filter_map(Value::as_str).map(Box::from).collect();
    Resource {
        group: group.into(),
        version: text(version, "/name").into(),
        kind: kind.into(),
        plural: plural.into(),
        singular: text(names, "/singular").into(),
        list_kind: text(names, "/listKind").into(),
        short_names: boxed(list(names, "/shortNames")),
        categories: boxed(list(names, "/categories")),
        namespaced: text(crd, "/spec/scope") != "Cluster",
        verbs: VERBS.to_vec(),
        subresources: subresources(version, kind),
        // All versions show the same objects.
        storage: format!("{plural}.{group}").into(),
        schema: schema(version).map(structural::to_schema),
        origin: Origin::Custom(Arc::new(version.clone())),
        strategy: &CUSTOM,
        columns: Columns::Custom(super::columns(version)),
    }
}

fn subresources(version: &Value, kind: &str) -> Vec<SubresourceEntry> {
    let entry = |name: Subresource, group: &str, version: &str, kind: &str| SubresourceEntry {
        name,
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        verbs: SUB_VERBS.to_vec(),
    };
    let has = |name: Subresource| {
        version.pointer(&format!("/subresources/{name}")).is_some_and(Value::is_object)
    };
    let mut found = Vec::new();
    if has(Subresource::Status) {
        found.push(entry(Subresource::Status, "", "", kind));
    }
    if has(Subresource::Scale) {
        found.push(entry(Subresource::Scale, "autoscaling", "v1", "Scale"));
    }
    found
}
