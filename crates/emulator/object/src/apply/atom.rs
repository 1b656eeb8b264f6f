//! How server-side apply treats a value: as a scalar, a list or a map, and whether a list or a map
//! is owned as a whole.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use crate::schema::{ListType, Node, Schema, Shape, Types};

static UNTYPED: LazyLock<Schema> =
    LazyLock::new(|| Schema::new(Arc::new(Types::default()), Shape::Any));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Atom {
    /// A scalar, which is a leaf.
    Scalar,
    /// A list that is owned as a whole.
    AtomicList,
    /// A list whose items have their own owners.
    List,
    /// A struct or map that is owned as a whole.
    AtomicMap,
    /// A struct or map whose fields have their own owners.
    Map,
}

impl Atom {
    /// The kind according to the schema; without a schema, according to the value. As in
    /// Kubernetes, `null` without a schema counts as a map.
    pub(super) fn of(place: Node<'_>, value: &Value) -> Self {
        match place.shape() {
            Shape::Any => match value {
                Value::Object(_) | Value::Null => Self::Map,
                Value::Array(_) => Self::AtomicList,
                _ => Self::Scalar,
            },
            Shape::List(_) if *place.list_type() == ListType::Atomic => Self::AtomicList,
            Shape::List(_) => Self::List,
            Shape::Struct(_) | Shape::Map(_) if place.is_atomic_map() => Self::AtomicMap,
            Shape::Struct(_) | Shape::Map(_) => Self::Map,
            _ => Self::Scalar,
        }
    }
}

/// The position below a key. Unknown keys have no schema.
pub(super) fn child<'a>(place: Node<'a>, key: &str) -> Node<'a> {
    place.child(key).unwrap_or_else(|| UNTYPED.node())
}

pub(super) fn items<'a>(place: Node<'a>) -> Node<'a> {
    place.items().unwrap_or_else(|| UNTYPED.node())
}

/// Whether a key is a declared field of a struct (and not a key of a map).
pub(super) fn is_declared(place: Node<'_>, key: &str) -> bool {
    place.as_struct().is_some_and(|s| s.field(key).is_some())
}

/// The list in a value; empty if the value is missing or not a list.
pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The map in a value, if it has entries.
pub(super) fn filled(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object).filter(|map| !map.is_empty())
}

/// Whether two values are equal; 1 and 1.0 are.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = || a.iter().zip(b);
            a.len() == b.len() && pairs().all(|(a, b)| a.0 == b.0 && same(a.1, b.1))
        }
        _ => a == b,
    }
}
