//! Strategic merge patch: a merge patch that reads from the schema which lists merge and by which
//! key, and that supports directives (`$patch`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`,
//! `$retainKeys`).
//!
//! This module merges objects, and `list` merges lists. Directives apply only where two values
//! merge. A new value, and a list that replaces another, stays unchanged, and decoding reports its
//! errors.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::go::{self, GoList, GoValue};
use super::list::{self, ListRule};
use super::merge::without_nulls;
use super::{OBJECT_TARGET, PatchError, cannot_unmarshal};
use crate::schema::{Node, Shape};

pub(super) const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";

type Object = Map<String, Value>;

/// Applies a strategic merge patch to an object with the schema at `node`.
///
/// # Errors
/// 400 for a patch that is not an object or for an invalid directive; 500 (as kube-apiserver) for a
/// missing merge key, an order that does not match, or types that do not match.
pub fn strategic_merge_patch(
    node: Node<'_>,
    doc: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    let mut result = match doc {
        Value::Object(doc) => doc.clone(),
        _ => Object::new(),
    };
    match patch {
        Value::Object(patch) => merge_objects(node, &mut result, patch)?,
        Value::Null => {}
        other => return Err(PatchError::BadRequest(cannot_unmarshal(other, OBJECT_TARGET))),
    }
    Ok(Value::Object(result))
}

pub(super) fn merge_objects(
    node: Node<'_>,
    live: &mut Object,
    patch: &Object,
) -> Result<(), PatchError> {
    if let Some(directive) = patch.get(PATCH) {
        return replace_object(live, patch, directive);
    }
    retain_keys(live, patch)?;
    let ordered = merge_ordered_lists(node, live, patch)?;
    for (key, value) in patch {
        if key.starts_with(DELETE_FROM_LIST) {
            delete_from_list(node, live, key, value)?;
        } else if key != RETAIN_KEYS
            && !key.starts_with(SET_ORDER)
            && !ordered.contains(key.as_str())
        {
            merge_member(node, live, key, value)?;
        }
    }
    Ok(())
}

fn replace_object(live: &mut Object, patch: &Object, directive: &Value) -> Result<(), PatchError> {
    match directive.as_str() {
        Some("replace") => {
            *live = patch.clone();
            live.remove(PATCH);
        }
        Some("delete") => live.clear(),
        _ => return Err(unknown_directive(directive, patch)),
    }
    Ok(())
}

pub(super) fn unknown_directive(directive: &Value, patch: &Object) -> PatchError {
    let (directive, map) = (go::as_string(directive), Value::Object(patch.clone()));
    PatchError::Internal(format!("unknown patch type: {directive} in map: {}", GoValue(&map)))
}

/// `$retainKeys`: removes all members that it does not list. The patch must not set any of those.
fn retain_keys(live: &mut Object, patch: &Object) -> Result<(), PatchError> {
    let Some(directive) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let wrong = || PatchError::BadRequest("invalid patch format of retainKeys".into());
    let retained = directive.as_array().ok_or_else(wrong)?;
    let retained: BTreeSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let is_retained = |key: &str| retained.contains(key);
    let sets = |key: &str, value: &Value| {
        let is_directive =
            key == RETAIN_KEYS || key.starts_with(SET_ORDER) || key.starts_with(DELETE_FROM_LIST);
        !value.is_null() && !is_directive
    };
    if patch.iter().any(|(key, value)| sets(key, value) && !is_retained(key)) {
        return Err(wrong());
    }
    live.retain(|key, _| is_retained(key));
    Ok(())
}

/// Merges the lists that have a `$setElementOrder`, and returns their names.
fn merge_ordered_lists<'p>(
    node: Node<'_>,
    live: &mut Object,
    patch: &'p Object,
) -> Result<BTreeSet<&'p str>, PatchError> {
    let mut done = BTreeSet::new();
    for (directive, order) in patch.iter().filter(|(key, _)| key.starts_with(SET_ORDER)) {
        let order = list::expect_list(order)?;
        let name = named_by(directive, SET_ORDER).ok_or_else(|| {
            PatchError::BadRequest("invalid patch format of setElementOrder list".into())
        })?;
        let given = patch.get(name).map(list::expect_list).transpose()?;
        live.get(name).map(list::expect_list).transpose()?;
        let rule = list_rule(node, name)?;
        list::check_order(rule, given.unwrap_or_default(), order)?;
        match (live.get_mut(name), given) {
            (None, None) => continue,
            (None, Some(given)) => {
                let mut items: Vec<Value> = given.iter().filter_map(set_anew).collect();
                list::arrange_by(rule, &mut items, order)?;
                live.insert(name.to_owned(), Value::Array(items));
            }
            (Some(Value::Array(items)), given) => {
                list::merge_in_order(rule, items, given, order)?;
            }
            (Some(_), _) => {}
        }
        done.insert(name);
    }
    Ok(done)
}

