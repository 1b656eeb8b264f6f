//! Opens connections from the namespace it runs in and counts which Pods answered.
//!
//! TCP requests `/hostname` by HTTP, UDP sends the word `hostname`. The built-in images and those of
//! Kubernetes' tests answer both with the Pod's name.
//!
//! With a rate, connections begin at fixed times, whether or not earlier ones have been answered: a
//! slow answer must not lower the load that would show more of them. Only [`Job::concurrency`] limits
//! them; connections that had to wait for it are counted as late.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearhop_runtime::shutdown::Shutdown;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep_until, timeout};

use super::chosen::{self, Flow};
use super::ports::Ports;
use super::request::ask;
use super::{Failure, Tally};

/// A connection that begins later than this after its time is counted as late.
pub const LATE: Duration = Duration::from_millis(100);

/// Time between two reports of a worker. Empty reports show that the worker runs.
const REPORT: Duration = Duration::from_millis(200);

/// Time between two looks for the endpoints of failed connections; the table is large.
const LOOK: Duration = Duration::from_secs(1);

/// The job of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Used in turn: `10.96.0.7:80`, or a name, resolved for each connection.
    pub targets: Vec<String>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Number of connections. None: until the end of `duration_ms`.
    pub connections: Option<u64>,
    /// Connections at the same time.
    pub concurrency: usize,
    /// Timeout of a connection in milliseconds.
    pub timeout_ms: u64,
    /// Connections per second; 0 for no limit.
    pub rate: f64,
    /// When the first connection is due, in turns: the clients of a slow drive take turns.
    #[serde(default)]
    pub phase: f64,
    /// When to stop, in milliseconds.
    #[serde(default)]
    pub duration_ms: Option<u64>,
    /// Address family of names.
    #[serde(default)]
    pub family: Family,
    /// DNS server, if the client has no `/etc/resolv.conf`.
    #[serde(default)]
    pub name_server: Option<SocketAddr>,
}

/// The address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(super) fn contains(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

/// The transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP over a new TCP connection.
    Tcp,
    /// One packet from a new socket.
    Udp,
}

/// A line that a worker sends while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Message {
    /// The counts since the last line.
    Counts(Box<Tally>),
    /// The last line.
    Done(Times),
}

/// Times of a job since its start, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Times {
    /// When the last connection began.
    pub last_begun: f64,
    /// When the last connection ended.
    pub ended: f64,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Time since the start of the job.
    pub at: Duration,
    /// Duration.
    pub took: Duration,
    /// The Pod that answered.
    pub outcome: Result<String, Failure>,
}

