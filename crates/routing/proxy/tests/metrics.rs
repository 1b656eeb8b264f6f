//! Metrics have kube-proxy's names, labels and buckets, and count correctly.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use nearhop_core::Family;
use nearhop_core::route::Tier;
use nearhop_proxy::engine::Pass;
use nearhop_proxy::metrics::{ProxyMetrics, Traffic};
use nearhop_runtime::metrics::Metrics;

const MILLISECOND: Duration = Duration::from_millis(1);

fn start(families: &[Family]) -> (Metrics, ProxyMetrics) {
    let registry = Metrics::new();
    let metrics = ProxyMetrics::new(&registry, families);
    (registry, metrics)
}

/// The value of a series.
fn value(registry: &Metrics, series: &str) -> f64 {
    let text = registry.encode();
    let prefix = format!("{series} ");
    let found = text.lines().find_map(|line| line.strip_prefix(&prefix));
    found.unwrap_or_else(|| panic!("{series} in:\n{text}")).parse().expect("the value is a number")
}

/// Upper bounds of a histogram's buckets, as in the text format.
fn buckets(registry: &Metrics, name: &str) -> Vec<String> {
    let prefix = format!("{name}_bucket{{ip_family=\"IPv4\",le=\"");
    let text = registry.encode();
    let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    lines.map(|rest| rest.split('"').next().expect("the line has a bound").to_owned()).collect()
}

#[test]
fn all_metrics_exist_from_the_start() {
    let (registry, _metrics) = start(&[Family::Ipv4, Family::Ipv6]);
    let text = registry.encode();
    let types: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let expected = [
        "kubeproxy_conntrack_reconciler_deleted_entries_total counter",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds histogram",
        "kubeproxy_network_programming_duration_seconds histogram",
        "kubeproxy_proxy_healthz_total counter",
        "kubeproxy_proxy_livez_total counter",
        "kubeproxy_sync_full_proxy_rules_duration_seconds histogram",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds histogram",
        "kubeproxy_sync_proxy_rules_duration_seconds histogram",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total counter",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge",
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter",
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge",
        "kubeproxy_sync_proxy_rules_service_changes_pending gauge",
        "kubeproxy_sync_proxy_rules_service_changes_total counter",
        "nearhop_proxy_conntrack_kept_entries gauge",
        "nearhop_proxy_foreign_changes_total counter",
        "nearhop_proxy_isolated_services gauge",
        "nearhop_proxy_routes gauge",
    ];
    assert_eq!(types, expected.into());

    let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(values.iter().all(|line| line.ends_with(" 0")), "{text}");
    for family in ["IPv4", "IPv6"] {
        let label = format!("ip_family=\"{family}\"");
        // Four histograms of 15 buckets and one of 80, each with +Inf, sum and count; four gauges,
        // four counters, two policies, ten tiers.
        let count = values.iter().filter(|line| line.contains(&label)).count();
        assert_eq!(count, 4 * 18 + 83 + 4 + 4 + 2 + 10, "{text}");
    }
    assert_eq!(values.iter().filter(|line| !line.contains("ip_family")).count(), 4 + 4);
}

#[test]
fn unused_families_have_no_metrics() {
    let (registry, _metrics) = start(&[Family::Ipv6]);
    assert!(!registry.encode().contains("IPv4"));
}

#[test]
fn buckets_match_kube_proxy() {
    let (registry, _metrics) = start(&[Family::Ipv4]);
    let doubling = [
        "0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "0.256", "0.512",
        "1.024", "2.048", "4.096", "8.192", "16.384", "+Inf",
    ];
    for name in [
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    ] {
        assert_eq!(buckets(&registry, name), doubling, "{name}");
    }
    let programming = buckets(&registry, "kubeproxy_network_programming_duration_seconds");
    assert_eq!(programming.len(), 81);
    assert_eq!(programming[..4], ["0.25", "0.5", "1", "2"]);
    assert_eq!(programming[59..63], ["58", "59", "60", "65"]);
    assert_eq!(programming[71..75], ["110", "115", "120", "150"]);
    assert_eq!(programming[78..], ["270", "300", "+Inf"].map(str::to_owned));
}

