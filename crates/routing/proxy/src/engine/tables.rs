//! What the engine needs of nftables: the kernel gives it, and so does the fake, so that the same
//! tests run on both.

use nearhop_core::Name;
use nearhop_netfilter::object::{Batch, Table, Timed};
use nearhop_netfilter::reconcile::{KernelChain, KernelState};
use std::collections::BTreeMap;

/// nftables, as far as the engine uses it.
pub trait Tables {
    /// Does everything in a batch, or nothing.
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError>;
    /// Whether a table is there.
    fn has(&mut self, table: &Table) -> Result<bool, ApplyError>;
    /// Reads the table. None if it is not there.
    fn read(&mut self, table: &Table) -> Result<Option<KernelState>, ApplyError>;
    /// Reads the chains of a table, with what their rules are.
    fn read_chains(&mut self, table: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError>;
    /// Reads the elements of a map that rules write: who stays with whom. Some may be missing while
    /// rules go on writing.
    fn read_records(&mut self, table: &Table, map: &str) -> Result<Vec<Timed>, ApplyError>;
    /// The generation: how often any table has changed.
    fn generation(&mut self) -> Result<u32, ApplyError>;
    /// How many elements may go into one batch.
    fn elements_per_batch(&self) -> usize;
}

/// A chain as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadChain {
    /// What a full pass looks at.
    pub held: KernelChain,
    /// Differs where a rule differs.
    pub digest: u64,
}

/// Why a batch had no effect, or an unknown one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The kernel refused it.
    #[error("the kernel refused the rules: {0}")]
    Refused(String),
    /// The kernel did not say what became of it, or could not be asked.
    #[error("{0}")]
    Failed(String),
    /// It does not fit.
    #[error("a batch of {bytes} bytes does not fit into the socket ({limit} bytes)")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// What fits.
        limit: usize,
    },
}
