//! CustomResourceDefinitions: accepts the names of a new one, serves its resources, then sets its
//! condition Established. Deletes the objects of a deleted one.

use std::collections::BTreeSet;
use std::sync::Arc;

use nearhop_kinds::options::DeleteOptions;
use nearhop_kinds::{Registry, Subresource, builtin, crd};
use serde_json::Value;

use super::{changed, rewrite};
use crate::api::Api;
use crate::builtin::DEFINITIONS;
use crate::rest::{ObjectKey, Writer, delete_object, now_text};
use crate::store::{Name, Store, Stored};

/// The registry with the resources of all definitions that are stored.
pub(crate) fn load(store: &Store) -> Registry {
    with_definitions(&definitions(store))
}

fn with_definitions(definitions: &[Value]) -> Registry {
    let established = definitions.iter().filter(|definition| crd::is_established(definition));
    let custom = established.flat_map(crd::resources_of).map(Arc::new).collect();
    builtin::registry().with_custom(custom)
}

pub(super) async fn run(api: Arc<Api>) {
    let (mut changes, mut stop) = (api.store.subscribe(&DEFINITIONS.storage), api.stopping());
    loop {
        reconcile(&api).await;
        if !changed(&mut changes, &mut stop).await {
            return;
        }
    }
}

async fn reconcile(api: &Arc<Api>) {
    for stored in api.store.list(&DEFINITIONS.storage, None).objects {
        accept(api, &stored).await;
    }
    serve(api);
    for stored in api.store.list(&DEFINITIONS.storage, None).objects {
        establish(api, &stored).await;
        remove(api, &stored).await;
    }
    serve(api);
}

/// Serves the resources of all established definitions.
fn serve(api: &Api) {
    let next = load(&api.store);
    let names = |registry: &Registry| -> Vec<String> {
        let custom = registry.resources().iter().filter(|r| r.is_custom());
        custom.map(|r| format!("{r:?}")).collect()
    };
    if names(&next) != names(&api.registry.load()) {
        api.registry.store(Arc::new(next));
    }
}

fn definitions(store: &Store) -> Vec<Value> {
    let stored = store.list(&DEFINITIONS.storage, None).objects;
    stored.iter().map(|definition| definition.to_value("")).collect()
}

async fn accept(api: &Arc<Api>, stored: &Arc<Stored>) {
    let others: Vec<Value> = definitions(&api.store)
        .into_iter()
        .filter(|d| d["metadata"]["name"] != *stored.name.name)
        .collect();
    let others: Vec<&Value> = others.iter().collect();
    let (now, writer) = (now_text(), writer());
    let write = rewrite(api, &DEFINITIONS, stored, &writer, |crd| {
        crd::accept_names(crd, &others, &now);
    });
    // A failed disk is reported to clients by their own writes.
    let _ = write.await;
}

async fn establish(api: &Arc<Api>, stored: &Arc<Stored>) {
    let value = stored.to_value("");
    if !crd::has_condition(&value, "NamesAccepted") || crd::is_established(&value) {
        return;
    }
    // Served before the condition says so.
    let mut served = definitions(&api.store);
    for definition in &mut served {
        if definition["metadata"]["name"] == *stored.name.name {
            crd::establish(definition, &now_text());
        }
    }
    api.registry.store(Arc::new(with_definitions(&served)));
    let (now, writer) = (now_text(), writer());
    let write = rewrite(api, &DEFINITIONS, stored, &writer, |crd| {
        crd::establish(crd, &now);
    });
    let _ = write.await;
}

/// Deletes the objects of a terminating definition, then removes its finalizer.
async fn remove(api: &Arc<Api>, stored: &Arc<Stored>) {
    let Some(current) = api.store.get(&DEFINITIONS.storage, &stored.name) else { return };
    let value = current.to_value("");
    if value["metadata"].get("deletionTimestamp").is_none() {
        return;
    }
    let (now, writer) = (now_text(), writer());
    let marked = rewrite(api, &DEFINITIONS, &current, &writer, |crd| {
        crd::terminating(crd, &now);
    });
    let _ = marked.await;
    let storages: BTreeSet<Box<str>> =
        crd::resources_of(&value).into_iter().map(|r| r.storage).collect();
    for custom in crd::resources_of(&value).into_iter().map(Arc::new) {
        for object in api.store.list(&custom.storage, None).objects {
            let Name { namespace, name } = &object.name;
            let key = ObjectKey { resource: &custom, namespace, name };
            let _ = delete_object(api, &key, &DeleteOptions::default()).await;
        }
    }
    let left: usize = storages.iter().map(|s| api.store.list(s, None).objects.len()).sum();
    if left > 0 {
        return wait_for_objects(api, &storages).await;
    }
    if let Some(current) = api.store.get(&DEFINITIONS.storage, &stored.name) {
        let _ = rewrite(api, &DEFINITIONS, &current, &writer, crd::remove_finalizer).await;
    }
}

/// Checks again when an object with finalizers changes.
async fn wait_for_objects(api: &Arc<Api>, storages: &BTreeSet<Box<str>>) {
    let again = Arc::clone(api);
    let mut changes: Vec<_> = storages.iter().map(|storage| api.store.subscribe(storage)).collect();
    tokio::spawn(async move {
        let mut stop = again.stopping();
        if let Some(first) = changes.first_mut() {
            first.mark_unchanged();
            changed(first, &mut stop).await;
        }
        again.store.touch(&DEFINITIONS.storage);
    });
}

fn writer() -> Writer {
    Writer::server("kube-apiserver", Some(Subresource::Status))
}
