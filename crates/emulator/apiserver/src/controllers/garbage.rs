//! The garbage collector deletes dependents of deleted owners (`metadata.ownerReferences`).
//!
//! Background: after the owner. Foreground: before the owner, which waits for dependents that block
//! its deletion. Orphan: removes the reference from dependents, then the owner's finalizer.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearhop_kinds::Resource;
use nearhop_kinds::metadata::retain_items;
use nearhop_kinds::options::DeleteOptions;
use serde_json::Value;

use super::{changed_or_again, rewrite};
use crate::api::Api;
use crate::rest::{FOREGROUND, ORPHAN, ObjectKey, Writer, delete_object};
use crate::store::{Event, EventKind, Name, Stored};

const BATCH: usize = 256;

pub(super) async fn run(api: Arc<Api>) {
    let (mut changes, mut stop) = (api.store.subscribe_all(), api.stopping());
    let mut positions: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    let mut waiting = sweep(&api).await;
    loop {
        for (storage, _) in api.store.counts() {
            waiting |= follow(&api, &storage, &mut positions).await;
        }
        if !changed_or_again(&mut changes, &mut stop, waiting).await {
            return;
        }
        // Changes of dependents do not name the waiting owner.
        waiting = waiting && sweep(&api).await;
    }
}

/// Considers every object: after a start, and when the log was compacted. Returns whether an owner
/// waits.
async fn sweep(api: &Arc<Api>) -> bool {
    let mut waiting = false;
    for (storage, _) in api.store.counts() {
        for object in api.store.list(&storage, None).objects {
            waiting |= consider(api, &storage, &object).await;
        }
    }
    waiting
}

/// Handles the changes of a storage. Returns whether an owner waits.
async fn follow(
    api: &Arc<Api>,
    storage: &Arc<str>,
    positions: &mut BTreeMap<Arc<str>, u64>,
) -> bool {
    let mut waiting = false;
    loop {
        let position = positions.entry(Arc::clone(storage)).or_insert(0);
        let changes = match api.store.events_after(storage, *position, BATCH) {
            Ok(changes) => changes,
            Err(compacted) => {
                *position = compacted.newest;
                waiting |= sweep(api).await;
                continue;
            }
        };
        *position = changes.upto;
        if changes.events.is_empty() {
            return waiting;
        }
        for event in &changes.events {
            waiting |= react(api, storage, event).await;
        }
    }
}

async fn react(api: &Arc<Api>, storage: &Arc<str>, event: &Event) -> bool {
    if event.kind == EventKind::Deleted {
        for dependent in api.store.dependents(&event.object.content.uid) {
            if let Some(object) = api.store.get(&dependent.storage, &dependent.name) {
                consider(api, &dependent.storage, &object).await;
            }
        }
        return false;
    }
    // The decision depends on the current object, not on the logged one.
    match api.store.get(storage, &event.object.name) {
        Some(current) => consider(api, storage, &current).await,
        None => false,
    }
}

/// Deletes an object whose owners are all gone, and continues the deletion of an owner. Returns
/// whether the owner still waits.
async fn consider(api: &Arc<Api>, storage: &Arc<str>, object: &Arc<Stored>) -> bool {
    let owners = &object.content.owners;
    let orphaned = !owners.is_empty() && owners.iter().all(|uid| !api.store.uid_exists(uid));
    if orphaned {
        delete(api, storage, object).await;
    }
    if !object.content.deleting {
        return false;
    }
    let Some(resource) = resource_of(api, storage) else { return false };
    let (value, writer) = (object.to_value(""), writer());
    let has = |finalizer: &str| {
        value["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| list.iter().any(|f| f == finalizer))
    };
    let finalizer = if has(ORPHAN) {
        orphan_dependents(api, &object.content.uid).await;
        ORPHAN
    } else if has(FOREGROUND) {
        if delete_dependents(api, &object.content.uid).await {
            return true;
        }
        FOREGROUND
    } else {
        return false;
    };
    let write = rewrite(api, &resource, object, &writer, |object| {
        retain_items(object, ["metadata", "finalizers"], |name| name != finalizer);
    });
    write.await.is_err()
}

/// Deletes all dependents of an owner. Returns whether a blocking one still exists.
async fn delete_dependents(api: &Arc<Api>, uid: &str) -> bool {
    for dependent in api.store.dependents(uid) {
        if let Some(object) = api.store.get(&dependent.storage, &dependent.name) {
            delete(api, &dependent.storage, &object).await;
        }
    }
    api.store.dependents(uid).iter().any(|dependent| {
        let Some(object) = api.store.get(&dependent.storage, &dependent.name) else { return false };
        let value = object.to_value("");
        let mut references = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        references.any(|r| r["uid"] == uid && r["blockOwnerDeletion"] == true)
    })
}

async fn orphan_dependents(api: &Arc<Api>, uid: &str) {
    for dependent in api.store.dependents(uid) {
        let Some(resource) = resource_of(api, &dependent.storage) else { continue };
        let Some(object) = api.store.get(&dependent.storage, &dependent.name) else { continue };
        // A failed write is repeated when the owner is considered again.
        let _ =
            rewrite(api, &resource, &object, &writer(), |object| remove_owner(object, uid)).await;
    }
}

fn remove_owner(object: &mut Value, uid: &str) {
    retain_items(object, ["metadata", "ownerReferences"], |owner| owner["uid"] != uid);
}

fn writer() -> Writer {
    Writer::server("kube-controller-manager", None)
}

/// Deletes an object at the version that was considered: a later change is considered on its own.
async fn delete(api: &Arc<Api>, storage: &str, object: &Stored) {
    let Some(resource) = resource_of(api, storage) else { return };
    let Name { namespace, name } = &object.name;
    let key = ObjectKey { resource: &resource, namespace, name };
    let only_this = DeleteOptions {
        uid: Some(object.content.uid.to_string()),
        resource_version: Some(object.version.to_string()),
        ..DeleteOptions::default()
    };
    // The object may be gone already.
    let _ = delete_object(api, &key, &only_this).await;
}

fn resource_of(api: &Api, storage: &str) -> Option<Arc<Resource>> {
    api.registry.load().of_storage(storage).cloned()
}
