//! Changes an object according to its schema: merges an applied configuration into it, and removes
//! fields from it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::atom::{self, Atom};
use super::element;
use super::fieldset::{self, FieldSet, Tree};
use crate::schema::Node;

/// Merges a configuration that fits its schema into an object. Removes nothing.
pub(super) fn merge(place: Node<'_>, live: &mut Value, applied: &Value) {
    match Atom::of(place, applied) {
        Atom::Map => merge_map(place, live, applied),
        Atom::List
            if !(atom::list(Some(live)).is_empty() && atom::list(Some(applied)).is_empty()) =>
        {
            let have = match live {
                Value::Array(list) => std::mem::take(list),
                _ => Vec::new(),
            };
            *live = Value::Array(merge_list(place, have, atom::list(Some(applied))));
        }
        _ => live.clone_from(applied),
    }
}

fn merge_map(place: Node<'_>, live: &mut Value, applied: &Value) {
    match (&mut *live, applied) {
        (Value::Object(live), Value::Object(applied)) if !live.is_empty() => {
            for (key, value) in applied {
                match live.get_mut(key) {
                    Some(below) => merge(atom::child(place, key), below, value),
                    None => {
                        live.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        // A null does not clear a map that has entries.
        (Value::Object(live), Value::Null) if !live.is_empty() => {}
        _ => live.clone_from(applied),
    }
}

/// Merges the items of both lists. The order is that of the applied list; items that only the live
/// object has keep their position relative to the common ones.
fn merge_list(place: Node<'_>, live: Vec<Value>, applied: &[Value]) -> Vec<Value> {
    let step = |item: &Value| element::of_item(place, item).ok();
    let ours: Vec<(String, &Value)> =
        applied.iter().filter_map(|item| Some((step(item)?, item))).collect();
    let our_steps: BTreeSet<&str> = ours.iter().map(|(step, _)| step.as_str()).collect();
    let theirs: Vec<(String, Value)> =
        live.into_iter().filter_map(|item| Some((step(&item)?, item))).collect();
    let mut known: BTreeMap<&str, Option<&Value>> = BTreeMap::new();
    for (step, item) in &theirs {
        // An item that occurs twice is not merged but replaced.
        known.entry(step).and_modify(|item| *item = None).or_insert(Some(item));
    }
    let mut shared = ours.iter().map(|(step, _)| step.as_str()).filter(|s| known.contains_key(s));
    let mut awaited = shared.next();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let mut out = Vec::with_capacity(theirs.len().max(ours.len()));
    let (mut left, mut right) = (theirs.iter().peekable(), ours.iter().peekable());
    let merged = |step: &str, item: &Value| {
        let mut value = known.get(step).copied().flatten().cloned().unwrap_or(Value::Null);
        merge(atom::items(place), &mut value, item);
        value
    };
    loop {
        if let Some((step, item)) = left.peek() {
            if !our_steps.contains(step.as_str()) {
                out.push(item.clone());
                left.next();
                continue;
            }
            let next = right.peek().map(|(next, _)| next);
            if next == Some(step) {
                left.next();
            } else if next.is_some() && awaited.is_some_and(|awaited| awaited != step) {
                // The item follows later, at its position in the applied list.
                left.next();
                continue;
            } else if done.contains(step.as_str()) {
                left.next();
            }
        }
        match right.next() {
            Some((step, item)) => {
                done.insert(step);
                out.push(merged(step, item));
                if awaited == Some(step) {
                    awaited = shared.next();
                }
            }
            None if left.peek().is_none() => return out,
            None => {}
        }
    }
}

/// Removes fields and items from an object. Containers that become empty stay.
pub(super) fn remove(place: Node<'_>, value: &mut Value, fields: &FieldSet) {
    remove_below(place, value, &fields.0);
}

fn remove_below(place: Node<'_>, value: &mut Value, fields: &Tree) {
    match (Atom::of(place, value), value) {
        (Atom::AtomicList, Value::Array(list)) => list.clear(),
        (Atom::AtomicMap, Value::Object(map)) => map.clear(),
        (Atom::Map, Value::Object(map)) => remove_keys(place, map, fields),
        (Atom::List, Value::Array(list)) => list.retain_mut(|item| {
            let sub = element::of_item(place, item).ok().and_then(|step| fields.get(&step));
            match sub.and_then(Value::as_object) {
                None => true,
                Some(sub) if fieldset::is_member(sub) => false,
                Some(sub) => {
                    remove_below(atom::items(place), item, sub);
                    true
                }
            }
        }),
        _ => {}
    }
}

fn remove_keys(place: Node<'_>, map: &mut Map<String, Value>, fields: &Tree) {
    for (step, sub) in fields {
        let (Some(key), Some(sub)) = (step.strip_prefix("f:"), sub.as_object()) else { continue };
        if fieldset::is_member(sub) {
            map.remove(key);
        } else if let Some(value) = map.get_mut(key) {
            remove_below(atom::child(place, key), value, sub);
        }
    }
}

/// Adds each declared field that has members below it as a member.
pub(super) fn with_declared(place: Node<'_>, mut fields: FieldSet) -> FieldSet {
    declare(place, &mut fields.0);
    fields
}

fn declare(place: Node<'_>, fields: &mut Tree) {
    for (step, sub) in fields {
        let Some(sub) = sub.as_object_mut().filter(|sub| !sub.is_empty()) else { continue };
        let below = match step.strip_prefix("f:") {
            Some(name) => {
                if atom::is_declared(place, name) {
                    sub.insert(fieldset::SELF.to_owned(), fieldset::leaf());
                }
                place.child(name)
            }
            None if step.starts_with("k:") => place.items(),
            None => None,
        };
        if let Some(below) = below {
            declare(below, sub);
        }
    }
}
