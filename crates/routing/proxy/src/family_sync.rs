//! Synchronizes the nftables table of one family: its engine, failures and retries, pending
//! cleanup.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nearhop_core::route::Route;
use nearhop_core::{Family, Name, Protocol};
use nearhop_netfilter::changes::Lost;
use nearhop_netfilter::config::{Config, NodePortAddresses};
use nearhop_netfilter::conntrack::View;
use nearhop_netfilter::frontend::Frontend;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::interfaces;

use crate::control::{Control, Waiting};
use crate::engine::{Engine, Pass, Scope, Synced, Tables, Verified};
use crate::flow_eligibility::{FrontendEndpoints, LostEndpoints, view_of};
use crate::metrics::ProxyMetrics;
use crate::release::Releases;

/// First delay after a failed sync; `--sync-period` is the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The last successful sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastSync {
    /// When it ended.
    pub(crate) at: Timestamp,
    /// The kind of the pass.
    pub(crate) pass: Pass,
    /// How long it took.
    pub(crate) took: Duration,
    /// Number of elements written or deleted.
    pub(crate) elements: usize,
}

/// Result of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Number of differences that were repaired.
    pub(crate) differences: usize,
    /// Whether a sync is needed.
    pub(crate) wants_sync: bool,
}

/// Which kinds of Services a family has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Services {
    any: bool,
    node_ports: bool,
}

impl Services {
    fn add(&mut self, route: &Route) {
        self.any = true;
        self.node_ports |= route.service_port().node_port != 0;
    }
}

/// Synchronizes the nftables table of one family.
#[derive(Debug)]
pub(crate) struct FamilySync {
    family: Family,
    engine: Engine,
    last: Option<LastSync>,
    failure: Option<String>,
    failures: u32,
    /// When a failed sync is repeated.
    retry: Option<Instant>,
    lost: LostEndpoints,
    /// Whether some of them were never checked: these do not wait for the retry of a failed sweep.
    fresh: bool,
    /// All endpoints of the frontends at the time of their last conntrack sweep.
    known: LostEndpoints,
    /// Services for which missing settings were already reported under the current configuration.
    warned: Services,
    /// Frontends claimed by several Services that were already reported.
    contested: BTreeSet<Frontend>,
    releases: Releases,
}

impl FamilySync {
    /// Creates it with unknown kernel content: the first sync is a full one.
    pub(crate) fn new(family: Family, control: &Control) -> Self {
        let config = control.config(family);
        Self {
            family,
            engine: Engine::new(config),
            last: None,
            failure: None,
            failures: 0,
            retry: None,
            lost: LostEndpoints::new(),
            fresh: false,
            known: LostEndpoints::new(),
            warned: Services::default(),
            contested: BTreeSet::new(),
            releases: Releases::default(),
        }
    }

    /// Its family.
    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// Its engine.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The last successful sync.
    pub(crate) fn last(&self) -> Option<LastSync> {
        self.last
    }

    /// The error of the last sync, if it failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// When a failed sync must be repeated.
    pub(crate) fn retry(&self) -> Option<Instant> {
        self.retry
    }

    /// Synchronizes the kernel with the routes.
    pub(crate) fn sync(
        &mut self,
        tables: &mut impl Tables,
        control: &mut Control,
        waiting: &Waiting,
        metrics: &ProxyMetrics,
    ) {
        let began = Instant::now();
        let config = control.config(self.family);
        self.warn_about(&config, control, waiting);
        self.engine.configure(config);
        let scope = if waiting.all { Scope::All } else { Scope::Some(&waiting.services) };
        let pass = if self.engine.needs_full() { Pass::Full } else { Pass::Partial };
        match self.engine.sync(tables, control.routes(), scope) {
            Ok(synced) => {
                self.failure = None;
                self.failures = 0;
                self.retry = None;
                self.suspect(waiting, synced.pass);
                self.note(synced, began, control, metrics);
                self.releases.add(self.engine.take_releases(), Instant::now());
            }
            Err(error) => {
                tracing::error!(family = %self.family, %error, "nftables sync failed");
                metrics.failed(self.family, pass, began.elapsed());
                self.failure = Some(error.to_string());
                let backoff = Backoff::new(FIRST_PAUSE, control.options().sync_period);
                self.retry = Some(Instant::now() + backoff.delay(self.failures, 0.0));
                self.failures += 1;
            }
        }
        metrics.isolated_services(self.family, self.engine.isolated().len());
    }

