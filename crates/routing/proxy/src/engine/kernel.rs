//! Implements the engine's `Tables` for the kernel.

use std::collections::BTreeMap;

use nearhop_core::Name;
use nearhop_netfilter::layout::{SetId, define_named};
use nearhop_netfilter::object::{Batch, Table, Timed};
use nearhop_netfilter::reconcile::{KernelChain, KernelState};

use super::tables::{ApplyError, ReadChain, Tables};
use crate::kernel::{Kernel, KernelError};

/// Maximum bytes of one element, deleted and added again, with its headers.
const ELEMENT: usize = 400;
/// A batch holds the nftables commit lock; this many elements hold it for about 200 ms.
const MOST_ELEMENTS: usize = 100_000;

impl From<KernelError> for ApplyError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::TooLarge { bytes, limit } => Self::TooLarge { bytes, limit },
            KernelError::Refused { .. } => Self::Refused(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl Tables for Kernel {
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError> {
        Self::apply(self, batch)?;
        Ok(())
    }

    fn has(&mut self, table: &Table) -> Result<bool, ApplyError> {
        Ok(self.tables()?.iter().any(|there| there.table == *table))
    }

    fn read(&mut self, table: &Table) -> Result<Option<KernelState>, ApplyError> {
        let tables = self.tables()?;
        let Some(there) = tables.into_iter().find(|there| there.table == *table) else {
            return Ok(None);
        };
        let mut held = KernelState { outdated: there.dormant, ..KernelState::default() };
        for set in self.dump_sets(table)? {
            if let Some(ours) = define_named(&set.name, table.family) {
                held.outdated |= !set.is_like(&ours);
            }
            held.sets.insert(set.name);
        }
        for id in SetId::ALL.into_iter().filter(|id| held.sets.contains(id.name())) {
            let elements = match self.dump_elements(table, id.name()) {
                Err(KernelError::Unsteady { .. }) => {
                    held.rough = true;
                    self.dump_elements_roughly(table, id.name())
                }
                dumped => dumped,
            }?;
            held.elements.extend(elements.into_iter().map(|dumped| (id, dumped.element)));
        }
        let chains = self.read_chains(table)?;
        held.chains = chains.into_iter().map(|(name, chain)| (name, chain.held)).collect();
        Ok(Some(held))
    }

    fn read_chains(&mut self, table: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError> {
        let mut chains = BTreeMap::new();
        for chain in self.dump_chains(table)? {
            // A chain with another policy is not our chain, whatever its rules are.
            let base = chain.hook.is_some() && chain.accepts;
            let held = KernelChain { base, ..KernelChain::default() };
            chains.insert(chain.name, ReadChain { held, digest: u64::from(base) });
        }
        for rule in self.dump_rules(table)? {
            let Some(chain) = chains.get_mut(&rule.chain) else { continue };
            if chain.held.rules == 0 {
                chain.held.signature = rule.comment;
            }
            chain.held.rules += 1;
            // A rule that is deleted and added again unchanged has the same digest.
            chain.digest = (rule.expressions.iter()).fold(chain.digest ^ 1, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
        }
        Ok(chains)
    }

    fn read_records(&mut self, table: &Table, map: &str) -> Result<Vec<Timed>, ApplyError> {
        // While the map grows, the kernel skips some elements and lists others twice. Under heavy
        // load this may not end: the caller reads the map again later.
        let dumped = match self.dump_elements(table, map) {
            Err(KernelError::Unsteady { .. }) => self.dump_elements_roughly(table, map),
            dumped => dumped,
        }?;
        let timed = dumped.into_iter().map(|dumped| Timed {
            element: dumped.element,
            timeout_ms: dumped.timeout_ms.unwrap_or_default(),
            expires_ms: dumped.expires_ms.unwrap_or_default(),
        });
        Ok(timed.collect())
    }

    fn generation(&mut self) -> Result<u32, ApplyError> {
        Ok(Self::generation(self)?)
    }

    fn elements_per_batch(&self) -> usize {
        (self.send_limit() / ELEMENT).clamp(1, MOST_ELEMENTS)
    }
}
