//! How the proxy is, and who may ask.
//!
//! ```text
//!   state      what healthy means (pure)
//!   serve      /healthz and /livez of the proxy
//!   services   one listener for each Service with a healthCheckNodePort
//!   event      the events that tell of a listener that could not be had, and of the start
//! ```
//!
//! Deliberately not here: counting local endpoints, and finding the addresses of the node.

pub mod event;
pub mod serve;
pub mod services;
pub mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use nearhop_core::Family;

pub use crate::health::state::{Eligibility, Moment, ProxyHealth, Verdict};

/// `X-Content-Type-Options: nosniff`, which kube-proxy sends with every answer about health.
const NOSNIFF: (HeaderName, HeaderValue) =
    (http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// The one health of a process: the loop writes it, those who are asked read it. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedHealth(Arc<Mutex<ProxyHealth>>);

impl SharedHealth {
    /// See [`ProxyHealth::new`].
    #[must_use]
    pub fn new(sync_period: Duration) -> Self {
        Self(Arc::new(Mutex::new(ProxyHealth::new(sync_period))))
    }

    /// A change of a family's rules is asked for, now.
    pub fn queued(&self, family: Family) {
        self.state().queued(family, Instant::now());
    }

    /// A family's rules are as they should be, now.
    pub fn updated(&self, family: Family) {
        self.state().updated(family, now());
    }

    /// What the Node says.
    pub fn node(&self, node: Eligibility) {
        self.state().node(node);
    }

    /// Whether all families are well.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.state().is_healthy(Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, ProxyHealth> {
        // Each change is one assignment: a panic elsewhere leaves none half made.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> Moment {
    Moment { wall: Timestamp::now(), steady: Instant::now() }
}
