//! The kernel's nftables, through a netlink socket: changes are applied, objects listed.
//!
//! Nothing is decided here and nothing is remembered: what to change is in the batch, and whoever
//! calls knows what was changed before.

mod error;
mod list;
mod option;
pub(crate) mod socket;
mod support;

use nearhop_core::Family;
use nearhop_netfilter::object::Batch;
use nearhop_netfilter::wire::{Encoded, Reply, encode_batch, encode_check, messages};
use nix::errno::Errno;

pub use error::{KernelError, Refusal};
pub use support::Missing;

use error::describe;
use socket::Socket;
use support::{Trials, missing_of};

/// The nftables of one network namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    /// The number of the next message.
    seq: u32,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The number of this change among all changes of nftables in the network namespace. Known only
    /// if the batch was bound to a generation.
    pub generation: Option<u32>,
}

impl Kernel {
    /// Opens the nftables of the calling thread's network namespace, and stays there.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self { socket: Socket::open()?, seq: 1 })
    }

    /// Most bytes that a batch may have.
    pub fn send_limit(&self) -> usize {
        self.socket.limit()
    }

    /// Makes all changes of a batch, or none.
    pub fn apply(&mut self, batch: &Batch) -> Result<Applied, KernelError> {
        self.transact(batch, &encode_batch(batch, self.seq, None))?;
        Ok(Applied { generation: None })
    }

    /// The same, but only if nobody, not even for another table, changed anything since
    /// `generation`.
    pub fn apply_at(&mut self, batch: &Batch, generation: u32) -> Result<Applied, KernelError> {
        match self.transact(batch, &encode_batch(batch, self.seq, Some(generation))) {
            Ok(Done::Changed) => Ok(Applied { generation: Some(generation_after(generation)) }),
            Ok(Done::Nothing) => Ok(Applied { generation: Some(generation) }),
            Err(KernelError::Failed { errno: Errno::ERESTART }) => {
                Err(KernelError::Stale { generation })
            }
            Err(error) => Err(error),
        }
    }

    /// Has the kernel look at a batch, and change nothing.
    pub fn check(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.transact(batch, &encode_check(batch, self.seq)).map(drop)
    }

    /// What nearhop needs for a family and the kernel does not have. Changes nothing.
    pub fn check_support(&mut self, family: Family) -> Result<Vec<Missing>, KernelError> {
        let trials = Trials::new(family);
        let encoded = encode_check(&trials.batch, self.seq);
        let refusals = self.send_batch(&trials.batch, &encoded)?;
        Ok(trials.missing(&refusals))
    }

    fn transact(&mut self, batch: &Batch, encoded: &Encoded) -> Result<Done, KernelError> {
        if encoded.is_empty() {
            return Ok(Done::Nothing);
        }
        let refusals = self.send_batch(batch, encoded)?;
        if refusals.is_empty() {
            return Ok(Done::Changed);
        }
        let family = batch.table.family;
        let mut missing = Vec::new();
        for found in refusals.iter().filter_map(|refusal| missing_of(refusal, family)) {
            if !missing.contains(&found) {
                missing.push(found);
            }
        }
        Err(if missing.is_empty() {
            KernelError::Refused { table: batch.table.clone(), refusals }
        } else {
            KernelError::MissingExpression { missing }
        })
    }

    /// Sends a batch and collects what the kernel finds fault with.
    fn send_batch(
        &mut self,
        batch: &Batch,
        encoded: &Encoded,
    ) -> Result<Vec<Refusal>, KernelError> {
        let (bytes, limit) = (encoded.bytes.len(), self.socket.limit());
        if bytes > limit {
            return Err(KernelError::TooLarge { bytes, limit });
        }
        self.seq = encoded.next_seq();
        self.socket.drain().map_err(|errno| KernelError::Failed { errno })?;
        self.socket.send(&encoded.bytes).map_err(|errno| match errno {
            Errno::EMSGSIZE | Errno::ENOBUFS => KernelError::TooLarge { bytes, limit },
            errno => KernelError::Failed { errno },
        })?;
        let mut refusals = Vec::new();
        loop {
            let bytes = self.socket.receive().map_err(|errno| KernelError::Unknown { errno })?;
            if read_answers(bytes, batch, encoded, &mut refusals)? == Progress::Finished {
                return Ok(refusals);
            }
        }
    }
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Changed,
    /// There was nothing to change.
    Nothing,
}

/// How far the answers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Finished,
}

/// Takes the answers to a batch out of what came; others are to messages of earlier times.
fn read_answers(
    bytes: &[u8],
    batch: &Batch,
    encoded: &Encoded,
    refusals: &mut Vec<Refusal>,
) -> Result<Progress, KernelError> {
    for message in messages(bytes) {
        let message = message?;
        let answer = match message.reply()? {
            Reply::Answer(answer) => answer,
            Reply::Overrun => return Err(KernelError::Unknown { errno: Errno::ENOBUFS }),
            Reply::Object | Reply::Done | Reply::Other => continue,
        };
        let errno = Errno::from_raw(answer.errno);
        if message.seq == encoded.first_seq {
            return Err(refused_as_a_whole(errno));
        }
        let Some(op) = encoded.op_of(message.seq) else { continue };
        if answer.errno != 0 {
            let culprit = encoded.culprit(message.seq, answer.offset);
            let what = describe(&batch.ops[op]);
            refusals.push(Refusal { op, errno, message: answer.message, culprit, what });
        }
        if message.seq == encoded.ack_seq {
            return Ok(Progress::Finished);
        }
    }
    Ok(Progress::Waiting)
}

/// Errors that are not about one change.
fn refused_as_a_whole(errno: Errno) -> KernelError {
    match errno {
        Errno::EPERM => KernelError::NotAllowed,
        Errno::EOPNOTSUPP => KernelError::NoNftables,
        Errno::EBUSY | Errno::EAGAIN | Errno::EINTR => KernelError::Busy { errno },
        errno => KernelError::Failed { errno },
    }
}

/// The kernel counts changes, and leaves zero out.
fn generation_after(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}
