//! The desired table of one family, by Service, and the changes that result from a change of one
//! Service.
//!
//! Elements are not stored: they are computed from a Service's program when it changes. If several
//! Services claim the same address and port, the order of precedence is: cluster IP, load balancer
//! IP, `externalIPs`, then the name of the Service. The order of events does not matter, so the
//! rules do not depend on the history.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::route::RouteTable;
use nearhop_core::{EndpointKey, Name, Protocol, ServiceKey};

use crate::affinity::{Reach, define_map, service_of};
use crate::chain::{OnDemand, digest, static_chains};
use crate::changes::Changes;
use crate::compile::{PreviousSlots, compile};
use crate::config::Config;
use crate::element::{Placed, chains_of, place, place_cluster_ip, place_hairpin};
use crate::frontend::{AddressKind, Entry, Frontend, Program};
use crate::object::{Chain, Op, Table};

/// A Service's claim to a frontend. Claims sort by precedence: a Service cannot take over a cluster
/// IP or a load balancer IP with `externalIPs`; between equal kinds the first Service by name wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    kind: AddressKind,
    /// The Service.
    pub service: ServiceKey,
}

impl Claim {
    fn new(service: &ServiceKey, entry: &Entry) -> Self {
        Self { kind: entry.address, service: service.clone() }
    }
}

/// The desired table of one family.
#[derive(Clone, Debug)]
pub struct DesiredTable {
    config: Arc<Config>,
    programs: BTreeMap<ServiceKey, Program>,
    owners: BTreeMap<Frontend, ServiceKey>,
    /// Only frontends with more than one claim.
    contested: BTreeMap<Frontend, BTreeSet<Claim>>,
    cluster_ips: BTreeMap<IpAddr, u32>,
    hairpins: BTreeMap<(EndpointKey, Protocol), u32>,
    /// Existing chains on demand. Unused ones stay until the next full pass: kernels before 6.2
    /// release references late.
    chains: BTreeSet<OnDemand>,
    /// The maps of Service ports that these chains use.
    maps: BTreeSet<Name>,
}

