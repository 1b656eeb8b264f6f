//! The two nftables implementations that every engine test runs on: the fake and the kernel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nearhop_core::Name;
use nearhop_net::sandbox;
use nearhop_netfilter::layout::{SetId, define_named};
use nearhop_netfilter::object::{Batch, Bytes, Chain, Element, Op, Rule, Table, Timed};
use nearhop_netfilter::reconcile::{KernelChain, KernelState};
use nearhop_proxy::engine::{ApplyError, ReadChain, Tables};
use nearhop_proxy::kernel::Kernel;
use nearhop_simulator::fake::Fake;

/// Implements the engine's `Tables` for the fake.
#[derive(Debug, Default)]
pub(crate) struct FakeTables {
    pub(crate) fake: Fake,
    /// All rules that a chain of this name had when it was read; the index is the digest.
    seen: BTreeMap<Name, Vec<Vec<Rule>>>,
}

impl Tables for FakeTables {
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError> {
        self.fake.apply(batch).map_err(|error| ApplyError::Refused(error.to_string()))
    }

    fn has(&mut self, table: &Table) -> Result<bool, ApplyError> {
        Ok(self.fake.tables().any(|there| there == table))
    }

    fn read(&mut self, table: &Table) -> Result<Option<KernelState>, ApplyError> {
        if !self.fake.tables().any(|there| there == table) {
            return Ok(None);
        }
        let mut held = KernelState {
            sets: self.fake.sets(table).map(|set| set.name.clone()).collect(),
            ..KernelState::default()
        };
        for set in self.fake.sets(table) {
            if let Some(ours) = define_named(&set.name, table.family) {
                held.outdated |= *set != ours;
            }
        }
        for id in SetId::ALL {
            let elements = self.fake.elements(table, id.name()).into_iter().flatten();
            held.elements.extend(elements.map(|(_, element)| (id, element.clone())));
        }
        let chains = self.fake.chains(table);
        held.chains = chains.map(|chain| (chain.name.clone(), held_chain(chain))).collect();
        Ok(Some(held))
    }

    fn read_chains(&mut self, table: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError> {
        let mut chains = BTreeMap::new();
        for chain in self.fake.chains(table) {
            let seen = self.seen.entry(chain.name.clone()).or_default();
            let digest = seen.iter().position(|rules| *rules == chain.rules);
            let digest = digest.unwrap_or_else(|| {
                seen.push(chain.rules.clone());
                seen.len() - 1
            });
            let read = ReadChain { held: held_chain(chain), digest: digest as u64 };
            chains.insert(chain.name.clone(), read);
        }
        Ok(chains)
    }

    fn read_records(&mut self, table: &Table, map: &str) -> Result<Vec<Timed>, ApplyError> {
        let elements = self.fake.elements(table, map);
        let elements = elements.ok_or_else(|| ApplyError::Failed(String::from("ENOENT")))?;
        let timed = |element: &Element| Timed {
            element: element.clone(),
            timeout_ms: 60_000,
            expires_ms: 30_000,
        };
        Ok(elements.values().map(timed).collect())
    }

    fn generation(&mut self) -> Result<u32, ApplyError> {
        Ok(self.fake.generation() as u32)
    }

    fn elements_per_batch(&self) -> usize {
        usize::MAX
    }
}

/// The part of a chain that a full pass compares.
pub(crate) fn held_chain(chain: &Chain) -> KernelChain {
    KernelChain {
        base: chain.hook.is_some(),
        rules: chain.rules.len(),
        signature: chain.rules.first().and_then(|rule| rule.comment.clone()),
    }
}

/// Either implementation, with a record of what the engine did.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    pub(crate) inner: T,
    /// Batches that were applied.
    pub(crate) batches: Vec<Batch>,
    /// How often a batch was tried.
    pub(crate) tries: usize,
    /// Records that are listed although they have expired.
    pub(crate) expired: Vec<Timed>,
    /// How often elements were read. Chains do not count, because there are few.
    pub(crate) reads: usize,
    /// Maximum number of elements in one batch, if lower than that of the implementation.
    pub(crate) limit: Option<usize>,
    /// Errors for the next batches, which are not applied; `None` lets a batch pass.
    pub(crate) failures: VecDeque<Option<ApplyError>>,
    /// Whether every batch fails.
    pub(crate) all_batches_fail: bool,
    /// Errors for the next reads of records.
    pub(crate) failing_reads: VecDeque<ApplyError>,
    /// Whether reading chains fails.
    pub(crate) chain_reads_fail: bool,
    /// Elements with these keys are sent with a shorter key, which every kernel refuses.
    pub(crate) refused_keys: BTreeSet<(SetId, Bytes)>,
}

