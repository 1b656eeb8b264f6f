//! `components.schemas`: the schemas of built-in structs, with all that they refer to.

use nearhop_object::schema::{Field, Presence, Struct};
use nearhop_object::{ListType, Node, Schema, Shape};
use serde_json::{Map, Value, json};

use super::facts::facts;
use super::{describe, name};
use crate::resource::Resource;

const GVK: &str = "x-kubernetes-group-version-kind";

/// Schemas by name.
#[derive(Default)]
pub(super) struct Schemas {
    done: Map<String, Value>,
}

/// The kind of a struct that has `kind` and `apiVersion`.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
}

impl<'a> Kind<'a> {
    /// A kind in the group version of a resource.
    pub(super) fn of(resource: &'a Resource, kind: &'a str) -> Self {
        Self { group: &resource.group, version: &resource.version, kind }
    }

    fn value(self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// The position of a type, which decides whether its zero value is its default.
#[derive(Clone, Copy)]
enum Place {
    /// A field; `always` written or not, a pointer or not.
    Field { always: bool, pointer: bool },
    /// In a list or a map.
    Item,
}

impl Schemas {
    /// All of them.
    pub(super) fn into_map(self) -> Map<String, Value> {
        self.done
    }

    /// Adds a schema that is already written.
    pub(super) fn insert(&mut self, name: String, schema: Value) {
        self.done.insert(name, schema);
    }

    /// Adds a kind with all that it refers to; its schema's name.
    pub(super) fn add_kind(&mut self, schema: &Schema, kind: Kind<'_>) -> String {
        let Some(shape) = schema.node().as_struct() else { return String::new() };
        let name = name::of_struct(&shape.name);
        self.add(schema.node());
        if let Some(Value::Object(entry)) = self.done.get_mut(&name) {
            mark_kind(entry, &name, kind);
        }
        name
    }

    /// Adds another kind to a schema.
    pub(super) fn also_kind(&mut self, name: &str, kind: Kind<'_>) {
        let kinds = self.done.get_mut(name).and_then(|schema| schema.get_mut(GVK));
        if let Some(kinds) = kinds.and_then(Value::as_array_mut)
            && !kinds.contains(&kind.value())
        {
            kinds.push(kind.value());
        }
    }

    /// Adds a struct with all that it refers to.
    pub(super) fn add(&mut self, root: Node<'_>) {
        let mut waiting = vec![root];
        while let Some(node) = waiting.pop() {
            let Some(shape) = node.as_struct() else { continue };
            let name = name::of_struct(&shape.name);
            if !self.done.contains_key(&name) {
                let schema = self.object(node, shape, &name, &mut waiting);
                self.done.insert(name, schema);
            }
        }
    }

    fn object<'a>(
        &mut self,
        node: Node<'a>,
        shape: &Struct,
        name: &str,
        waiting: &mut Vec<Node<'a>>,
    ) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &shape.fields {
            let Some(place) = node.child(&field.name) else { continue };
            let key = format!("{}.{}", shape.name, field.name);
            properties
                .insert(field.name.to_string(), self.property(place, field, &key, name, waiting));
            let always = field.presence == Presence::Always && !facts().optional.contains(&*key);
            if always || facts().required.contains(&*key) {
                required.push(field.name.to_string());
            }
        }
        let mut schema = Map::new();
        schema.insert("type".to_owned(), "object".into());
        insert_text(&mut schema, describe::of_schema(name));
        if !properties.is_empty() {
            schema.insert("properties".to_owned(), properties.into());
        }
        if !required.is_empty() {
            schema.insert("required".to_owned(), required.into());
        }
        if shape.atomic {
            schema.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
        }
        schema.extend(facts().also.get(&*shape.name).cloned().unwrap_or_default());
        schema.into()
    }

