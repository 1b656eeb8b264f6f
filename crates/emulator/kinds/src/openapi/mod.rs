//! OpenAPI documents of a [`Registry`]: version 3 per group version, and one of version 2 (Swagger).
//! kubectl reads merge keys, `explain` texts and support for `fieldValidation`. Protobuf forms are
//! not supported; clients fall back to JSON.

mod custom;
mod describe;
mod facts;
mod name;
mod operations;
mod parameters;
mod schemas;
mod swagger;

use std::sync::LazyLock;

use nearhop_object::builtin;
use serde_json::{Map, Value, json};

use crate::discovery::content_hash;
use crate::resource::{Origin, Registry, Resource, SubresourceEntry};
use crate::verb::Verb;
use operations::Bodies;
use schemas::{Kind, Schemas};

pub use swagger::swagger;

const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// The index at `/openapi/v3`: where the document of each group version is.
pub fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for (group, versions) in registry.groups() {
        for version in versions {
            let path = path(group, version);
            let hash = document_hash(registry, group, version);
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// The `hash` of a document's address and its `ETag`: a hash of its sources, so that the index does
/// not make all documents.
pub fn document_hash(registry: &Registry, group: &str, version: &str) -> String {
    static FACTS: LazyLock<String> = LazyLock::new(|| content_hash(facts::source().as_bytes()));
    let mut source = format!("{} {} {group}/{version} ", env!("CARGO_PKG_VERSION"), *FACTS);
    for resource in registry.of_version(group, version) {
        if let Origin::Custom(version) = &resource.origin {
            source += &format!("{} {} {version} ", resource.kind, resource.plural);
        }
    }
    content_hash(source.as_bytes())
}

/// The document of a group version, or `None` if it is not served.
pub fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut parts = Parts::default();
    for resource in registry.of_version(group, version) {
        parts.add(resource);
    }
    let custom = registry.of_version(group, version).next()?.is_custom();
    let (title, info_version) =
        if custom { ("Kubernetes CRD Swagger", "v0.1.0") } else { ("Kubernetes", "1.36") };
    let token = json!({"type": "apiKey", "in": "header", "name": "authorization",
        "description": "Bearer token"});
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": title, "version": info_version},
        "paths": parts.paths,
        "components": {"schemas": parts.schemas.into_map(), "securitySchemes": {"BearerToken": token}},
    }))
}

fn path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// What a document consists of.
#[derive(Default)]
struct Parts {
    paths: Map<String, Value>,
    schemas: Schemas,
}

impl Parts {
    fn add(&mut self, resource: &Resource) {
        self.add_shared(resource);
        let object = match (&resource.origin, &resource.schema) {
            (Origin::BuiltIn, Some(schema)) => {
                self.schemas.add_kind(schema, Kind::of(resource, &resource.kind))
            }
            _ => custom::add(&mut self.schemas, resource),
        };
        let package = object.strip_suffix(&*resource.kind).unwrap_or_default();
        let list = format!("{package}{}", resource.list_kind);
        if resource.verbs.contains(&Verb::List) {
            self.schemas.insert(list.clone(), list_schema(resource, &object, &list));
        }
        for sub in resource.subresources.iter().filter(|sub| operations::is_object(sub)) {
            self.add_subresource(resource, sub);
        }
        let bodies = Bodies { object, list };
        let names = |sub: &SubresourceEntry| subresource_schema(resource, sub, &bodies.object);
        self.paths.extend(operations::paths(resource, &bodies, names));
    }

    /// Adds the schemas that the operations of a resource refer to besides its own kind.
    fn add_shared(&mut self, resource: &Resource) {
        let has = |verb: Verb| resource.verbs.contains(&verb);
        if let Some(schema) = builtin::schema("meta.v1.ObjectMeta") {
            self.schemas.add(schema.node());
        }
        if has(Verb::List)
            && let Some(schema) = builtin::schema("meta.v1.ListMeta")
        {
            self.schemas.add(schema.node());
        }
        if has(Verb::Patch) {
            self.schemas.add_special(PATCH);
        }
        let core = Kind { group: "", version: "v1", kind: "Status" };
        if has(Verb::Delete)
            && let (Some(status), Some(options)) =
                (builtin::schema("meta.v1.Status"), builtin::schema("meta.v1.DeleteOptions"))
        {
            self.schemas.add_kind(&status, core);
            let name = self.schemas.add_kind(&options, Kind { kind: "DeleteOptions", ..core });
            // These are of every group.
            self.schemas.also_kind(&name, Kind::of(resource, "DeleteOptions"));
        }
    }

    fn add_subresource(&mut self, resource: &Resource, sub: &SubresourceEntry) {
        let (group, version) = gv_of(resource, sub);
        if let Some(schema) = builtin::schema_of(group, version, &sub.kind)
            && !(resource.is_custom() && sub.kind == resource.kind)
        {
            self.schemas.add_kind(&schema, Kind { group, version, kind: &sub.kind });
        }
    }
}

fn gv_of<'a>(resource: &'a Resource, sub: &'a SubresourceEntry) -> (&'a str, &'a str) {
    if sub.version.is_empty() {
        (&resource.group, &resource.version)
    } else {
        (&sub.group, &sub.version)
    }
}

fn subresource_schema(resource: &Resource, sub: &SubresourceEntry, own: &str) -> String {
    if sub.kind == resource.kind {
        return own.to_owned();
    }
    let (group, version) = gv_of(resource, sub);
    let schema = builtin::schema_of(group, version, &sub.kind);
    let shape = schema.as_ref().and_then(|schema| schema.node().as_struct());
    shape.map_or_else(|| own.to_owned(), |shape| name::of_struct(&shape.name))
}

fn list_schema(resource: &Resource, object: &str, list: &str) -> Value {
    let mut items = json!({"$ref": name::reference(object)});
    let mut metadata = json!({"allOf": [{"$ref": name::reference(LIST_META)}],
        "description": "Standard metadata of a list."});
    // Typed lists have defaults, those of custom resources do not.
    if !resource.is_custom() {
        items = json!({"default": {}, "allOf": [items]});
        metadata["default"] = json!({});
    }
    let items = json!({"type": "array", "items": items, "description": "The objects."});
    let mut schema = schemas::object([
        ("type", "object".into()),
        ("description", format!("A list of {} objects.", resource.kind).into()),
        ("required", json!(["items"])),
        ("properties", json!({"items": items, "metadata": metadata})),
    ]);
    schemas::mark_kind(&mut schema, list, Kind::of(resource, &resource.list_kind));
    schema.into()
}
