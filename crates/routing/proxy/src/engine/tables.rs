//! The nftables interface of the engine. The kernel and the fake implement it, so that the same
//! tests run on both.

use nearhop_core::Name;
use nearhop_netfilter::object::{Batch, Table, Timed};
use nearhop_netfilter::reconcile::{KernelChain, KernelState};
use std::collections::BTreeMap;

/// nftables, as far as the engine uses it.
pub trait Tables {
    /// Applies all changes of a batch, or none.
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError>;
    /// Whether a table exists.
    fn has(&mut self, table: &Table) -> Result<bool, ApplyError>;
    /// Reads the table. None if it does not exist.
    fn read(&mut self, table: &Table) -> Result<Option<KernelState>, ApplyError>;
    /// Reads the chains of a table, with digests of their rules.
    fn read_chains(&mut self, table: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError>;
    /// Reads the elements of a map that rules update: the affinity records. Some may be missing
    /// while packets add records.
    fn read_records(&mut self, table: &Table, map: &str) -> Result<Vec<Timed>, ApplyError>;
    /// The generation: the number of the last change of any table.
    fn generation(&mut self) -> Result<u32, ApplyError>;
    /// Maximum number of elements in one batch.
    fn elements_per_batch(&self) -> usize;
}

/// A chain as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadChain {
    /// The part that a full pass compares.
    pub held: KernelChain,
    /// A digest of the rules.
    pub digest: u64,
}

/// Why a batch had no effect, or an unknown one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The kernel refused it.
    #[error("the kernel refused the rules: {0}")]
    Refused(String),
    /// The result is unknown, or the kernel could not be asked.
    #[error("{0}")]
    Failed(String),
    /// The batch is too large.
    #[error("a batch of {bytes} bytes does not fit into the socket ({limit} bytes)")]
    TooLarge {
        /// Length of the batch in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
}
