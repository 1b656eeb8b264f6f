//! Restarts a watch after a panic, which is a defect: the watch begins again with a list.
//!
//! Nothing is lost: the list has what the task had not sent yet, and the receiver drops objects
//! that the list does not name. An object that makes every attempt panic stops only its own
//! resource; the log, [`super::Status::panics`] and [`super::Status::last_contact`] show it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use nearhop_runtime::backoff::Backoff;

use super::task::Task;
use super::{Decoder, Sink};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));

/// After a run of this length the next pause is the first one again.
const STEADY: Duration = Duration::from_secs(60);

/// Runs the task until the receiver is dropped, and again after each panic.
pub(super) async fn keep_running<D: Decoder, S: Sink<D::Object>>(mut task: Task<D, S>) {
    let mut panics = 0;
    let events = task.events.clone();
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            ended = AssertUnwindSafe(task.run()).catch_unwind() => ended,
            () = events.closed() => return,
        };
        let Err(panic) = ended else { return };
        if began.elapsed() > STEADY {
            panics = 0;
        }
        let panic = message_of(panic.as_ref());
        tracing::error!(resource = task.resource(), panic, "watch panicked; listing again");
        task.status
            .panicked(&format!("a defect of nearhop: the watch panicked: {panic}; listing again"));
        tokio::time::sleep(BACKOFF.next_delay(&mut panics)).await;
        task.reset();
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
