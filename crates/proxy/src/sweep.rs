//! The thread that deletes stale flows. A table of flows may have a million entries; looking
//! through it must not keep a Service waiting.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use nearhop_core::Family;
use nearhop_netfilter::conntrack::View;
use tokio::sync::mpsc as tokio_mpsc;

use crate::conntrack::{Conntrack, ConntrackError, Swept};
use crate::standing::{LostEndpoints, Standings};

/// The flows of a family are to be judged.
struct Job {
    family: Family,
    view: View<Standings>,
    lost: LostEndpoints,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct SweepDone {
    /// Of which family.
    pub(crate) family: Family,
    /// What was done.
    pub(crate) result: Result<Swept, ConntrackError>,
    /// How long it took.
    pub(crate) took: Duration,
    /// What was to be judged.
    pub(crate) lost: LostEndpoints,
}

/// The thread's end in the loop: at most one job at a time.
#[derive(Debug)]
pub(crate) struct Sweeper {
    jobs: mpsc::Sender<Job>,
    done: tokio_mpsc::UnboundedReceiver<SweepDone>,
    busy: bool,
}

impl Sweeper {
    /// Starts the thread, in the network namespace of the calling one.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let (finished, done) = tokio_mpsc::unbounded_channel();
        std::thread::Builder::new().name("conntrack".to_owned()).spawn(move || {
            let mut socket = None;
            for job in waiting {
                let began = Instant::now();
                let result = sweep(&mut socket, &job);
                if result.is_err() {
                    socket = None;
                }
                let took = began.elapsed();
                let Job { family, lost, .. } = job;
                if finished.send(SweepDone { family, result, took, lost }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done, busy: false })
    }

    /// Whether it can be given something.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy
    }

    /// Gives it something to do: flows to frontends that lost these endpoints.
    pub(crate) fn give(&mut self, family: Family, view: View<Standings>, lost: LostEndpoints) {
        self.busy = self.jobs.send(Job { family, view, lost }).is_ok();
    }

    /// Waits until something is done; forever where nothing is under way.
    pub(crate) async fn wait(&mut self) -> SweepDone {
        match self.done.recv().await {
            Some(done) => {
                self.busy = false;
                done
            }
            None => std::future::pending().await,
        }
    }
}

fn sweep(socket: &mut Option<Conntrack>, job: &Job) -> Result<Swept, ConntrackError> {
    let conntrack = match socket {
        Some(conntrack) => conntrack,
        None => socket.insert(Conntrack::open()?),
    };
    conntrack.sweep(job.family, &job.view)
}
