//! Metrics of the proxy, with kube-proxy's names, so that existing dashboards work. Metrics that
//! kube-proxy does not have start with `nearhop_proxy_`.
//!
//! Other modules compute the values. Every series of a family in use exists from the start with
//! value 0.
//!
//! As in kube-proxy, the four series about changes have no family label: both families count into
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use nearhop_core::Family;
use nearhop_core::route::Tier;
use nearhop_runtime::metrics::{
    Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec, Metrics, exponential_buckets,
};

use crate::engine::Pass;
use crate::health::Verdict;

/// The traffic that a policy applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Traffic to cluster IPs: `internalTrafficPolicy`.
    Internal,
    /// Traffic from outside the cluster: `externalTrafficPolicy`.
    External,
}

impl Traffic {
    fn as_str(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::External => "external",
        }
    }
}

/// The probe that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `/healthz`.
    Healthz,
    /// `/livez`.
    Livez,
}

/// Every code of [`Tier`]; a test checks that the list is complete.
const TIERS: [&str; 10] = [
    "key",
    "any-key",
    "routing",
    "weights",
    "same-node",
    "same-zone",
    "all",
    "local",
    "out-of-reach",
    "no-endpoints",
];
const FAMILY: &str = "ip_family";

/// The metrics of the proxy. Clones share them.
#[derive(Clone)]
pub struct ProxyMetrics {
    passes: Passes,
    changes: Changes,
    no_local_endpoints: GaugeVec,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    conntrack: Conntrack,
    own: Own,
}

#[derive(Clone)]
struct Passes {
    duration: HistogramVec,
    full_duration: HistogramVec,
    partial_duration: HistogramVec,
    last: GaugeVec,
    last_queued: GaugeVec,
    programming_duration: HistogramVec,
    failures: IntCounterVec,
    cleanup_failures: IntCounterVec,
}

#[derive(Clone)]
struct Changes {
    endpoints_pending: Gauge,
    endpoints: IntCounter,
    services_pending: Gauge,
    services: IntCounter,
}

#[derive(Clone)]
struct Conntrack {
    duration: HistogramVec,
    deleted: IntCounterVec,
    kept: GaugeVec,
}

#[derive(Clone)]
struct Own {
    isolated: GaugeVec,
    foreign: IntCounterVec,
    routes: GaugeVec,
}

impl ProxyMetrics {
    /// Registers all metrics for the families in use.
    ///
    /// # Panics
    /// The metrics are already registered.
    #[must_use]
    pub fn new(metrics: &Metrics, families: &[Family]) -> Self {
        let probes = |name: &str, help: &str| metrics.counter_vec(name, help, &["code"]);
        let made = Self {
            passes: Passes::register(metrics),
            changes: Changes::register(metrics),
            no_local_endpoints: metrics.gauge_vec(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Service ports with policy Local that have endpoints, but none on this node",
                &["traffic_policy", FAMILY],
            ),
            healthz: probes("kubeproxy_proxy_healthz_total", "Responses of /healthz, by code"),
            livez: probes("kubeproxy_proxy_livez_total", "Responses of /livez, by code"),
            conntrack: Conntrack::register(metrics),
            own: Own::register(metrics),
        };
        made.begin(families);
        made
    }

    /// Creates every possible series.
    fn begin(&self, families: &[Family]) {
        for counter in [&self.healthz, &self.livez] {
            for verdict in [Verdict::Healthy, Verdict::Unhealthy] {
                let _ = counter.with_label_values(&[verdict.code().to_string().as_str()]);
            }
        }
        let (passes, conntrack, own) = (&self.passes, &self.conntrack, &self.own);
        for family in families.iter().map(|family| family.as_str()) {
            for histogram in [
                &passes.duration,
                &passes.full_duration,
                &passes.partial_duration,
                &passes.programming_duration,
                &conntrack.duration,
            ] {
                let _ = histogram.with_label_values(&[family]);
            }
            for gauge in [&passes.last, &passes.last_queued, &conntrack.kept, &own.isolated] {
                let _ = gauge.with_label_values(&[family]);
            }
            for counter in
                [&passes.failures, &passes.cleanup_failures, &conntrack.deleted, &own.foreign]
            {
                let _ = counter.with_label_values(&[family]);
            }
            for traffic in [Traffic::Internal, Traffic::External] {
                let _ = self.no_local_endpoints.with_label_values(&[traffic.as_str(), family]);
            }
            for tier in TIERS {
                let _ = own.routes.with_label_values(&[tier, family]);
            }
        }
    }

