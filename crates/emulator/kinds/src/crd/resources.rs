//! The resources that a CustomResourceDefinition defines: one for each version that is served.

use std::cmp::Reverse;
use std::sync::Arc;

use nearhop_object::structural;
use serde_json::Value;

use super::{flag, list, schema, text, versions};
use crate::{Origin, Resource, Subresource};

/// In the order of discovery.
const VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const SUB_VERBS: [&str; 3] = ["get", "patch", "update"];

/// The resources of a CustomResourceDefinition, the preferred version first. Whether it is
/// established is for the caller to ask.
pub fn resources_of(crd: &Value) -> Vec<Resource> {
    let mut served: Vec<&Value> = versions(crd).iter().filter(|v| flag(v, "served")).collect();
    served.sort_by(|a, b| preference(text(a, "/name")).cmp(&preference(text(b, "/name"))));
    served.into_iter().map(|version| resource(crd, version)).collect()
}

/// Sorts `v10`, `v2`, `v1`, `v1beta1`, `v1alpha1`, then whatever else by its name.
fn preference(version: &str) -> (u8, Reverse<u64>, Reverse<u64>, &str) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (major, rest) = rest.split_at_checked(digits)?;
        let (stage, minor) = match rest {
            "" => (0, "0"),
            beta if beta.starts_with("beta") => (1, beta.trim_start_matches("beta")),
            alpha if alpha.starts_with("alpha") => (2, alpha.trim_start_matches("alpha")),
            _ => return None,
        };
        Some((stage, Reverse(major.parse().ok()?), Reverse(minor.parse().ok()?)))
    };
    match parse() {
        Some((stage, major, minor)) => (stage, major, minor, version),
        None => (3, Reverse(0), Reverse(0), version),
    }
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
        verbs: VERBS.iter().copied().map(Box::from).collect(),
        subresources: subresources(version, kind),
        // All versions show the same objects.
        storage: format!("{plural}.{group}").into(),
        schema: schema(version).map(structural::to_schema),
        origin: Origin::Custom(Arc::new(version.clone())),
    }
}

fn subresources(version: &Value, kind: &str) -> Vec<Subresource> {
    let of_kind = |name: &str, group: &str, version: &str, kind: &str| Subresource {
        name: name.into(),
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        verbs: SUB_VERBS.iter().copied().map(Box::from).collect(),
    };
    let has = |name: &str| {
        version.pointer(&format!("/subresources/{name}")).is_some_and(Value::is_object)
    };
    let mut found = Vec::new();
    if has("status") {
        found.push(of_kind("status", "", "", kind));
    }
    if has("scale") {
        found.push(of_kind("scale", "autoscaling", "v1", "Scale"));
    }
    found
}
