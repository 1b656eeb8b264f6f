//! A task that panics is a defect, and must not freeze its kind: it begins again with a list.
//!
//! Nothing is lost by that. What the task had not handed on is on the list, and the list names all
//! objects that there are, so that whoever listens drops the others. An object that makes every
//! attempt panic costs its kind all news, and nobody else's; the log, the status and its
//! `last_contact`, which stands still until a list has been taken in, say so.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use crate::backoff::Backoff;
use crate::task::Task;

/// The first pause after a panic; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A task that ran for longer had overcome what made it panic before.
const STEADY: Duration = Duration::from_secs(60);

/// Runs the task until nobody receives, and again whenever it panics.
pub(crate) async fn keep_running(first: Task) {
    let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
    let mut next = first;
    loop {
        let successor = next.successor();
        let (kind, board, events) = (next.kind, next.board.clone(), next.events());
        let began = Instant::now();
        let ended = tokio::select! {
            ended = AssertUnwindSafe(next.run()).catch_unwind() => ended,
            () = events.closed() => return,
        };
        let Err(panic) = ended else { return };
        if began.elapsed() > STEADY {
            backoff.reset();
        }
        let why = message_of(panic.as_ref());
        tracing::error!(
            kind = kind.resource(),
            panic = why,
            "the watch panicked, which is a defect; listing again"
        );
        board.panicked(&format!("a defect of nearhop: the watch panicked: {why}; listing again"));
        tokio::time::sleep(backoff.pause()).await;
        next = successor;
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it does not say why".to_owned())
}