    /// Warns about missing settings when the first Service of the family that needs them arrives.
    fn warn_about(&mut self, config: &Config, control: &Control, waiting: &Waiting) {
        let (family, routes) = (self.family, control.routes());
        let new = self.last.is_none() || config != self.engine.config();
        let mut services = if new { Services::default() } else { self.warned };
        if new || waiting.all {
            let of_family = routes.iter().filter(|(key, _)| key.family == family);
            of_family.for_each(|(_, route)| services.add(route));
        } else {
            let changed = waiting.services.iter().flat_map(|service| routes.of_service(service));
            let of_family = changed.filter(|(key, _)| key.family == family);
            of_family.for_each(|(_, route)| services.add(route));
        }
        if new || services != self.warned {
            let awaited = control.last_node().is_none().then(|| &control.options().node);
            warn_about_missing(config, services, awaited);
        }
        self.warned = services;
    }

    fn note(
        &mut self,
        synced: Synced,
        began: Instant,
        control: &mut Control,
        metrics: &ProxyMetrics,
    ) {
        let (took, at) = (began.elapsed(), Timestamp::now());
        let Synced { pass, elements, lost } = synced;
        metrics.synced(self.family, pass, took, at);
        if let Some(triggers) = control.triggers(self.family) {
            for latency in triggers.take(at) {
                metrics.programmed(self.family, Duration::from_secs_f64(latency));
            }
        }
        self.last = Some(LastSync { at, pass, took, elements });
        self.warn_of_contests();
        tracing::debug!(family = %self.family, ?pass, elements, ?took, "nftables synced");
        for Lost { frontend, endpoints } in lost {
            self.fresh = true;
            self.lost.entry(frontend).or_default().extend(endpoints);
        }
    }

    /// Warns once about each address and port that several Services claim.
    fn warn_of_contests(&mut self) {
        let contested: BTreeSet<Frontend> =
            self.engine.desired().contested().map(|(frontend, _)| *frontend).collect();
        for (frontend, claims) in self.engine.desired().contested() {
            if !self.contested.contains(frontend) {
                let services: Vec<String> =
                    claims.iter().map(|claim| claim.service.to_string()).collect();
                let services = services.join(", ");
                tracing::warn!(
                    ?frontend,
                    services,
                    "several Services claim one address and port; the first one gets it: remove it \
                     from the externalIPs or load balancer status of the others"
                );
            }
        }
        self.contested = contested;
    }

    /// Marks the flows of all Services of this sync for a conntrack sweep, even if no frontend lost
    /// an endpoint. A flow may still use an endpoint that was replaced by a nearer one and is now
    /// removed; under the policy `Local` the correct endpoint depends on the client.
    fn suspect(&mut self, waiting: &Waiting, pass: Pass) {
        let desired = self.engine.desired();
        let (lost, fresh) = (&mut self.lost, &mut self.fresh);
        let mut suspect = |frontend: &Frontend| {
            if frontend.protocol != Protocol::Tcp {
                *fresh = true;
                lost.entry(*frontend).or_default();
            }
        };
        if waiting.all || pass == Pass::Full {
            desired.frontends().for_each(|(frontend, _)| suspect(frontend));
        } else {
            let programs = waiting.services.iter().filter_map(|service| desired.program(service));
            programs.flat_map(|program| program.frontends.keys()).for_each(suspect);
        }
    }

    /// When affinity records to endpoints that are no longer eligible are deleted next.
    pub(crate) fn release_due(&self) -> Option<Instant> {
        self.releases.due()
    }

    /// Deletes such affinity records for a limited time.
    pub(crate) fn release(&mut self, tables: &mut impl Tables) {
        let clients = self.releases.run(&mut self.engine, tables, Instant::now);
        if clients > 0 {
            tracing::debug!(family = %self.family, clients, "session affinity released");
        }
    }

    /// How many batches this family has written.
    pub(crate) fn written(&self) -> u32 {
        self.engine.written()
    }

    /// Notes that another family has written this many batches.
    pub(crate) fn expect_generations(&mut self, changes: u32) {
        self.engine.expect_generations(changes);
    }

    /// Whether another program has changed any nftables table.
    pub(crate) fn is_changed_by_others(&self, tables: &mut impl Tables) -> bool {
        self.engine.is_changed_by_others(tables)
    }

