//! Synchronizes one nftables table with the routes: changes go in one batch, and after any failure
//! the next pass is a full one.
//!
//! ```text
//!   sync     what changed -> one batch                       (nothing is read)
//!   full     read the table -> compare -> what differs       (start, failure, new configuration)
//!   verify   has another program changed it? -> repair, count
//! ```
//!
//! If the kernel refuses a batch, the engine repeats it after a full pass and then writes frontend
//! by frontend: it skips and reports the Services that the kernel refuses, and writes all others.

mod affinity;
mod kernel;
mod replace;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearhop_core::route::RouteTable;
use nearhop_core::{Name, Protocol, ServiceKey};
use nearhop_netfilter::affinity::LEGACY_MAP;
use nearhop_netfilter::chain::OnDemand;
use nearhop_netfilter::changes::{Changes, Lost, Parts};
use nearhop_netfilter::compile::{PreviousSlots, compile};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::desired::DesiredTable;
use nearhop_netfilter::frontend::{Frontend, Program};
use nearhop_netfilter::object::{Batch, Op};
use nearhop_netfilter::reconcile::{KernelSlots, KernelState, is_right, reconcile};

pub use replace::spare_of;
pub use tables::{ApplyError, ReadChain, Tables};

/// Elements in one batch while the engine fills a table without hooks. Small enough not to hold the
/// nftables commit lock for long.
const FILL: usize = 2_000;

/// Number of unused chains at which they are deleted together.
const MANY_CHAINS: usize = 64;

/// Which Services a pass covers.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Only these Services.
    Some(&'a BTreeSet<ServiceKey>),
    /// All Services: the topology of the node changed.
    All,
}

/// The kind of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Only changes; nothing is read.
    Partial,
    /// The whole table is read and compared.
    Full,
}

/// Result of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The kind of the pass.
    pub pass: Pass,
    /// Number of elements written or deleted.
    pub elements: usize,
    /// Frontends that lost endpoints.
    pub lost: Vec<Lost>,
}

/// Result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// No nftables table changed since the last verification.
    Untouched,
    /// Another program changed some table, but not ours.
    Same,
    /// This many elements and chains differed from what the proxy wrote; they are repaired.
    Repaired(usize),
}

/// Synchronizes one nftables table.
#[derive(Debug)]
pub struct Engine {
    desired: DesiredTable,
    /// Whether the kernel is known to hold the desired table.
    trusted: bool,
    isolated: BTreeMap<ServiceKey, String>,
    /// Digest of the rules of each chain at the time they were written.
    rules: BTreeMap<Name, u64>,
    /// The expected nftables generation if no other program changes anything.
    generation: Option<u32>,
    /// How many batches this engine has written.
    written: u32,
    /// Service ports that may have affinity records to endpoints that are no longer eligible.
    releases: BTreeSet<Name>,
    /// Endpoints that frontends lost in failed passes; the next pass reports them.
    unreported: Vec<Lost>,
}

impl Engine {
    /// Creates an engine whose first pass is a full one.
    pub fn new(config: Config) -> Self {
        Self {
            desired: DesiredTable::new(Arc::new(config)),
            trusted: false,
            isolated: BTreeMap::new(),
            rules: BTreeMap::new(),
            generation: None,
            written: 0,
            releases: BTreeSet::new(),
            unreported: Vec::new(),
        }
    }

    /// The table that the kernel holds, as far as the engine knows.
    pub fn desired(&self) -> &DesiredTable {
        &self.desired
    }

    /// The configuration of the rules.
    pub fn config(&self) -> &Config {
        self.desired.config()
    }

    /// Whether the next pass is a full one.
    pub fn needs_full(&self) -> bool {
        !self.trusted
    }

    /// Makes the next pass a full one.
    pub fn require_full(&mut self) {
        self.trusted = false;
    }

    /// Services whose rules the kernel refuses, with its error message.
    pub fn isolated(&self) -> &BTreeMap<ServiceKey, String> {
        &self.isolated
    }

    /// Replaces the configuration of the rules.
    pub fn configure(&mut self, config: Config) {
        if config != *self.config() {
            self.desired = DesiredTable::new(Arc::new(config));
            self.trusted = false;
        }
    }

