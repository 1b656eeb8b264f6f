//! The nftables of the kernel, through a netlink socket: applies batches and lists objects.
//!
//! This module decides nothing and stores no state: the batch contains the changes, and the caller
//! knows what it changed before.

mod answers;
mod error;
mod list;
mod notice;
mod option;
pub(crate) mod socket;
mod support;

use nearhop_core::Family;
use nearhop_netfilter::object::Batch;
use nearhop_netfilter::wire::{Encoded, encode_batch, encode_check, encode_owned};
use nix::errno::Errno;

pub use error::{KernelError, Refusal};
pub use notice::{Membership, Notice, Notices};
pub use support::Missing;

use answers::{Progress, read_answers};
use socket::Socket;
use support::{Trials, missing_of};

/// The nftables of one network namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    /// Sequence number of the next message.
    seq: u32,
}

impl Kernel {
    /// Opens the nftables of the calling thread's network namespace. The socket stays in this
    /// namespace.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self { socket: Socket::open()?, seq: 1 })
    }

    /// The port number of the socket, which identifies our own changes in notifications.
    ///
    /// # Errors
    /// The kernel does not return it.
    pub fn port(&self) -> Result<u32, KernelError> {
        self.socket.port().map_err(|errno| KernelError::Open { step: "getsockname", errno })
    }

    /// Maximum length of a batch in bytes.
    pub fn send_limit(&self) -> usize {
        self.socket.limit()
    }

    /// Applies all changes of a batch, or none.
    pub fn apply(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.transact(batch, &encode_batch(batch, self.seq))
    }

    /// Applies all changes of a batch, or none, to a table that this socket owns: no other process
    /// can change it, and the kernel deletes it when the socket closes.
    pub(crate) fn apply_owned(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.transact(batch, &encode_owned(batch, self.seq))
    }

    /// Lets the kernel validate a batch without changing anything.
    pub fn check(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.transact(batch, &encode_check(batch, self.seq))
    }

    /// The features that nearhop needs for a family and the kernel lacks. Changes nothing.
    pub fn check_support(&mut self, family: Family) -> Result<Vec<Missing>, KernelError> {
        let trials = Trials::new(family);
        let encoded = encode_check(&trials.batch, self.seq);
        let refusals = self.send_batch(&trials.batch, &encoded)?;
        Ok(trials.missing(&refusals))
    }

    fn transact(&mut self, batch: &Batch, encoded: &Encoded) -> Result<(), KernelError> {
        if encoded.is_empty() {
            return Ok(());
        }
        let refusals = self.send_batch(batch, encoded)?;
        if refusals.is_empty() {
            return Ok(());
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

    /// Sends a batch and collects the refusals.
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

#[cfg(test)]
mod tests {
    use nearhop_net::sandbox;
    use nearhop_netfilter::object::{Chain, Expr, Op, Reg, Rule, Table};

    use super::*;

    #[test]
    fn a_missing_expression_is_named() {
        const TEST: &str = "kernel::tests::a_missing_expression_is_named";
        let table = Table { family: Family::Ipv4, name: "t".into() };
        let exprs = vec![Expr::Random { modulus: 2, offset: 0, to: Reg(0) }];
        let rules = vec![Rule { exprs, comment: None }];
        let chain = Chain { name: "c".into(), hook: None, rules, comment: None };
        let ops = vec![Op::AddTable { comment: "".into() }, Op::AddChain(chain)];
        let batch = Batch { table, ops };
        let encoded = encode_batch(&batch, 1);
        // No kernel has an expression of this name, so each replies like one without `numgen`.
        let at = encoded.bytes.windows(7).position(|name| name == b"numgen\0").unwrap();
        let mut altered = encoded.bytes.clone();
        altered[at] = b'x';
        sandbox::run(TEST, || {
            let mut kernel = Kernel::open().unwrap();
            kernel.socket.send(&altered).unwrap();
            let mut refusals = Vec::new();
            let bytes = kernel.socket.receive().unwrap();
            read_answers(bytes, &batch, &encoded, &mut refusals).unwrap();
            let missing = missing_of(&refusals[0], Family::Ipv4).unwrap();
            assert_eq!(missing.to_string(), "no numgen (CONFIG_NFT_NUMGEN)");
        });
    }
}
