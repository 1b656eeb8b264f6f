//! The event loop: five events, one match. Only this loop changes the cluster state.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::Client;
use nearhop_runtime::client::ApiFailure;
use nearhop_runtime::queue::{Cause, WorkQueue};
use nearhop_runtime::shutdown::Shutdown;
use nearhop_runtime::supervise;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::action::{Action, Plan};
use crate::execute::{Executor, Outcome, into_channel};
use crate::kind::{Kind, WatchBatch};
use crate::options::{Controller, Options};
use crate::state::{ClusterState, Now};
use crate::watch;
use crate::work::{self, Work};

/// An input of the loop.
#[derive(Debug)]
enum Event {
    /// Events of one kind's watch.
    Watched(WatchBatch),
    /// The response to a request.
    Responded(Outcome),
    /// A work item has finished.
    Done { work: Work, failed: Option<Box<(Action, ApiFailure)>>, requeue_at: Option<Instant> },
    /// A work item is due.
    Due,
    /// Time to probe the API server: an idle watch does not show that the server is alive.
    CheckServer,
}

/// Runs the controllers until shutdown. Failed work is retried. All state is in the API, so the
/// manager can stop and restart at any time.
pub async fn run(options: Options, client: Client, shutdown: Shutdown) {
    let kinds = watch::watched(&options);
    tracing::info!(controllers = %options.controllers, "manager started");
    let mut watches = watch::start(&client, &kinds);
    let checks_nodes = options.controllers.has(Controller::NodeLifecycle);
    let mut server_check = interval(server_check_interval(&options));
    server_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (sender, receiver) = unbounded_channel();
    let mut manager = Manager {
        state: ClusterState::new(options),
        queue: work::queue(),
        kinds,
        synced: false,
        executor: Executor::new(client),
        sender,
    };
    let mut receiver: UnboundedReceiver<Event> = receiver;
    let heartbeat = manager.state.options.health.heartbeat("loop");
    loop {
        manager.start_work();
        let due = manager.next_due();
        let next = async {
            tokio::select! {
                biased;
                () = shutdown.wait() => None,
                Some(event) = receiver.recv() => Some(event),
                Some(batch) = watches.next() => Some(Event::Watched(batch)),
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => Some(Event::Due),
                _ = server_check.tick(), if checks_nodes => Some(Event::CheckServer),
            }
        };
        let Some(event) = heartbeat.turn(next).await else { break };
        manager.handle(event);
    }
}

/// The shortest delay before a plan runs again without a change, so that one work item cannot
/// starve the others.
const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(100);

/// When a plan must run again; `None` if the delay exceeds the clock's range.
fn requeue_at(plan: &Plan, now: Instant) -> Option<Instant> {
    plan.requeue_after
        .and_then(|requeue_after| now.checked_add(requeue_after.max(MIN_REQUEUE_DELAY)))
}

/// How often the manager probes the API server.
fn server_check_interval(options: &Options) -> Duration {
    (options.node_monitor_grace_period / 5)
        .clamp(Duration::from_millis(100), Duration::from_secs(8))
}

struct Manager {
    state: ClusterState,
    queue: WorkQueue<Work>,
    kinds: Vec<Kind>,
    /// Every watched kind has been listed once; no decision is made before that.
    synced: bool,
    executor: Executor,
    sender: UnboundedSender<Event>,
}

