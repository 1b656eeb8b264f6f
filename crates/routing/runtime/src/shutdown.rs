//! The request to end the process: from a signal, or from a test.
//!
//! It only passes on the request. The daemon decides what to drain, in which order and for how
//! long.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::RuntimeError;

/// The exit code that a shell reports after SIGINT: 128 plus the signal's number.
const INTERRUPTED: i32 = 130;

/// Receives the request to end the process. Clones are cheap and receive the same request.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Sends the request to end the process. Dropping it sends the request, too: otherwise tasks would
/// wait forever, because no other value could send it.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

impl Shutdown {
    /// Requested by SIGTERM or SIGINT. A second signal ends the process at once, with code 130.
    pub fn on_signals() -> Result<Self, RuntimeError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(RuntimeError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(RuntimeError::Signals)?;
        let (trigger, shutdown) = Self::manual();
        tokio::spawn(async move {
            let first = either(&mut terminate, &mut interrupt).await;
            tracing::info!(signal = first, "stopping; a second signal stops at once");
            trigger.request();
            let second = either(&mut terminate, &mut interrupt).await;
            tracing::warn!(signal = second, "stopping at once");
            std::process::exit(INTERRUPTED);
        });
        Ok(shutdown)
    }

    /// Requested by [`Trigger::request`].
    pub fn manual() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (Trigger(sender), Self(receiver))
    }

    /// Returns when the end is requested.
    pub async fn wait(&self) {
        // The error means that the trigger was dropped, which counts as a request.
        let _ = self.0.clone().wait_for(|requested| *requested).await;
    }

    /// Whether the end is requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

impl Trigger {
    /// Requests the end.
    pub fn request(&self) {
        self.0.send_replace(true);
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_receives_the_request() {
        let (trigger, shutdown) = Shutdown::manual();
        let other = shutdown.clone();
        assert!(!shutdown.is_requested());
        let waiting = tokio::spawn(async move { other.wait().await });
        trigger.request();
        waiting.await.unwrap();
        shutdown.wait().await;
        assert!(shutdown.is_requested());
    }

    #[tokio::test]
    async fn dropping_the_trigger_requests_shutdown() {
        let (trigger, shutdown) = Shutdown::manual();
        drop(trigger);
        shutdown.wait().await;
        assert!(shutdown.is_requested());
    }
}
