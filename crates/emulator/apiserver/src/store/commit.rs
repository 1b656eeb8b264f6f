//! Commits: every write passes here, in batches.
//!
//! With a disk, one thread takes all waiting writes, checks each against the stored objects and the
//! earlier writes of the batch, commits the batch to disk in one transaction, and then makes it
//! visible. So a change that a client saw is never lost, and many writes share one fsync. Without
//! a disk the same steps run under the lock.
//!
//! When the disk fails (for example because it is full), the thread refuses writes with the disk's
//! error and reopens the file until that works. Reads continue.

use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearhop_runtime::supervise;
use tokio::sync::oneshot;

use super::disk::{Disk, DiskWrite};
use super::object::{Content, Name, ObjectRef, Stored};
use super::state::State;

/// One change, and the state that it expects.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) storage: Arc<str>,
    pub(crate) name: Name,
    pub(crate) expect: Expect,
    pub(crate) change: Change,
    /// A Namespace that must exist and not be terminating.
    pub(crate) within: Option<Box<str>>,
}

/// The state that a write expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// No object.
    Absent,
    /// The object at this version.
    Version(u64),
    /// The object that an earlier write of the same request put.
    Previous,
}

#[derive(Debug)]
pub(crate) enum Change {
    Put(Arc<Content>),
    Delete,
}

/// Why a request was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    Exists,
    Gone,
    /// The object has another version.
    Conflict,
    /// The Namespace does not exist, is terminating, or changes in the same commit.
    Namespace,
    Disk(String),
}

pub(super) struct Request {
    writes: Vec<Write>,
    reply: Reply,
}

type Answer = Result<Vec<Arc<Stored>>, WriteError>;
type Reply = oneshot::Sender<Answer>;

pub(super) enum Committer {
    Memory(Arc<RwLock<State>>),
    Thread { requests: mpsc::Sender<Request>, thread: JoinHandle<()>, failure: Failure },
}

/// Why the disk cannot be written; `None` while it can.
type Failure = Arc<RwLock<Option<String>>>;

/// The storage of Namespaces: no object may outlive its Namespace.
const NAMESPACES: &str = "namespaces";

/// The size limit of a batch: a larger commit would delay its requests.
const MAX_PER_COMMIT: usize = 512;

/// The time until a failed disk is reopened, or this many times the duration of the last attempt:
/// reopening a large file takes CPU time that reads need.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_FACTOR: u32 = 10;

impl Committer {
    pub(super) fn start(state: Arc<RwLock<State>>, disk: Option<Disk>) -> Self {
        let Some(disk) = disk else { return Self::Memory(state) };
        let (requests, receiver) = mpsc::channel();
        let failure = Failure::default();
        let shared = Arc::clone(&failure);
        let run = move || run(&state, disk, &receiver, &shared);
        let thread =
            supervise::thread("store-writer", run).expect("the process can start a thread");
        Self::Thread { requests, thread, failure }
    }

    /// Why the disk cannot be written; `None` while it can.
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Thread { failure, .. } => read_failure(failure),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Thread { thread, .. } => !thread.is_finished(),
        }
    }

    pub(super) async fn write(&self, writes: Vec<Write>) -> Answer {
        match self {
            Self::Memory(state) => write_now(state, writes),
            Self::Thread { requests, .. } => {
                let (reply, answer) = oneshot::channel();
                let why = "the thread that writes to the disk has ended; restart nearhop apiserver";
                let stopped = || WriteError::Disk(why.to_owned());
                requests.send(Request { writes, reply }).map_err(|_| stopped())?;
                answer.await.map_err(|_| stopped())?
            }
        }
    }
}

fn write_now(state: &RwLock<State>, writes: Vec<Write>) -> Answer {
    let mut state = state.write().expect("no writer panics while it holds the state");
    let mut plan = Plan::new(&state);
    plan.add(&state, writes)?;
    let done = plan.apply(&mut state);
    Ok(done.into_iter().flatten().collect())
}

