//! Reads the conntrack table of the kernel and deletes stale flows.
//!
//! `nearhop_netfilter::conntrack` decides which flows are stale; this module has the socket and the
//! retries. Calls block until the kernel answers, so call them on a thread that may block.

mod error;

use std::collections::BTreeMap;

use nearhop_core::{Family, Protocol};
use nearhop_netfilter::conntrack::{self, Endpoints, Flow, Plan, Stale, View, Why};
use nearhop_netfilter::wire::{Message, Reply, messages};
use nix::errno::Errno;

pub use error::{Action, ConntrackError};

use crate::kernel::socket::Socket;

/// How often a dump is tried before an incomplete one is accepted.
const ATTEMPTS: u32 = 5;
/// Number of deletions sent at once; their answers fit into the smallest socket buffer.
const BATCH: usize = 32;

/// A connection to the conntrack table of one network namespace.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    sequence: u32,
}

/// Result of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump<A> {
    /// The value computed from the flows.
    pub value: A,
    /// Whether the dump is complete.
    pub extent: Extent,
    /// Number of messages that could not be decoded.
    pub unreadable: u64,
}

/// Whether a dump is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// All flows were seen.
    #[default]
    Whole,
    /// Some flows may be missing: the table changed too fast, or answers were lost too often.
    Part,
}

/// Result of deleting a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The flow was deleted.
    Deleted,
    /// The flow had expired, or another program deleted it.
    AlreadyGone,
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub struct Swept {
    /// Number of deleted flows, by reason.
    pub deleted: BTreeMap<Why, u64>,
    /// Stale flows that ended before they could be deleted.
    pub already_gone: u64,
    /// Stale flows that could not be deleted. The sweep must be repeated.
    pub failed: u64,
    /// The error of the first failed deletion.
    pub failure: Option<ConntrackError>,
    /// Flows of our Services that stay.
    pub kept: u64,
    /// Other flows of the same protocols.
    pub foreign: u64,
    /// Whether all flows were seen.
    pub extent: Extent,
    /// Number of messages that could not be decoded.
    pub unreadable: u64,
}