#[test]
fn successful_and_failed_passes_are_timed() {
    let (registry, metrics) = start(&[Family::Ipv4, Family::Ipv6]);
    let now = Timestamp::from_millisecond(1_772_366_400_500).unwrap();
    metrics.synced(Family::Ipv4, Pass::Full, 3 * MILLISECOND, now);
    metrics.synced(Family::Ipv4, Pass::Partial, MILLISECOND, now);
    metrics.failed(Family::Ipv6, Pass::Partial, 5 * MILLISECOND);
    let count = |name: &str, family: &str| {
        value(&registry, &format!("kubeproxy_{name}_count{{ip_family=\"{family}\"}}"))
    };
    assert_eq!(count("sync_proxy_rules_duration_seconds", "IPv4"), 2.0);
    assert_eq!(count("sync_full_proxy_rules_duration_seconds", "IPv4"), 1.0);
    assert_eq!(count("sync_partial_proxy_rules_duration_seconds", "IPv4"), 1.0);
    assert_eq!(count("sync_proxy_rules_duration_seconds", "IPv6"), 1.0);
    assert_eq!(count("sync_full_proxy_rules_duration_seconds", "IPv6"), 0.0);
    let of = |name: &str, family: &str| {
        value(&registry, &format!("kubeproxy_sync_proxy_rules_{name}{{ip_family=\"{family}\"}}"))
    };
    assert_eq!(of("last_timestamp_seconds", "IPv4"), 1_772_366_400.5);
    assert_eq!(of("last_timestamp_seconds", "IPv6"), 0.0, "the pass failed");
    assert_eq!(of("nftables_sync_failures_total", "IPv4"), 0.0);
    assert_eq!(of("nftables_sync_failures_total", "IPv6"), 1.0);
    metrics.queued(Family::Ipv6, now);
    assert_eq!(of("last_queued_timestamp_seconds", "IPv6"), 1_772_366_400.5);
    metrics.cleanup_failed(Family::Ipv4);
    assert_eq!(of("nftables_cleanup_failures_total", "IPv4"), 1.0);
    metrics.programmed(Family::Ipv4, Duration::from_millis(1500));
    let bucket = "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=";
    assert_eq!(value(&registry, &format!("{bucket}\"1\"}}")), 0.0);
    assert_eq!(value(&registry, &format!("{bucket}\"2\"}}")), 1.0);
}

#[test]
fn changes_are_pending_until_taken() {
    let (registry, metrics) = start(&[Family::Ipv4]);
    metrics.endpoints_changed();
    metrics.endpoints_changed();
    metrics.service_changed();
    let of = |name: &str| value(&registry, &format!("kubeproxy_sync_proxy_rules_{name}"));
    assert_eq!((of("endpoint_changes_pending"), of("service_changes_pending")), (2.0, 1.0));
    metrics.changes_taken();
    assert_eq!((of("endpoint_changes_pending"), of("service_changes_pending")), (0.0, 0.0));
    assert_eq!((of("endpoint_changes_total"), of("service_changes_total")), (2.0, 1.0));
}

#[test]
fn gauges_and_counters_show_the_given_values() {
    let (registry, metrics) = start(&[Family::Ipv4, Family::Ipv6]);
    metrics.no_local_endpoints(Traffic::Internal, Family::Ipv4, 2);
    metrics.no_local_endpoints(Traffic::External, Family::Ipv4, 7);
    let none = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let labels = |policy: &str| format!("{none}{{ip_family=\"IPv4\",traffic_policy=\"{policy}\"}}");
    assert_eq!(value(&registry, &labels("internal")), 2.0);
    assert_eq!(value(&registry, &labels("external")), 7.0);

    metrics.conntrack_reconciled(Family::Ipv4, MILLISECOND, 3, 40);
    metrics.conntrack_reconciled(Family::Ipv4, MILLISECOND, 2, 38);
    metrics.isolated_services(Family::Ipv4, 1);
    metrics.foreign_changes(Family::Ipv4, 4);
    let of = |name: &str| value(&registry, &format!("{name}{{ip_family=\"IPv4\"}}"));
    assert_eq!(of("kubeproxy_conntrack_reconciler_deleted_entries_total"), 5.0);
    assert_eq!(of("kubeproxy_conntrack_reconciler_sync_duration_seconds_count"), 2.0);
    assert_eq!(of("nearhop_proxy_conntrack_kept_entries"), 38.0);
    assert_eq!(of("nearhop_proxy_isolated_services"), 1.0);
    assert_eq!(of("nearhop_proxy_foreign_changes_total"), 4.0);
}

/// One of each tier.
fn tiers() -> Vec<Tier> {
    let all = vec![
        Tier::Key("a".into()),
        Tier::AnyKey,
        Tier::Routing,
        Tier::Weights,
        Tier::SameNode,
        Tier::SameZone,
        Tier::All,
        Tier::Local,
        Tier::OutOfReach,
        Tier::NoEndpoint,
    ];
    for tier in &all {
        // This match does not compile after a new tier is added: add it above, and in metrics.rs.
        match tier {
            Tier::Key(_) | Tier::AnyKey | Tier::Routing | Tier::Weights | Tier::SameNode => {}
            Tier::SameZone | Tier::All | Tier::Local | Tier::OutOfReach | Tier::NoEndpoint => {}
        }
    }
    all
}

#[test]
fn routes_are_counted_by_tier_and_reset() {
    let (registry, metrics) = start(&[Family::Ipv4]);
    let of = |tier: &Tier| {
        let code = tier.code();
        value(&registry, &format!("nearhop_proxy_routes{{ip_family=\"IPv4\",tier=\"{code}\"}}"))
    };
    let all = tiers();
    assert!(all.iter().all(|tier| of(tier) == 0.0), "every tier has a value from the start");
    metrics.routes(Family::Ipv4, all.iter().chain(&[Tier::All, Tier::Key("b".into())]));
    assert_eq!((of(&Tier::All), of(&Tier::Key("c".into())), of(&Tier::Local)), (2.0, 2.0, 1.0));
    metrics.routes(Family::Ipv4, [&Tier::All]);
    assert_eq!((of(&Tier::All), of(&Tier::SameZone)), (1.0, 0.0));
}
