//! The two nftables that every test of the engine runs on: the fake and the kernel's.

use std::collections::BTreeMap;

use nearhop_core::Name;
use nearhop_lab::net::sandbox;
use nearhop_netfilter::fake::Fake;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Batch, Element, Table};
use nearhop_netfilter::reconcile::{Held, HeldChain};
use nearhop_proxy::engine::{ApplyError, ReadChain, Tables};
use nearhop_proxy::kernel::Kernel;

/// The fake, as the engine sees it.
#[derive(Debug, Default)]
pub(crate) struct FakeTables {
    pub(crate) fake: Fake,
    /// Batches that were applied.
    pub(crate) batches: Vec<Batch>,
    /// How many elements fit into one batch.
    pub(crate) limit: Option<usize>,
    /// How often it was read.
    pub(crate) reads: usize,
}

impl Tables for FakeTables {
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError> {
        self.fake.apply(batch).map_err(|error| ApplyError::Refused(error.to_string()))?;
        self.batches.push(batch.clone());
        Ok(())
    }

    fn read(&mut self, table: &Table) -> Result<Option<Held>, ApplyError> {
        self.reads += 1;
        if !self.fake.tables().any(|there| there == table) {
            return Ok(None);
        }
        let mut held = Held {
            sets: self.fake.sets(table).map(|set| set.name.clone()).collect(),
            ..Held::default()
        };
        for set in self.fake.sets(table) {
            if let Some(id) = SetId::by_name(&set.name) {
                held.outdated |= *set != id.define(table.family);
            }
        }
        for id in SetId::ALL.into_iter().filter(|id| *id != SetId::Affinity) {
            let elements = self.fake.elements(table, id.name()).into_iter().flatten();
            held.elements.extend(elements.map(|(_, element)| (id, element.clone())));
        }
        let chains = self.read_chains(table)?;
        held.chains = chains.into_iter().map(|(name, chain)| (name, chain.held)).collect();
        Ok(Some(held))
    }

    fn read_chains(&mut self, table: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError> {
        let chains = self.fake.chains(table).map(|chain| {
            let held = HeldChain {
                base: chain.hook.is_some(),
                rules: chain.rules.len(),
                signature: chain.rules.first().and_then(|rule| rule.comment.clone()),
            };
            let text = format!("{:?}", chain.rules);
            let digest = text.bytes().fold(7u64, |hash, byte| {
                hash.wrapping_mul(31).wrapping_add(u64::from(byte))
            });
            (chain.name.clone(), ReadChain { held, digest })
        });
        Ok(chains.collect())
    }

    fn read_affinity(&mut self, table: &Table) -> Result<Vec<Element>, ApplyError> {
        let elements = self.fake.elements(table, SetId::Affinity.name()).into_iter().flatten();
        Ok(elements.map(|(_, element)| element.clone()).collect())
    }

    fn generation(&mut self) -> Result<u32, ApplyError> {
        Ok(self.fake.generation() as u32)
    }

    fn elements_per_batch(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }
}

/// Runs a test on the fake, and in a namespace on the kernel.
macro_rules! on_both {
    ($(fn $name:ident($tables:ident) $body:block)+) => {$(
        mod $name {
            use super::*;

            fn check($tables: &mut impl Tables) $body

            #[test]
            fn fake() {
                check(&mut FakeTables::default());
            }

            #[test]
            fn kernel() {
                on_kernel(concat!(stringify!($name), "::kernel"), |kernel| check(kernel));
            }
        }
    )+};
}
pub(crate) use on_both;

/// Runs a test on the kernel, in a network namespace of its own.
pub(crate) fn on_kernel(test: &str, check: impl FnOnce(&mut Kernel) + Send) {
    sandbox::run(test, || {
        let mut kernel = Kernel::open().expect("a sandbox may use nftables");
        check(&mut kernel);
    });
}
