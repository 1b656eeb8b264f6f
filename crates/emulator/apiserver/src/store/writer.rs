//! The way in: every write passes here, one batch after the other.
//!
//! With a disk, one thread takes all writes that wait, checks each against what is there (and what
//! the batch put there before it), commits them to disk in one transaction, and only then shows
//! them: what a client saw is never lost, and many writers share one fsync. Without a disk the same
//! steps run at once under the lock.
//!
//! When the disk fails (it is full, say), writes are refused with what it said and reads go on; the
//! thread opens the file again until that works.

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

/// One change, with what it expects to find.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) storage: Arc<str>,
    pub(crate) name: Name,
    pub(crate) expect: Expect,
    pub(crate) change: Change,
    /// A Namespace that must be there and must not be on its way out.
    pub(crate) within: Option<Box<str>>,
}

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Nothing.
    Absent,
    /// The object at this version, or as an earlier write of the same batch left it.
    Version(u64),
    /// What an earlier write of the same batch left.
    Previous,
}

/// What a write does.
#[derive(Debug)]
pub(crate) enum Change {
    Put(Arc<Content>),
    Delete,
}

/// Why nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// It was to be absent and is there.
    Exists,
    /// It was to be there and is not.
    Gone,
    /// It is there at another version.
    Conflict,
    /// The Namespace is not there, is on its way out, or changes in the same commit.
    Namespace,
    /// The disk refused.
    Disk(String),
}

pub(super) struct Request {
    writes: Vec<Write>,
    reply: Reply,
}

type Answer = Result<Vec<Arc<Stored>>, WriteError>;
type Reply = oneshot::Sender<Answer>;

/// The one that writes.
pub(super) enum Writer {
    Memory(Arc<RwLock<State>>),
    Thread { requests: mpsc::Sender<Request>, thread: JoinHandle<()>, trouble: Trouble },
}

/// Why the disk cannot be written; `None` while it can.
type Trouble = Arc<RwLock<Option<String>>>;

/// Where Namespaces are stored: the one storage that this one knows by name, since what is inside
/// a Namespace must not outlive it.
const NAMESPACES: &str = "namespaces";

/// A batch does not grow beyond this many requests, so that nobody waits for a huge commit.
const MOST_PER_COMMIT: usize = 512;

/// A disk that failed is tried again after this, or after this many times what the last try took:
/// a large file takes long to open, and reads need the processor too.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_TIMES: u32 = 10;

impl Writer {
    pub(super) fn start(state: Arc<RwLock<State>>, disk: Option<Disk>) -> Self {
        let Some(disk) = disk else { return Self::Memory(state) };
        let (requests, receiver) = mpsc::channel();
        let trouble = Trouble::default();
        let told = Arc::clone(&trouble);
        let thread = supervise::thread("store-writer", move || run(&state, disk, &receiver, &told))
            .expect("the process may start one more thread");
        Self::Thread { requests, thread, trouble }
    }

    /// Why writes are refused at present; `None`: they are not.
    pub(super) fn trouble(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Thread { trouble, .. } => read_trouble(trouble),
        }
    }

    /// Whether there is somebody to take writes.
    pub(super) fn is_running(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Thread { thread, .. } => !thread.is_finished(),
        }
    }

    pub(super) async fn write(&self, writes: Vec<Write>) -> Result<Vec<Arc<Stored>>, WriteError> {
        match self {
            Self::Memory(state) => write_now(state, writes),
            Self::Thread { requests, .. } => {
                let (reply, answer) = oneshot::channel();
                let stopped = || {
                    let why =
                        "the thread that writes to the disk has ended; restart nearhop apiserver";
                    WriteError::Disk(why.to_owned())
                };
                requests.send(Request { writes, reply }).map_err(|_| stopped())?;
                answer.await.map_err(|_| stopped())?
            }
        }
    }
}

