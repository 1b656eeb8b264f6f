//! Field ownership (`metadata.managedFields`) and server-side apply.
//!
//! There are two entry points: [`update`] after every ordinary write, and [`apply`] for a PATCH
//! with an applied configuration. Both are pure; the writer and the time are arguments.
//!
//! The caller does the following around them, so that defaults and allocated values have the same
//! owners as in Kubernetes:
//! * create, PUT, patches: decode and default the new object, then [`update`], then all changes by
//!   the server itself (admission, allocated addresses, generation), which have no owner.
//! * apply: [`apply`], then decode and default the result (the merged object may hold nulls that
//!   the configuration named), then as above. Defaulted fields have no owner.
//! * last, [`keep_times`]: a write that changes only times counts as no change.
//!
//! Not here: checks that need no schema and apply to every patch (names, kinds, resourceVersion),
//! and the conversion between versions of a kind: all entries are compared in the version of the
//! request.

mod atom;
mod compare;
mod conflict;
mod element;
mod fieldset;
mod managed;
mod merge;
mod own;
mod server_side;

use jiff::Timestamp;
use serde_json::Value;

use crate::schema::Node;

pub use conflict::{Conflict, conflict_message};
pub use fieldset::FieldSet;
pub use managed::{Entry, ManagedFields, Manager, Operation};
pub use own::fields_of;
pub use server_side::{ApplyError, Force, apply};

const MANAGED_FIELDS: &str = "/metadata/managedFields";

/// The writer of a request, the time, and the fields that it cannot change.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// `fieldManager`, or the first part of the User-Agent; empty means `unknown`.
    pub manager: &'a str,
    /// The API version of the request, for example `apps/v1`.
    pub api_version: &'a str,
    /// `status`, `scale`; empty for the object itself.
    pub subresource: &'a str,
    /// The time of the entry. `None` omits it, as Kubernetes does for `scale`.
    pub now: Option<Timestamp>,
    /// Fields that this request cannot change, with everything below them (`status`,
    /// `metadata.labels`): the writer never owns them.
    pub ignore: &'a [&'a str],
}

impl Writer<'_> {
    fn manager(&self, operation: Operation) -> Manager {
        let name = if self.manager.is_empty() { "unknown" } else { self.manager };
        Manager {
            name: name.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }

    fn time(&self) -> Option<String> {
        self.now.map(managed::stamp)
    }
}

/// Writes `metadata.managedFields` of an object that was created (`old` is `None`), replaced or
/// patched. The writer becomes the owner of the fields that it changed, and other managers lose
/// them.
///
/// An object without owners gets none before its first apply. If `new` contains a valid
/// `managedFields` list, that list counts, and an empty list removes all owners, unless the request
/// goes to a subresource.
pub fn update(root: Node<'_>, old: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let sent = take_managed(new);
    let mut managed = start(old, sent, writer);
    if managed.is_empty() && old.is_some() {
        return;
    }
    // An object that cannot be compared loses its owners, as in Kubernetes.
    let Ok(changes) = compare::objects(root, old, new, writer.ignore) else { return };
    managed.update(writer.manager(Operation::Update), writer.time(), changes);
    put_managed(new, managed);
}

/// The owners before the write.
fn start(old: Option<&Value>, sent: Option<Value>, writer: &Writer<'_>) -> ManagedFields {
    let live = old.and_then(|old| old.pointer(MANAGED_FIELDS));
    let stored = |list: Option<Value>| {
        list.and_then(|list| ManagedFields::stored(list).ok()).unwrap_or_default()
    };
    match sent {
        // Clients often send back the list that they read: then it needs no copy.
        Some(list) if live == Some(&list) => stored(Some(list)),
        Some(list) if writer.subresource.is_empty() => {
            if managed::is_reset(&list) {
                return ManagedFields::default();
            }
            match ManagedFields::parse(list) {
                Ok(managed) if !managed.is_empty() => managed,
                _ => stored(live.cloned()),
            }
        }
        _ => stored(live.cloned()),
    }
}

/// Restores the times of all entries if nothing else differs from the stored object, so that the
/// write changes nothing. Call it last, when `new` has the form in which it is stored.
pub fn keep_times(old: &Value, new: &mut Value) {
    let (Some(before), Some(after)) = (old.pointer(MANAGED_FIELDS), new.pointer(MANAGED_FIELDS))
    else {
        return;
    };
    let (Some(before_list), Some(after_list)) = (before.as_array(), after.as_array()) else {
        return;
    };
    let same_but_times = before_list.len() == after_list.len()
        && before_list.iter().zip(after_list).all(|(a, b)| equal_without(a, b, &["time"]))
        && before != after
        && equal_but_for_owners(old, new);
    if same_but_times {
        let before = before.clone();
        if let Some(after) = new.pointer_mut(MANAGED_FIELDS) {
            *after = before;
        }
    }
}

/// Whether two objects are equal apart from `metadata.managedFields`.
fn equal_but_for_owners(a: &Value, b: &Value) -> bool {
    equal_without(a, b, &["metadata", "managedFields"])
}

/// Whether two objects are equal apart from the value at a path.
fn equal_without(a: &Value, b: &Value, path: &[&str]) -> bool {
    let (Some((skip, rest)), Value::Object(a), Value::Object(b)) = (path.split_first(), a, b)
    else {
        return a == b;
    };
    let below = match (a.get(*skip), b.get(*skip)) {
        _ if rest.is_empty() => true,
        (Some(a), Some(b)) => equal_without(a, b, rest),
        (a, b) => a == b,
    };
    // The ignored key may be absent on one side.
    let skipped = |(key, _): &(&String, &Value)| key != skip;
    below && a.iter().filter(skipped).eq(b.iter().filter(skipped))
}

/// A copy of an object without its owners.
fn without_owners(object: &Value) -> Value {
    let Value::Object(fields) = object else { return object.clone() };
    let copy = |(key, value): (&String, &Value)| match value {
        Value::Object(metadata) if key == "metadata" => {
            let kept = metadata.iter().filter(|(key, _)| *key != "managedFields");
            (key.clone(), kept.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        value => (key.clone(), value.clone()),
    };
    fields.iter().map(copy).collect()
}

fn take_managed(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn put_managed(object: &mut Value, managed: ManagedFields) {
    if managed.is_empty() {
        return;
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".to_owned(), managed.into_json());
    }
}