    /// Records a pending change of a family's rules.
    pub fn queued(&self, family: Family, now: Timestamp) {
        self.passes.last_queued.with_label_values(&[family.as_str()]).set(seconds(now));
    }

    /// Records a successful pass.
    pub fn synced(&self, family: Family, pass: Pass, duration: Duration, now: Timestamp) {
        self.passed(family, pass, duration);
        self.passes.last.with_label_values(&[family.as_str()]).set(seconds(now));
    }

    /// Records a failed pass: the kernel did not accept the changes.
    pub fn failed(&self, family: Family, pass: Pass, duration: Duration) {
        self.passed(family, pass, duration);
        self.passes.failures.with_label_values(&[family.as_str()]).inc();
    }

    fn passed(&self, family: Family, pass: Pass, duration: Duration) {
        let of_pass = match pass {
            Pass::Full => &self.passes.full_duration,
            Pass::Partial => &self.passes.partial_duration,
        };
        for histogram in [&self.passes.duration, of_pass] {
            histogram.with_label_values(&[family.as_str()]).observe(duration.as_secs_f64());
        }
    }

    /// Records that unused objects could not be deleted.
    pub fn cleanup_failed(&self, family: Family) {
        self.passes.cleanup_failures.with_label_values(&[family.as_str()]).inc();
    }

    /// Records the time from the trigger of an endpoint change until it is in the kernel.
    pub fn programmed(&self, family: Family, latency: Duration) {
        let histogram = &self.passes.programming_duration;
        histogram.with_label_values(&[family.as_str()]).observe(latency.as_secs_f64());
    }

    /// Counts a changed EndpointSlice, which is pending until the next pass.
    pub fn endpoints_changed(&self) {
        self.changes.endpoints.inc();
        self.changes.endpoints_pending.inc();
    }

    /// Counts a changed Service, which is pending until the next pass.
    pub fn service_changed(&self) {
        self.changes.services.inc();
        self.changes.services_pending.inc();
    }

    /// Records that a pass processed all pending changes.
    pub fn changes_taken(&self) {
        self.changes.endpoints_pending.set(0.0);
        self.changes.services_pending.set(0.0);
    }

    /// Sets how many service ports have endpoints, but no local one, under the policy `Local`.
    pub fn no_local_endpoints(&self, traffic: Traffic, family: Family, service_ports: u64) {
        let labels = [traffic.as_str(), family.as_str()];
        self.no_local_endpoints.with_label_values(&labels).set(service_ports as f64);
    }

    /// Counts an answered probe.
    pub fn probed(&self, probe: Probe, verdict: Verdict) {
        let counter = match probe {
            Probe::Healthz => &self.healthz,
            Probe::Livez => &self.livez,
        };
        counter.with_label_values(&[verdict.code().to_string().as_str()]).inc();
    }

    /// Records a conntrack sweep: how many flows to removed endpoints were deleted, and how many of
    /// our flows remain.
    pub fn conntrack_reconciled(
        &self,
        family: Family,
        duration: Duration,
        deleted: usize,
        kept: usize,
    ) {
        let family = [family.as_str()];
        let Conntrack { duration: durations, deleted: deletions, kept: gauge } = &self.conntrack;
        durations.with_label_values(&family).observe(duration.as_secs_f64());
        deletions.with_label_values(&family).inc_by(deleted as u64);
        gauge.with_label_values(&family).set(kept as f64);
    }

    /// Sets how many Services are left out because the kernel refuses their rules.
    pub fn isolated_services(&self, family: Family, services: usize) {
        self.own.isolated.with_label_values(&[family.as_str()]).set(services as f64);
    }

    /// Counts differences from the proxy's rules that a verification repaired.
    pub fn foreign_changes(&self, family: Family, differences: usize) {
        self.own.foreign.with_label_values(&[family.as_str()]).inc_by(differences as u64);
    }

    /// Sets how many service ports have each tier.
    pub fn routes<'a>(&self, family: Family, tiers: impl IntoIterator<Item = &'a Tier>) {
        let mut counts: BTreeMap<&str, usize> = TIERS.map(|tier| (tier, 0)).into();
        for tier in tiers {
            *counts.entry(tier.code()).or_default() += 1;
        }
        for (tier, count) in counts {
            self.own.routes.with_label_values(&[tier, family.as_str()]).set(count as f64);
        }
    }
}

