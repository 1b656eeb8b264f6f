//! What happens by itself after a write: a deleted Namespace takes its content along, dependents
//! follow their owners, definitions become resources, old Events go, the Service `kubernetes` comes back.
//!
//! Each is a loop over the store's log. They write as everybody does, so watchers see it all.

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

pub(crate) use definitions::{STORAGE as DEFINITIONS, load as load_definitions};

use crate::api::Api;
use crate::http::until;
use crate::rest::{Writer, content_of, write_of};
use crate::store::{Change, Expect, Stored, WriteError};

/// What finalizers or a grace period hold up is looked at again after this.
const AGAIN: Duration = Duration::from_millis(200);

/// Which of them run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Controllers {
    /// All.
    #[default]
    All,
    /// Only what a bare kube-apiserver does by itself: definitions become resources, and the
    /// Service `kubernetes` leads to the server.
    Bare,
}

/// Starts them. They end when the server stops.
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

/// Waits for a change, or, if something is unfinished, for the time to look again; `false` when the
/// server stops.
async fn changed_or_again(
    changes: &mut watch::Receiver<u64>,
    stop: &mut watch::Receiver<bool>,
    unfinished: bool,
) -> bool {
    let change = changed(changes, stop);
    if !unfinished {
        return change.await;
    }
    tokio::time::timeout(AGAIN, change).await.unwrap_or(true)
}

/// Replaces an object by what `change` makes of it, past the rules for clients: the server writes
/// parts that clients may not. Runs again if somebody wrote in between.
async fn rewrite(
    api: &Arc<Api>,
    resource: &Resource,
    stored: &Arc<Stored>,
    writer: &Writer,
    change: impl Fn(&Value) -> Value,
) -> Result<(), WriteError> {
    let head = crate::store::type_meta(&resource.kind, &resource.api_version());
    let mut current = Arc::clone(stored);
    loop {
        let old = current.to_value(&head);
        let mut new = change(&old);
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