    /// Synchronizes the kernel with the routes.
    pub fn sync(
        &mut self,
        tables: &mut impl Tables,
        routes: &RouteTable,
        scope: Scope<'_>,
    ) -> Result<Synced, ApplyError> {
        if !self.trusted {
            return self.full(tables, routes);
        }
        let changes = self.compile_changes(routes, scope);
        let elements = changes.elements();
        self.releases.extend(changes.releases().iter().cloned());
        self.unreported.extend_from_slice(changes.lost());
        if let Err(error) = self.apply_sized(tables, changes) {
            tracing::warn!(family = %self.config().family(), %error, "partial sync failed; starting a full sync");
            return self.full(tables, routes);
        }
        Ok(Synced { pass: Pass::Partial, elements, lost: std::mem::take(&mut self.unreported) })
    }

    fn compile_changes(&mut self, routes: &RouteTable, scope: Scope<'_>) -> Changes {
        let mut changes = Changes::default();
        let config = self.desired.config().clone();
        let all: BTreeSet<ServiceKey>;
        let services = match scope {
            Scope::Some(services) => services,
            Scope::All => {
                let routed = routes.iter().map(|(key, _)| &key.port.service);
                all = routed.chain(self.desired.programs().map(|(key, _)| key)).cloned().collect();
                &all
            }
        };
        let none = Program::default();
        for service in services.iter().filter(|service| !self.isolated.contains_key(service)) {
            let before: &dyn PreviousSlots = self.desired.program(service).unwrap_or(&none);
            let next = compile(routes.of_service(service), &config, before);
            self.desired.set(service, next, &mut changes);
        }
        changes
    }

    /// Reads the table, compares it with the routes and writes the differences.
    pub fn full(
        &mut self,
        tables: &mut impl Tables,
        routes: &RouteTable,
    ) -> Result<Synced, ApplyError> {
        self.trusted = false;
        // Read the generation before the table, so that the next verification finds later changes.
        self.generation = Some(tables.generation()?);
        self.isolated.clear();
        let config = self.desired.config().clone();
        let held = tables.read(&config.table)?;
        let readable = held.as_ref().filter(|held| !held.outdated);
        let slots = readable
            .map_or_else(KernelSlots::default, |held| KernelSlots::of(held, config.family()));
        self.desired = DesiredTable::build(routes, config, &slots);
        let written = match held {
            Some(held) if held.outdated => {
                self.replace(tables, &held).map(|()| self.desired.elements().len())
            }
            held => self.write(tables, held),
        };
        self.unreported.extend(find_lost(&slots, &self.desired));
        let elements = written?;
        self.remember_rules(tables)?;
        self.trusted = true;
        self.releases = self.desired.sticky_ports();
        Ok(Synced { pass: Pass::Full, elements, lost: std::mem::take(&mut self.unreported) })
    }

    /// Writes the differences between the desired table and a table that is missing or has our
    /// layout. Returns how many elements differed.
    fn write(
        &mut self,
        tables: &mut impl Tables,
        mut held: Option<KernelState>,
    ) -> Result<usize, ApplyError> {
        let table = self.config().table.clone();
        let spare = spare_of(&table);
        let leaving = match &held {
            Some(held) if held.sets.contains(LEGACY_MAP) => {
                self.read_leaving(tables, &table, &[Name::from(LEGACY_MAP)])
            }
            // An earlier replacement of the table did not finish.
            _ if tables.has(&spare)? => {
                let maps: Vec<Name> = self.desired.maps().iter().cloned().collect();
                self.read_leaving(tables, &spare, &maps)
            }
            _ => Vec::new(),
        };
        self.carry(tables, &leaving, held.as_mut());
        let changes = reconcile(&self.desired, held.as_ref());
        let elements = changes.elements();
        match held {
            None => self.fill(tables, changes),
            Some(_) => self.apply_sized(tables, changes).or_else(|error| {
                tracing::warn!(family = %table.family, %error, "batch failed; writing frontends one by one");
                self.apply_per_frontend(tables)
            }),
        }?;
        self.remove_spare(tables, &spare)?;
        Ok(elements)
    }

    /// Applies a batch and counts it towards the expected generation.
    fn apply(&mut self, tables: &mut impl Tables, batch: &Batch) -> Result<(), ApplyError> {
        tables.apply(batch)?;
        self.written = self.written.wrapping_add(1);
        self.expect_generations(1);
        Ok(())
    }

    /// How many batches this engine has written since it was created.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Adds changes that this process made elsewhere to the expected generation, so that they do
    /// not cause a verification. The generation counter of the kernel skips zero.
    pub(crate) fn expect_generations(&mut self, changes: u32) {
        for _ in 0..changes {
            self.generation = self.generation.map(|generation| generation.wrapping_add(1).max(1));
        }
    }

