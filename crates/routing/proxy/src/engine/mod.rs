//! Keeps one table in step with decisions: what changed goes in one batch, anything strange makes
//! the next pass a full one.
//!
//! ```text
//!   sync     what changed -> one batch                       (nothing is read)
//!   full     read the table -> compare -> what differs       (start, failure, new configuration)
//!   verify   has another program changed it? -> repair, count
//! ```
//!
//! A batch that the kernel refuses is tried again after a full pass, then frontend by frontend:
//! the Services that are at fault are left out and reported, all others go in.

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

/// Elements in one batch while a table is being filled that no packet passes yet: short enough
/// not to hold the kernel's lock for long.
const FILL: usize = 2_000;

/// So many unused chains are deleted together.
const MANY_CHAINS: usize = 64;

/// Which Services a pass is about.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// These.
    Some(&'a BTreeSet<ServiceKey>),
    /// All: the node's topology changed.
    All,
}

/// What a pass was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Only what changed.
    Partial,
    /// Everything, read and compared.
    Full,
}

/// What a pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// What it was.
    pub pass: Pass,
    /// Elements that were written or deleted.
    pub elements: usize,
    /// Frontends that lost endpoints.
    pub lost: Vec<Lost>,
}

/// What was found by looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// No table has changed since.
    Untouched,
    /// Another program changed some table; ours is as it was.
    Same,
    /// So many elements and chains were not as they had been written. They are again.
    Repaired(usize),
}

/// One table, kept in step.
#[derive(Debug)]
pub struct Engine {
    desired: DesiredTable,
    /// Whether the kernel holds the desired table, as far as is known.
    trusted: bool,
    isolated: BTreeMap<ServiceKey, String>,
    /// What the rules of each chain were when they were written.
    rules: BTreeMap<Name, u64>,
    /// The generation that should be, if no other program changes anything.
    generation: Option<u32>,
    /// How many batches it has written.
    written: u32,
    /// Service ports whose clients may stay with endpoints that are no longer theirs.
    releases: BTreeSet<Name>,
    /// What frontends lost in failed passes: the next pass reports it.
    unreported: Vec<Lost>,
}

impl Engine {
    /// Nothing is known yet: the first pass is a full one.
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

    /// What the kernel holds, as far as is known.
    pub fn desired(&self) -> &DesiredTable {
        &self.desired
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        self.desired.config()
    }

    /// Whether the next pass reads everything.
    pub fn needs_full(&self) -> bool {
        !self.trusted
    }

    /// Makes the next pass a full one.
    pub fn require_full(&mut self) {
        self.trusted = false;
    }

    /// Services whose rules the kernel does not take, with its words.
    pub fn isolated(&self) -> &BTreeMap<ServiceKey, String> {
        &self.isolated
    }

    /// Changes what the rules depend on beside the Services.
    pub fn configure(&mut self, config: Config) {
        if config != *self.config() {
            self.desired = DesiredTable::new(Arc::new(config));
            self.trusted = false;
        }
    }

    /// Brings the kernel in step with the routes.
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

    /// Reads the table, compares, and writes what differs.
    pub fn full(
        &mut self,
        tables: &mut impl Tables,
        routes: &RouteTable,
    ) -> Result<Synced, ApplyError> {
        self.trusted = false;
        // Before it is read: what others change from now on is to be found by the next look.
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

    /// Writes what differs between the desired table and a table that is not there, or of our layout.
    /// Returns how many elements differed.
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

    /// Makes a change, and counts it towards the generation.
    fn apply(&mut self, tables: &mut impl Tables, batch: &Batch) -> Result<(), ApplyError> {
        tables.apply(batch)?;
        self.written = self.written.wrapping_add(1);
        self.expect_generations(1);
        Ok(())
    }

    /// How many batches it has written, since it was made.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// So many changes were made by whom we know: they are no reason to look at the table. The
    /// kernel leaves zero out of its count.
    pub fn expect_generations(&mut self, changes: u32) {
        for _ in 0..changes {
            self.generation = self.generation.map(|generation| generation.wrapping_add(1).max(1));
        }
    }

    /// Fills a new table: packets pass it only when everything is there.
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

    /// One batch, or where it would not fit one for each few frontends: each of them changes at
    /// once all the same.
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

    /// Writes one frontend after the other, and leaves out the Services that the kernel does not
    /// take: whatever it holds of them goes, and who comes after them gets what they had. Each round
    /// skips a Service, or is the last.
    fn apply_per_frontend(&mut self, tables: &mut impl Tables) -> Result<(), ApplyError> {
        loop {
            let held = tables.read(&self.config().table)?;
            let parts = reconcile(&self.desired, held.as_ref()).split();
            let refused = self.write_parts(tables, parts)?;
            if refused.is_empty() {
                return Ok(());
            }
            for (service, error) in refused {
                // The next round finds out what this takes.
                self.desired.set(&service, None, &mut Changes::default());
                self.isolated.insert(service, error);
            }
            self.desired.forget_unneeded_chains();
        }
    }

    /// Writes what is common to all, then one frontend after the other. Returns the Services that
    /// were refused. A failure for another reason ends it.
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
            // What is left out may still be held, and then what it goes to cannot be deleted.
            Err(_) if !refused.is_empty() => Ok(refused),
            finished => finished.map(|()| refused),
        }
    }

    /// One batch, whatever its size.
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

    /// Whether another program has changed some table since the last verification. Reads no table. Not said
    /// while the next pass is a full one, nor where the kernel does not answer.
    pub fn is_changed_by_others(&self, tables: &mut impl Tables) -> bool {
        self.trusted && tables.generation().is_ok_and(|now| self.generation != Some(now))
    }

    /// Looks whether the kernel still holds what was written, and repairs it.
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
            // Good enough to write by, not to report changes by other programs.
            return Ok(Verified::Same);
        }
        let chains = tables.read_chains(&self.config().table)?;
        // Until the repair is complete, what the kernel holds is unknown.
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

    /// Deletes unused chains, once there are many: a Service whose weights
    /// change leaves one behind each time. Not with the change itself: kernels before 6.2 give
    /// references back late, and then refuse.
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
            // They do no harm, and the next look tries again.
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

    /// Chains whose rules are not those that were written. They count as unsigned, and so are
    /// written anew. Of a chain that was added since the last look only the signature is known:
    /// nothing is read when it is written.
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

    /// Deletes the table, and the spare one where a replacement did not finish.
    pub fn remove(tables: &mut impl Tables, config: &Config) -> Result<(), ApplyError> {
        for table in [config.table.clone(), spare_of(&config.table)] {
            if tables.has(&table)? {
                tables.apply(&Batch { table, ops: vec![Op::DeleteTable] })?;
            }
        }
        Ok(())
    }
}

/// What frontends have lost since the kernel's table was written: a Service may have gone while no
/// proxy ran.
fn find_lost(held: &KernelSlots, desired: &DesiredTable) -> Vec<Lost> {
    let mut lost = Changes::default();
    let tracked = |frontend: &Frontend| frontend.protocol != Protocol::Tcp;
    for (frontend, endpoints) in held.frontends().filter(|(frontend, _)| tracked(frontend)) {
        let entry = desired.frontend(frontend).map(|(_, entry)| entry);
        lost.lose(frontend, endpoints, entry);
    }
    lost.lost().to_vec()
}
