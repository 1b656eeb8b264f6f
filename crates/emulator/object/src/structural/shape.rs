//! Converts a structural schema into the schema that patching, server-side apply and pruning use.
//!
//! It contains only types, how lists and maps merge, and where unknown fields are kept. It has no
//! limits on values; `validate` reads them from the structural schema.

use std::sync::Arc;

use serde_json::Value;

use super::MAX_DEPTH;
use super::keywords::Keywords;
use crate::builtin;
use crate::schema::{Field, List, ListType, Map, Presence, Schema, Shape, Struct, StructId, Types};

/// The schema of a custom resource. Its root always has `apiVersion`, `kind` and `metadata`.
pub fn to_schema(schema: &Value) -> Schema {
    let mut build = Build { types: Types::default(), metadata: None };
    let root = build.object(&Keywords::of(schema), "", Embedded::Yes, 0);
    Schema::new(Arc::new(build.types), Shape::Struct(root))
}

/// The schema of a part of a custom resource.
pub(super) fn part_to_schema(schema: &Value) -> Schema {
    let mut build = Build { types: Types::default(), metadata: None };
    let root = build.shape(schema, "", 0);
    Schema::new(Arc::new(build.types), root)
}

struct Build {
    types: Types,
    metadata: Option<Shape>,
}

/// Whether an object has its own kind and metadata.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Embedded {
    Yes,
    No,
}

impl Build {
    fn shape(&mut self, schema: &Value, path: &str, depth: usize) -> Shape {
        let keywords = Keywords::of(schema);
        if depth > MAX_DEPTH {
            return Shape::Any;
        }
        if keywords.int_or_string {
            return Shape::IntOrString;
        }
        match keywords.type_ {
            "string" => Shape::String,
            "boolean" => Shape::Bool,
            "integer" => Shape::Int64,
            "number" => Shape::Float,
            "array" => self.list(&keywords, path, depth),
            "object" => self.map_or_struct(&keywords, path, depth),
            _ => Shape::Any,
        }
    }

    fn list(&mut self, keywords: &Keywords<'_>, path: &str, depth: usize) -> Shape {
        let items = match keywords.items {
            Some(items) => self.shape(items, &format!("{path}[]"), depth + 1),
            None => Shape::Any,
        };
        let list_type = match keywords.list_type {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(keywords.map_keys().map(Box::from).collect()),
            _ => ListType::Atomic,
        };
        Shape::List(Box::new(List { items, list_type }))
    }

    fn map_or_struct(&mut self, keywords: &Keywords<'_>, path: &str, depth: usize) -> Shape {
        if keywords.embedded_resource {
            return Shape::Struct(self.object(keywords, path, Embedded::Yes, depth));
        }
        if keywords.properties.is_some_and(|fields| !fields.is_empty()) {
            return Shape::Struct(self.object(keywords, path, Embedded::No, depth));
        }
        let atomic = keywords.map_type == Some("atomic");
        match keywords.additional_properties {
            Some(Value::Bool(false)) | None if keywords.preserves() && !atomic => Shape::Any,
            Some(Value::Bool(false)) | None if !keywords.preserves() => {
                Shape::Struct(self.object(keywords, path, Embedded::No, depth))
            }
            values => {
                let values = match values.filter(|values| values.is_object()) {
                    Some(values) => self.shape(values, &format!("{path}{{}}"), depth + 1),
                    None if keywords.preserves() => Shape::Any,
                    // `additionalProperties: true` keeps the keys, but does not describe the
                    // values.
                    None => Shape::Struct(self.empty(&format!("{path}{{}}"))),
                };
                Shape::Map(Box::new(Map { values, atomic }))
            }
        }
    }

    fn object(
        &mut self,
        keywords: &Keywords<'_>,
        path: &str,
        embedded: Embedded,
        depth: usize,
    ) -> StructId {
        let mut fields: Vec<Field> = Vec::new();
        if embedded == Embedded::Yes {
            fields.push(field("apiVersion", Shape::String));
            fields.push(field("kind", Shape::String));
            fields.push(field("metadata", self.metadata()));
        }
        let is_meta = |name: &str| {
            embedded == Embedded::Yes && matches!(name, "apiVersion" | "kind" | "metadata")
        };
        for (name, schema) in keywords.properties().filter(|(name, _)| !is_meta(name)) {
            // The leading dot distinguishes these names from those of built-in structs.
            let shape = self.shape(schema, &format!("{path}.{name}"), depth + 1);
            let default = Keywords::of(schema).default.cloned();
            fields.push(Field { default, ..field(name, shape) });
        }
        let any_key = keywords.additional_properties == Some(&Value::Bool(true));
        self.types.add(Struct {
            name: path.into(),
            fields,
            atomic: keywords.map_type == Some("atomic"),
            preserve_unknown: keywords.preserves() || any_key,
        })
    }

    fn empty(&mut self, path: &str) -> StructId {
        let (atomic, preserve_unknown) = (false, false);
        self.types.add(Struct { name: path.into(), fields: Vec::new(), atomic, preserve_unknown })
    }

    fn metadata(&mut self) -> Shape {
        let types = &mut self.types;
        self.metadata.get_or_insert_with(|| metadata(types)).clone()
    }
}

/// The schema of `metadata`, the same as for built-in kinds.
fn metadata(types: &mut Types) -> Shape {
    match builtin::object_meta().node().shape() {
        Shape::Struct(id) => Shape::Struct(types.import(builtin::types(), *id)),
        other => other.clone(),
    }
}

/// A field of a custom resource: its value is kept, even if it is zero.
fn field(name: &str, shape: Shape) -> Field {
    Field::new(name, shape, Presence::OmitEmpty, true)
}