impl<T: Tables> Watched<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner,
            batches: Vec::new(),
            tries: 0,
            expired: Vec::new(),
            reads: 0,
            limit: None,
            failures: VecDeque::new(),
            all_batches_fail: false,
            failing_reads: VecDeque::new(),
            chain_reads_fail: false,
            refused_keys: BTreeSet::new(),
        }
    }

    /// Clears the record.
    pub(crate) fn forget(&mut self) {
        self.batches.clear();
        self.tries = 0;
        self.reads = 0;
    }

    /// Lets `passing` batches pass and fails the next one.
    pub(crate) fn fail_after(&mut self, passing: usize, failure: ApplyError) {
        self.failures.extend((0..passing).map(|_| None));
        self.failures.push_back(Some(failure));
    }

    /// Number of deleted and added elements, by set.
    pub(crate) fn counts(&self) -> BTreeMap<SetId, (usize, usize)> {
        let mut counts: BTreeMap<SetId, (usize, usize)> = BTreeMap::new();
        for op in self.batches.iter().flat_map(|batch| &batch.ops) {
            let id = |set: &Name| SetId::by_name(set).expect("the engine writes only its own sets");
            match op {
                Op::DeleteElements { set, elements } => {
                    counts.entry(id(set)).or_default().0 += elements.len();
                }
                Op::AddElements { set, elements } => {
                    counts.entry(id(set)).or_default().1 += elements.len();
                }
                _ => {}
            }
        }
        counts
    }

    fn with_short_keys(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        for op in &mut batch.ops {
            let Op::AddElements { set, elements } = op else { continue };
            let Some(set) = SetId::by_name(set) else { continue };
            for element in elements.iter_mut() {
                if self.refused_keys.contains(&(set, element.key)) {
                    let key = element.key.as_slice();
                    element.key = Bytes::from_slice(&key[..key.len() - 4]).unwrap();
                }
            }
        }
        batch
    }
}

impl<T: Tables> Tables for Watched<T> {
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError> {
        self.tries += 1;
        if self.all_batches_fail {
            return Err(ApplyError::Failed(String::from("ENOBUFS")));
        }
        if let Some(failure) = self.failures.pop_front().flatten() {
            return Err(failure);
        }
        self.inner.apply(&self.with_short_keys(batch))?;
        self.batches.push(batch.clone());
        Ok(())
    }

    fn has(&mut self, table: &Table) -> Result<bool, ApplyError> {
        self.inner.has(table)
    }

    fn read(&mut self, table: &Table) -> Result<Option<KernelState>, ApplyError> {
        self.reads += 1;
        self.inner.read(table)
    }

    fn read_chains(&mut self, table: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError> {
        if self.chain_reads_fail {
            return Err(ApplyError::Failed(String::from("EINTR")));
        }
        self.inner.read_chains(table)
    }

    fn read_records(&mut self, table: &Table, map: &str) -> Result<Vec<Timed>, ApplyError> {
        if let Some(failure) = self.failing_reads.pop_front() {
            return Err(failure);
        }
        self.reads += 1;
        let mut records = self.inner.read_records(table, map)?;
        records.append(&mut self.expired.clone());
        Ok(records)
    }

    fn generation(&mut self) -> Result<u32, ApplyError> {
        self.inner.generation()
    }

    fn elements_per_batch(&self) -> usize {
        self.limit.unwrap_or_else(|| self.inner.elements_per_batch())
    }
}

/// Runs a test on the fake, and on the kernel in a namespace.
macro_rules! on_both {
    ($(fn $name:ident($tables:ident) $body:block)+) => {$(
        mod $name {
            use super::*;

            fn check($tables: &mut $crate::on::Watched<impl Tables>) $body

            #[test]
            fn fake() {
                check(&mut $crate::on::Watched::new($crate::on::FakeTables::default()));
            }

            #[test]
            fn kernel() {
                let name = concat!(module_path!(), "::kernel");
                // The test harness omits the crate name.
                let name = name.split_once("::").map_or(name, |(_, name)| name);
                $crate::on::on_kernel(name, |kernel| check(kernel));
            }
        }
    )+};
}
pub(crate) use on_both;

/// Runs a test on the kernel, in its own network namespace.
pub(crate) fn on_kernel(test: &str, check: impl FnOnce(&mut Watched<Kernel>) + Send) {
    sandbox::run(test, || {
        let kernel = Kernel::open().expect("the sandbox can use nftables");
        check(&mut Watched::new(kernel));
    });
}
