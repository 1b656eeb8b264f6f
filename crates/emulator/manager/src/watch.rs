//! Lists and watches everything that the manager reads.

use std::time::Duration;

use futures_util::stream::{self, BoxStream, SelectAll, StreamExt as _, select_all};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ListableResource, Metadata};
use kube::Client;
use nearhop_feed::watch::{self, Event, Target};
use serde::de::DeserializeOwned;

use crate::kind::{Kind, WatchBatch};
use crate::namespace;
use crate::options::{Controller, Options};

/// All watches. The loop that reads them also handles the responses to writes; the caches rely on
/// that order.
pub(crate) type Watches = SelectAll<BoxStream<'static, WatchBatch>>;

/// The kinds to watch.
pub(crate) fn watched(options: &Options) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::Node,
        Kind::Pod,
        Kind::Namespace,
        Kind::Service,
        Kind::Deployment,
        Kind::ReplicaSet,
        Kind::DaemonSet,
        Kind::Lease,
    ];
    if options.controllers.has(Controller::ServiceAccount) {
        kinds.push(Kind::ServiceAccount);
    }
    if options.controllers.has(Controller::RootCa) && options.root_ca.is_some() {
        kinds.push(Kind::ConfigMap);
    }
    kinds
}

/// Starts the watches.
pub(crate) fn start(client: &Client, kinds: &[Kind]) -> Watches {
    let named = |name| format!("metadata.name={name}");
    select_all(kinds.iter().map(|kind| match kind {
        Kind::Node => all(client, WatchBatch::Node),
        Kind::Pod => all(client, WatchBatch::Pod),
        Kind::Namespace => all(client, WatchBatch::Namespace),
        Kind::Service => all(client, WatchBatch::Service),
        Kind::Deployment => all(client, WatchBatch::Deployment),
        Kind::ReplicaSet => all(client, WatchBatch::ReplicaSet),
        Kind::DaemonSet => all(client, WatchBatch::DaemonSet),
        Kind::Lease => {
            stream(client, Target::within::<Lease>("kube-node-lease"), WatchBatch::Lease)
        }
        Kind::ServiceAccount => {
            let target = Target::of::<ServiceAccount>().fields(named(namespace::ACCOUNT));
            stream(client, target, WatchBatch::ServiceAccount)
        }
        Kind::ConfigMap => {
            let target = Target::of::<ConfigMap>().fields(named(namespace::ROOT_CA));
            stream(client, target, WatchBatch::ConfigMap)
        }
    }))
}

fn all<T>(client: &Client, batch: fn(Vec<Event<T>>) -> WatchBatch) -> BoxStream<'static, WatchBatch>
where
    T: ListableResource + Metadata<Ty = ObjectMeta> + DeserializeOwned + Send + 'static,
{
    stream(client, Target::of::<T>(), batch)
}

fn stream<T>(
    client: &Client,
    target: Target,
    batch: fn(Vec<Event<T>>) -> WatchBatch,
) -> BoxStream<'static, WatchBatch>
where
    T: Metadata<Ty = ObjectMeta> + DeserializeOwned + Send + 'static,
{
    // Short pauses, so that a lab recovers soon after a fault.
    let options =
        watch::Options { backoff_cap: Duration::from_secs(2), ..watch::Options::default() };
    let mut events = watch::start::<T>(client.clone(), target, options);
    stream::poll_fn(move |context| events.poll_recv(context)).map(batch).boxed()
}