fn write_now(state: &RwLock<State>, writes: Vec<Write>) -> Result<Vec<Arc<Stored>>, WriteError> {
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
    trouble: &RwLock<Option<String>>,
) {
    let batch = |first| {
        std::iter::once(first).chain(requests.try_iter()).take(MOST_PER_COMMIT).collect::<Vec<_>>()
    };
    let mut next_try = Instant::now();
    loop {
        let Some(why) = read_trouble(trouble) else {
            let Ok(first) = requests.recv() else { return };
            commit(state, &mut disk, trouble, batch(first));
            next_try = Instant::now() + AGAIN;
            continue;
        };
        let wait = next_try.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            let began = Instant::now();
            reopen(state, &mut disk, trouble);
            next_try = Instant::now() + AGAIN.max(began.elapsed() * AGAIN_TIMES);
            continue;
        }
        match requests.recv_timeout(wait) {
            Ok(first) => refuse(batch(first), &why),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Opens the file again; if that works, writes are taken from now on.
fn reopen(state: &RwLock<State>, disk: &mut Disk, trouble: &RwLock<Option<String>>) {
    // Nobody but this thread changes objects, so both stay as they are after the lock is gone.
    let (version, objects) = {
        let state = state.read().expect("no writer panics while it holds the state");
        (state.version, state.all())
    };
    match disk.reopen(version, &objects) {
        Ok(()) => {
            tracing::info!("the data directory can be written again");
            set_trouble(trouble, None);
        }
        Err(why) => set_trouble(trouble, Some(why)),
    }
}

fn refuse(requests: Vec<Request>, why: &str) {
    for request in requests {
        tell(request.reply, Err(WriteError::Disk(why.to_owned())));
    }
}

fn read_trouble(trouble: &RwLock<Option<String>>) -> Option<String> {
    trouble.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_trouble(trouble: &RwLock<Option<String>>, why: Option<String>) {
    *trouble.write().unwrap_or_else(PoisonError::into_inner) = why;
}

/// One group commit. Refusals are told when all is done: they may rest on a write of the same
/// batch, and whoever looks why must find it.
fn commit(
    state: &RwLock<State>,
    disk: &mut Disk,
    trouble: &RwLock<Option<String>>,
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
                let done = {
                    let mut state =
                        state.write().expect("no writer panics while it holds the state");
                    plan.apply(&mut state)
                };
                for (reply, objects) in accepted.into_iter().zip(done) {
                    tell(reply, Ok(objects));
                }
            }
            Err(reason) => {
                tracing::error!(
                    error = reason,
                    "writes are refused until the data directory can be written"
                );
                // Before anybody is told: who then asks for health must not hear that all is well.
                set_trouble(trouble, Some(reason.clone()));
                for reply in accepted {
                    tell(reply, Err(WriteError::Disk(reason.clone())));
                }
            }
        }
    }
    for (reply, error) in refused {
        tell(reply, Err(error));
    }
}

/// Who gave up waiting does not need the answer.
fn tell(reply: Reply, answer: Answer) {
    let _ = reply.send(answer);
}

/// Changes that were checked and have their versions, but did not happen yet.
struct Plan {
    version: u64,
    steps: Vec<Step>,
    /// Where each request's steps end.
    ends: Vec<usize>,
    /// What the steps so far leave behind.
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
        Self {
            version: state.version,
            steps: Vec::new(),
            ends: Vec::new(),
            pending: BTreeMap::new(),
        }
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
        let pending = self.pending.get(key);
        let found = match pending {
            Some(version) => *version,
            None => {
                let table = state.table(&key.storage);
                table.and_then(|table| table.objects.get(&key.name)).map(|object| object.version)
            }
        };
        match (expect, found) {
            (Expect::Absent, None) => Ok(()),
            (Expect::Absent, Some(_)) => Err(WriteError::Exists),
            (Expect::Version(_) | Expect::Previous, None) => Err(WriteError::Gone),
            (Expect::Version(asked), Some(found)) if asked == found => Ok(()),
            (Expect::Version(_), Some(_)) => Err(WriteError::Conflict),
            (Expect::Previous, Some(_)) => Ok(()),
        }
    }

    /// Makes it happen; the objects of each request.
    fn apply(self, state: &mut State) -> Vec<Vec<Arc<Stored>>> {
        let mut touched: Vec<Arc<str>> = Vec::new();
        let mut objects = Vec::with_capacity(self.steps.len());
        for Step { key, version, change } in self.steps {
            let object = match change {
                Change::Put(content) => Some(state.put(&key.storage, key.name, version, content)),
                Change::Delete => state.remove(&key.storage, &key.name, version),
            };
            objects.push(object);
            if !touched.contains(&key.storage) {
                touched.push(key.storage);
            }
        }
        state.announce(touched.iter().map(|storage| &**storage));
        let mut objects = objects.into_iter();
        let mut start = 0;
        let mut done = Vec::with_capacity(self.ends.len());
        for end in self.ends {
            done.push(objects.by_ref().take(end - start).flatten().collect());
            start = end;
        }
        done
    }
}