    fn property<'a>(
        &mut self,
        node: Node<'a>,
        field: &Field,
        key: &str,
        owner: &str,
        waiting: &mut Vec<Node<'a>>,
    ) -> Value {
        let place =
            Place::Field { always: field.presence == Presence::Always, pointer: field.pointer };
        let mut schema = self.shape(node, place, key, waiting);
        if let Some(default) = &field.default {
            schema.insert("default".to_owned(), default.clone());
        }
        if let Some(key) = &field.merge_key {
            schema.insert("x-kubernetes-patch-merge-key".to_owned(), (**key).into());
        }
        let strategy = match (field.merge, field.retain_keys) {
            (true, true) => Some("merge,retainKeys"),
            (true, false) => Some("merge"),
            (false, true) => Some("retainKeys"),
            (false, false) => None,
        };
        if let Some(strategy) = strategy {
            schema.insert("x-kubernetes-patch-strategy".to_owned(), strategy.into());
        }
        let own = facts().about.get(key).copied();
        insert_text(&mut schema, describe::of_field(owner, &field.name).or(own));
        schema.extend(facts().also.get(key).cloned().unwrap_or_default());
        beside_reference(schema)
    }

    fn shape<'a>(
        &mut self,
        node: Node<'a>,
        place: Place,
        key: &str,
        waiting: &mut Vec<Node<'a>>,
    ) -> Map<String, Value> {
        let simple = |kind: &str, format: &str, zero: Value| scalar(kind, format, zero, place);
        match node.shape() {
            Shape::String | Shape::Duration => {
                let mut schema = simple("string", "", "".into());
                if let Some(values) = facts().enums.get(key) {
                    schema.insert("enum".to_owned(), json!(values));
                }
                schema
            }
            Shape::Bool => simple("boolean", "", false.into()),
            Shape::Int32 => simple("integer", "int32", 0.into()),
            Shape::Int64 => simple("integer", "int64", 0.into()),
            Shape::Float => simple("number", "double", 0.into()),
            Shape::Bytes => simple("string", "byte", Value::Null),
            Shape::Time => self.special("io.k8s.apimachinery.pkg.apis.meta.v1.Time"),
            Shape::MicroTime => self.special("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime"),
            Shape::Quantity => self.special("io.k8s.apimachinery.pkg.api.resource.Quantity"),
            Shape::IntOrString => self.special("io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
            Shape::Any => {
                let raw = "io.k8s.apimachinery.pkg.runtime.RawExtension";
                self.special(facts().refs.get(key).copied().unwrap_or(raw))
            }
            Shape::Struct(_) => struct_reference(node, place, waiting),
            Shape::List(list) => {
                let items = node.items().map(|items| self.item(items, key, waiting));
                let mut schema =
                    object([("type", "array".into()), ("items", items.unwrap_or_default())]);
                insert_list_type(&mut schema, &list.list_type, place);
                schema
            }
            Shape::Map(map) => {
                // Any key names the values.
                let values = node.child("").map(|values| self.item(values, key, waiting));
                let values = values.unwrap_or_default();
                let mut schema =
                    object([("type", "object".into()), ("additionalProperties", values)]);
                if map.atomic {
                    schema.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
                }
                schema
            }
        }
    }

    fn item<'a>(&mut self, node: Node<'a>, key: &str, waiting: &mut Vec<Node<'a>>) -> Value {
        let schema = self.shape(node, Place::Item, key, waiting);
        beside_reference(schema)
    }

    /// A reference to a type that is not a struct.
    fn special(&mut self, name: &str) -> Map<String, Value> {
        if !self.done.contains_key(name) {
            self.done.insert(name.to_owned(), special(name));
        }
        object([("$ref", name::reference(name).into())])
    }

    /// Adds a type that is not a struct.
    pub(super) fn add_special(&mut self, name: &str) {
        self.special(name);
    }
}

/// `kind` and `apiVersion`, and which kind it is.
pub(super) fn mark_kind(schema: &mut Map<String, Value>, name: &str, kind: Kind<'_>) {
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    for (field, own) in
        [("apiVersion", "Version of the schema of this object."), ("kind", "Kind of this object.")]
    {
        let text = describe::of_field(name, field).unwrap_or(own);
        properties[field] = json!({"type": "string", "description": text});
    }
    schema.entry(GVK).or_insert_with(|| json!([kind.value()]));
}

fn struct_reference<'a>(
    node: Node<'a>,
    place: Place,
    waiting: &mut Vec<Node<'a>>,
) -> Map<String, Value> {
    let Some(shape) = node.as_struct() else { return Map::new() };
    waiting.push(node);
    let mut schema = object([("$ref", name::reference(&name::of_struct(&shape.name)).into())]);
    if !matches!(place, Place::Field { pointer: true, .. }) {
        schema.insert("default".to_owned(), json!({}));
    }
    schema
}

fn scalar(kind: &str, format: &str, zero: Value, place: Place) -> Map<String, Value> {
    let mut schema = object([("type", kind.into())]);
    if !format.is_empty() {
        schema.insert("format".to_owned(), format.into());
    }
    let defaulted = match place {
        Place::Item => true,
        Place::Field { always, pointer } => always && !pointer,
    };
    if defaulted && !zero.is_null() {
        schema.insert("default".to_owned(), zero);
    }
    schema
}

/// Nested lists have no list type.
fn insert_list_type(schema: &mut Map<String, Value>, list_type: &ListType, place: Place) {
    let text = match list_type {
        _ if matches!(place, Place::Item) => return,
        ListType::Atomic => "atomic",
        ListType::Set => "set",
        ListType::Map(keys) => {
            schema.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
            "map"
        }
    };
    schema.insert("x-kubernetes-list-type".to_owned(), text.into());
}

/// A `$ref` with sibling keys is wrapped in `allOf`.
fn beside_reference(mut schema: Map<String, Value>) -> Value {
    if schema.len() > 1
        && let Some(reference) = schema.remove("$ref")
    {
        schema.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
    schema.into()
}

fn special(name: &str) -> Value {
    let short = name.rsplit('.').next().unwrap_or_default();
    let mut schema = match short {
        "Time" | "MicroTime" => object([("type", "string".into()), ("format", "date-time".into())]),
        "Quantity" => object([("oneOf", json!([{"type": "string"}, {"type": "number"}]))]),
        "IntOrString" => object([
            ("format", "int-or-string".into()),
            ("oneOf", json!([{"type": "integer"}, {"type": "string"}])),
        ]),
        "RawExtension" | "FieldsV1" | "Patch" => object([("type", "object".into())]),
        // Any JSON.
        _ => Map::new(),
    };
    insert_text(&mut schema, describe::of_schema(name));
    schema.into()
}

fn insert_text(schema: &mut Map<String, Value>, text: Option<&str>) {
    if let Some(text) = text {
        schema.insert("description".to_owned(), text.into());
    }
}

/// A map of these entries.
pub(super) fn object<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
