//! What the commands have in common: the async runtime, and for daemons supervision and the admin
//! port.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nearhop_runtime::admin;
use nearhop_runtime::health::Health;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::server::{self, BindFailure, Server, Setup};
use nearhop_runtime::supervise;
use tokio::runtime::{Builder, Runtime};

use crate::output::announce;

/// How long to wait before a port that was in use is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// A runtime with this many threads.
pub(crate) fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().context("cannot start the runtime")
}

/// Runs a command that is not a daemon.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime(1)?;
    let done = runtime.block_on(work);
    // A thread may still be blocked in a read of standard input.
    runtime.shutdown_background();
    done
}

/// Runs a daemon. The process ends with an error if one of its tasks or threads panics.
pub(crate) async fn supervised(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    tokio::select! {
        done = work => done,
        panicked = supervise::failure() => Err(panicked.into()),
    }
}

/// Serves `/livez`, `/readyz` and `/metrics`. If the port is in use, the daemon works without and
/// tries again.
pub(crate) fn serve_admin(
    address: SocketAddr,
    metrics: Metrics,
    health: Health,
) -> anyhow::Result<Server> {
    let setup = Setup { on_failure: BindFailure::Retry(RETRY), ..Setup::new("admin", address) };
    let server = server::serve(setup, admin::routes(metrics, health))?;
    if let Some(address) = server.address() {
        announce(&format!("serving on http://{address}"));
    }
    Ok(server)
}
