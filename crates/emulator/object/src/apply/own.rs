//! The fields that an applied configuration contains, and whether it fits its schema.

use serde_json::Value;

use super::atom::{self, Atom};
use super::element;
use super::fieldset::{self, FieldSet, Tree};
use crate::patch::{GoValue, go_type};
use crate::schema::{ListType, Node, Shape};

/// The fields of a value: every leaf, every list item and every key of a map. A declared field with
/// values below it is not a member, unless it is null or an empty map. Items that cannot be
/// identified are omitted; an apply has already reported them.
pub fn fields_of(root: Node<'_>, value: &Value) -> FieldSet {
    let mut out = Tree::new();
    below(root, value, &mut out);
    FieldSet(out)
}

/// Adds the fields below a value to `out`. Returns whether the value itself is a leaf.
fn below(place: Node<'_>, value: &Value, out: &mut Tree) -> bool {
    match (Atom::of(place, value), value) {
        (Atom::Map, Value::Object(map)) => {
            for (key, value) in map {
                let mut sub = Tree::new();
                let leaf = below(atom::child(place, key), value, &mut sub);
                let member = leaf
                    || value.is_null()
                    || value.as_object().is_some_and(serde_json::Map::is_empty)
                    || !atom::is_declared(place, key);
                if let Some(node) = fieldset::node(member, sub) {
                    out.insert(element::of_field(key), node);
                }
            }
            false
        }
        (Atom::List, Value::Array(list)) => {
            for item in list {
                let Ok(step) = element::of_item(place, item) else { continue };
                let mut sub = Tree::new();
                if !out.contains_key(&step) {
                    below(atom::items(place), item, &mut sub);
                }
                // Duplicates count as one leaf.
                out.insert(step, fieldset::node(true, sub).unwrap_or_else(fieldset::leaf));
            }
            false
        }
        (Atom::Map | Atom::List, _) => false,
        _ => true,
    }
}

/// Checks that an object fits its schema and has no list with duplicate keys.
///
/// # Errors
/// All errors, with the messages of Kubernetes: a single error after its path, or `errors:` and one
/// error per line.
pub(super) fn check(root: Node<'_>, object: &Value) -> Result<(), String> {
    let mut walk = Check { path: String::new(), errors: Vec::new() };
    walk.value(root, object);
    match walk.errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("errors:\n  {}", several.join("\n  "))),
    }
}

struct Check {
    path: String,
    errors: Vec<String>,
}

impl Check {
    fn complain(&mut self, message: &str) {
        let colon = if self.path.is_empty() { "" } else { ": " };
        self.errors.push(format!("{}{colon}{message}", self.path));
    }

    fn inside(&mut self, step: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        element::push_display(&mut self.path, step);
        visit(self);
        self.path.truncate(length);
    }

    fn value(&mut self, place: Node<'_>, value: &Value) {
        match (place.shape(), value) {
            (_, Value::Null) => {}
            (Shape::Struct(_) | Shape::Map(_) | Shape::Any, Value::Object(_)) => {
                self.map(place, value);
            }
            (Shape::List(_) | Shape::Any, Value::Array(list)) => self.list(place, list),
            (Shape::Struct(_) | Shape::Map(_), other) => {
                self.complain(&format!("expected map, got &{{{}}}", GoValue(other)));
            }
            (Shape::List(_), other) => {
                self.complain(&format!("expected list, got &{{{}}}", GoValue(other)));
            }
            (shape, value) => {
                if let Some(message) = scalar_problem(shape, value) {
                    self.complain(&message);
                }
            }
        }
    }

    fn map(&mut self, place: Node<'_>, value: &Value) {
        let closed = place.as_struct().is_some_and(|s| !s.preserve_unknown);
        for (key, value) in value.as_object().into_iter().flatten() {
            let of_every_kind =
                self.path.is_empty() && matches!(key.as_str(), "apiVersion" | "kind");
            let known = !closed || of_every_kind || atom::is_declared(place, key);
            self.inside(&element::of_field(key), |walk| {
                if known {
                    walk.value(atom::child(place, key), value);
                } else {
                    walk.complain("field not declared in schema");
                }
            });
            if !known {
                // After the first such field Kubernetes ignores the rest of the map.
                return;
            }
        }
    }

    fn list(&mut self, place: Node<'_>, list: &[Value]) {
        let mut seen = std::collections::BTreeSet::new();
        for (at, item) in list.iter().enumerate() {
            let step = if *place.list_type() == ListType::Atomic {
                format!("i:{at}")
            } else {
                match element::of_item(place, item) {
                    Ok(step) => step,
                    Err(e) => return self.complain(&format!("element {at}: {e}")),
                }
            };
            self.inside(&step, |walk| walk.value(atom::items(place), item));
            if !seen.insert(step.clone()) {
                let mut shown = String::new();
                element::push_display(&mut shown, &step);
                self.complain(&format!("duplicate entries for key {shown}"));
            }
        }
    }
}

fn scalar_problem(shape: &Shape, value: &Value) -> Option<String> {
    match shape {
        Shape::String | Shape::Bytes | Shape::Duration => {
            let source = || go_source(value);
            (!value.is_string()).then(|| {
                format!("expected string, got &value.valueUnstructured{{Value:{}}}", source())
            })
        }
        Shape::Int32 | Shape::Int64 | Shape::Float => (!value.is_number())
            .then(|| format!("expected numeric (int or float), got {}", go_type(value))),
        Shape::Bool => {
            (!value.is_boolean()).then(|| format!("expected boolean, got &{{{}}}", GoValue(value)))
        }
        Shape::Any => None,
        _ => (value.is_object() || value.is_array())
            .then(|| format!("expected any scalar, got &{{{}}}", GoValue(value))),
    }
}

/// The value as Go's `%#v` prints it.
fn go_source(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => element::quoted(text),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(go_source).collect();
            format!("{}{{{}}}", go_type(value), items.join(", "))
        }
        Value::Object(map) => {
            let source = |(key, value): (&String, &Value)| {
                format!("{}:{}", element::quoted(key), go_source(value))
            };
            let pairs: Vec<String> = map.iter().map(source).collect();
            format!("{}{{{}}}", go_type(value), pairs.join(", "))
        }
        scalar => scalar.to_string(),
    }
}
