//! The changes of a write: the fields that it set or changed, and the fields that it removed.
//!
//! Kubernetes compares a new object with an *empty Go struct*, in which struct fields and fields
//! without `omitempty` already exist. That is why the creator of a Service owns `f:ports` with a
//! `.` but `f:spec` without one. [`Old::Zero`] represents that struct; it is never built.

use serde_json::{Map, Value};

use super::atom::{self, Atom};
use super::element;
use super::fieldset::{self, FieldSet, Tree};
use crate::schema::{Field, Node, Presence, Shape};

/// Fields of `metadata` whose ownership is not tracked.
pub(super) const UNTRACKED: [&str; 9] = [
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The difference between two objects.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Fields that were added or whose value changed.
    pub(super) set: FieldSet,
    /// Fields that were removed.
    pub(super) removed: FieldSet,
}

/// The old value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Old<'a> {
    /// There was none.
    Absent,
    /// The value of an empty Go struct at this position.
    Zero,
    /// A value.
    Value(&'a Value),
}

/// Compares two objects, without untracked fields and without those in `ignore`.
///
/// # Errors
/// Why a list item cannot be identified.
pub(super) fn objects(
    root: Node<'_>,
    old: Option<&Value>,
    new: &Value,
    ignore: &[&str],
) -> Result<Changes, String> {
    let mut out = Sub::default();
    let old = old.map_or(Old::Zero, Old::Value);
    let skip = |key: &str| key == "apiVersion" || key == "kind" || ignore.contains(&key);
    map_items(root, old, Some(new), &mut out, &|key, place, old, new, out| {
        if skip(key) {
            return Ok(());
        }
        if key != "metadata" {
            return compare(place, old, new, out);
        }
        // `metadata` itself is not tracked either.
        map_items(place, old, new, out, &|key, place, old, new, out| {
            if UNTRACKED.contains(&key) { Ok(()) } else { compare(place, old, new, out) }
        })
    })?;
    let mut changes =
        Changes { set: FieldSet(out.set.children), removed: FieldSet(out.removed.children) };
    for path in ignore.iter().filter(|path| path.contains('.')) {
        changes.set.exclude(path);
        changes.removed.exclude(path);
    }
    Ok(changes)
}

/// The changes below one position.
#[derive(Default)]
struct Sub {
    set: Half,
    removed: Half,
}

#[derive(Default)]
struct Half {
    member: bool,
    children: Tree,
}

impl Sub {
    /// Adds the changes below a child to its parent. Computes the step only if needed.
    fn hang(self, parent: &mut Self, step: impl Fn() -> String) {
        for (half, into) in [(self.set, &mut parent.set), (self.removed, &mut parent.removed)] {
            if let Some(node) = fieldset::node(half.member, half.children) {
                into.children.insert(step(), node);
            }
        }
    }
}

fn compare(
    place: Node<'_>,
    old: Old<'_>,
    new: Option<&Value>,
    out: &mut Sub,
) -> Result<(), String> {
    let old_atom = match old {
        Old::Value(value) => Some(Atom::of(place, value)),
        _ => None,
    };
    let new_atom = new.map(|value| Atom::of(place, value));
    match (old_atom, new_atom) {
        // Without a schema the type of a value may change: the old value is removed, and the new
        // one is added.
        (Some(was), Some(is)) if was != is => {
            as_atom(was, place, old, new, out)?;
            as_atom(is, place, old, new, out)
        }
        (_, Some(atom)) | (Some(atom), None) => as_atom(atom, place, old, new, out),
        (None, None) => Ok(()),
    }
}

fn as_atom(
    atom: Atom,
    place: Node<'_>,
    old: Old<'_>,
    new: Option<&Value>,
    out: &mut Sub,
) -> Result<(), String> {
    let old_value = match old {
        Old::Value(value) => Some(value),
        _ => None,
    };
    match atom {
        // Two empty lists or maps may still differ: one of them may be null.
        Atom::List if !(atom::list(old_value).is_empty() && atom::list(new).is_empty()) => {
            list_items(place, atom::list(old_value), atom::list(new), out)?;
        }
        Atom::Map if atom::filled(old_value).is_some() || atom::filled(new).is_some() => {
            map_items(place, old, new, out, &|_, place, old, new, out| {
                compare(place, old, new, out)
            })?;
        }
        _ => {
            leaf(place, old, new, out);
            return Ok(());
        }
    }
    out.set.member |= matches!(old, Old::Absent);
    out.removed.member |= new.is_none();
    Ok(())
}

fn leaf(place: Node<'_>, old: Old<'_>, new: Option<&Value>, out: &mut Sub) {
    match (old, new) {
        (Old::Absent, Some(_)) => out.set.member = true,
        (Old::Value(_), None) => out.removed.member = true,
        (Old::Value(old), Some(new)) => out.set.member |= !atom::same(old, new),
        (Old::Zero, Some(new)) => out.set.member |= !is_zero(place, new),
        (Old::Absent | Old::Zero, None) => {}
    }
}

