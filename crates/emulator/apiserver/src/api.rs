//! The state of the API server: the store, the resources it serves, and the allocator.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use arc_swap::ArcSwap;
use nearhop_kinds::allocate::{Allocator, Refusal, Reserved};
use nearhop_kinds::config::ClusterConfig;
use nearhop_kinds::strategy::Context;
use nearhop_kinds::{Registry, Resource};
use nearhop_runtime::metrics::Metrics as MetricsRegistry;
use nearhop_runtime::{lock, supervise};
use rand::Rng as _;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::builtin::{NODES, SERVICES};
use crate::fault::{ActiveFaults, Faults};
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::rest::{Documents, now_text};
use crate::service_account::TokenKey;
use crate::status::ApiError;
use crate::store::{Name, Store};

/// The limit of concurrent writes; more wait.
const MAX_WRITES: usize = 64;
/// A write that waits longer than this gets a 429.
const MAX_WAIT: Duration = Duration::from_secs(10);

pub(crate) struct Api {
    pub(crate) store: Store,
    pub(crate) registry: ArcSwap<Registry>,
    pub(crate) identity: Identity,
    pub(crate) token_key: TokenKey,
    pub(crate) faults: ActiveFaults,
    pub(crate) faults_enabled: bool,
    pub(crate) metrics: Metrics,
    pub(crate) documents: Documents,
    /// The listen address: `127.0.0.1:6443`.
    pub(crate) address: String,
    config: ClusterConfig,
    allocator: Mutex<Allocator>,
    writes: Semaphore,
    stop: watch::Sender<bool>,
    restarts: watch::Sender<u64>,
    /// Background tasks by name. None ends before the server stops.
    tasks: Mutex<Vec<(&'static str, AbortHandle)>>,
}

/// The addresses and ports that a write reserved; most writes reserve none. Dropping it without
/// [`Reservation::commit`] releases them.
pub(crate) struct Reservation<'a> {
    api: &'a Api,
    reserved: Option<Reserved>,
}

impl Reservation<'_> {
    /// The write is stored: what it replaced is released.
    pub(crate) fn commit(mut self) {
        if let Some(reserved) = self.reserved.take() {
            lock(&self.api.allocator).commit(reserved);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            lock(&self.api.allocator).rollback(reserved);
        }
    }
}

impl Api {
    pub(crate) fn new(
        store: Store,
        registry: Registry,
        identity: Identity,
        token_key: TokenKey,
        config: ClusterConfig,
        address: SocketAddr,
        faults_enabled: bool,
    ) -> Self {
        let mut allocator = Allocator::new(&config);
        for service in store.list(&SERVICES.storage, None).objects {
            for shared in allocator.adopt(&service.to_value("")) {
                tracing::warn!(%shared, "two Services hold the same address or port; delete one");
            }
        }
        Self {
            store,
            registry: ArcSwap::from_pointee(registry),
            identity,
            token_key,
            faults: ActiveFaults::default(),
            faults_enabled,
            metrics: Metrics::new(MetricsRegistry::new()),
            documents: Documents::default(),
            address: address.to_string(),
            config,
            allocator: Mutex::new(allocator),
            writes: Semaphore::new(MAX_WRITES),
            stop: watch::Sender::default(),
            restarts: watch::Sender::default(),
            tasks: Mutex::default(),
        }
    }

    /// With metrics in this registry.
    pub(crate) fn measured_in(mut self, registry: MetricsRegistry) -> Self {
        self.metrics = Metrics::new(registry);
        self
    }

    /// Waits for one of the concurrent writes.
    pub(crate) async fn write_turn(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        match tokio::time::timeout(MAX_WAIT, self.writes.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::too_many_requests()),
        }
    }

    /// Runs `work` with the cluster state that the rules of kinds read.
    pub(crate) fn with_context<T>(&self, work: impl FnOnce(&Context<'_>) -> T) -> T {
        let node_labels = |node: &str| {
            let stored = self.store.get(&NODES.storage, &Name::new("", node))?;
            Some(stored.to_value("")["metadata"]["labels"].clone())
        };
        work(&Context { now: &now_text(), cluster: &self.config, node_labels: &node_labels })
    }

    /// Allocates the addresses and ports of a Service.
    pub(crate) fn allocate(
        &self,
        resource: &Resource,
        new: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Reservation<'_>, ApiError> {
        let taken = |reserved| Reservation { api: self, reserved };
        if !resource.strategy.allocates {
            return Ok(taken(None));
        }
        let name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut allocator = lock(&self.allocator);
        let mut random =
            |below: u64| if below == 0 { 0 } else { rand::rng().random_range(0..below) };
        let refused = |refusal| match refusal {
            Refusal::Invalid(errors) => ApiError::invalid(resource, &name, &errors),
            Refusal::Internal(message) => ApiError::bare(message),
        };
        if dry_run {
            return allocator.dry_run(new, old).map(|()| taken(None)).map_err(refused);
        }
        let reserved = allocator.allocate(new, old, &mut random).map_err(refused)?;
        Ok(taken(Some(reserved)))
    }

    /// The address of the Service `kubernetes`.
    pub(crate) fn first_service_address(&self) -> String {
        let first = first_addresses(&self.config).first().map(ToString::to_string);
        first.unwrap_or_default()
    }

    /// Releases the addresses and ports of a deleted object.
    pub(crate) fn release(&self, resource: &Resource, object: &Value) {
        if resource.strategy.allocates {
            lock(&self.allocator).release(object);
        }
    }

    /// Starts a background task. `/livez` fails if it ends before the server stops.
    pub(crate) fn spawn<F>(&self, name: &'static str, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = supervise::spawn(format!("apiserver/{name}"), task);
        lock(&self.tasks).push((name, task.abort_handle()));
        task
    }

    /// The tasks and threads that ended before the server stops.
    pub(crate) fn ended_tasks(&self) -> Vec<&'static str> {
        if *self.stop.borrow() {
            return Vec::new();
        }
        let tasks = lock(&self.tasks);
        let mut ended: Vec<&'static str> =
            tasks.iter().filter(|(_, task)| task.is_finished()).map(|(name, _)| *name).collect();
        if !self.store.is_running() {
            ended.push("store-writer");
        }
        ended
    }

    /// Changes when the server stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Changes when a client requests a restart.
    pub(crate) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }

    /// Applies faults: momentary ones now, the others to each request from now on.
    pub(crate) fn apply_faults(&self, faults: Faults) {
        if faults.compact {
            self.store.compact();
        }
        if faults.restart {
            self.restarts.send_modify(|count| *count += 1);
        }
        self.faults.set(faults);
    }
}

/// The first address of each range of cluster IPs. The Service `kubernetes` has the first one.
pub(crate) fn first_addresses(config: &ClusterConfig) -> Vec<IpAddr> {
    let first = |address| match address {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) + 1).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) + 1).into()),
    };
    config.service_cidrs.iter().map(|range| first(range.first())).collect()
}
