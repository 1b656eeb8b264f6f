//! `metadata.managedFields`: which manager owns which fields of an object.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::compare::Changes;
use super::fieldset::FieldSet;

/// If there are more `Update` entries than this, the oldest ones are merged into one.
const MOST_UPDATERS: usize = 10;

/// The manager of merged entries.
const ANCIENT: &str = "ancient-changes";

/// The kind of write by which a manager owns its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// A field manager. The order is that of conflict messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// For example `kubectl`.
    pub name: String,
    /// The kind of its write.
    pub operation: Operation,
    /// The API version of its write, for example `apps/v1`.
    pub api_version: String,
    /// The subresource of its write; empty for the object itself.
    pub subresource: String,
}

impl Manager {
    /// Whether two managers share an entry. A manager that applies keeps its entry when it changes
    /// to another API version.
    fn is(&self, other: &Self) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The manager.
    pub manager: Manager,
    /// When it last changed the object; absent after an apply that changed only ownership, and
    /// after a write to `scale`.
    pub time: Option<String>,
    /// The fields that it owns.
    pub fields: FieldSet,
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagedFields {
    entries: Vec<Entry>,
}

impl ManagedFields {
    /// Parses a list that a client sent.
    ///
    /// # Errors
    /// Why the list is not valid.
    pub fn parse(list: Value) -> Result<Self, String> {
        Self::read(list, |json, at| match json.get("fieldsType").and_then(Value::as_str) {
            Some("FieldsV1") => FieldSet::parse(fields_in(json))
                .map_err(|e| format!("error decoding versioned set: error decoding set: {e}")),
            None | Some("") => Err(format!("missing fieldsType in managed fields entry {at}")),
            Some(other) => {
                Err(format!("invalid fieldsType {other:?} in managed fields entry {at}"))
            }
        })
    }

    /// Parses a stored list, without validating its field sets.
    ///
    /// # Errors
    /// Why the list is not valid.
    pub(super) fn stored(list: Value) -> Result<Self, String> {
        Self::read(list, |json, _| Ok(FieldSet::from_stored(fields_in(json))))
    }

    fn read(
        list: Value,
        fields: impl Fn(&mut Map<String, Value>, usize) -> Result<FieldSet, String>,
    ) -> Result<Self, String> {
        let list = match list {
            Value::Array(list) => list,
            Value::Null => Vec::new(),
            _ => return Err("managedFields must be a list".to_owned()),
        };
        let mut managed = Self::default();
        for (at, mut json) in list.into_iter().enumerate() {
            let json = json.as_object_mut().ok_or("an entry must be an object")?;
            let (manager, time) = manager_in(json)?;
            let entry = Entry { fields: fields(json, at)?, manager, time };
            // Of several entries of one manager the last one counts.
            managed.entries.retain(|other| !other.manager.is(&entry.manager));
            managed.entries.push(entry);
        }
        Ok(managed)
    }

    /// The entries, in the order of the list.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether no manager owns a field.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The list in Kubernetes' order: `Apply` before `Update`, then by time, then by name.
    pub fn into_json(mut self) -> Value {
        self.entries.sort_by_cached_key(|e| {
            let m = &e.manager;
            let names = (m.name.clone(), m.api_version.clone(), m.subresource.clone());
            (m.operation, seconds(e.time.as_deref()), names)
        });
        self.entries.into_iter().map(entry_json).collect()
    }

