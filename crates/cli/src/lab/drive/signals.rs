//! Ctrl-C, SIGTERM and a closed terminal: the first one ends the drive with the result so far, the
//! second one ends the process.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nearhop_runtime::shutdown::Shutdown;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the end may take after the first signal: the clients have three seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Signals that end the command.
pub(super) struct Signals {
    stop: Shutdown,
    first: Arc<AtomicU8>,
}

impl Signals {
    /// Catches them from now on.
    pub(super) fn catch() -> anyhow::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        let mut all = [interrupt?, terminate?, hangup?];
        let (trigger, stop) = Shutdown::manual();
        let first = Arc::new(AtomicU8::new(0));
        let seen = Arc::clone(&first);
        tokio::spawn(async move {
            seen.store(next(&mut all).await, Ordering::Relaxed);
            trigger.request();
            let second = next(&mut all).await;
            std::process::exit(128 + i32::from(second));
        });
        Ok(Self { stop, first })
    }

    /// Requested by the first signal.
    pub(super) fn stop(&self) -> &Shutdown {
        &self.stop
    }

    /// Returns when the end takes too long after the first signal.
    pub(super) async fn hurry(&self) {
        self.stop.wait().await;
        tokio::time::sleep(PATIENCE).await;
    }

    /// The exit code that a shell reports after the first signal: 128 plus its number.
    pub(super) fn code(&self) -> ExitCode {
        ExitCode::from(128 + self.first.load(Ordering::Relaxed))
    }
}

/// The number of the next signal.
async fn next([interrupt, terminate, hangup]: &mut [Signal; 3]) -> u8 {
    tokio::select! {
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
        _ = hangup.recv() => 1,
    }
}
