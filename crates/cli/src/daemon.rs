//! What the commands have in common: the async runtime, and for daemons supervision and the admin
//! port.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nearhop_runtime::pki::Pair;
use nearhop_runtime::server::{self, BindFailure, Route, Server, Setup};
use nearhop_runtime::supervise;
use nearhop_runtime::tls::{TlsError, read_file};
use tokio::runtime::{Builder, Runtime};

use crate::output::announce;

/// Tries again after a pause if a port is in use; the daemon works without it meanwhile.
pub(crate) const RETRY: BindFailure = BindFailure::Retry(Duration::from_secs(5));

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

/// Runs a daemon with this many threads. The process ends with an error if one of its tasks or
/// threads panics.
pub(crate) fn run(
    threads: usize,
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = runtime(threads)?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = work => done,
            panicked = supervise::failure() => Err(panicked.into()),
        }
    });
    // Requests that still run must not delay the end.
    runtime.shutdown_background();
    done
}

/// Serves these routes, and prints the address.
pub(crate) fn serve_admin(
    address: SocketAddr,
    on_failure: BindFailure,
    routes: Vec<Route>,
) -> anyhow::Result<Server> {
    let setup = Setup { on_failure, ..Setup::new("admin", address) };
    let server = server::serve(setup, routes)?;
    if let Some(address) = server.address() {
        announce(&format!("serving on http://{address}"));
    }
    Ok(server)
}

/// Reads a certificate and its private key from the files of two flags, if they are given.
pub(crate) fn read_pair(
    (certificate_flag, certificate): (&'static str, Option<&PathBuf>),
    (key_flag, key): (&'static str, Option<&PathBuf>),
) -> Result<Option<Pair>, TlsError> {
    let Some((certificate, key)) = certificate.zip(key) else { return Ok(None) };
    let certificate = read_file(certificate_flag, certificate)?;
    Ok(Some(Pair { certificate, key: read_file(key_flag, key)? }))
}