/// The field that a directive such as `$setElementOrder/ports` names.
fn named_by<'k>(key: &'k str, prefix: &str) -> Option<&'k str> {
    key.strip_prefix(prefix)?.strip_prefix('/')
}

fn delete_from_list(
    node: Node<'_>,
    live: &mut Object,
    key: &str,
    value: &Value,
) -> Result<(), PatchError> {
    let name = named_by(key, DELETE_FROM_LIST)
        .ok_or_else(|| PatchError::BadRequest("invalid patch format of primitive list".into()))?;
    match (live.get_mut(name), value) {
        (Some(_), Value::Null) => {
            live.remove(name);
        }
        (Some(Value::Array(items)), Value::Array(unwanted)) => {
            list_rule(node, name)?;
            list::delete(items, unwanted);
        }
        _ => {}
    }
    Ok(())
}

fn merge_member(
    node: Node<'_>,
    live: &mut Object,
    key: &str,
    value: &Value,
) -> Result<(), PatchError> {
    match (live.get_mut(key), value) {
        (Some(_), Value::Null) => {
            live.remove(key);
        }
        (None, Value::Null) => {}
        (Some(Value::Object(live)), Value::Object(patch)) => {
            return merge_objects(member(node, key)?, live, patch);
        }
        (Some(Value::Array(live)), Value::Array(patch)) => {
            return list::merge(list_rule(node, key)?, live, patch);
        }
        (_, value) => match set_anew(value) {
            Some(value) => {
                live.insert(key.to_owned(), value);
            }
            None => {
                live.remove(key);
            }
        },
    }
    Ok(())
}

/// A value that the patch sets where the live object has none: without `null` members, and without
/// objects that have a `$patch`, because there is nothing to apply it to.
fn set_anew(value: &Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.get(PATCH).is_some_and(|directive| !directive.is_null()) => None,
        Value::Object(map) => {
            let members = map.iter().filter(|(_, value)| !value.is_null());
            let kept = members.filter_map(|(key, value)| Some((key.clone(), set_anew(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(items.iter().filter_map(set_anew).collect()),
        scalar => Some(scalar.clone()),
    }
}

/// An item that the patch adds to a list. Directives inside it have no effect.
pub(super) fn added(item: &Object) -> Value {
    let members = item.iter().filter(|(_, value)| !value.is_null());
    members.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
}

/// The schema of a member that is an object on both sides.
fn member<'a>(node: Node<'a>, key: &str) -> Result<Node<'a>, PatchError> {
    match node.shape() {
        Shape::Struct(_) | Shape::Any => node.child(key).ok_or_else(|| {
            let name = node.as_struct().map(|one| &*one.name).unwrap_or_default();
            let name = name.rsplit('.').next().unwrap_or_default();
            PatchError::Internal(format!(
                "unable to find api field in struct {name} for the json field {key:?}"
            ))
        }),
        // Only structs have merge strategies; for other types the server returns this error.
        other => Err(PatchError::Internal(format!(
            "merging an object in json but data type is not struct, instead is: {}",
            go_kind(other)
        ))),
    }
}

/// How the list below a key merges.
fn list_rule<'a>(node: Node<'a>, key: &str) -> Result<ListRule<'a>, PatchError> {
    let child = member(node, key)?;
    let (Shape::List(_) | Shape::Any, Some(items)) = (child.shape(), child.items()) else {
        let kind = go_kind(node.shape());
        return Err(PatchError::Internal(format!("expected slice or array type, but got: {kind}")));
    };
    let declared = child.declared();
    Ok(ListRule {
        items,
        merges: declared.is_some_and(|field| field.merge),
        key: declared.and_then(|field| field.merge_key.as_deref()),
    })
}

/// Go's name for the kind of a type.
pub(super) fn go_kind(shape: &Shape) -> &'static str {
    match shape {
        Shape::String => "string",
        Shape::Bool => "bool",
        Shape::Int32 => "int32",
        Shape::Int64 => "int64",
        Shape::Float => "float64",
        Shape::Bytes | Shape::List(_) => "slice",
        Shape::Map(_) => "map",
        Shape::Time
        | Shape::MicroTime
        | Shape::Duration
        | Shape::Quantity
        | Shape::IntOrString
        | Shape::Any
        | Shape::Struct(_) => "struct",
    }
}

/// `map: … does not contain declared merge key: port`.
pub(super) fn no_merge_key(item: &Object, key: &str) -> PatchError {
    let item = Value::Object(item.clone());
    PatchError::Internal(format!(
        "map: {} does not contain declared merge key: {key}",
        GoValue(&item)
    ))
}

/// `expected a …, but received a …`, for Go types.
pub(super) fn wrong_type(expected: &str, value: &Value) -> PatchError {
    let received = go::go_type(value);
    PatchError::Internal(format!("expected a {expected}, but received a {received}"))
}

/// The error for a patch whose items contradict the order that it requests.
pub(super) fn order_mismatch(given: &[Value], order: &[Value]) -> PatchError {
    PatchError::Internal(format!(
        "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
        GoList(given),
        GoList(order)
    ))
}
