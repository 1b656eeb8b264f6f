//! The parameters of operations, by name.

use serde_json::{Value, json};

/// Of lists and watches.
pub(super) const LIST: &str = "allowWatchBookmarks continue fieldSelector labelSelector limit \
    resourceVersion resourceVersionMatch sendInitialEvents shardSelector timeoutSeconds watch";

/// Of writes.
pub(super) const WRITE: &str = "dryRun fieldManager fieldValidation";

/// Of deletes.
pub(super) const DELETE: &str = "dryRun gracePeriodSeconds \
    ignoreStoreReadErrorWithClusterBreakingPotential orphanDependents propagationPolicy";

/// Of deletes of everything that matches.
pub(super) const DELETE_COLLECTION: &str = "continue dryRun fieldSelector gracePeriodSeconds \
    ignoreStoreReadErrorWithClusterBreakingPotential labelSelector limit orphanDependents \
    propagationPolicy resourceVersion resourceVersionMatch sendInitialEvents shardSelector \
    timeoutSeconds";

/// Name, type and meaning of each.
const ALL: [(&str, &str, &str); 22] = [
    ("allowWatchBookmarks", "boolean", "Whether a watch may send BOOKMARK events."),
    ("continue", "string", "Continue token of the previous page of a list."),
    ("dryRun", "string", "All: validate and answer, but store nothing."),
    ("fieldManager", "string", "Field manager, for managedFields."),
    ("fieldSelector", "string", "Only objects whose fields match."),
    (
        "fieldValidation",
        "string",
        "How unknown and duplicate fields are handled: Ignore, Warn or Strict.",
    ),
    ("force", "boolean", "Whether apply takes fields from other managers."),
    ("gracePeriodSeconds", "integer", "Time until the object is deleted; 0 is at once."),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Whether to delete an object that cannot be read from storage.",
    ),
    ("labelSelector", "string", "Only objects whose labels match."),
    ("limit", "integer", "Maximum number of objects in one response."),
    ("name", "string", "Name of the object."),
    ("namespace", "string", "Namespace of the object."),
    ("orphanDependents", "boolean", "Older form of propagationPolicy Orphan."),
    ("pretty", "string", "true: indented JSON."),
    (
        "propagationPolicy",
        "string",
        "What happens to dependents: Orphan, Background or Foreground.",
    ),
    ("resourceVersion", "string", "The version to read or to watch from."),
    ("resourceVersionMatch", "string", "How resourceVersion is matched: Exact or NotOlderThan."),
    ("sendInitialEvents", "boolean", "Whether a watch begins with the existing objects."),
    ("shardSelector", "string", "Only objects of one shard."),
    ("timeoutSeconds", "integer", "How long a list or watch may take."),
    ("watch", "boolean", "Watch instead of list."),
];

/// A parameter as OpenAPI 3 writes it.
pub(super) fn parameter(name: &str) -> Value {
    let found = ALL.iter().find(|(known, ..)| *known == name);
    let (kind, text) = found.map_or(("string", ""), |(_, kind, text)| (*kind, *text));
    let schema = json!({"type": kind, "uniqueItems": true});
    match name {
        "name" | "namespace" => {
            json!({"name": name, "in": "path", "required": true, "description": text, "schema": schema})
        }
        _ => json!({"name": name, "in": "query", "description": text, "schema": schema}),
    }
}