impl Conntrack {
    /// Opens the conntrack table of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel has no netfilter sockets. A missing conntrack module or permission is reported by
    /// the first call.
    pub fn open() -> Result<Self, ConntrackError> {
        let socket = Socket::open().map_err(ConntrackError::Open)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Dumps the flows of a family and protocol: `start` creates a value, `add` adds a flow to it.
    /// An interrupted dump is discarded and repeated, so that no flow is counted twice; after
    /// several attempts the last, incomplete dump is used.
    ///
    /// # Errors
    ///
    /// The kernel does not answer, or refuses.
    pub fn dump<A>(
        &mut self,
        family: Family,
        protocol: Protocol,
        start: impl Fn() -> A,
        mut add: impl FnMut(&mut A, &Flow),
    ) -> Result<Dump<A>, ConntrackError> {
        let mut filter = Some(protocol);
        let mut attempt = 1;
        loop {
            let request = conntrack::dump(self.next_sequence(), family, filter);
            let mut value = start();
            let listed = self.list(&request, |flow| {
                // An old kernel ignores the filter.
                if flow.protocol == protocol && flow.family() == family {
                    add(&mut value, flow);
                }
            });
            match listed {
                Ok((Extent::Part, _)) if attempt < ATTEMPTS => attempt += 1,
                Ok((extent, unreadable)) => return Ok(Dump { value, extent, unreadable }),
                Err(error) => match (refusal(&error), filter.take()) {
                    (Some(Errno::EINVAL | Errno::EOPNOTSUPP), Some(_)) => {}
                    // Netfilter answers this if a module is missing.
                    (Some(Errno::EINVAL), None) => return Err(ConntrackError::NoModule),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Deletes one flow.
    ///
    /// # Errors
    ///
    /// The kernel does not answer, or refuses.
    pub fn delete(&mut self, flow: &Flow) -> Result<Deletion, ConntrackError> {
        let request = conntrack::delete_flow(self.next_sequence(), flow);
        deletion(self.change(&request)?)
    }

    /// Deletes the stale flows of a family, and nothing else.
    ///
    /// # Errors
    ///
    /// The flows cannot be listed. A flow that cannot be deleted is counted and does not stop the
    /// sweep.
    pub fn sweep<E: Endpoints>(
        &mut self,
        family: Family,
        view: &View<E>,
    ) -> Result<Swept, ConntrackError> {
        let mut swept = Swept::default();
        for protocol in [Protocol::Udp, Protocol::Sctp] {
            if view.has(protocol) {
                let add = |plan: &mut Plan, flow: &Flow| plan.add(flow, view);
                let dump = self.dump(family, protocol, Plan::default, add)?;
                swept.kept += dump.value.kept;
                swept.foreign += dump.value.foreign;
                swept.extent = swept.extent.max(dump.extent);
                swept.unreadable += dump.unreadable;
                for batch in dump.value.stale.chunks(BATCH) {
                    self.delete_batch(batch, &mut swept);
                }
            }
        }
        Ok(swept)
    }

    /// Sends the deletions of a batch and counts the answers.
    fn delete_batch(&mut self, batch: &[Stale], swept: &mut Swept) {
        let mut open = BTreeMap::new();
        let mut requests = Vec::new();
        for stale in batch {
            let sequence = self.next_sequence();
            requests.extend(conntrack::delete_flow(sequence, &stale.flow));
            open.insert(sequence, stale.why);
        }
        let answered = self.exchange(&requests, &mut open, |why, answer| match deletion(answer) {
            Ok(Deletion::Deleted) => *swept.deleted.entry(why).or_default() += 1,
            Ok(Deletion::AlreadyGone) => swept.already_gone += 1,
            Err(error) => {
                swept.failed += 1;
                swept.failure.get_or_insert(error);
            }
        });
        if let Err(error) = answered {
            swept.failed += open.len() as u64;
            swept.failure.get_or_insert(error);
        }
    }

    /// Sends one change request.
    fn change(&mut self, request: &[u8]) -> Result<Result<(), Errno>, ConntrackError> {
        let mut answer = Ok(());
        let mut open = BTreeMap::from([(self.sequence, ())]);
        self.exchange(request, &mut open, |(), came| answer = came)?;
        Ok(answer)
    }

    /// Sends change requests and receives until all are answered.
    fn exchange<T>(
        &mut self,
        requests: &[u8],
        open: &mut BTreeMap<u32, T>,
        mut finished: impl FnMut(T, Result<(), Errno>),
    ) -> Result<(), ConntrackError> {
        let failed = |errno| ConntrackError::socket(Action::Delete, errno);
        self.socket.drain().map_err(failed)?;
        self.socket.send(requests).map_err(failed)?;
        while !open.is_empty() {
            for message in messages(self.socket.receive().map_err(failed)?).flatten() {
                if let Ok(Reply::Answer(answer)) = message.reply()
                    && let Some(request) = open.remove(&message.seq)
                {
                    finished(request, result(answer.errno));
                }
            }
        }
        Ok(())
    }

    /// Sends a dump request and receives until its end, even if messages are lost: the kernel
    /// starts no second dump before. Also returns how many messages could not be decoded.
    fn list(
        &mut self,
        request: &[u8],
        mut each: impl FnMut(&Flow),
    ) -> Result<(Extent, u64), ConntrackError> {
        let failed = |errno| ConntrackError::socket(Action::List, errno);
        self.socket.drain().map_err(failed)?;
        self.socket.send(request).map_err(failed)?;
        let (mut extent, mut unreadable) = (Extent::Whole, 0);
        loop {
            let bytes = match self.socket.receive() {
                Err(Errno::ENOBUFS) => {
                    extent = Extent::Part;
                    continue;
                }
                received => received.map_err(failed)?,
            };
            let ours = |message: &Message<'_>| message.seq == self.sequence;
            for message in messages(bytes).flatten().filter(ours) {
                match listed(&message) {
                    Ok(Listed::Flow(flow)) => each(&flow),
                    Ok(Listed::Nothing) => {}
                    Ok(Listed::Unreadable) => unreadable += 1,
                    Ok(Listed::End(end)) => return Ok((extent.max(end), unreadable)),
                    Err(errno) => return Err(ConntrackError::refused(Action::List, errno)),
                }
                if message.is_interrupted() {
                    extent = Extent::Part;
                }
            }
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

/// One message of a dump.
enum Listed {
    Flow(Flow),
    /// A flow without ports, or an unrelated message.
    Nothing,
    Unreadable,
    End(Extent),
}

fn listed(message: &Message<'_>) -> Result<Listed, Errno> {
    Ok(match message.reply() {
        Ok(Reply::Object) => match Flow::decode(message) {
            Ok(flow) => flow.map_or(Listed::Nothing, Listed::Flow),
            Err(_) => Listed::Unreadable,
        },
        Ok(Reply::Done) if message.is_interrupted() => Listed::End(Extent::Part),
        Ok(Reply::Done) => Listed::End(Extent::Whole),
        Ok(Reply::Answer(answer)) => match result(answer.errno) {
            // The kernel resized the table during the dump: this is not a refusal.
            Ok(()) | Err(Errno::EINTR) => Listed::End(Extent::Part),
            Err(errno) => return Err(errno),
        },
        Ok(Reply::Overrun) => Listed::End(Extent::Part),
        Ok(Reply::Other) => Listed::Nothing,
        Err(_) => Listed::Unreadable,
    })
}

fn result(errno: i32) -> Result<(), Errno> {
    match errno {
        0 => Ok(()),
        errno => Err(Errno::from_raw(errno)),
    }
}

fn deletion(answer: Result<(), Errno>) -> Result<Deletion, ConntrackError> {
    match answer {
        Ok(()) => Ok(Deletion::Deleted),
        Err(Errno::ENOENT) => Ok(Deletion::AlreadyGone),
        Err(errno) => Err(ConntrackError::refused(Action::Delete, errno)),
    }
}

fn refusal(error: &ConntrackError) -> Option<Errno> {
    match error {
        ConntrackError::Refused { errno, .. } => Some(*errno),
        _ => None,
    }
}
