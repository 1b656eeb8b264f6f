//! Schemas of custom resources: that of their definition, with metadata.

use serde_json::{Map, Value, json};

use super::name;
use super::schemas::{Kind, Schemas, mark_kind};
use crate::resource::{Origin, Resource};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Adds the kind of a custom resource; its schema's name.
pub(super) fn add(schemas: &mut Schemas, resource: &Resource) -> String {
    let name = name::of_custom(&resource.group, &resource.version, &resource.kind);
    let mut schema = declared(resource);
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    properties["metadata"] = json!({
        "description": "Standard object's metadata.",
        "allOf": [{"$ref": name::reference(OBJECT_META)}],
    });
    mark_kind(&mut schema, &name, Kind::of(resource, &resource.kind));
    schemas.insert(name.clone(), schema.into());
    name
}

/// The `openAPIV3Schema`, or anything at all if there is none.
fn declared(resource: &Resource) -> Map<String, Value> {
    let Origin::Custom(version) = &resource.origin else { return Map::new() };
    match version.pointer("/schema/openAPIV3Schema") {
        Some(Value::Object(schema)) if schema.get("properties").is_none_or(Value::is_object) => {
            schema.clone()
        }
        _ => {
            let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            any.as_object().cloned().unwrap_or_default()
        }
    }
}