impl Passes {
    fn register(metrics: &Metrics) -> Self {
        let name = |suffix: &str| format!("kubeproxy_{suffix}");
        let histogram = |suffix: &str, help: &str, buckets: &[f64]| {
            metrics.histogram_vec(&name(suffix), help, buckets, &[FAMILY])
        };
        let gauge = |suffix: &str, help: &str| metrics.gauge_vec(&name(suffix), help, &[FAMILY]);
        let counter =
            |suffix: &str, help: &str| metrics.counter_vec(&name(suffix), help, &[FAMILY]);
        let usual = sync_buckets();
        Self {
            duration: histogram(
                "sync_proxy_rules_duration_seconds",
                "Duration of nftables syncs",
                &usual,
            ),
            full_duration: histogram(
                "sync_full_proxy_rules_duration_seconds",
                "Duration of full nftables syncs",
                &usual,
            ),
            partial_duration: histogram(
                "sync_partial_proxy_rules_duration_seconds",
                "Duration of partial nftables syncs, which write only changed Services",
                &usual,
            ),
            last: gauge(
                "sync_proxy_rules_last_timestamp_seconds",
                "Unix time of the last successful nftables sync",
            ),
            last_queued: gauge(
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time of the last request for an nftables sync",
            ),
            programming_duration: histogram(
                "network_programming_duration_seconds",
                "Time from the change of a Pod or Service until the kernel has its rules",
                &programming_buckets(),
            ),
            failures: counter(
                "sync_proxy_rules_nftables_sync_failures_total",
                "Failed nftables syncs",
            ),
            cleanup_failures: counter(
                "sync_proxy_rules_nftables_cleanup_failures_total",
                "Failed deletions of stale conntrack entries",
            ),
        }
    }
}

impl Changes {
    fn register(metrics: &Metrics) -> Self {
        let name = |suffix: &str| format!("kubeproxy_sync_proxy_rules_{suffix}");
        let gauge = |suffix: &str, help: &str| metrics.gauge(&name(suffix), help);
        let counter = |suffix: &str, help: &str| metrics.counter(&name(suffix), help);
        Self {
            endpoints_pending: gauge(
                "endpoint_changes_pending",
                "EndpointSlice changes that are not in the rules yet",
            ),
            endpoints: counter("endpoint_changes_total", "EndpointSlice changes"),
            services_pending: gauge(
                "service_changes_pending",
                "Service changes that are not in the rules yet",
            ),
            services: counter("service_changes_total", "Service changes"),
        }
    }
}

impl Conntrack {
    fn register(metrics: &Metrics) -> Self {
        Self {
            duration: metrics.histogram_vec(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Duration of conntrack reconciliations",
                &sync_buckets(),
                &[FAMILY],
            ),
            deleted: metrics.counter_vec(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Conntrack entries deleted because this node no longer uses their endpoint",
                &[FAMILY],
            ),
            kept: metrics.gauge_vec(
                "nearhop_proxy_conntrack_kept_entries",
                "Conntrack entries of Services that the last reconciliation kept",
                &[FAMILY],
            ),
        }
    }
}

impl Own {
    fn register(metrics: &Metrics) -> Self {
        Self {
            isolated: metrics.gauge_vec(
                "nearhop_proxy_isolated_services",
                "Services without rules because the kernel rejected their rules",
                &[FAMILY],
            ),
            foreign: metrics.counter_vec(
                "nearhop_proxy_foreign_changes_total",
                "Changes of other programs to nearhop's table that the proxy repaired",
                &[FAMILY],
            ),
            routes: metrics.gauge_vec(
                "nearhop_proxy_routes",
                "Service ports by the tier of their endpoints",
                &["tier", FAMILY],
            ),
        }
    }
}

/// Buckets from 1 ms to 16 s; each is twice the previous one.
fn sync_buckets() -> Vec<f64> {
    exponential_buckets(0.001, 2.0, 15).expect("the buckets grow")
}

/// Fine buckets for the expected latency, coarse ones up to five minutes.
fn programming_buckets() -> Vec<f64> {
    let steps = |from: u32, to: u32, by: usize| (from..=to).step_by(by).map(f64::from);
    let fine = [0.25, 0.5].into_iter().chain(steps(1, 59, 1));
    fine.chain(steps(60, 115, 5)).chain(steps(120, 300, 30)).collect()
}

fn seconds(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}
