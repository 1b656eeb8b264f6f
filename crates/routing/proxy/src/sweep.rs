//! The thread that deletes stale flows. The conntrack table may have a million entries; reading it
//! must not delay a sync.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nearhop_core::Family;
use nearhop_netfilter::conntrack::View;
use tokio::sync::mpsc as tokio_mpsc;

use crate::conntrack::{Conntrack, ConntrackError, Swept};
use crate::flow_eligibility::{FrontendEndpoints, LostEndpoints};

/// A conntrack sweep of one family.
struct Job {
    family: Family,
    view: View<FrontendEndpoints>,
    lost: LostEndpoints,
}

/// Result of a sweep.
#[derive(Debug)]
pub(crate) struct SweepDone {
    /// The family.
    pub(crate) family: Family,
    /// The result.
    pub(crate) result: Result<Swept, ConntrackError>,
    /// How long it took.
    pub(crate) took: Duration,
    /// The endpoints whose flows were checked.
    pub(crate) lost: LostEndpoints,
}

/// Runs a job; the socket is kept for the next one.
type Work = fn(&mut Option<Conntrack>, &Job) -> Result<Swept, ConntrackError>;

/// The loop's handle of the thread: at most one job at a time. If the thread panics, that job fails
/// and the next job gets a new thread.
#[derive(Debug)]
pub(crate) struct Sweeper {
    work: Work,
    thread: Option<Thread>,
    /// The job that the thread is running.
    current: Option<(Family, LostEndpoints)>,
}

#[derive(Debug)]
struct Thread {
    jobs: mpsc::Sender<Job>,
    done: tokio_mpsc::UnboundedReceiver<SweepDone>,
}

impl Sweeper {
    /// Starts the thread in the network namespace of the calling thread.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(sweep)
    }

    fn start_with(work: Work) -> io::Result<Self> {
        Ok(Self { work, thread: Some(Thread::start(work)?), current: None })
    }

    /// Whether it can accept a job.
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Starts a sweep of the flows to frontends that lost these endpoints.
    ///
    /// # Errors
    /// The last thread panicked, and no new thread could be started.
    pub(crate) fn give(
        &mut self,
        family: Family,
        view: View<FrontendEndpoints>,
        lost: &LostEndpoints,
    ) -> io::Result<()> {
        let thread = match &mut self.thread {
            Some(thread) => thread,
            None => self.thread.insert(Thread::start(self.work)?),
        };
        self.current = Some((family, lost.clone()));
        // If the thread has just ended, `wait` reports it.
        let _ended = thread.jobs.send(Job { family, view, lost: lost.clone() });
        Ok(())
    }

    /// Waits for the end of the job; forever if there is no job.
    pub(crate) async fn wait(&mut self) -> SweepDone {
        if let (Some(thread), true) = (&mut self.thread, self.current.is_some()) {
            let done = thread.done.recv().await;
            let current = self.current.take();
            if let Some(done) = done {
                return done;
            }
            self.thread = None;
            if let Some((family, lost)) = current {
                let result = Err(ConntrackError::Panicked);
                return SweepDone { family, result, took: Duration::ZERO, lost };
            }
        }
        std::future::pending().await
    }
}

impl Thread {
    fn start(work: Work) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let (finished, done) = tokio_mpsc::unbounded_channel();
        std::thread::Builder::new().name("conntrack".to_owned()).spawn(move || {
            let mut socket = None;
            for job in waiting {
                let began = Instant::now();
                let result = work(&mut socket, &job);
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
        Ok(Self { jobs, done })
    }
}

fn sweep(socket: &mut Option<Conntrack>, job: &Job) -> Result<Swept, ConntrackError> {
    let conntrack = match socket {
        Some(conntrack) => conntrack,
        None => socket.insert(Conntrack::open()?),
    };
    conntrack.sweep(job.family, &job.view)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nearhop_core::Protocol;
    use nearhop_netfilter::conntrack::Rehome;
    use nearhop_netfilter::frontend::{At, Frontend};

    use super::*;

    static JOBS: AtomicU32 = AtomicU32::new(0);

    /// Panics on the first job.
    fn panic_once(_: &mut Option<Conntrack>, _: &Job) -> Result<Swept, ConntrackError> {
        assert!(JOBS.fetch_add(1, Ordering::Relaxed) > 0, "the first job panics");
        Err(ConntrackError::NoModule)
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_replaced() {
        let mut sweeper = Sweeper::start_with(panic_once).unwrap();
        let frontend = Frontend { at: At::Node, protocol: Protocol::Udp, port: 53 };
        let lost = LostEndpoints::from([(frontend, BTreeSet::new())]);
        let view = || View::new(Rehome::NewOnly, BTreeSet::new());
        sweeper.give(Family::Ipv4, view(), &lost).unwrap();
        assert!(!sweeper.is_idle());
        let done = sweeper.wait().await;
        assert_eq!(done.result.unwrap_err(), ConntrackError::Panicked);
        assert_eq!(done.lost, lost, "the lost endpoints are returned for the next sweep");
        assert!(sweeper.is_idle());
        sweeper.give(Family::Ipv6, view(), &done.lost).unwrap();
        let done = sweeper.wait().await;
        assert_eq!(done.family, Family::Ipv6);
        assert_eq!(done.result.unwrap_err(), ConntrackError::NoModule, "the second thread works");
    }
}
