//! Health of the proxy, and the ports that answer about it.
//!
//! ```text
//!   state      the definition of healthy (pure)
//!   serve      /healthz and /livez of the proxy
//!   services   one listener for each Service with a healthCheckNodePort
//!   event      Kubernetes Events about listeners that cannot be opened, and about the start
//! ```
//!
//! Deliberately absent: counting local endpoints, and finding the addresses of the node.

pub mod event;
pub mod serve;
pub mod services;
pub mod state;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use http::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use nearhop_core::Family;
use nearhop_runtime::lock;

pub use crate::health::state::{Eligibility, Moment, ProxyHealth, Verdict};

/// `X-Content-Type-Options: nosniff`, which kube-proxy sends with every health answer.
const NOSNIFF: (HeaderName, HeaderValue) =
    (http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// The health of the process: the loop writes it, the HTTP handlers read it. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedHealth(Arc<Mutex<ProxyHealth>>);

impl SharedHealth {
    /// See [`ProxyHealth::new`].
    #[must_use]
    pub fn new(sync_period: Duration) -> Self {
        Self(Arc::new(Mutex::new(ProxyHealth::new(sync_period))))
    }

    /// Notes a change of a family's rules that is pending from now on.
    pub fn queued(&self, family: Family) {
        self.state().queued(family, Instant::now());
    }

    /// Notes that a family's rules are up to date now.
    pub fn updated(&self, family: Family) {
        self.state().updated(family, now());
    }

    /// Sets the eligibility of the Node.
    pub fn node(&self, node: Eligibility) {
        self.state().node(node);
    }

    /// Whether all families are healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.state().is_healthy(Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, ProxyHealth> {
        // Each change is a single assignment, so a panic elsewhere leaves no partial change.
        lock(&self.0)
    }
}

fn now() -> Moment {
    Moment { wall: Timestamp::now(), steady: Instant::now() }
}
