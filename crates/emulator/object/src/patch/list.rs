//! How strategic merge patch merges lists: which items correspond, and their order.
//!
//! The order is that of kube-apiserver: items that the patch (or `$setElementOrder`) names are in
//! its order. The others keep their order, each before the first named item that followed it in the
//! live list. So a new item is first, unless the patch names a live item before it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use serde_json::{Map, Value};

use super::PatchError;
use super::go::{GO_LIST, GO_MAP, GoList};
use super::strategic::{
    PATCH, added, go_kind, merge_objects, no_merge_key, order_mismatch, unknown_directive,
    wrong_type,
};
use crate::schema::Node;

/// How a list merges, according to the schema.
#[derive(Clone, Copy)]
pub(super) struct ListRule<'a> {
    pub(super) items: Node<'a>,
    /// Whether it merges; otherwise the patch replaces it.
    pub(super) merges: bool,
    /// The merge key, which identifies the objects in it.
    pub(super) key: Option<&'a str>,
}

/// The identity of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    Text(Box<str>),
    /// The JSON text: `1` and `1.0` differ, as on the server.
    Other(String),
}

impl Identity {
    fn of(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.as_str().into()),
            other => Self::Other(other.to_string()),
        }
    }

    /// The identity of an item: the value of its merge key, or the item itself.
    fn of_item(item: &Value, key: Option<&str>) -> Result<Self, PatchError> {
        let Some(key) = key else { return Ok(Self::of(item)) };
        let map = expect_object(item)?;
        map.get(key).map(Self::of).ok_or_else(|| no_merge_key(map, key))
    }
}

/// The index of each item in a list; for duplicates that of the first one.
struct Order(BTreeMap<Identity, usize>);

impl Order {
    fn of<'v>(
        items: impl IntoIterator<Item = &'v Value>,
        key: Option<&str>,
    ) -> Result<Self, PatchError> {
        let mut order = BTreeMap::new();
        for (at, item) in items.into_iter().enumerate() {
            order.entry(Identity::of_item(item, key)?).or_insert(at);
        }
        Ok(Self(order))
    }

    fn rank(&self, identity: &Identity) -> Option<usize> {
        self.0.get(identity).copied()
    }
}

pub(super) fn expect_list(value: &Value) -> Result<&[Value], PatchError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| wrong_type(GO_LIST, value))
}

fn expect_object(value: &Value) -> Result<&Map<String, Value>, PatchError> {
    value.as_object().ok_or_else(|| wrong_type(GO_MAP, value))
}

/// Merges a list without `$setElementOrder`.
pub(super) fn merge(
    rule: ListRule<'_>,
    live: &mut Vec<Value>,
    patch: &[Value],
) -> Result<(), PatchError> {
    if !rule.merges {
        *live = patch.to_vec();
        return Ok(());
    }
    match kind_of_items(live, patch)? {
        None => Ok(()),
        Some(Kind::Objects) => merge_keyed(rule, live, patch),
        Some(Kind::Scalars) => merge_scalars(rule, live, patch),
    }
}

/// Merges a list, if the patch contains it, and then sorts it by `order`.
pub(super) fn merge_in_order(
    rule: ListRule<'_>,
    live: &mut Vec<Value>,
    patch: Option<&[Value]>,
    order: &[Value],
) -> Result<(), PatchError> {
    require_key(rule, kind_of_items(live, patch.unwrap_or_default())?)?;
    let before = Order::of(&*live, rule.key)?;
    if let Some(patch) = patch {
        merge(rule, live, patch)?;
    }
    arrange(live, &Order::of(order, rule.key)?, &before, rule.key)
}

/// Sorts a list that the patch creates by `order`.
pub(super) fn arrange_by(
    rule: ListRule<'_>,
    items: &mut Vec<Value>,
    order: &[Value],
) -> Result<(), PatchError> {
    require_key(rule, kind_of_items(items, &[])?)?;
    arrange(items, &Order::of(order, rule.key)?, &Order(BTreeMap::new()), rule.key)
}

/// Applies `$deleteFromPrimitiveList`.
pub(super) fn delete(live: &mut Vec<Value>, unwanted: &[Value]) {
    let unwanted: BTreeSet<Identity> = unwanted.iter().map(Identity::of).collect();
    live.retain(|item| !unwanted.contains(&Identity::of(item)));
}

/// Checks that the patch's items are in `$setElementOrder`, in the same order.
pub(super) fn check_order(
    rule: ListRule<'_>,
    patch: &[Value],
    order: &[Value],
) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted: Vec<&Value> = Vec::with_capacity(patch.len());
    for item in patch {
        let deletes =
            rule.key.is_some() && expect_object(item)?.get(PATCH) == Some(&"delete".into());
        if !deletes {
            wanted.push(item);
        }
    }
    let (mut items, mut places) = (wanted.into_iter().peekable(), order.iter());
    while let Some(item) = items.peek() {
        let Some(place) = places.as_slice().first() else {
            return Err(order_mismatch(patch, order));
        };
        if item.get(PATCH).is_some() {
            items.next();
            continue;
        }
        if Identity::of_item(item, rule.key)? == Identity::of_item(place, rule.key)? {
            items.next();
        }
        places.next();
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Objects,
    Scalars,
}