impl DesiredTable {
    /// Creates a table without Services.
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            programs: BTreeMap::new(),
            owners: BTreeMap::new(),
            contested: BTreeMap::new(),
            cluster_ips: BTreeMap::new(),
            hairpins: BTreeMap::new(),
            chains: BTreeSet::new(),
            maps: BTreeSet::new(),
        }
    }

    /// The configuration of the rules.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Changes the name of the table.
    pub fn move_to(&mut self, table: Table) {
        Arc::make_mut(&mut self.config).table = table;
    }

    /// The program of a Service.
    pub fn program(&self, service: &ServiceKey) -> Option<&Program> {
        self.programs.get(service)
    }

    /// All Services with their programs.
    pub fn programs(&self) -> impl Iterator<Item = (&ServiceKey, &Program)> {
        self.programs.iter()
    }

    /// The owner of a frontend, and its entry.
    pub fn frontend(&self, frontend: &Frontend) -> Option<(&ServiceKey, &Entry)> {
        let owner = self.owners.get(frontend)?;
        Some((owner, self.programs.get(owner)?.frontends.get(frontend)?))
    }

    /// All frontends with their entries.
    pub fn frontends(&self) -> impl Iterator<Item = (&Frontend, &Entry)> {
        self.owners.keys().filter_map(|frontend| Some((frontend, self.entry(frontend)?)))
    }

    /// The Service ports that have, or recently had, session affinity.
    pub fn sticky_ports(&self) -> BTreeSet<Name> {
        self.chains.iter().filter_map(|chain| chain.port().cloned()).collect()
    }

    /// The frontends of a Service port with session affinity.
    fn sticky_frontends<'a>(
        &'a self,
        port: &'a Name,
    ) -> impl Iterator<Item = (&'a Frontend, &'a Entry)> {
        let service = service_of(port);
        let program = service.as_ref().and_then(|service| self.programs.get(service));
        let frontends = program.into_iter().flat_map(|program| &program.frontends);
        frontends.filter(move |(frontend, entry)| {
            entry.affinity.as_ref().is_some_and(|affinity| affinity.port == *port)
                && self.owners.get(frontend) == service.as_ref()
        })
    }

    /// The endpoints that clients of a Service port may keep. A local endpoint is valid for all
    /// clients, whichever policy chose it.
    pub fn sticky_endpoints(&self, port: &Name, reach: Reach) -> BTreeSet<EndpointKey> {
        let slots = self.sticky_frontends(port).flat_map(|(_, entry)| entry.sticky_slots());
        let of_reach = slots.filter(|(of, _)| reach == Reach::Cluster || *of == Reach::Local);
        of_reach.flat_map(|(_, slots)| slots.iter().copied()).collect()
    }

    /// The existing maps of Service ports, including unused ones.
    pub fn maps(&self) -> &BTreeSet<Name> {
        &self.maps
    }

    /// The unused chains and maps of a Service port.
    pub fn unneeded(&self, port: &Name) -> Unneeded {
        let (mut chains, mut needed) = (Vec::new(), BTreeSet::new());
        for (frontend, entry) in self.sticky_frontends(port) {
            chains_of(frontend, entry, &mut chains);
        }
        needed.extend(chains.into_iter().flat_map(OnDemand::with_needed));
        let chains: BTreeSet<OnDemand> =
            self.chains_of_port(port).filter(|chain| !needed.contains(chain)).cloned().collect();
        let still: BTreeSet<Name> = needed.iter().flat_map(OnDemand::maps).collect();
        let maps = chains.iter().flat_map(OnDemand::maps).filter(|map| !still.contains(map));
        Unneeded { maps: maps.collect(), chains }
    }

    /// The existing chains of a Service port. Chains sort by kind, then by port, so this does not
    /// visit the chains of other Services.
    fn chains_of_port<'a>(&'a self, port: &'a Name) -> impl Iterator<Item = &'a OnDemand> {
        OnDemand::first_of_port(port).into_iter().flat_map(move |first| {
            let kind = std::mem::discriminant(&first);
            self.chains.range(first..).take_while(move |chain| {
                std::mem::discriminant(*chain) == kind && chain.port() == Some(port)
            })
        })
    }

    /// Removes deleted chains and maps.
    pub fn forget(&mut self, unneeded: &Unneeded) {
        self.forget_chains(&unneeded.chains);
        for map in &unneeded.maps {
            self.maps.remove(map);
        }
    }

    /// Frontends that several Services claim, with all claims; the first one wins.
    pub fn contested(&self) -> impl Iterator<Item = (&Frontend, &BTreeSet<Claim>)> {
        self.contested.iter()
    }

    /// Builds the table for all Services of a node, with the previous slots. It contains all
    /// required chains; `reconcile` computes the changes.
    pub fn build(routes: &RouteTable, config: Arc<Config>, before: &dyn PreviousSlots) -> Self {
        let mut desired = Self::new(config);
        let mut services: Vec<&ServiceKey> =
            routes.iter().map(|(key, _)| &key.port.service).collect();
        services.dedup();
        for service in services {
            if let Some(program) = compile(routes.of_service(service), &desired.config, before) {
                desired.load(service, program);
            }
        }
        desired.chains = desired.needed();
        desired.maps = desired.chains.iter().flat_map(OnDemand::maps).collect();
        desired
    }

    /// Adds a Service that does not exist yet.
    fn load(&mut self, service: &ServiceKey, program: Program) {
        self.count(None, Some(&program), &mut Changes::default());
        for (frontend, entry) in &program.frontends {
            self.claim(frontend, service, Some(entry));
        }
        self.programs.insert(service.clone(), program);
    }

    /// Replaces the program of a Service, and adds the resulting changes to `changes`.
    pub fn set(&mut self, service: &ServiceKey, next: Option<Program>, changes: &mut Changes) {
        let before = self.programs.get(service);
        if before == next.as_ref() {
            return;
        }
        let touched: BTreeSet<Frontend> = [before, next.as_ref()]
            .into_iter()
            .flatten()
            .flat_map(|program| program.frontends.keys().copied())
            .collect();
        let entries_before: Vec<Option<Entry>> =
            touched.iter().map(|frontend| self.entry(frontend).cloned()).collect();
        let before = self.programs.remove(service);
        self.count(before.as_ref(), next.as_ref(), changes);
        for frontend in &touched {
            let entry = next.as_ref().and_then(|next| next.frontends.get(frontend));
            self.claim(frontend, service, entry);
        }
        if let Some(next) = next {
            self.programs.insert(service.clone(), next);
        }
        for (frontend, before) in touched.iter().zip(entries_before) {
            let after = self.entry(frontend).cloned();
            self.replace(frontend, before.as_ref(), after.as_ref(), changes);
        }
    }

    fn entry(&self, frontend: &Frontend) -> Option<&Entry> {
        self.frontend(frontend).map(|(_, entry)| entry)
    }

    /// Adds or removes a Service's claim to a frontend.
    fn claim(&mut self, frontend: &Frontend, service: &ServiceKey, entry: Option<&Entry>) {
        let mut all = self.contested.remove(frontend).unwrap_or_else(|| {
            let (owner, entry) = self.frontend(frontend).unzip();
            owner.zip(entry).map(|(owner, entry)| Claim::new(owner, entry)).into_iter().collect()
        });
        all.retain(|claim| claim.service != *service);
        all.extend(entry.map(|entry| Claim::new(service, entry)));
        match all.first() {
            Some(first) => {
                self.owners.insert(*frontend, first.service.clone());
            }
            None => {
                self.owners.remove(frontend);
            }
        }
        if all.len() > 1 {
            self.contested.insert(*frontend, all);
        }
    }

    /// Counts cluster IPs and endpoints, which several Services may share.
    fn count(&mut self, before: Option<&Program>, next: Option<&Program>, changes: &mut Changes) {
        let cluster_ip = |program: Option<&Program>| program.and_then(|program| program.cluster_ip);
        let old = cluster_ip(before).filter(|_| cluster_ip(before) != cluster_ip(next));
        let new = cluster_ip(next).filter(|_| cluster_ip(before) != cluster_ip(next));
        if let Some(address) = old.filter(|address| give_back(&mut self.cluster_ips, address)) {
            changes.delete(place_cluster_ip(address));
        }
        if let Some(address) = new.filter(|address| take(&mut self.cluster_ips, *address)) {
            changes.add(place_cluster_ip(address));
        }
        let none = BTreeSet::new();
        let old = before.map_or(&none, |program| &program.hairpins);
        let new = next.map_or(&none, |program| &program.hairpins);
        for pin in old.difference(new) {
            if give_back(&mut self.hairpins, pin) {
                changes.delete(place_hairpin(pin.0, pin.1));
            }
        }
        for pin in new.difference(old) {
            if take(&mut self.hairpins, *pin) {
                changes.add(place_hairpin(pin.0, pin.1));
            }
        }
    }

    fn replace(
        &mut self,
        frontend: &Frontend,
        before: Option<&Entry>,
        after: Option<&Entry>,
        changes: &mut Changes,
    ) {
        if before == after {
            return;
        }
        let (mut old, mut new) = (Vec::new(), Vec::new());
        let (mut unneeded, mut needed) = (Vec::new(), Vec::new());
        if let Some(entry) = before {
            place(frontend, entry, &mut old, &mut unneeded);
        }
        if let Some(entry) = after {
            place(frontend, entry, &mut new, &mut needed);
        }
        self.need(needed, changes);
        changes.replace(old, new);
        changes.touch(frontend, before, after);
    }

    /// Adds missing chains; a chain comes after those that it refers to.
    fn need(&mut self, chains: Vec<OnDemand>, changes: &mut Changes) {
        for chain in chains {
            for chain in chain.with_needed().into_iter().filter(|chain| !chain.is_static()) {
                if self.chains.contains(&chain) {
                    continue;
                }
                for map in chain.maps() {
                    if self.maps.insert(map.clone()) {
                        changes.first(Op::AddSet(define_map(map, self.config.family())));
                    }
                }
                changes.first(Op::AddChain(signed(chain.chain(&self.config))));
                self.chains.insert(chain);
            }
        }
    }

    /// All desired elements.
    pub fn elements(&self) -> Vec<Placed> {
        let (mut elements, mut chains) = (Vec::new(), Vec::new());
        for (frontend, entry) in self.frontends() {
            place(frontend, entry, &mut elements, &mut chains);
            chains.clear();
        }
        elements.extend(self.cluster_ips.keys().map(|address| place_cluster_ip(*address)));
        elements.extend(
            self.hairpins.keys().map(|(endpoint, protocol)| place_hairpin(*endpoint, *protocol)),
        );
        elements
    }

    /// All desired chains; a chain comes after those that it refers to, base chains last.
    pub fn chains(&self) -> Vec<Chain> {
        let needed = self.needed();
        let on_demand = needed.iter().map(|chain| chain.chain(&self.config));
        on_demand.chain(static_chains(&self.config)).map(signed).collect()
    }

    /// The chains on demand that elements or rules refer to.
    fn needed(&self) -> BTreeSet<OnDemand> {
        let (mut chains, mut needed) = (Vec::new(), BTreeSet::new());
        for (frontend, entry) in self.frontends() {
            chains_of(frontend, entry, &mut chains);
            let all = chains.drain(..).flat_map(OnDemand::with_needed);
            needed.extend(all.filter(|chain| !chain.is_static()));
        }
        needed
    }

    /// All existing chains, including unused ones, by name.
    pub fn all_chains(&self) -> BTreeMap<Name, Chain> {
        let on_demand = self.chains.iter().map(|chain| chain.chain(&self.config));
        let all = static_chains(&self.config).into_iter().chain(on_demand).map(signed);
        all.map(|chain| (chain.name.clone(), chain)).collect()
    }

    /// The unused chains on demand, except those of Service ports, which are deleted with their
    /// maps.
    pub fn unneeded_chains(&self) -> BTreeSet<OnDemand> {
        let needed = self.needed();
        let shared = self.chains.iter().filter(|chain| chain.port().is_none());
        shared.filter(|chain| !needed.contains(chain)).cloned().collect()
    }

    /// Removes deleted chains.
    pub fn forget_chains(&mut self, deleted: &BTreeSet<OnDemand>) {
        for chain in deleted {
            self.chains.remove(chain);
        }
    }

    /// Removes unused chains, because a full pass deletes them.
    pub fn forget_unneeded_chains(&mut self) {
        let needed = self.needed();
        self.chains.retain(|chain| needed.contains(chain));
        self.maps = self.chains.iter().flat_map(OnDemand::maps).collect();
    }
}

