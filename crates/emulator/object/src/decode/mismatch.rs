//! The error for a value of the wrong type, with Go's message: clients print it, and tools match
//! it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::embedded::embedded_in;
use super::path::Path;
use crate::builtin;
use crate::patch::json_type;
use crate::schema::{Node, Shape};

/// The Go type of each struct field (`core.v1.ServiceSpec.type`).
static GO_TYPES: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| {
    let lines = include_str!("../facts/go_types.txt").lines();
    lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' ')).collect()
});

/// A value that does not fit the type of its field. It displays as Go's complete message: `json:
/// cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32`,
/// `parsing time "yesterday" as …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeMismatch {
    message: Box<str>,
}

impl TypeMismatch {
    pub(super) fn new(message: String) -> Self {
        Self { message: message.into() }
    }

    /// The error for a value whose JSON type does not fit the schema.
    pub(super) fn wrong_type(node: Node<'_>, value: &Value, path: &Path<'_>) -> Self {
        let go_type = match node.shape() {
            // Go parses these as strings, and an int-or-string that is not a string as a number.
            Shape::Time | Shape::MicroTime | Shape::Duration => "string".to_owned(),
            Shape::IntOrString => "int32".to_owned(),
            _ => declared_go_type(path).unwrap_or_else(|| derived_go_type(node)),
        };
        let wants_integer =
            matches!(node.shape(), Shape::Int32 | Shape::Int64 | Shape::IntOrString);
        let what = match value {
            Value::Number(number) if wants_integer => format!("number {number}"),
            other => json_type(other).to_owned(),
        };
        let fields = path.fields();
        let place = match fields.first() {
            None => "Go value".to_owned(),
            Some((owner, _)) => {
                let dotted: Vec<String> =
                    fields.iter().rev().flat_map(|(owner, name)| go_steps(owner, name)).collect();
                format!("Go struct field {}.{}", last_label(owner), dotted.join("."))
            }
        };
        Self::new(format!("json: cannot unmarshal {what} into {place} of type {go_type}"))
    }
}

/// The steps of a field in Go's path, with its embedded structs.
fn go_steps(owner: &str, name: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut at = owner;
    while let Some((_, inner)) = embedded_in(at) {
        let Some(schema) = builtin::schema(inner) else { break };
        if schema.node().child(name).is_none() {
            break;
        }
        steps.push(last_label(inner).to_owned());
        at = inner;
    }
    steps.push(name.to_owned());
    steps
}

/// The Go type at this path from the table: that of the nearest field, without one list or map for
/// each step below it.
fn declared_go_type(path: &Path<'_>) -> Option<String> {
    let (owner, name, below) = path.nearest_field()?;
    let mut found = *GO_TYPES.get(format!("{owner}.{name}").as_str())?;
    for _ in 0..below {
        found = match found.strip_prefix("[]") {
            Some(items) => items,
            None => found.strip_prefix("map[")?.split_once(']')?.1,
        };
    }
    Some(found.to_owned())
}

fn derived_go_type(node: Node<'_>) -> String {
    let below = |node: Option<Node<'_>>| node.map(derived_go_type).unwrap_or_default();
    let name = match node.shape() {
        Shape::String | Shape::Time | Shape::MicroTime | Shape::Duration => "string",
        Shape::Bool => "bool",
        Shape::Int32 | Shape::IntOrString => "int32",
        Shape::Int64 => "int64",
        Shape::Float => "float64",
        Shape::Bytes => "[]uint8",
        Shape::Quantity => "resource.Quantity",
        Shape::Any => "interface {}",
        // `v1.ServicePort` for `core.v1.ServicePort`: Go prints the package, which is named after
        // the version.
        Shape::Struct(_) => {
            let name = node.as_struct().map_or("", |found| &found.name);
            name.split_once('.').map_or(name, |(_, rest)| rest)
        }
        Shape::List(_) => return format!("[]{}", below(node.items())),
        Shape::Map(_) => return format!("map[string]{}", below(node.child(""))),
    };
    name.to_owned()
}

fn last_label(struct_name: &str) -> &str {
    struct_name.rsplit('.').next().unwrap_or(struct_name)
}