fn run(
    state: &RwLock<State>,
    mut disk: Disk,
    requests: &mpsc::Receiver<Request>,
    failure: &RwLock<Option<String>>,
) {
    let batch = |first| {
        std::iter::once(first).chain(requests.try_iter()).take(MAX_PER_COMMIT).collect::<Vec<_>>()
    };
    let mut next_try = Instant::now();
    loop {
        let Some(why) = read_failure(failure) else {
            let Ok(first) = requests.recv() else { return };
            commit(state, &mut disk, failure, batch(first));
            next_try = Instant::now() + RETRY;
            continue;
        };
        let wait = next_try.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            let began = Instant::now();
            reopen(state, &mut disk, failure);
            next_try = Instant::now() + RETRY.max(began.elapsed() * RETRY_FACTOR);
            continue;
        }
        match requests.recv_timeout(wait) {
            Ok(first) => refuse(batch(first).into_iter().map(|request| request.reply), &why),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Opens the file again; after that, writes are accepted.
fn reopen(state: &RwLock<State>, disk: &mut Disk, failure: &RwLock<Option<String>>) {
    // Only this thread changes objects, so both are current after the lock is released.
    let (version, objects) = {
        let state = state.read().expect("no writer panics while it holds the state");
        (state.version, state.all())
    };
    match disk.reopen(version, &objects) {
        Ok(()) => {
            tracing::info!("data directory writable again; accepting writes");
            set_failure(failure, None);
        }
        Err(why) => set_failure(failure, Some(why)),
    }
}

fn refuse(replies: impl IntoIterator<Item = Reply>, why: &str) {
    for reply in replies {
        send(reply, Err(WriteError::Disk(why.to_owned())));
    }
}

fn read_failure(failure: &RwLock<Option<String>>) -> Option<String> {
    failure.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_failure(failure: &RwLock<Option<String>>, why: Option<String>) {
    *failure.write().unwrap_or_else(PoisonError::into_inner) = why;
}

/// One group commit. Refusals are sent last: one may rest on a write of the same batch, which the
/// client must find when it reads.
fn commit(
    state: &RwLock<State>,
    disk: &mut Disk,
    failure: &RwLock<Option<String>>,
    requests: Vec<Request>,
) {
    let (mut accepted, mut refused) = (Vec::with_capacity(requests.len()), Vec::new());
    let plan = {
        let state = state.read().expect("no writer panics while it holds the state");
        let mut plan = Plan::new(&state);
        for Request { writes, reply } in requests {
            match plan.add(&state, writes) {
                Ok(()) => accepted.push(reply),
                Err(error) => refused.push((reply, error)),
            }
        }
        plan
    };
    if !accepted.is_empty() {
        // This thread is the only one that writes, so what was checked still holds.
        match disk.commit(plan.version, plan.steps.iter().map(Step::to_disk)) {
            Ok(()) => {
                let done = plan
                    .apply(&mut state.write().expect("no writer panics while it holds the state"));
                for (reply, objects) in accepted.into_iter().zip(done) {
                    send(reply, Ok(objects));
                }
            }
            Err(reason) => {
                tracing::error!(
                    error = reason,
                    "disk write failed; refusing writes until it works"
                );
                // Before the replies: a client that then checks /readyz must see the failure.
                set_failure(failure, Some(reason.clone()));
                refuse(accepted, &reason);
            }
        }
    }
    for (reply, error) in refused {
        send(reply, Err(error));
    }
}

fn send(reply: Reply, answer: Answer) {
    // A receiver that was dropped needs no answer.
    let _ = reply.send(answer);
}

/// Changes that passed their checks and have versions, but are not visible yet.
#[derive(Default)]
struct Plan {
    version: u64,
    steps: Vec<Step>,
    /// Where each request's steps end.
    ends: Vec<usize>,
    /// The versions that the steps so far leave.
    pending: BTreeMap<ObjectRef, Option<u64>>,
}

struct Step {
    key: ObjectRef,
    version: u64,
    change: Change,
}

impl Step {
    fn to_disk(&self) -> DiskWrite<'_> {
        let content = match &self.change {
            Change::Put(content) => Some((self.version, content.tail())),
            Change::Delete => None,
        };
        DiskWrite { key: &self.key, content }
    }
}

impl Plan {
    fn new(state: &State) -> Self {
        Self { version: state.version, ..Self::default() }
    }

    /// Adds all writes of a request, or none.
    fn add(&mut self, state: &State, writes: Vec<Write>) -> Result<(), WriteError> {
        let (version, steps) = (self.version, self.steps.len());
        let mut undo: Vec<(ObjectRef, Option<Option<u64>>)> = Vec::new();
        for write in writes {
            let key = ObjectRef { storage: write.storage, name: write.name };
            let namespace = write.within.as_deref();
            let checked = self
                .check_namespace(state, namespace)
                .and_then(|()| self.check(state, &key, write.expect));
            if let Err(error) = checked {
                self.version = version;
                self.steps.truncate(steps);
                for (key, before) in undo.into_iter().rev() {
                    match before {
                        Some(before) => self.pending.insert(key, before),
                        None => self.pending.remove(&key),
                    };
                }
                return Err(error);
            }
            self.version += 1;
            let left = matches!(write.change, Change::Put(_)).then_some(self.version);
            undo.push((key.clone(), self.pending.insert(key.clone(), left)));
            self.steps.push(Step { key, version: self.version, change: write.change });
        }
        self.ends.push(self.steps.len());
        Ok(())
    }

    fn check_namespace(&self, state: &State, namespace: Option<&str>) -> Result<(), WriteError> {
        let Some(namespace) = namespace else { return Ok(()) };
        let key = ObjectRef { storage: NAMESPACES.into(), name: Name::new("", namespace) };
        let found = state.table(NAMESPACES).and_then(|table| table.objects.get(&key.name));
        match found {
            Some(found) if !found.content.deleting && !self.pending.contains_key(&key) => Ok(()),
            _ => Err(WriteError::Namespace),
        }
    }

    fn check(&self, state: &State, key: &ObjectRef, expect: Expect) -> Result<(), WriteError> {
        let stored = || Some(state.table(&key.storage)?.objects.get(&key.name)?.version);
        let found = self.pending.get(key).copied().unwrap_or_else(stored);
        match (expect, found) {
            (Expect::Absent, Some(_)) => Err(WriteError::Exists),
            (Expect::Version(_) | Expect::Previous, None) => Err(WriteError::Gone),
            (Expect::Version(asked), Some(found)) if asked != found => Err(WriteError::Conflict),
            _ => Ok(()),
        }
    }

    /// Makes the changes visible; the objects of each request.
    fn apply(self, state: &mut State) -> Vec<Vec<Arc<Stored>>> {
        let mut changed: Vec<Arc<str>> = Vec::new();
        let mut objects = Vec::with_capacity(self.steps.len());
        for Step { key, version, change } in self.steps {
            let object = match change {
                Change::Put(content) => Some(state.put(&key.storage, key.name, version, content)),
                Change::Delete => state.remove(&key.storage, &key.name, version),
            };
            objects.push(object);
            if !changed.contains(&key.storage) {
                changed.push(key.storage);
            }
        }
        state.announce(changed.iter().map(|storage| &**storage));
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends).map(|(start, end)| &objects[start..*end]);
        ranges.map(|request| request.iter().flatten().cloned().collect()).collect()
    }
}