    /// Checks that the kernel holds what was written, and repairs differences.
    pub(crate) fn verify(&mut self, tables: &mut impl Tables, metrics: &ProxyMetrics) -> Found {
        let mut found = Found::default();
        match self.engine.verify(tables) {
            Ok(Verified::Untouched | Verified::Same) => {}
            Ok(Verified::Repaired(differences)) => {
                found.differences = differences;
                metrics.foreign_changes(self.family, differences);
                // Flows may have started while our rules were missing.
                self.suspect(&Waiting { all: true, ..Waiting::default() }, Pass::Full);
            }
            Err(error) => {
                // Other programs may change their tables all the time, which does not make ours
                // wrong.
                tracing::warn!(family = %self.family, %error, "verification failed; will retry");
            }
        }
        // The kernel may now accept what it refused before.
        if !self.engine.isolated().is_empty() {
            self.engine.require_full();
        }
        found.wants_sync = self.engine.needs_full();
        found
    }

    /// Takes the endpoints whose flows a sweep must check, and the data to check them against.
    pub(crate) fn take_lost(
        &mut self,
        control: &Control,
    ) -> (LostEndpoints, View<FrontendEndpoints>) {
        let mut lost = std::mem::take(&mut self.lost);
        self.fresh = false;
        let (routes, desired) = (control.routes(), self.engine.desired());
        let addresses = interfaces::addresses();
        let rehome = control.options().udp_rehome;
        let view = view_of(&mut lost, &mut self.known, routes, desired, &addresses, rehome);
        (lost, view)
    }

    /// When the next conntrack sweep may start, if one is pending: now, or at `again` if only flows
    /// of a failed sweep remain.
    pub(crate) fn judge_from(&self, now: Instant, again: Instant) -> Option<Instant> {
        let from = if self.fresh { now } else { again };
        (!self.lost.is_empty()).then_some(from)
    }

    /// Returns endpoints of a failed sweep to the queue.
    pub(crate) fn put_back(&mut self, lost: LostEndpoints) {
        for (frontend, endpoints) in lost {
            self.lost.entry(frontend).or_default().extend(endpoints);
        }
    }
}

/// Runs `act` for each family. Batches that one family writes do not count as foreign changes for
/// the others.
pub(crate) fn for_each_family(families: &mut [FamilySync], mut act: impl FnMut(&mut FamilySync)) {
    for i in 0..families.len() {
        let before = families[i].written();
        act(&mut families[i]);
        let written = families[i].written().wrapping_sub(before);
        for (j, other) in families.iter_mut().enumerate() {
            if j != i {
                other.expect_generations(written);
            }
        }
    }
}

/// Warns about Services of a family that are only partly served, because an option or a field of
/// the Node is missing. `awaited` is the Node if it does not exist yet, as in the first moment of a
/// new node.
fn warn_about_missing(config: &Config, services: Services, awaited: Option<&Name>) {
    let family = config.family();
    if config.local.is_none() && services.any {
        tracing::warn!(
            %family,
            "local pod traffic cannot be detected: traffic to cluster IPs from outside is not \
             masqueraded; set --cluster-cidr or another --detect-local-mode"
        );
    }
    if config.nodeport_addresses != NodePortAddresses::Within(Vec::new()) || !services.node_ports {
        return;
    }
    match awaited {
        Some(node) => tracing::info!(
            %family,
            %node,
            "waiting for Node to register; node ports are served then (if it has another name, set \
             --hostname-override)"
        ),
        None => tracing::warn!(
            %family,
            "node ports are not served: the Node has no address of this family; set --bind-address \
             or --nodeport-addresses"
        ),
    }
}

#[cfg(test)]
mod tests {
    use nearhop_net::sandbox;
    use nearhop_runtime::metrics::Metrics;

    use super::*;
    use crate::kernel::Kernel;
    use crate::options::Options;

    #[test]
    fn writes_of_one_family_are_not_foreign_changes_of_the_other() {
        let test = "family_sync::tests::writes_of_one_family_are_not_foreign_changes_of_the_other";
        sandbox::run(test, || {
            let mut kernel = Kernel::open().unwrap();
            let options = Options::new("n1");
            let families = options.families.clone();
            let metrics = ProxyMetrics::new(&Metrics::new(), &families);
            let mut control = Control::new(options, metrics.clone(), Timestamp::UNIX_EPOCH);
            let mut families: Vec<FamilySync> =
                families.iter().map(|family| FamilySync::new(*family, &control)).collect();
            let all = Waiting { all: true, ..Waiting::default() };
            for_each_family(&mut families, |family_sync| {
                family_sync.sync(&mut kernel, &mut control, &all, &metrics);
            });
            for family_sync in &mut families {
                assert!(
                    family_sync.written() > 0 && family_sync.failure().is_none(),
                    "{family_sync:?}"
                );
                let found = family_sync.engine.verify(&mut kernel).unwrap();
                assert_eq!(
                    found,
                    Verified::Untouched,
                    "the engine read the table of {}",
                    family_sync.family
                );
            }
        });
    }
}
