//! Server-side apply: merges an applied configuration into an object.

use serde_json::{Map, Value, json};

use super::compare::{self, Changes, UNTRACKED};
use super::conflict::{self, Conflict};
use super::fieldset::FieldSet;
use super::managed::{Manager, Operation};
use super::own::{self, fields_of};
use super::{
    MANAGED_FIELDS, ManagedFields, Writer, conflict_message, element, equal_but_for_owners, merge,
    put_managed, without_owners,
};
use crate::schema::Node;

/// The manager that owns all fields of an object without owners before its first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager whose applies replace client-side apply and update its annotation.
const KUBECTL: &str = "kubectl";

/// The annotation in which client-side apply stores its configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The limit on the total size of an object's annotations, in bytes.
const MOST_ANNOTATION_BYTES: usize = 256 * 1024;

/// How to handle fields that other managers own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Force {
    /// Return a conflict.
    #[default]
    No,
    /// Take their ownership.
    Yes,
}

/// Why a configuration was not applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApplyError {
    /// It changes fields that other managers own: 409, reason `Conflict`.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// It contains `managedFields`: 400, reason `BadRequest`.
    #[error("metadata.managedFields must be nil")]
    NamesOwners,
    /// It does not fit the schema, or the object's `managedFields` are not valid: 500 without a
    /// reason.
    #[error("{0}")]
    Untyped(String),
}

/// Merges `applied` into `live` (`None`: creates the object). The result includes its
/// `managedFields`. If an apply changes nothing, the result equals `live`.
///
/// # Errors
/// See [`ApplyError`].
pub fn apply(
    root: Node<'_>,
    live: Option<&Value>,
    applied: &Value,
    writer: &Writer<'_>,
    force: Force,
) -> Result<Value, ApplyError> {
    if applied.pointer(MANAGED_FIELDS).is_some_and(|list| !list.is_null()) {
        return Err(ApplyError::NamesOwners);
    }
    let owners = || owners_of(root, live, writer);
    own::check(root, applied).map_err(|e| {
        ApplyError::Untyped(format!(
            "failed to create typed patch object ({}): {e}",
            describe(applied)
        ))
    })?;
    let apply = Apply { root, live, applied, writer };
    let (mut merged, owners) = match apply.run(owners()?, force) {
        Err(ApplyError::Conflicts(conflicts)) if writer.manager == KUBECTL => {
            apply.check_client_side(conflicts)?;
            apply.run(owners()?, Force::Yes)?
        }
        other => other?,
    };
    if writer.manager == KUBECTL {
        renew_last_applied(&mut merged, applied);
    }
    put_managed(&mut merged, owners);
    Ok(merged)
}

/// The owners of the live object; if it has none, a default manager owns all fields.
fn owners_of(
    root: Node<'_>,
    live: Option<&Value>,
    writer: &Writer<'_>,
) -> Result<ManagedFields, ApplyError> {
    let Some(live) = live else { return Ok(ManagedFields::default()) };
    let untyped = |what: &str, e: String| ApplyError::Untyped(format!("{what}: {e}"));
    let mut managed = match live.pointer(MANAGED_FIELDS) {
        Some(list) => ManagedFields::stored(list.clone())
            .map_err(|e| untyped("failed to decode managed fields", e))?,
        None => ManagedFields::default(),
    };
    if managed.is_empty() {
        let changes = compare::objects(root, None, live, writer.ignore)
            .map_err(|e| untyped("failed to create manager for existing fields", e))?;
        let name = Writer { manager: BEFORE_FIRST_APPLY, ..*writer };
        managed.update(name.manager(Operation::Update), writer.time(), changes);
    }
    Ok(managed)
}

struct Apply<'a> {
    root: Node<'a>,
    live: Option<&'a Value>,
    applied: &'a Value,
    writer: &'a Writer<'a>,
}

