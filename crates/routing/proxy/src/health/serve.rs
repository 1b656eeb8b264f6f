//! `/healthz` and `/livez` of the proxy, for load balancers and for the kubelet.
//!
//! Not the admin port, which has its own `/healthz` that answers `ok`: see
//! `nearhop_runtime::admin`.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use nearhop_runtime::RuntimeError;
use nearhop_runtime::server::{self, Answer, Route, Server, Setup};

use crate::health::{NOSNIFF, SharedHealth, Verdict, now};
use crate::metrics::{Probe, ProxyMetrics};

/// Delay before an address in use is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What to do if an address of the proxy cannot be bound: `bindAddressHardFail`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindFailure {
    /// Try again every 5 s; log the error once, until it changes.
    #[default]
    Retry,
    /// Fail.
    Fatal,
}

impl From<BindFailure> for server::BindFailure {
    fn from(failure: BindFailure) -> Self {
        match failure {
            BindFailure::Retry => Self::Retry(RETRY),
            BindFailure::Fatal => Self::Fatal,
        }
    }
}

/// Answers until the returned value is dropped.
///
/// # Errors
/// The address cannot be bound, and `on_failure` is `Fatal`.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn serve(
    address: SocketAddr,
    on_failure: BindFailure,
    health: &SharedHealth,
    metrics: &ProxyMetrics,
) -> Result<Server, RuntimeError> {
    let setup = Setup { on_failure: on_failure.into(), ..Setup::new("health", address) };
    server::serve(setup, routes(health, metrics))
}

fn routes(health: &SharedHealth, metrics: &ProxyMetrics) -> Vec<Route> {
    let route = |path, probe| {
        let (health, metrics) = (health.clone(), metrics.clone());
        Route::at(path, move |_| {
            let (verdict, body) = match probe {
                Probe::Healthz => health.state().healthz(now()),
                Probe::Livez => health.state().livez(now()),
            };
            metrics.probed(probe, verdict);
            let (name, value) = NOSNIFF;
            Answer::json(status(verdict), body).with(name, value)
        })
        .any_method()
    };
    vec![route("/healthz", Probe::Healthz), route("/livez", Probe::Livez)]
}

pub(super) fn status(verdict: Verdict) -> StatusCode {
    StatusCode::from_u16(verdict.code()).expect("both are status codes")
}
