//! The status of a CustomResourceDefinition, from accepted names to deletion. Each function makes one
//! update and returns whether the status changed.

use serde_json::{Map, Value, json};

use super::{list, text};
use crate::json::{make, push};
use crate::metadata::retain_items;

/// Keeps a CustomResourceDefinition until its objects are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Whether the resource is served.
pub fn is_established(crd: &Value) -> bool {
    has_condition(crd, "Established")
}

/// Whether a condition is true.
pub fn has_condition(crd: &Value, type_: &str) -> bool {
    let conditions = list(crd, "/status/conditions").iter();
    conditions.clone().any(|c| text(c, "/type") == type_ && text(c, "/status") == "True")
}

/// First update: accepts the names that no other CustomResourceDefinition of the group has, and sets
/// the conditions NamesAccepted and Established. `others` may include this one.
pub fn accept_names(crd: &mut Value, others: &[&Value], now: &str) -> bool {
    let wanted = crd.pointer("/spec/names").cloned().unwrap_or_default();
    let accepted = crd.pointer("/status/acceptedNames").cloned().unwrap_or_default();
    if wanted == accepted {
        return false;
    }
    let taken = Taken::by(crd, others);
    let (names, conflict) = choose(&wanted, &accepted, &taken);
    let before = crd.get("status").cloned();
    *make(crd, &["status", "acceptedNames"]) = names.into();
    let (status, reason, message) = match &conflict {
        Some((reason, message)) => ("False", *reason, message.as_str()),
        None => ("True", "NoConflicts", "no conflicts found"),
    };
    set_condition(crd, ["NamesAccepted", status, reason, message], now);
    let known = list(crd, "/status/conditions").iter().any(|c| text(c, "/type") == "Established");
    if conflict.is_none() && !is_established(crd) {
        let message = "the initial names have been accepted";
        set_condition(crd, ["Established", "False", "Installing", message], now);
    } else if !known {
        let message = "not all names are accepted";
        set_condition(crd, ["Established", "False", "NotAccepted", message], now);
    }
    crd.get("status") != before.as_ref()
}

/// Second update, when the resource is served: Established becomes true.
pub fn establish(crd: &mut Value, now: &str) -> bool {
    if !has_condition(crd, "NamesAccepted") || is_established(crd) {
        return false;
    }
    let message = "the initial names have been accepted";
    set_condition(crd, ["Established", "True", "InitialNamesAccepted", message], now);
    true
}

/// Marks a definition as being deleted.
pub(crate) fn mark_terminating(crd: &mut Value, now: &str) {
    *make(crd, &["metadata", "deletionTimestamp"]) = now.into();
    terminating(crd, now);
}

/// Sets the finalizer and the condition Terminating.
pub fn terminating(crd: &mut Value, now: &str) -> bool {
    let before = has_condition(crd, "Terminating");
    if !list(crd, "/metadata/finalizers").iter().any(|one| one == CLEANUP_FINALIZER) {
        push(crd, &["metadata", "finalizers"], CLEANUP_FINALIZER.into());
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will \
                   begin soon";
    set_condition(crd, ["Terminating", "True", "InstanceDeletionPending", message], now);
    !before
}

/// Removes the finalizer, when all objects are gone.
pub fn remove_finalizer(crd: &mut Value) {
    retain_items(crd, ["metadata", "finalizers"], |one| one != CLEANUP_FINALIZER);
}

/// The names of other definitions of the group.
struct Taken<'a> {
    resources: Vec<&'a str>,
    kinds: Vec<&'a str>,
}

impl<'a> Taken<'a> {
    fn by(crd: &Value, others: &[&'a Value]) -> Self {
        let mut taken = Self { resources: Vec::new(), kinds: Vec::new() };
        let (group, name) = (text(crd, "/spec/group"), text(crd, "/metadata/name"));
        let same_group = |other: &&&Value| {
            text(other, "/spec/group") == group && text(other, "/metadata/name") != name
        };
        for names in
            others.iter().filter(same_group).filter_map(|o| o.pointer("/status/acceptedNames"))
        {
            taken.resources.extend([text(names, "/plural"), text(names, "/singular")]);
            taken.resources.extend(list(names, "/shortNames").iter().filter_map(Value::as_str));
            taken.kinds.extend([text(names, "/kind"), text(names, "/listKind")]);
        }
        taken
    }
}

type Conflict = (&'static str, String);

/// The free names, and the last conflict.
fn choose(
    wanted: &Value,
    accepted: &Value,
    taken: &Taken<'_>,
) -> (Map<String, Value>, Option<Conflict>) {
    let mut names = accepted.as_object().cloned().unwrap_or_default();
    let mut conflict = None;
    let in_use = |name: &str| format!("{name:?} is already in use");
    for (key, reason, used) in [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("shortNames", "ShortNamesConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ] {
        let pointer = format!("/{key}");
        let (new, mine) = match key {
            "shortNames" => (strings(list(wanted, &pointer)), strings(list(accepted, &pointer))),
            _ => (vec![text(wanted, &pointer)], vec![text(accepted, &pointer)]),
        };
        let clashes: Vec<String> = new
            .iter()
            .filter(|name| !mine.contains(name) && used.contains(name))
            .map(|name| in_use(name))
            .collect();
        match clashes.as_slice() {
            [] => take(&mut names, key, wanted),
            [one] => conflict = Some((reason, one.clone())),
            several => conflict = Some((reason, format!("[{}]", several.join(", ")))),
        }
    }
    take(&mut names, "categories", wanted);
    // Go writes these two even if they are empty.
    for key in ["plural", "kind"] {
        names.entry(key).or_insert_with(|| "".into());
    }
    (names, conflict)
}

fn strings(all: &[Value]) -> Vec<&str> {
    all.iter().filter_map(Value::as_str).collect()
}

fn take(names: &mut Map<String, Value>, key: &str, wanted: &Value) {
    match wanted.get(key).filter(|value| !value.is_null()) {
        Some(value) => names.insert(key.to_owned(), value.clone()),
        None => names.remove(key),
    };
}

/// Sets a condition (type, status, reason, message); its time is when its status last changed.
fn set_condition(crd: &mut Value, condition: [&str; 4], now: &str) {
    let mut conditions = list(crd, "/status/conditions").to_vec();
    let [type_, status, reason, message] = condition;
    let mut new = json!({
        "type": type_, "status": status, "lastTransitionTime": now,
        "reason": reason, "message": message,
    });
    match conditions.iter_mut().find(|one| text(one, "/type") == type_) {
        Some(old) => {
            let since = old.get("lastTransitionTime").filter(|since| !since.is_null());
            if let Some(since) = since.filter(|_| text(old, "/status") == status) {
                new["lastTransitionTime"] = since.clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
    *make(crd, &["status", "conditions"]) = conditions.into();
}
