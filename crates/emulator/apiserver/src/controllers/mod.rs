//! The controllers of the server: they empty terminating Namespaces, delete dependents of deleted
//! owners, serve the resources of definitions, delete old Events, and repair the Service
//! `kubernetes`.
//!
//! Each follows the store's log and writes through the store, so watchers see every step.

mod definitions;
mod events;
mod garbage;
mod kubernetes;
mod namespaces;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nearhop_kinds::Resource;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) use definitions::load as load_definitions;

use crate::api::Api;
use crate::http::until;
use crate::rest::{Writer, content_of, write_of};
use crate::store::{Change, Expect, Stored, WriteError};

/// The time until objects with finalizers or a grace period are checked again.
const RECHECK: Duration = Duration::from_millis(200);

/// Which controllers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controllers {
    /// All.
    #[default]
    All,
    /// Those of kube-apiserver: definitions, and the Service `kubernetes`.
    Bare,
}

/// Starts the controllers. They end when the server stops.
pub(crate) fn start(
    api: &Arc<Api>,
    which: Controllers,
    address: SocketAddr,
) -> Vec<JoinHandle<()>> {
    let mut tasks = vec![
        api.spawn("definitions", definitions::run(Arc::clone(api))),
        api.spawn("kubernetes-service", kubernetes::run(Arc::clone(api), address)),
    ];
    if which == Controllers::All {
        tasks.push(api.spawn("namespaces", namespaces::run(Arc::clone(api))));
        tasks.push(api.spawn("garbage", garbage::run(Arc::clone(api))));
        tasks.push(api.spawn("events", events::run(Arc::clone(api))));
    }
    tasks
}

/// Waits for a change; `false` when the server stops.
async fn changed(changes: &mut watch::Receiver<u64>, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        changed = changes.changed() => changed.is_ok(),
        () = until(stop) => false,
    }
}

/// Waits for a change, or, if work is unfinished, for the next check; `false` when the server
/// stops.
async fn changed_or_again(
    changes: &mut watch::Receiver<u64>,
    stop: &mut watch::Receiver<bool>,
    unfinished: bool,
) -> bool {
    let change = changed(changes, stop);
    if !unfinished {
        return change.await;
    }
    tokio::time::timeout(RECHECK, change).await.unwrap_or(true)
}

/// Changes an object without the rules for clients: the server writes
/// fields that clients cannot. Runs again if another write came first.
async fn rewrite(
    api: &Arc<Api>,
    resource: &Resource,
    stored: &Arc<Stored>,
    writer: &Writer,
    change: impl Fn(&mut Value),
) -> Result<(), WriteError> {
    let head = crate::store::type_meta(&resource.kind, &resource.api_version());
    let mut current = Arc::clone(stored);
    loop {
        let old = current.to_value(&head);
        let mut new = old.clone();
        change(&mut new);
        if new == old {
            return Ok(());
        }
        writer.track(resource, Some(&old), &mut new);
        let gone = crate::rest::is_finished(resource, &new);
        let what = if gone { Change::Delete } else { Change::Put(content_of(resource, &new)) };
        let write =
            write_of(resource, current.name.clone(), Expect::Version(current.version), what);
        match api.store.write(vec![write]).await {
            Ok(_) if gone => {
                api.release(resource, &old);
                return Ok(());
            }
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict) => match api.store.get(&resource.storage, &current.name) {
                Some(newer) => current = newer,
                None => return Ok(()),
            },
            Err(WriteError::Gone) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
