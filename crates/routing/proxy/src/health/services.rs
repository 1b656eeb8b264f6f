//! One listener for each Service with a `healthCheckNodePort`, where load balancers ask whether
//! this node has endpoints of the Service.
//!
//! Each Service has its own sockets, connections and failures; they do not affect other Services.
//! The caller counts endpoints and chooses addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use nearhop_core::ServiceKey;
use nearhop_runtime::RuntimeError;
use nearhop_runtime::server::{self, Answer, Limits, Route, Server, Setup, Wildcard};
use serde::Serialize;

use crate::health::serve::status;
use crate::health::{NOSNIFF, SharedHealth, Verdict};

/// Load balancers are few, and open one connection for each probe.
const LIMITS: Limits =
    Limits { connections: 32, headers: Duration::from_secs(5), life: Duration::from_secs(10) };
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The desired listeners of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `healthCheckNodePort`.
    pub port: u16,
    /// Addresses to listen on: the wildcard of each family in use, or addresses of the node. A
    /// wildcard covers only its own family.
    pub listen: Vec<IpAddr>,
    /// Number of addresses of local ready endpoints.
    pub local_endpoints: usize,
}

/// A listener that could not be opened. Every sync tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Service {service}: cannot answer health checks on {}: {error}; stop the process that uses \
     the port, or delete and create the Service to get another healthCheckNodePort",
    SocketAddr::new(*.address, *.port)
)]
pub struct ListenFailure {
    /// The Service.
    pub service: ServiceKey,
    /// The port.
    pub port: u16,
    /// The address.
    pub address: IpAddr,
    /// The error of the kernel.
    pub error: String,
}

/// The address and port of a listener.
type Place = SocketAddr;

#[derive(Debug)]
enum Listener {
    Open(Server),
    /// The error of the kernel.
    Failed(String),
}

#[derive(Debug, Default)]
struct Entry {
    local_endpoints: Arc<AtomicUsize>,
    listeners: BTreeMap<Place, Listener>,
}

/// All listeners. They close when this value is dropped.
#[derive(Debug)]
pub struct ServiceHealth {
    health: SharedHealth,
    services: BTreeMap<ServiceKey, Entry>,
}

impl ServiceHealth {
    /// Creates it without listeners.
    #[must_use]
    pub fn new(health: SharedHealth) -> Self {
        Self { health, services: BTreeMap::new() }
    }

    /// Closes listeners that are no longer wanted, opens missing ones, and updates the endpoint
    /// counts.
    ///
    /// Returns the new failures: of listeners that did not fail before, or failed for another
    /// reason. Asynchronous only because a port that moves from one Service to another must be
    /// closed before it is opened; it waits for no client.
    pub async fn sync(&mut self, wanted: BTreeMap<ServiceKey, Wanted>) -> Vec<ListenFailure> {
        self.close(&wanted).await;
        let mut failures = Vec::new();
        for (service, wanted) in wanted {
            let entry = self.services.entry(service.clone()).or_default();
            entry.local_endpoints.store(wanted.local_endpoints, Ordering::Relaxed);
            for place in places(&wanted) {
                let Some(error) = entry.open(&service, place, &self.health) else { continue };
                let (port, address) = (place.port(), place.ip());
                failures.push(ListenFailure { service: service.clone(), port, address, error });
            }
        }
        failures
    }

    /// The addresses of a Service's listeners; for port 0, with the port that the kernel chose.
    pub fn addresses(&self, service: &ServiceKey) -> Vec<SocketAddr> {
        let listeners = self.services.get(service).into_iter().flat_map(|e| e.listeners.values());
        listeners
            .filter_map(|listener| match listener {
                Listener::Open(server) => server.address(),
                Listener::Failed(_) => None,
            })
            .collect()
    }

    /// How many Services have a listener that could not be opened.
    pub fn failing(&self) -> usize {
        let fails = |entry: &&Entry| {
            entry.listeners.values().any(|listener| matches!(listener, Listener::Failed(_)))
        };
        self.services.values().filter(fails).count()
    }

    async fn close(&mut self, wanted: &BTreeMap<ServiceKey, Wanted>) {
        let mut closing = Vec::new();
        self.services.retain(|service, entry| {
            let keep: Vec<Place> = wanted.get(service).into_iter().flat_map(places).collect();
            let gone = entry.listeners.extract_if(.., |place, _| !keep.contains(place));
            closing.extend(gone.map(|(_, listener)| listener));
            wanted.contains_key(service)
        });
        for listener in closing {
            if let Listener::Open(server) = listener {
                server.stop().await;
            }
        }
    }
}

impl Entry {
    /// Opens a listener if it does not exist; returns the error if it is new.
    fn open(
        &mut self,
        service: &ServiceKey,
        place: Place,
        health: &SharedHealth,
    ) -> Option<String> {
        let before = match self.listeners.get(&place) {
            Some(Listener::Open(_)) => return None,
            Some(Listener::Failed(error)) => Some(error.clone()),
            None => None,
        };
        let setup = Setup {
            wildcard: Wildcard::OwnFamily,
            limits: LIMITS,
            ..Setup::new(format!("health of Service {service}"), place)
        };
        let route = route(service.clone(), Arc::clone(&self.local_endpoints), health.clone());
        let error = match server::serve(setup, vec![route]) {
            Ok(server) => {
                self.listeners.insert(place, Listener::Open(server));
                return None;
            }
            // The caller reports the address.
            Err(RuntimeError::Listen { why, .. }) => why.to_string(),
            Err(other) => other.to_string(),
        };
        self.listeners.insert(place, Listener::Failed(error.clone()));
        (before.as_ref() != Some(&error)).then_some(error)
    }
}

fn places(wanted: &Wanted) -> impl Iterator<Item = Place> {
    wanted.listen.iter().map(|address| SocketAddr::new(*address, wanted.port))
}

/// Answers any path and any method, because load balancers differ.
fn route(service: ServiceKey, local_endpoints: Arc<AtomicUsize>, health: SharedHealth) -> Route {
    Route::at("/", move |_| {
        let local_endpoints = local_endpoints.load(Ordering::Relaxed);
        let healthy = health.is_healthy();
        let serves = local_endpoints > 0 && healthy;
        let body = Body {
            service: Named { namespace: &service.namespace, name: &service.name },
            local_endpoints,
            service_proxy_healthy: healthy,
        };
        let body = serde_json::to_string(&body).expect("text and numbers have a JSON form");
        let (name, value) = NOSNIFF;
        Answer::json(status(if serves { Verdict::Healthy } else { Verdict::Unhealthy }), body)
            .with(name, value)
            .with(WEIGHT, HeaderValue::from(local_endpoints))
    })
    .and_below()
    .any_method()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Named<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Named<'a> {
    namespace: &'a str,
    name: &'a str,
}