/// The kind of the items of two lists; all items must be of the same kind.
fn kind_of_items(live: &[Value], patch: &[Value]) -> Result<Option<Kind>, PatchError> {
    let mut items = live.iter().chain(patch);
    let Some(first) = items.next() else { return Ok(None) };
    let is_float = |value: &Value| value.is_f64();
    let same = |item: &Value| {
        mem::discriminant(item) == mem::discriminant(first) && is_float(item) == is_float(first)
    };
    match first {
        Value::Array(_) => Err(PatchError::rejected()),
        _ if !items.all(same) => Err(PatchError::Internal(format!(
            "list element types are not identical: [{} {}]",
            GoList(live),
            GoList(patch)
        ))),
        Value::Object(_) => Ok(Some(Kind::Objects)),
        _ => Ok(Some(Kind::Scalars)),
    }
}

/// Objects can be merged only by a key.
fn require_key(rule: ListRule<'_>, kind: Option<Kind>) -> Result<(), PatchError> {
    if kind == Some(Kind::Objects) && rule.key.is_none() {
        let kind = go_kind(rule.items.shape());
        return Err(PatchError::Internal(format!(
            "cannot merge lists without merge key for {kind}"
        )));
    }
    Ok(())
}

fn merge_scalars(
    rule: ListRule<'_>,
    live: &mut Vec<Value>,
    patch: &[Value],
) -> Result<(), PatchError> {
    if let (Some(_), Some(item)) = (rule.key, patch.first().or(live.first())) {
        return Err(wrong_type(GO_MAP, item));
    }
    let (wanted, before) = (Order::of(patch, None)?, Order::of(&*live, None)?);
    live.extend(patch.iter().cloned());
    let mut seen = BTreeSet::new();
    live.retain(|item| seen.insert(Identity::of(item)));
    arrange(live, &wanted, &before, None)
}

fn merge_keyed(
    rule: ListRule<'_>,
    live: &mut Vec<Value>,
    patch: &[Value],
) -> Result<(), PatchError> {
    require_key(rule, Some(Kind::Objects))?;
    let key = rule.key.unwrap_or_default();
    let directives = Directives::read(patch, key)?;
    if directives.replaces {
        Order::of(directives.plain.iter().copied(), rule.key)?;
        *live = directives.plain.into_iter().cloned().collect();
        return Ok(());
    }
    if !directives.deleted.is_empty() {
        let kept = |item: &Value| {
            let value = item.get(key).map(Identity::of);
            value.is_none_or(|value| !directives.deleted.contains(&value))
        };
        live.retain(kept);
    }
    let before = Order::of(&*live, rule.key)?;
    let mut places = before.0.clone();
    for item in &directives.plain {
        let patch = expect_object(item)?;
        let identity = Identity::of_item(item, rule.key)?;
        let place = places.get(&identity).copied();
        match place.and_then(|at| live.get_mut(at)).and_then(Value::as_object_mut) {
            Some(live) => merge_objects(rule.items, live, patch)?,
            None => {
                places.insert(identity, live.len());
                live.push(added(patch));
            }
        }
    }
    let wanted = Order::of(directives.plain.iter().copied(), rule.key)?;
    arrange(live, &wanted, &before, rule.key)
}

/// The items of a patch list, grouped by their `$patch` directive.
struct Directives<'p> {
    plain: Vec<&'p Value>,
    deleted: BTreeSet<Identity>,
    replaces: bool,
}

impl<'p> Directives<'p> {
    fn read(patch: &'p [Value], key: &str) -> Result<Self, PatchError> {
        let mut read = Self { plain: Vec::new(), deleted: BTreeSet::new(), replaces: false };
        for item in patch {
            let map = expect_object(item)?;
            let Some(directive) = map.get(PATCH) else {
                read.plain.push(item);
                continue;
            };
            match directive.as_str() {
                Some("delete") => {
                    read.deleted.insert(Identity::of_item(item, Some(key))?);
                }
                Some("replace") => read.replaces = true,
                Some("merge") => {
                    let text = "merging lists cannot yet be specified in the patch";
                    return Err(PatchError::Internal(text.into()));
                }
                _ => return Err(unknown_directive(directive, map)),
            }
        }
        Ok(read)
    }
}

/// Sorts items: those in `wanted` by that order, the others by `before`. Merges the two groups by
/// `before` where it contains both items.
fn arrange(
    items: &mut Vec<Value>,
    wanted: &Order,
    before: &Order,
    key: Option<&str>,
) -> Result<(), PatchError> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in mem::take(items) {
        let identity = Identity::of_item(&item, key)?;
        let was = before.rank(&identity);
        match wanted.rank(&identity) {
            Some(rank) => named.push((rank, was, item)),
            // An item that neither order contains is last.
            None => others.push((was.unwrap_or(usize::MAX), item)),
        }
    }
    named.sort_by_key(|(rank, ..)| *rank);
    others.sort_by_key(|(was, _)| *was);
    let mut others = others.into_iter().peekable();
    for (_, was, item) in named {
        // Only an item of the live list can have followed another item there.
        while let Some((_, other)) =
            others.next_if(|(other, _)| was.is_some_and(|was| *other < was))
        {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others.map(|(_, item)| item));
    Ok(())
}
