//! Lists and watches everything that the manager reads.

use std::fmt::Debug;

use futures_util::stream::{BoxStream, SelectAll, StreamExt as _, select_all};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Client, Resource};
use nearhop_runtime::waits::Waits;
use serde::de::DeserializeOwned;

use crate::kind::{Kind, WatchEvent};
use crate::namespace;
use crate::options::{Controller, Options};

/// A watch event, or an error after which the watch retries.
pub(crate) type WatchResult = Result<WatchEvent, (Kind, Error)>;

/// All watches. The loop that reads them also handles the responses to writes; the caches rely on
/// that order.
pub(crate) type Watches = SelectAll<BoxStream<'static, WatchResult>>;

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

/// Starts the watches. No request is sent before the stream is polled.
pub(crate) fn start(client: &Client, kinds: &[Kind]) -> Watches {
    let streams = kinds.iter().map(|kind| match kind {
        Kind::Node => all(client, *kind, WatchEvent::Node),
        Kind::Pod => all(client, *kind, WatchEvent::Pod),
        Kind::Namespace => all(client, *kind, WatchEvent::Namespace),
        Kind::Service => all(client, *kind, WatchEvent::Service),
        Kind::Deployment => all(client, *kind, WatchEvent::Deployment),
        Kind::ReplicaSet => all(client, *kind, WatchEvent::ReplicaSet),
        Kind::DaemonSet => all(client, *kind, WatchEvent::DaemonSet),
        Kind::Lease => {
            let api: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
            stream(api, Config::default(), *kind, WatchEvent::Lease)
        }
        Kind::ServiceAccount => {
            let only = format!("metadata.name={}", namespace::ACCOUNT);
            let api: Api<ServiceAccount> = Api::all(client.clone());
            stream(api, Config::default().fields(&only), *kind, WatchEvent::ServiceAccount)
        }
        Kind::ConfigMap => {
            let only = format!("metadata.name={}", namespace::ROOT_CA);
            let api: Api<ConfigMap> = Api::all(client.clone());
            stream(api, Config::default().fields(&only), *kind, WatchEvent::ConfigMap)
        }
    });
    select_all(streams)
}

fn all<T>(
    client: &Client,
    kind: Kind,
    sight: impl Fn(Event<T>) -> WatchEvent + Send + 'static,
) -> BoxStream<'static, WatchResult>
where
    T: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    stream(Api::all(client.clone()), Config::default(), kind, sight)
}

fn stream<T>(
    api: Api<T>,
    config: Config,
    kind: Kind,
    sight: impl Fn(Event<T>) -> WatchEvent + Send + 'static,
) -> BoxStream<'static, WatchResult>
where
    T: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(api, config).backoff(Waits::default());
    events.map(move |event| event.map(&sight).map_err(|error| (kind, error))).boxed()
}
