//! A set of fields of an object, in the format of `metadata.managedFields[].fieldsV1`.
//!
//! The set *is* its FieldsV1 document: a tree whose keys are path steps (see `element`). A leaf
//! `{}` is a member; a node with children is a member if it has the key `.`. A stored set therefore
//! needs no conversion, which matters because every write computes ownership. Kubernetes ignores
//! membership of the root, so this type does not have it.

use std::fmt;

use serde_json::{Map, Value};

use super::element;

/// The children of a node by step.
pub(super) type Tree = Map<String, Value>;

/// The key that marks a node with children as a member.
pub(super) const SELF: &str = ".";

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSet(pub(super) Tree);

impl FieldSet {
    /// Parses a FieldsV1 document.
    ///
    /// # Errors
    /// Why the document is not valid. Steps of an unknown kind are omitted, as in Kubernetes.
    pub fn parse(json: Value) -> Result<Self, String> {
        match json {
            Value::Null => Ok(Self::default()),
            Value::Object(tree) => {
                let mut tree = canonical(tree)?;
                tree.remove(SELF);
                Ok(Self(tree))
            }
            other => Err(format!("expected an object, got {other}")),
        }
    }

    /// Uses a document that [`FieldSet::into_json`] wrote, without validating it.
    pub(super) fn from_stored(json: Value) -> Self {
        match json {
            Value::Object(tree) => Self(tree),
            _ => Self::default(),
        }
    }

    /// The FieldsV1 document.
    pub fn into_json(self) -> Value {
        Value::Object(self.0)
    }

    /// Whether the set has no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a field is a member; `path` is in FieldsV1 notation: `["f:spec", "f:type"]`.
    pub fn contains(&self, path: &[&str]) -> bool {
        let mut at = &self.0;
        for (i, step) in path.iter().enumerate() {
            match at.get(*step).map(Value::as_object) {
                Some(Some(tree)) => at = tree,
                Some(None) => return i + 1 == path.len(),
                None => return false,
            }
        }
        !path.is_empty() && is_member(at)
    }

    /// Adds all members of another set.
    pub fn union(&mut self, other: Self) {
        for (step, sub) in other.0 {
            add(&mut self.0, step, sub);
        }
    }

    /// Removes all members of another set.
    pub fn subtract(&mut self, other: &Self) {
        subtract_children(&mut self.0, &other.0);
    }

    /// The members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(common_children(&self.0, &other.0))
    }

    /// Removes a field and everything below it; `path` consists of field names: `metadata.labels`.
    pub fn exclude(&mut self, path: &str) {
        let steps: Vec<String> = path.split('.').map(element::of_field).collect();
        exclude_below(&mut self.0, &steps);
    }

    /// All members in the notation of messages (`.spec.ports[port=80,protocol="TCP"].name`), in the
    /// order of Kubernetes: on each level first the members, then the levels below.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        list_paths(&self.0, &mut String::new(), &mut out);
        out
    }
}

impl fmt::Display for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.paths().join("\n"))
    }
}

/// Whether a node with these children is a member.
pub(super) fn is_member(children: &Tree) -> bool {
    children.is_empty() || children.contains_key(SELF)
}

/// A leaf, or the value of the key `.`.
pub(super) fn leaf() -> Value {
    Value::Object(Tree::new())
}

/// Creates a node from its membership and its children; `None` if it has neither.
pub(super) fn node(member: bool, mut children: Tree) -> Option<Value> {
    match (member, children.is_empty()) {
        (false, true) => None,
        (true, false) => {
            children.insert(SELF.to_owned(), leaf());
            Some(Value::Object(children))
        }
        _ => Some(Value::Object(children)),
    }
}

fn canonical(tree: Tree) -> Result<Tree, String> {
    let mut out = Tree::new();
    for (step, sub) in tree {
        if step == SELF {
            out.insert(step, leaf());
            continue;
        }
        let Some(step) = element::canonical(step)? else { continue };
        let sub = match sub {
            Value::Null => Tree::new(),
            Value::Object(sub) => canonical(sub)?,
            other => return Err(format!("expected an object, got {other}")),
        };
        // `{".":{}}` means the same as `{}`.
        let sub = if sub.len() == 1 && sub.contains_key(SELF) { Tree::new() } else { sub };
        add(&mut out, step, Value::Object(sub));
    }
    Ok(out)
}

/// Adds a node to its siblings.
pub(super) fn add(siblings: &mut Tree, step: String, sub: Value) {
    match (siblings.get_mut(&step), sub) {
        (Some(Value::Object(have)), Value::Object(more)) => unite(have, more),
        (_, sub) => {
            siblings.insert(step, sub);
        }
    }
}

fn unite(have: &mut Tree, more: Tree) {
    if more.is_empty() {
        if !have.is_empty() {
            have.insert(SELF.to_owned(), leaf());
        }
    } else if have.is_empty() {
        *have = more;
        have.insert(SELF.to_owned(), leaf());
    } else {
        for (step, sub) in more {
            add(have, step, sub);
        }
    }
}

fn subtract_children(from: &mut Tree, what: &Tree) {
    for (step, sub) in what {
        if step == SELF {
            continue;
        }
        let gone = match (from.get_mut(step), sub) {
            (None, _) => false,
            (Some(Value::Object(have)), Value::Object(less)) => !subtract_node(have, less),
            // This module never writes such a value; an invalid entry loses the field.
            (Some(_), _) => true,
        };
        if gone {
            from.remove(step);
        }
    }
}

/// Returns whether the node still has members.
fn subtract_node(have: &mut Tree, less: &Tree) -> bool {
    let member = is_member(have) && !is_member(less);
    subtract_children(have, less);
    settle(have, member)
}

/// Brings a node whose children changed into canonical form. Returns whether it still has members.
fn settle(children: &mut Tree, member: bool) -> bool {
    children.remove(SELF);
    if children.is_empty() {
        return member;
    }
    if member {
        children.insert(SELF.to_owned(), leaf());
    }
    true
}

fn common_children(a: &Tree, b: &Tree) -> Tree {
    let mut out = Tree::new();
    for (step, a_sub) in a {
        if step == SELF {
            continue;
        }
        if let (Value::Object(a_sub), Some(Value::Object(b_sub))) = (a_sub, b.get(step)) {
            let member = is_member(a_sub) && is_member(b_sub);
            if let Some(both) = node(member, common_children(a_sub, b_sub)) {
                out.insert(step.clone(), both);
            }
        }
    }
    out
}

fn exclude_below(children: &mut Tree, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        children.remove(first);
    } else if let Some(Value::Object(sub)) = children.get_mut(first) {
        let member = is_member(sub);
        exclude_below(sub, rest);
        if !settle(sub, member) {
            children.remove(first);
        }
    }
}

fn list_paths(children: &Tree, path: &mut String, out: &mut Vec<String>) {
    let steps = children.iter().filter(|(step, _)| *step != SELF);
    let mut steps: Vec<_> = steps.map(|(step, sub)| (step, sub.as_object())).collect();
    steps.sort_by(|a, b| element::order(a.0, b.0));
    let length = path.len();
    for (step, sub) in &steps {
        if sub.is_none_or(is_member) {
            element::push_display(path, step);
            out.push(path.clone());
            path.truncate(length);
        }
    }
    for (step, sub) in steps {
        if let Some(sub) = sub.filter(|sub| !sub.is_empty()) {
            element::push_display(path, step);
            list_paths(sub, path, out);
            path.truncate(length);
        }
    }
}