impl Job {
    /// One connection at a time, without targets and limits.
    pub fn new(protocol: Protocol, family: Family) -> Self {
        Self {
            targets: Vec::new(),
            protocol,
            connections: None,
            concurrency: 1,
            timeout_ms: 3000,
            rate: 0.0,
            phase: 0.0,
            duration_ms: None,
            family,
            name_server: None,
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// When a turn is due; None without a rate.
    fn due(&self, turn: u64) -> Option<Duration> {
        (self.rate > 0.0).then(|| Duration::from_secs_f64((turn as f64 + self.phase) / self.rate))
    }

    /// Whether a connection may begin at this time since the start.
    fn allows(&self, turn: u64, at: Duration) -> bool {
        let in_time = self.duration_ms.is_none_or(|end| at < Duration::from_millis(end));
        self.connections.is_none_or(|count| turn < count) && in_time
    }
}

/// What the lanes of a job share.
#[derive(Debug)]
struct Desk {
    start: Instant,
    next: AtomicU64,
    ports: Ports,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    tally: Tally,
    /// Failed connections whose endpoint is not looked up yet.
    failed: Vec<(Flow, Failure)>,
    last_begun: Duration,
}

impl Desk {
    fn new() -> Self {
        let (start, next) = (Instant::now(), AtomicU64::new(0));
        Self { start, next, ports: Ports::new(), counts: Mutex::default() }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        // Counts are whole at each panic.
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the counts since the last call.
    fn take(&self) -> Tally {
        self.with(|counts| std::mem::take(&mut counts.tally))
    }

    /// Adds the endpoints of failed connections to the counts.
    async fn look_up_targets(&self) {
        let failed = self.with(|counts| std::mem::take(&mut counts.failed));
        if failed.is_empty() {
            return;
        }
        // Without the table the client's own address remains.
        let chosen = tokio::task::spawn_blocking(chosen::read).await.unwrap_or_default();
        self.with(|counts| {
            for (flow, failure) in failed {
                let target = chosen.get(&flow).unwrap_or(&flow.to);
                counts.tally.count_target(target.to_string(), failure);
            }
        });
    }
}

/// Performs the job until its end or `stop`, and returns the counts. Calls `on_attempt` for each
/// connection when it ends.
pub async fn work(
    job: &Job,
    stop: &Shutdown,
    on_attempt: impl Fn(&Attempt) + Clone + Send + Sync + 'static,
) -> Tally {
    let desk = Arc::new(Desk::new());
    open_all(job, &desk, stop, on_attempt).await;
    desk.look_up_targets().await;
    desk.take()
}

/// The same, but passes the counts on while it runs. Ends early if `report` fails: then no reader is
/// left.
pub async fn work_and_report<E>(
    job: &Job,
    stop: &Shutdown,
    mut report: impl AsyncFnMut(Message) -> Result<(), E>,
) -> Result<(), E> {
    let desk = Arc::new(Desk::new());
    let opening = open_all(job, &desk, stop, |_: &Attempt| {});
    tokio::pin!(opening);
    let mut ticks = tokio::time::interval(REPORT);
    let mut looked = Instant::now();
    loop {
        tokio::select! {
            () = &mut opening => break,
            _ = ticks.tick() => {
                if looked.elapsed() >= LOOK {
                    desk.look_up_targets().await;
                    looked = Instant::now();
                }
                report(Message::Counts(Box::new(desk.take()))).await?;
            }
        }
    }
    let ended = desk.start.elapsed().as_secs_f64();
    desk.look_up_targets().await;
    report(Message::Counts(Box::new(desk.take()))).await?;
    let last_begun = desk.with(|counts| counts.last_begun.as_secs_f64());
    report(Message::Done(Times { last_begun, ended })).await
}

async fn open_all(
    job: &Job,
    desk: &Arc<Desk>,
    stop: &Shutdown,
    on_attempt: impl Fn(&Attempt) + Clone + Send + Sync + 'static,
) {
    let most = job.connections.unwrap_or(u64::MAX).min(job.concurrency.max(1) as u64);
    let mut lanes = tokio::task::JoinSet::new();
    for _ in 0..most {
        let (job, desk, stop) = (job.clone(), Arc::clone(desk), stop.clone());
        let on_attempt = on_attempt.clone();
        lanes.spawn(async move {
            // Connections that are open at the end of a stopped job are not counted.
            tokio::select! {
                () = run_lane(&job, &desk, on_attempt) => {}
                () = stop.wait() => {}
            }
        });
    }
    while let Some(done) = lanes.join_next().await {
        done.expect("a lane does not panic");
    }
}

async fn run_lane(job: &Job, desk: &Desk, on_attempt: impl Fn(&Attempt)) {
    loop {
        let turn = desk.next.fetch_add(1, Ordering::Relaxed);
        let due = job.due(turn);
        if !job.allows(turn, due.unwrap_or_else(|| desk.start.elapsed())) {
            return;
        }
        if let Some(due) = due {
            sleep_until((desk.start + due).into()).await;
        }
        let begun = Instant::now();
        let at = begun - desk.start;
        if !job.allows(turn, at) {
            return;
        }
        desk.with(|counts| counts.last_begun = counts.last_begun.max(at));
        let target = &job.targets[turn as usize % job.targets.len()];
        let mut flow = None;
        let outcome = timeout(job.patience(), ask(job, target, &desk.ports, &mut flow)).await;
        let outcome = outcome.unwrap_or(Err(Failure::TimedOut));
        let took = begun.elapsed();
        on_attempt(&Attempt { at, took, outcome: outcome.clone() });
        desk.with(|counts| {
            counts.tally.late += u64::from(due.is_some_and(|due| at > due + LATE));
            match (&outcome, flow) {
                (Err(failure), Some(flow)) => counts.failed.push((flow, *failure)),
                (Err(failure), None) => counts.tally.count_target(target.clone(), *failure),
                (Ok(_), _) => {}
            }
            counts.tally.count(outcome, took);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn job(targets: &[String], protocol: Protocol) -> Job {
        Job {
            targets: targets.to_vec(),
            connections: Some(10),
            concurrency: 3,
            timeout_ms: 300,
            ..Job::new(protocol, Family::V4)
        }
    }

    async fn run(job: &Job) -> Tally {
        let (_trigger, stop) = Shutdown::manual();
        work(job, &stop, |_| {}).await
    }

    /// Address of a server that answers each request with its name.
    async fn server(name: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 512];
                let _ = stream.read(&mut request).await;
                let answer = format!("HTTP/1.1 200 OK\r\n\r\n{name}");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn failures_are_classified() {
        let silent_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = free.local_addr().unwrap().to_string();
        drop(free);
        let silent = silent_listener.local_addr().unwrap().to_string();
        let tally = run(&job(&[closed.clone(), silent.clone()], Protocol::Tcp)).await;
        let expected = BTreeMap::from([(Failure::Refused, 5), (Failure::TimedOut, 5)]);
        assert_eq!(tally.failures, expected);
        assert_eq!(tally.answered(), 0);
        let by_target = BTreeMap::from([
            (closed.clone(), BTreeMap::from([(Failure::Refused, 5)])),
            (silent, BTreeMap::from([(Failure::TimedOut, 5)])),
        ]);
        assert_eq!(tally.targets, by_target);
        let tally = run(&job(&[closed], Protocol::Udp)).await;
        assert_eq!(tally.failures, BTreeMap::from([(Failure::Refused, 10)]));
        let unknown = "unknown.invalid:80".to_owned();
        let tally = run(&job(&[unknown], Protocol::Tcp)).await;
        assert_eq!(tally.failed(), 10, "{tally:?}");
    }

    #[tokio::test]
    async fn targets_are_used_in_turn_and_answers_counted() {
        let targets = [server("a").await, server("b").await];
        let tally = run(&job(&targets, Protocol::Tcp)).await;
        let expected = BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 5)]);
        assert_eq!((tally.answers.clone(), tally.failed()), (expected, 0));
        assert!(tally.latencies.percentiles().is_some());
    }

    #[tokio::test]
    async fn a_slow_server_does_not_lower_the_rate() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let targets = [silent.local_addr().unwrap().to_string()];
        let paced =
            Job { rate: 100.0, concurrency: 20, timeout_ms: 2000, ..job(&targets, Protocol::Tcp) };
        let begun = Instant::now();
        let tally = run(&paced).await;
        assert_eq!(tally.timed_out(), 10);
        // One after the other they would take 20 s.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let narrow = Job { concurrency: 1, timeout_ms: 150, ..paced };
        let tally = run(&narrow).await;
        assert!(tally.late >= 8, "each waits for the one before it: {tally:?}");
    }

    #[tokio::test]
    async fn a_job_ends_at_its_duration_or_when_it_is_stopped() {
        let targets = [server("a").await];
        let endless = Job { connections: None, ..job(&targets, Protocol::Tcp) };
        let tally = run(&Job { duration_ms: Some(200), ..endless.clone() }).await;
        assert!(tally.answered() > 0 && tally.failed() == 0, "{tally:?}");
        let tally = run(&Job { duration_ms: Some(500), rate: 20.0, ..endless.clone() }).await;
        assert!((1..=10).contains(&tally.answered()), "{tally:?}");
        let (trigger, stop) = Shutdown::manual();
        let mut reports = 0;
        let mut last = None;
        let counted = work_and_report(&endless, &stop, async |message| {
            reports += 1;
            if reports == 3 {
                trigger.request();
            }
            last = Some(message);
            Ok::<_, ()>(())
        });
        assert_eq!(counted.await, Ok(()));
        assert!(matches!(last, Some(Message::Done(times)) if times.ended > 0.2), "{last:?}");
    }
}
