//! What the daemons have in common: an end when a task of theirs dies, and a port for probes.

use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use nearhop_runtime::admin;
use nearhop_runtime::health::Health;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::server::{self, BindFailure, Server, Setup};
use nearhop_runtime::supervise;

/// How long to wait before a port that was taken is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Does a daemon's work. A task or a thread of it that panics ends the process with an error.
pub(crate) async fn supervised(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    tokio::select! {
        done = work => done,
        panicked = supervise::failure() => Err(panicked.into()),
    }
}

/// Serves `/livez`, `/readyz` and `/metrics`. A port that is taken is no reason not to work: it is
/// tried again.
pub(crate) fn serve_admin(
    address: SocketAddr,
    metrics: Metrics,
    health: Health,
) -> anyhow::Result<Server> {
    let setup = Setup { on_failure: BindFailure::Retry(RETRY), ..Setup::new("admin", address) };
    let server = server::serve(setup, admin::routes(metrics, health))?;
    if let Some(address) = server.address() {
        // Whoever started it on a free port reads it here.
        let _unread = writeln!(std::io::stdout(), "serving on http://{address}");
    }
    Ok(server)
}
