//! The admin port: probes and metrics, and whatever else a daemon adds, over [`server`].
//!
//! Deliberately without a way to change anything.
//!
//! [`server`]: crate::server

use std::net::SocketAddr;

use http::StatusCode;

use crate::RuntimeError;
use crate::health::{Health, Purpose};
use crate::metrics::{CONTENT_TYPE_TEXT, Metrics};
use crate::server::{self, Answer, Ask, Route, Server, Setup};

/// A running admin port. It stops when this is dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    _server: Server,
}

impl Admin {
    /// Where it listens: the port that was given, or the free one that was taken for port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens; when this returns, it answers.
///
/// # Errors
/// The address cannot be had.
pub async fn serve(
    address: SocketAddr,
    metrics: Metrics,
    health: Health,
) -> Result<Admin, RuntimeError> {
    let server = server::serve(Setup::new("admin", address), routes(metrics, health))?;
    Ok(Admin { address: server.bound().await, _server: server })
}

/// What every admin port answers, for a daemon that adds routes of its own or that does not take
/// a port that is in use for the end.
#[must_use]
pub fn routes(metrics: Metrics, health: Health) -> Vec<Route> {
    let probe = |path, purpose| {
        let health = health.clone();
        Route::at(path, move |ask| probe(&health, purpose, ask))
    };
    vec![
        probe("/healthz", Purpose::Live),
        probe("/livez", Purpose::Live),
        Route::at("/metrics", move |_| {
            Answer::new(StatusCode::OK, CONTENT_TYPE_TEXT, metrics.encode())
        }),
        probe("/readyz", Purpose::Ready),
    ]
}

/// `ok`, or the list of checks: on failure, and for whoever asks with `?verbose`.
fn probe(health: &Health, purpose: Purpose, ask: &Ask) -> Answer {
    let report = health.report(purpose);
    let code = if report.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let mut parameters = ask.query.split('&');
    let verbose = parameters.any(|text| text.split('=').next() == Some("verbose"));
    let text = if report.is_ok() && !verbose {
        "ok".to_owned()
    } else {
        report.list(ask.path.trim_start_matches('/'))
    };
    Answer::text(code, text)
}