    pub(super) fn of(&self, manager: &Manager) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.manager.is(manager))
    }

    pub(super) fn others<'a>(&'a self, manager: &'a Manager) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(|entry| !entry.manager.is(manager))
    }

    /// Replaces the fields that a manager owns, and its API version. Removes its entry if there are
    /// none.
    pub(super) fn set(&mut self, manager: Manager, fields: FieldSet, time: Option<String>) {
        self.entries.retain(|entry| !entry.manager.is(&manager));
        if !fields.is_empty() {
            self.entries.push(Entry { manager, time, fields });
        }
    }

    /// Removes changed or deleted fields from all managers except `except`.
    pub(super) fn release(&mut self, changes: &Changes, except: Option<&Manager>) {
        self.entries.retain_mut(|entry| {
            if except.is_none_or(|manager| !entry.manager.is(manager)) {
                entry.fields.subtract(&changes.set);
                entry.fields.subtract(&changes.removed);
            }
            !entry.fields.is_empty()
        });
    }

    /// Makes the writer of an update the owner of the fields that it changed.
    pub(super) fn update(&mut self, manager: Manager, time: Option<String>, changes: Changes) {
        self.release(&changes, None);
        if changes.set.is_empty() {
            return;
        }
        match self.entries.iter_mut().find(|entry| entry.manager.is(&manager)) {
            Some(entry) => {
                entry.fields.union(changes.set);
                entry.time = time;
            }
            None => self.entries.push(Entry { manager, time, fields: changes.set }),
        }
        self.sum_up_updaters();
    }

    /// Merges `Update` entries until their number is within the limit.
    fn sum_up_updaters(&mut self) {
        let is_update = |entry: &Entry| entry.manager.operation == Operation::Update;
        let mut excess =
            self.entries.iter().filter(|e| is_update(e)).count().saturating_sub(MOST_UPDATERS);
        if excess == 0 {
            return;
        }
        let all = std::mem::take(&mut self.entries);
        let (mut updaters, appliers): (Vec<_>, Vec<_>) = all.into_iter().partition(is_update);
        self.entries = appliers;
        updaters.sort_by_cached_key(|e| (seconds(e.time.as_deref()), e.manager.name.clone()));
        // The entries of each API version are merged into the first of them.
        let mut kept: Vec<Entry> = Vec::with_capacity(MOST_UPDATERS);
        for entry in updaters {
            let version = &entry.manager.api_version;
            let bucket = kept.iter_mut().find(|other| other.manager.api_version == *version);
            match bucket {
                Some(bucket) if excess > 0 => {
                    bucket.manager.name = ANCIENT.to_owned();
                    bucket.manager.subresource.clear();
                    bucket.fields.union(entry.fields);
                    bucket.time = entry.time;
                    excess -= 1;
                }
                _ => kept.push(entry),
            }
        }
        self.entries.append(&mut kept);
    }
}

fn manager_in(json: &mut Map<String, Value>) -> Result<(Manager, Option<String>), String> {
    let mut text = |key: &str| match json.remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let operation = match text("operation").as_str() {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_owned()),
    };
    let manager = Manager {
        name: text("manager"),
        operation,
        api_version: text("apiVersion"),
        subresource: text("subresource"),
    };
    if manager.api_version.is_empty() {
        return Err("apiVersion must not be empty".to_owned());
    }
    let time = Some(text("time")).filter(|time| !time.is_empty());
    Ok((manager, time))
}

fn fields_in(json: &mut Map<String, Value>) -> Value {
    json.remove("fieldsV1").unwrap_or_default()
}

fn entry_json(entry: Entry) -> Value {
    let Manager { name, operation, api_version, subresource } = entry.manager;
    let mut json = Map::new();
    json.insert("apiVersion".to_owned(), api_version.into());
    json.insert("fieldsType".to_owned(), "FieldsV1".into());
    json.insert("fieldsV1".to_owned(), entry.fields.into_json());
    if !name.is_empty() {
        json.insert("manager".to_owned(), name.into());
    }
    json.insert("operation".to_owned(), operation.name().into());
    if !subresource.is_empty() {
        json.insert("subresource".to_owned(), subresource.into());
    }
    if let Some(time) = entry.time {
        json.insert("time".to_owned(), time.into());
    }
    json.into()
}

/// Seconds since 1970; a missing time counts as the oldest.
fn seconds(time: Option<&str>) -> i64 {
    time.and_then(|time| time.parse::<Timestamp>().ok()).map_or(0, Timestamp::as_second)
}

/// A time as entries contain it, in whole seconds.
pub(super) fn stamp(now: Timestamp) -> String {
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    whole.to_string()
}

/// Whether a client requests to remove all owners: by an empty list, or by a single empty entry.
pub(super) fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => *one == json!({}),
        _ => false,
    }
}