impl Manager {
    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due().filter(|_| self.synced)
    }

    fn handle(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Watched(batch) => self.on_watch(batch, now),
            Event::Responded(Outcome::Wrote(object)) => {
                let work = self.state.wrote(object, now);
                self.add(work, now);
            }
            Event::Responded(Outcome::Deleted(kind, name, uid)) => {
                let work = self.state.deleted(kind, &name, &uid, now);
                self.add(work, now);
            }
            Event::Responded(Outcome::Alive) => self.state.server_responded(now),
            Event::Responded(Outcome::Unbound(uid)) => {
                // Other Pods may have been rejected because of the assumed Pod.
                self.state.assumed.remove(&uid);
                let waiting = self.state.waiting().collect();
                self.add(waiting, now);
            }
            Event::Done { work, failed: None, requeue_at } => self.succeed(&work, requeue_at),
            Event::Done { work, failed: Some(failed), .. } => {
                let (action, failure) = *failed;
                let cause = failure.cause();
                let delay = |failures| work::delay(cause, failures);
                let failures = self.queue.fail(&work, now, cause, delay);
                let is_user_error =
                    matches!(failure, ApiFailure::Rejected { .. } | ApiFailure::Forbidden { .. });
                if cause == Cause::Object && !is_user_error {
                    tracing::debug!(?work, failures, error = %failure, "write failed; will retry");
                    return;
                }
                tracing::warn!(?work, failures, error = %failure, "write failed; will retry");
                // Only a user can fix a rejected Pod, so its owner gets an event.
                if let Some(event) = action.failed_create(&failure).filter(|_| is_user_error) {
                    let executor = self.executor.clone();
                    tokio::spawn(async move { executor.execute(event.into(), |_| ()).await });
                }
            }
            Event::Due => {}
            Event::CheckServer => self.ping(),
        }
    }

    fn ping(&self) {
        let (executor, sender) = (self.executor.clone(), self.sender.clone());
        let timeout = server_check_interval(&self.state.options);
        tokio::spawn(async move {
            if let Some(alive) = executor.ping(timeout).await {
                into_channel(&sender, Event::Responded(alive));
            }
        });
    }

    fn on_watch(&mut self, batch: WatchBatch, now: Instant) {
        let work = self.state.on_watch(batch, now);
        self.add(work, now);
        if !self.synced && self.state.objects.is_synced(&self.kinds) {
            self.synced = true;
            self.state.server_responded(now);
            self.state.reset_heartbeats(now);
            tracing::info!("initial lists complete");
        }
    }

    fn add(&mut self, work: Vec<Work>, now: Instant) {
        work.into_iter().for_each(|work| self.queue.add(&work, now));
    }

    fn succeed(&mut self, work: &Work, requeue_at: Option<Instant>) {
        self.queue.succeed(work);
        requeue_at.iter().for_each(|at| self.queue.add(work, *at));
    }

    /// Starts all work that is due. Work that becomes due meanwhile waits for the next turn of the
    /// loop.
    fn start_work(&mut self) {
        let now = Now::read();
        while self.synced
            && let Some(work) = self.queue.take(now.monotonic)
        {
            let plan = self.state.plan(&work, now);
            let requeue_at = requeue_at(&plan, now.monotonic);
            if plan.stages.is_empty() {
                self.succeed(&work, requeue_at);
                continue;
            }
            tracing::debug!(?work, ?plan, "acting");
            self.state.assume(&plan);
            let (executor, sender) = (self.executor.clone(), self.sender.clone());
            // Supervised: work that never reports its end would never run again.
            supervise::spawn(format!("{work:?}"), async move {
                let responded = |outcome| into_channel(&sender, Event::Responded(outcome));
                let failed = executor.execute(plan, responded).await.err().map(Box::new);
                into_channel(&sender, Event::Done { work, failed, requeue_at });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requeue_delay_has_a_minimum_and_overflow_never_fires() {
        let now = Instant::now();
        let due = |requeue_after| requeue_at(&Plan { stages: Vec::new(), requeue_after }, now);
        assert_eq!(due(None), None);
        assert_eq!(due(Some(Duration::ZERO)), Some(now + MIN_REQUEUE_DELAY));
        assert_eq!(due(Some(10 * MIN_REQUEUE_DELAY)), Some(now + 10 * MIN_REQUEUE_DELAY));
        assert_eq!(due(Some(Duration::MAX)), None, "beyond the clock's range");
    }
}
