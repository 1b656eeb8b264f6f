//! Removes fields that a schema does not have.

use serde_json::{Map, Value};

use super::MAX_DEPTH;
use crate::schema::{Node, Shape};

/// Fields of the root that its own decoding checks.
const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields, including those at the top level, and returns their sorted paths
/// (`spec.bogus`). `apiVersion`, `kind` and `metadata` of the root stay unchanged.
pub fn prune(node: Node<'_>, value: &mut Value) -> Vec<String> {
    let mut walk = Walk::default();
    let Value::Object(object) = value else { return Vec::new() };
    walk.object(Some(node), object, Place::Root);
    walk.dropped.sort();
    walk.dropped
}

/// Removes unknown fields of a part of an object.
pub(super) fn prune_part(node: Node<'_>, value: &mut Value) {
    Walk::default().value(Some(node), value);
}

#[derive(Default)]
struct Walk {
    path: String,
    depth: usize,
    dropped: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Below,
}

impl Walk {
    /// Without a node there is no schema, so every field is removed.
    fn value(&mut self, node: Option<Node<'_>>, value: &mut Value) {
        if self.depth > MAX_DEPTH || node.is_some_and(|node| *node.shape() == Shape::Any) {
            return;
        }
        self.depth += 1;
        match value {
            Value::Object(object) => self.object(node, object, Place::Below),
            Value::Array(items) => self.array(node, items),
            _ => {}
        }
        self.depth -= 1;
    }

    fn array(&mut self, node: Option<Node<'_>>, items: &mut [Value]) {
        let node = node.and_then(Node::items);
        let length = self.path.len();
        for (at, item) in items.iter_mut().enumerate() {
            // Scalars have no fields, so their path is not needed.
            if item.is_object() || item.is_array() {
                self.path.push_str(&format!("[{at}]"));
                self.value(node, item);
                self.path.truncate(length);
            }
        }
    }

    fn object(&mut self, node: Option<Node<'_>>, object: &mut Map<String, Value>, place: Place) {
        let preserves =
            node.and_then(Node::as_struct).is_some_and(|described| described.preserve_unknown);
        let is_meta = |key: &String| place == Place::Root && META.contains(&key.as_str());
        let mut unknown = Vec::new();
        for (key, value) in object.iter_mut().filter(|(key, _)| !is_meta(key)) {
            match node.and_then(|node| node.child(key)) {
                Some(child) => self.below(key, |walk| walk.value(Some(child), value)),
                None if preserves => {}
                None => unknown.push(key.clone()),
            }
        }
        for key in unknown {
            object.remove(&key);
            self.below(&key, |walk| walk.dropped.push(walk.path.clone()));
        }
    }

    fn below(&mut self, key: &str, act: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        act(self);
        self.path.truncate(length);
    }
}