/// Unused chains and maps of a Service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unneeded {
    chains: BTreeSet<OnDemand>,
    maps: BTreeSet<Name>,
}

impl Unneeded {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// The names of the chains.
    pub fn chains(&self) -> impl Iterator<Item = Name> {
        self.chains.iter().map(OnDemand::name)
    }

    /// The changes that delete them: rules first, then the maps that they used, then the chains.
    pub fn ops(&self) -> Vec<Op> {
        let flush = self.chains().map(Op::FlushChain);
        let maps = self.maps.iter().cloned().map(Op::DeleteSet);
        flush.chain(maps).chain(self.chains().map(Op::DeleteChain)).collect()
    }
}

/// Signs a chain: the comment of its first rule is a digest of all rules, so that a later start can
/// check the rules without reading them. The comment of the chain itself is not used, because it
/// cannot be changed without deleting the chain.
pub fn signed(mut chain: Chain) -> Chain {
    let digest = digest(&format!("{:?}{:?}", chain.hook, chain.rules));
    if let Some(rule) = chain.rules.first_mut() {
        let words = rule.comment.as_ref().map_or(String::new(), |words| format!("{words} "));
        rule.comment = Some(Name::from(format!("{words}#{:08x}", digest >> 32)));
    }
    chain
}

/// The signature of a chain: the comment of its first rule.
pub fn signature(chain: &Chain) -> Option<&Name> {
    chain.rules.first().and_then(|rule| rule.comment.as_ref())
}

/// Increments a count; returns whether it is the first.
fn take<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) -> bool {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count == 1
}

/// Decrements a count; returns whether it was the last.
fn give_back<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count -= 1;
    let last = *count == 0;
    if last {
        counts.remove(key);
    }
    last
}