    /// Fills a new table. The hooks are added last, so packets never pass an incomplete table.
    fn fill(&mut self, tables: &mut impl Tables, changes: Changes) -> Result<(), ApplyError> {
        let table = self.config().table.clone();
        let size = FILL.min(tables.elements_per_batch());
        for batch in changes.into_batches(&table, size) {
            if let Err(error) = self.apply(tables, &batch) {
                tracing::warn!(family = %table.family, %error, "batch failed; writing frontends one by one");
                return self.apply_per_frontend(tables);
            }
        }
        Ok(())
    }

    /// Applies one batch, or, if it is too large, one batch for every few frontends. Each frontend
    /// still changes atomically.
    fn apply_sized(
        &mut self,
        tables: &mut impl Tables,
        changes: Changes,
    ) -> Result<(), ApplyError> {
        if changes.is_empty() {
            return Ok(());
        }
        let table = self.config().table.clone();
        for batch in changes.into_sized(&table, tables.elements_per_batch()) {
            self.apply(tables, &batch)?;
        }
        Ok(())
    }

    /// Writes one frontend after the other and leaves out the Services that the kernel refuses:
    /// their existing elements are deleted, and a Service that claims the same frontend gets it.
    /// Each round removes at least one Service or is the last.
    fn apply_per_frontend(&mut self, tables: &mut impl Tables) -> Result<(), ApplyError> {
        loop {
            let held = tables.read(&self.config().table)?;
            let parts = reconcile(&self.desired, held.as_ref()).split();
            let refused = self.write_parts(tables, parts)?;
            if refused.is_empty() {
                return Ok(());
            }
            for (service, error) in refused {
                // The next round computes the changes.
                self.desired.set(&service, None, &mut Changes::default());
                self.isolated.insert(service, error);
            }
            self.desired.forget_unneeded_chains();
        }
    }

    /// Writes the shared objects, then one frontend after the other. Returns the Services that the
    /// kernel refused. Any other failure ends the pass.
    fn write_parts(
        &mut self,
        tables: &mut impl Tables,
        parts: Parts,
    ) -> Result<BTreeMap<ServiceKey, String>, ApplyError> {
        let mut refused = BTreeMap::new();
        self.apply_whole(tables, parts.common)?;
        for (frontend, changes) in parts.frontends {
            let error = match self.apply_whole(tables, changes) {
                Ok(()) => continue,
                Err(error @ ApplyError::Failed(_)) => return Err(error),
                Err(error) => error,
            };
            let Some((service, _)) = self.desired.frontend(&frontend) else { return Err(error) };
            tracing::error!(%service, ?frontend, %error, "Service skipped: kernel rejected its rules");
            refused.entry(service.clone()).or_insert(error.to_string());
        }
        match self.apply_whole(tables, parts.finish) {
            // The kernel may still hold elements of a refused Service; their chains cannot be
            // deleted yet.
            Err(_) if !refused.is_empty() => Ok(refused),
            finished => finished.map(|()| refused),
        }
    }

    /// Applies one batch of any size.
    fn apply_whole(
        &mut self,
        tables: &mut impl Tables,
        changes: Changes,
    ) -> Result<(), ApplyError> {
        let batch = changes.into_batch(&self.config().table);
        if batch.ops.is_empty() { Ok(()) } else { self.apply(tables, &batch) }
    }

    fn remember_rules(&mut self, tables: &mut impl Tables) -> Result<(), ApplyError> {
        let chains = tables.read_chains(&self.config().table)?;
        self.rules = chains.into_iter().map(|(name, chain)| (name, chain.digest)).collect();
        Ok(())
    }

    /// Whether another program changed any nftables table since the last verification. Reads no
    /// table. Returns false if the next pass is a full one or the kernel does not answer.
    pub(crate) fn is_changed_by_others(&self, tables: &mut impl Tables) -> bool {
        self.trusted && tables.generation().is_ok_and(|now| self.generation != Some(now))
    }

