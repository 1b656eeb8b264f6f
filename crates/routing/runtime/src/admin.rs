//! The admin port: probes, metrics and the routes that a daemon adds, on [`server`].
//!
//! It is read-only.
//!
//! [`server`]: crate::server

use http::StatusCode;

use crate::health::{Health, Purpose};
use crate::metrics::{CONTENT_TYPE_TEXT, Metrics};
use crate::server::{Answer, Ask, Route};

/// The routes of every admin port.
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

/// Replies `ok`, or the list of checks: on failure, and with `?verbose`.
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