type Visit<'v> =
    &'v dyn Fn(&str, Node<'_>, Old<'_>, Option<&Value>, &mut Sub) -> Result<(), String>;

fn map_items(
    place: Node<'_>,
    old: Old<'_>,
    new: Option<&Value>,
    out: &mut Sub,
    visit: Visit<'_>,
) -> Result<(), String> {
    let none = Map::new();
    let old_map = match old {
        Old::Value(Value::Object(map)) => map,
        _ => &none,
    };
    let new_map = new.and_then(Value::as_object).unwrap_or(&none);
    for (key, value) in new_map {
        let below = atom::child(place, key);
        let before = match (old_map.get(key), old) {
            (Some(before), _) => Old::Value(before),
            (None, Old::Zero) => below.declared().map_or(Old::Absent, zero_of),
            (None, _) => Old::Absent,
        };
        let mut sub = Sub::default();
        visit(key, below, before, Some(value), &mut sub)?;
        sub.hang(out, || element::of_field(key));
    }
    for (key, value) in old_map.iter().filter(|(key, _)| !new_map.contains_key(*key)) {
        let mut sub = Sub::default();
        visit(key, atom::child(place, key), Old::Value(value), None, &mut sub)?;
        sub.hang(out, || element::of_field(key));
    }
    Ok(())
}

/// The value of a field in an empty Go struct. Custom resources (whose fields have no protobuf
/// number) are maps in Go, so they have no such value.
fn zero_of(field: &Field) -> Old<'static> {
    let any = field.shape == Shape::Any && field.presence != Presence::Always;
    if field.is_always_written() && !any && field.number != 0 { Old::Zero } else { Old::Absent }
}

fn is_zero(place: Node<'_>, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => match place.shape() {
            Shape::Quantity => text == "0",
            Shape::Duration => text == "0s",
            _ => text.is_empty(),
        },
        // An empty list differs from null.
        Value::Array(_) => false,
        Value::Object(map) => {
            place.as_struct().is_some()
                && map.iter().all(|(key, value)| is_zero(atom::child(place, key), value))
        }
    }
}

/// The items of a list with their steps, sorted; a step may occur several times.
fn indexed<'v>(place: Node<'_>, list: &'v [Value]) -> Result<Vec<(String, &'v Value)>, String> {
    let mut out = Vec::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        let step = element::of_item(place, item).map_err(|e| format!("element {at}: {e}"))?;
        out.push((step, item));
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(out)
}

fn list_items(place: Node<'_>, old: &[Value], new: &[Value], out: &mut Sub) -> Result<(), String> {
    let (old, new) = (indexed(place, old)?, indexed(place, new)?);
    let (mut old, mut new) = (old.as_slice(), new.as_slice());
    loop {
        let step = match (old.first(), new.first()) {
            (None, None) => return Ok(()),
            (Some((a, _)), Some((b, _))) => a.min(b),
            (Some((step, _)), None) | (None, Some((step, _))) => step,
        };
        let split = |list: &[(String, &Value)]| list.partition_point(|(s, _)| s <= step);
        let (was, old_rest) = old.split_at(split(old));
        let (is, new_rest) = new.split_at(split(new));
        let mut sub = Sub::default();
        item(atom::items(place), was, is, &mut sub)?;
        sub.hang(out, || step.clone());
        (old, new) = (old_rest, new_rest);
    }
}

/// Compares the items of one step. Duplicates are owned as one leaf; only objects that were stored
/// before the validation existed have them.
fn item(
    place: Node<'_>,
    was: &[(String, &Value)],
    is: &[(String, &Value)],
    out: &mut Sub,
) -> Result<(), String> {
    match (was, is) {
        ([], [(_, new)]) => compare(place, Old::Absent, Some(new), out),
        ([(_, old)], []) => compare(place, Old::Value(old), None, out),
        ([(_, old)], [(_, new)]) => compare(place, Old::Value(old), Some(new), out),
        ([_, _, ..], [_, _, ..]) => {
            let equal = was.len() == is.len()
                && was.iter().zip(is).all(|(old, new)| atom::same(old.1, new.1));
            out.set.member |= !equal;
            Ok(())
        }
        ([_, _, ..], rest) => {
            if let [(_, new)] = rest {
                compare(place, Old::Absent, Some(new), out)?;
            }
            out.removed.member = true;
            Ok(())
        }
        (rest, [_, _, ..]) => {
            if let [(_, old)] = rest {
                compare(place, Old::Value(old), None, out)?;
            }
            out.set.member = true;
            Ok(())
        }
        ([], []) => Ok(()),
    }
}