    /// Checks that the kernel holds what the engine wrote, and repairs differences.
    pub fn verify(&mut self, tables: &mut impl Tables) -> Result<Verified, ApplyError> {
        if !self.trusted {
            return Ok(Verified::Untouched);
        }
        let generation = tables.generation()?;
        if self.generation == Some(generation) {
            self.prune(tables);
            return Ok(Verified::Untouched);
        }
        let held = tables.read(&self.config().table)?;
        if held.as_ref().is_some_and(|held| held.rough) {
            // This read may be incomplete: enough for a repair, not enough to report foreign
            // changes.
            return Ok(Verified::Same);
        }
        let chains = tables.read_chains(&self.config().table)?;
        // Until the repair is complete, the content of the kernel is unknown.
        self.trusted = false;
        self.generation = Some(generation);
        let verified = match held {
            Some(held) if held.outdated => {
                self.desired.forget_unneeded_chains();
                self.replace(tables, &held)?;
                self.remember_rules(tables)?;
                Verified::Repaired(1 + self.desired.elements().len())
            }
            held => self.repair(tables, held, &chains)?,
        };
        self.trusted = true;
        Ok(verified)
    }

    /// Deletes unused chains once there are many: each change of a Service's weights leaves one.
    /// Not in the batch of the change itself: kernels before 6.2 release references late and then
    /// refuse the deletion.
    fn prune(&mut self, tables: &mut impl Tables) {
        let chains = self.desired.unneeded_chains();
        let names: Vec<Name> = chains.iter().map(OnDemand::name).collect();
        if names.len() < MANY_CHAINS {
            return;
        }
        let table = self.config().table.clone();
        let flush = names.iter().cloned().map(Op::FlushChain);
        let delete = names.iter().cloned().map(Op::DeleteChain);
        let ops = flush.chain(delete).collect();
        match self.apply(tables, &Batch { table, ops }) {
            Ok(()) => {
                self.desired.forget_chains(&chains);
                self.rules.retain(|name, _| !names.contains(name));
            }
            // Unused chains do no harm; the next verification tries again.
            Err(error) => {
                tracing::warn!(%error, chains = names.len(), "unused chains not deleted; will retry");
            }
        }
    }

    fn repair(
        &mut self,
        tables: &mut impl Tables,
        mut held: Option<KernelState>,
        chains: &BTreeMap<Name, ReadChain>,
    ) -> Result<Verified, ApplyError> {
        let edited = match &mut held {
            Some(held) => {
                let sets = held.strange_sets(&self.desired).count();
                let sets = sets + held.missing_sets(&self.desired).len();
                sets + self.find_edited_chains(chains, held)
            }
            None => 1,
        };
        self.desired.forget_unneeded_chains();
        let changes = reconcile(&self.desired, held.as_ref());
        let found = edited + changes.elements();
        if held.is_none() {
            self.fill(tables, changes)?;
        } else {
            self.apply_sized(tables, changes)?;
        }
        self.remember_rules(tables)?;
        Ok(if found == 0 { Verified::Same } else { Verified::Repaired(found) })
    }

    /// Finds chains whose rules differ from those that were written. They count as unsigned, so the
    /// engine writes them again. For a chain added since the last verification only the signature
    /// is known, because a partial pass reads nothing.
    fn find_edited_chains(
        &self,
        chains: &BTreeMap<Name, ReadChain>,
        held: &mut KernelState,
    ) -> usize {
        let ours = self.desired.all_chains();
        let mut edited = self.rules.keys().filter(|name| !chains.contains_key(*name)).count();
        for (name, chain) in chains {
            let is_right = match self.rules.get(name) {
                Some(digest) => *digest == chain.digest,
                None => ours.get(name).is_some_and(|wanted| is_right(&chain.held, wanted)),
            };
            if !is_right {
                edited += 1;
                held.chains.entry(name.clone()).and_modify(|chain| chain.signature = None);
            }
        }
        edited
    }

    /// Deletes the table, and the spare table if a replacement did not finish.
    pub fn remove(tables: &mut impl Tables, config: &Config) -> Result<(), ApplyError> {
        for table in [config.table.clone(), spare_of(&config.table)] {
            if tables.has(&table)? {
                tables.apply(&Batch { table, ops: vec![Op::DeleteTable] })?;
            }
        }
        Ok(())
    }
}

/// Endpoints that frontends lost since the kernel's table was written: a Service may have been
/// deleted while no proxy ran.
fn find_lost(held: &KernelSlots, desired: &DesiredTable) -> Vec<Lost> {
    let mut lost = Changes::default();
    let tracked = |frontend: &Frontend| frontend.protocol != Protocol::Tcp;
    for (frontend, endpoints) in held.frontends().filter(|(frontend, _)| tracked(frontend)) {
        let entry = desired.frontend(frontend).map(|(_, entry)| entry);
        lost.lose(frontend, endpoints, entry);
    }
    lost.lost().to_vec()
}