impl Apply<'_> {
    /// The merged object without `managedFields`, and its owners.
    fn run(
        &self,
        mut owners: ManagedFields,
        force: Force,
    ) -> Result<(Value, ManagedFields), ApplyError> {
        let me = self.writer.manager(Operation::Apply);
        let mut merged = self.live.map_or_else(|| json!({}), without_owners);
        merge::merge(self.root, &mut merged, self.applied);

        let mut fields = fields_of(self.root, self.applied);
        self.writer.ignore.iter().for_each(|path| fields.exclude(path));
        let last = owners.of(&me).cloned();
        if let Some(last) = &last {
            self.prune(&mut merged, &owners, &me, &last.fields, &fields);
        }
        strip(&mut fields);

        let (changes, changed) = match self.live {
            Some(live) => (
                self.compare(live, &merged, self.writer.ignore)?,
                !equal_but_for_owners(live, &merged),
            ),
            None => (Changes::default(), true),
        };
        if force == Force::No {
            refuse_conflicts(&owners, &me, &changes)?;
        }
        owners.release(&changes, Some(&me));
        let time = if changed { self.writer.time() } else { last.and_then(|entry| entry.time) };
        owners.set(me, fields, time);
        Ok((merged, owners))
    }

    fn compare(&self, old: &Value, new: &Value, ignore: &[&str]) -> Result<Changes, ApplyError> {
        compare::objects(self.root, Some(old), new, ignore)
            .map_err(|e| ApplyError::Untyped(format!("failed to compare objects: {e}")))
    }

    /// Removes the fields that this manager applied last time, does not apply now, and that no
    /// other manager owns. A field stays if another manager owns something below it.
    fn prune(
        &self,
        merged: &mut Value,
        owners: &ManagedFields,
        me: &Manager,
        last: &FieldSet,
        now: &FieldSet,
    ) {
        let mut tracked = now.clone();
        strip(&mut tracked);
        if tracked == *last {
            return;
        }
        let declared = |fields| merge::with_declared(self.root, fields);
        let all = declared(fields_of(self.root, merged));
        let last = declared(last.clone());

        let mut pruned = merged.clone();
        merge::remove(self.root, &mut pruned, &last);
        let mut owned = now.clone();
        owners.others(me).for_each(|entry| owned.union(entry.fields.clone()));
        let mut gone = all.clone();
        gone.subtract(&declared(fields_of(self.root, &pruned)));
        gone.subtract(&declared(owned));
        pruned.clone_from(merged);
        merge::remove(self.root, &mut pruned, &gone);

        let mut gone = all;
        gone.subtract(&declared(fields_of(self.root, &pruned)));
        merge::remove(self.root, merged, &gone.intersection(&last));
    }

    /// Ignores conflicts about fields that client-side apply set and that are unchanged since.
    /// Fails if other conflicts remain.
    fn check_client_side(&self, mut conflicts: Vec<Conflict>) -> Result<(), ApplyError> {
        if let Some(allowed) = self.set_by_client_side_apply() {
            let allowed: std::collections::BTreeSet<String> = allowed.paths().into_iter().collect();
            conflicts.retain(|conflict| !allowed.contains(&conflict.path));
        }
        if conflicts.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(conflicts)) }
    }

    fn set_by_client_side_apply(&self) -> Option<FieldSet> {
        let live = self.live?;
        let text = annotations(live)?.get(LAST_APPLIED)?.as_str()?;
        let config: Value = serde_json::from_str(text).ok()?;
        if config.get("apiVersion")?.as_str()? != self.writer.api_version {
            return None;
        }
        own::check(self.root, live).ok()?;
        own::check(self.root, &config).ok()?;
        let changes = self.compare(&config, live, &[]).ok()?;
        let mut fields = fields_of(self.root, &config);
        fields.subtract(&changes.set);
        fields.subtract(&changes.removed);
        Some(fields)
    }
}

fn refuse_conflicts(
    owners: &ManagedFields,
    me: &Manager,
    changes: &Changes,
) -> Result<(), ApplyError> {
    let mut conflicts = Vec::new();
    for other in owners.others(me) {
        for path in other.fields.intersection(&changes.set).paths() {
            conflicts.push(Conflict { manager: other.manager.clone(), path });
        }
    }
    conflict::sort(&mut conflicts);
    if conflicts.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(conflicts)) }
}

/// Removes fields whose ownership is not tracked.
fn strip(fields: &mut FieldSet) {
    fields.exclude("apiVersion");
    fields.exclude("kind");
    for name in UNTRACKED {
        fields.exclude(&format!("metadata.{name}"));
    }
    let tree = &mut fields.0;
    if let Some(metadata) = tree.get_mut("f:metadata").and_then(Value::as_object_mut) {
        metadata.remove(super::fieldset::SELF);
        if metadata.is_empty() {
            tree.remove("f:metadata");
        }
    }
}

fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object.pointer("/metadata/annotations")?.as_object()
}

/// Updates the annotation of client-side apply, if it exists.
fn renew_last_applied(merged: &mut Value, applied: &Value) {
    let has = annotations(merged).and_then(|a| a.get(LAST_APPLIED)).and_then(Value::as_str);
    if has.is_none_or(str::is_empty) {
        return;
    }
    let mut config = applied.clone();
    if let Some(Value::Object(map)) = config.pointer_mut("/metadata/annotations") {
        map.remove(LAST_APPLIED);
    }
    let text = format!("{}\n", element::escape_html(&config.to_string()));
    if let Some(Value::Object(map)) = merged.pointer_mut("/metadata/annotations") {
        map.insert(LAST_APPLIED.to_owned(), text.into());
        let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
        if map.iter().map(size).sum::<usize>() > MOST_ANNOTATION_BYTES {
            map.remove(LAST_APPLIED);
        }
    }
}

/// The object as error messages name it: `namespace/name; group/version, Kind=kind`.
fn describe(object: &Value) -> String {
    let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let api_version = text("/apiVersion");
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!(
        "{}/{}; {slash}{api_version}, Kind={}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/kind"),
    )
}
