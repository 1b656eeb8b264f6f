//! The one place that watches. Each kind is listed, watched, listed again where the server has
//! forgotten too much, converted, and handed on as one stream of [`Event`]s.
//!
//! ```text
//!   query       what is asked for            (paths and parameters)
//!   connection  bytes, with patience         (requests, timeouts, refusals)
//!   lines,      where one event or item      (bytes to texts)
//!   items       ends and the next begins
//!   line        what they say                (texts to Changed)
//!   task        list, watch, resume          (one per kind)
//!   supervise   a task that panicked         (begins again with a list)
//! ```
//!
//! Not kube-runtime's watcher: that one builds every object's whole metadata, managedFields and
//! all. Here an object is read into `nearhop-api`'s slim shapes and everything else is skipped,
//! so that a Pod of 10 kB costs some hundred bytes.
//!
//! Deliberately absent: writes, decisions, a store. Who listens keeps what it needs.

mod backoff;
mod connection;
mod error;
mod event;
mod items;
mod line;
mod lines;
mod list;
mod options;
mod query;
mod status;
mod supervise;
mod task;

use kube::Client;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use event::Event;
pub use options::{Lists, Options, Selectors};
pub use status::Status;

use status::SharedStatus;
use task::Task;

/// Batches that may wait for their reader; then the server has to wait.
const WAITING: usize = 16;

/// The tasks that watch. They end when it is dropped, or when nobody receives any more.
#[derive(Debug)]
pub struct Feed {
    boards: Vec<SharedStatus>,
    _tasks: JoinSet<()>,
}

impl Feed {
    /// Starts to watch; must be called within a tokio runtime. Events come in batches: what has
    /// arrived by itself is handed on at once, what has arrived together together.
    ///
    /// The client should be made with `default_retry` off: otherwise kube repeats refused
    /// requests by itself for a while, and neither a status nor a log says so.
    pub fn start(client: Client, options: Options) -> (Self, mpsc::Receiver<Vec<Event>>) {
        let (events, receiver) = mpsc::channel(WAITING);
        let mut boards = Vec::new();
        let mut tasks = JoinSet::new();
        for kind in options.watches.keys().copied() {
            let board = SharedStatus::new(kind);
            let task = Task::new(client.clone(), kind, &options, board.clone(), events.clone());
            tasks.spawn(supervise::keep_running(task));
            boards.push(board);
        }
        (Self { boards, _tasks: tasks }, receiver)
    }

    /// How each kind is doing, in the order of [`nearhop_core::Kind`]. Cheap enough for every scrape.
    pub fn status(&self) -> Vec<Status> {
        self.boards.iter().map(SharedStatus::read).collect()
    }
}
