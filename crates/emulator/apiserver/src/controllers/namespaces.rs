//! Deletes the content of terminating Namespaces, then removes their finalizer.

use std::collections::BTreeSet;
use std::sync::Arc;

use nearhop_kinds::Subresource;
use nearhop_kinds::metadata::retain_items;
use nearhop_kinds::options::DeleteOptions;
use serde_json::{Value, json};

use super::{changed_or_again, rewrite};
use crate::api::Api;
use crate::builtin::NAMESPACES;
use crate::rest::{ObjectKey, Writer, delete_object, now_text};
use crate::store::Stored;

pub(super) async fn run(api: Arc<Api>) {
    let (mut changes, mut stop) = (api.store.subscribe(&NAMESPACES.storage), api.stopping());
    loop {
        let waiting = empty_all(&api).await;
        if !changed_or_again(&mut changes, &mut stop, waiting).await {
            return;
        }
    }
}

/// Empties every terminating Namespace. Returns whether one still has content.
async fn empty_all(api: &Arc<Api>) -> bool {
    let mut waiting = false;
    for namespace in api.store.list(&NAMESPACES.storage, None).objects {
        if namespace.content.field("status.phase") == Some("Terminating") {
            waiting |= !empty(api, &namespace).await;
        }
    }
    waiting
}

/// Deletes the content of a Namespace. Returns whether the Namespace is gone.
async fn empty(api: &Arc<Api>, namespace: &Arc<Stored>) -> bool {
    let name = &*namespace.name.name;
    let registry = api.registry.load_full();
    let mut seen = BTreeSet::new();
    for resource in registry.resources().iter().filter(|r| r.namespaced) {
        if !seen.insert(resource.storage.clone()) {
            continue;
        }
        for object in api.store.list(&resource.storage, Some(name)).objects {
            let key = ObjectKey { resource, namespace: name, name: &object.name.name };
            // An object that cannot be deleted is counted below.
            let _ = delete_object(api, &key, &DeleteOptions::default()).await;
        }
    }
    let left: usize =
        seen.iter().map(|storage| api.store.list(storage, Some(name)).objects.len()).sum();
    let now = now_text();
    let writer = Writer::server("kube-controller-manager", Some(Subresource::Status));
    let updated =
        rewrite(api, &NAMESPACES, namespace, &writer, |object| set_conditions(object, left, &now))
            .await;
    if left > 0 || updated.is_err() {
        return false;
    }
    let read = || api.store.get(&NAMESPACES.storage, &namespace.name);
    let Some(current) = read() else { return true };
    let finalized = rewrite(api, &NAMESPACES, &current, &writer, remove_finalizer).await;
    finalized.is_ok() && read().is_none()
}

fn remove_finalizer(namespace: &mut Value) {
    retain_items(namespace, ["spec", "finalizers"], |name| name != "kubernetes");
}

fn set_conditions(namespace: &mut Value, left: usize, now: &str) {
    let remaining = left > 0;
    let content = format!("Some resources are remaining: {left} objects");
    let (content, finalizers) = if remaining {
        (
            ("SomeResourcesRemain", content.as_str()),
            ("SomeFinalizersRemain", "Some content in the namespace has finalizers remaining"),
        )
    } else {
        (
            ("ContentRemoved", "All content successfully removed"),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        )
    };
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            false,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        ("NamespaceContentRemaining", remaining, content.0, content.1),
        ("NamespaceFinalizersRemaining", remaining, finalizers.0, finalizers.1),
    ];
    let before = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let conditions: Vec<Value> = rows
        .into_iter()
        .map(|(kind, status, reason, message)| {
            let status = if status { "True" } else { "False" };
            let same = before.iter().find(|c| c["type"] == kind && c["status"] == status);
            let since = same.map_or_else(|| now.into(), |c| c["lastTransitionTime"].clone());
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
        })
        .collect();
    namespace["status"]["conditions"] = conditions.into();
}
