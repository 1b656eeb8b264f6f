//! Starts tasks and threads whose panic must end the process.
//!
//! In tokio, a task that panics ends alone: the process continues without it, and its probes still
//! succeed. This module reports the panic. The daemon's main function waits for that report beside
//! its work ([`failure`]) and ends the process with an error that names the task, so that systemd
//! or the kubelet restarts the process.
//!
//! The report is global, because it concerns the whole process. A task that returns or is aborted
//! has not failed. Do not start a task here that its owner can restart safely.

use std::any::Any;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::thread;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A task or a thread of the process panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} panicked: {why}; this is a defect of nearhop: please report it with the log")]
pub struct Panicked {
    /// Which task or thread.
    pub name: String,
    /// The message of the panic.
    pub why: String,
}

static LAST: LazyLock<watch::Sender<Option<Panicked>>> = LazyLock::new(|| watch::Sender::new(None));

/// Starts a task on which the process depends.
pub fn spawn(
    name: impl Into<String>,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(watched(name.into(), task))
}

/// The same for a task that the caller starts itself, for example in a `JoinSet`.
pub async fn watched(name: String, task: impl Future<Output = ()>) {
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        report(name, panic.as_ref());
    }
}

/// Starts a thread on which the process depends.
pub fn thread(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    let named = name.to_owned();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            report(named, panic.as_ref());
        }
    })
}

/// Waits until a task or a thread of this module panics.
pub async fn failure() -> Panicked {
    let mut reports = LAST.subscribe();
    let report = reports.wait_for(Option::is_some).await.map(|report| report.clone());
    report.ok().flatten().expect("the sender is never dropped, and a report was waited for")
}

fn report(name: String, panic: &(dyn Any + Send)) {
    let panicked = Panicked { why: message_of(panic), name };
    tracing::error!(task = panicked.name, panic = panicked.why, "a task panicked");
    LAST.send_replace(Some(panicked));
}

/// The message of a panic.
pub fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no panic message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// One test only, because the report is global.
    #[tokio::test]
    async fn a_panic_in_a_task_or_a_thread_is_reported_with_its_name() {
        spawn("returns", async {}).await.unwrap();
        let aborted = spawn("aborted", pending());
        aborted.abort();
        aborted.await.unwrap_err();
        thread("returns", || {}).unwrap().join().unwrap();
        assert!(LAST.borrow().is_none(), "a task that returns or is aborted has not failed");

        spawn("lease", async { panic!("no {}", "clock") }).await.unwrap();
        let failed = timeout(Duration::from_secs(20), failure()).await.unwrap();
        assert_eq!(failed, Panicked { name: "lease".into(), why: "no clock".into() });
        assert!(failed.to_string().starts_with("lease panicked: no clock; "), "{failed}");

        thread("conntrack", || panic!("a flow without an address")).unwrap().join().unwrap();
        assert_eq!(failure().await.name, "conntrack");
    }
}
