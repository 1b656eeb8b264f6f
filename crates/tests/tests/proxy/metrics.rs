//! Metrics with the names of kube-proxy's metrics, for existing dashboards.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use nearhop_tests::node::objects::{Endpoint, slice, slices_path};
use nearhop_tests::node::process::ProxyProcess;
use nearhop_tests::node::{Api, NODE, run, until};
use serde_json::json;

/// The names of kube-proxy's metrics in its nftables mode, with their types and whether they have a
/// series for each family.
const NAMES: [(&str, &str, &[&str]); 17] = [
    ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram", FAMILY),
    ("kubeproxy_sync_full_proxy_rules_duration_seconds", "histogram", FAMILY),
    ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "histogram", FAMILY),
    ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge", FAMILY),
    ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "gauge", FAMILY),
    ("kubeproxy_network_programming_duration_seconds", "histogram", FAMILY),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "gauge", &[]),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter", &[]),
    ("kubeproxy_sync_proxy_rules_service_changes_pending", "gauge", &[]),
    ("kubeproxy_sync_proxy_rules_service_changes_total", "counter", &[]),
    (
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "gauge",
        &[
            "ip_family=\"IPv4\",traffic_policy=\"internal\"",
            "ip_family=\"IPv4\",traffic_policy=\"external\"",
            "ip_family=\"IPv6\",traffic_policy=\"internal\"",
            "ip_family=\"IPv6\",traffic_policy=\"external\"",
        ],
    ),
    ("kubeproxy_proxy_healthz_total", "counter", &["code=\"200\"", "code=\"503\""]),
    ("kubeproxy_proxy_livez_total", "counter", &["code=\"200\"", "code=\"503\""]),
    ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "counter", FAMILY),
    ("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "counter", FAMILY),
    ("kubeproxy_conntrack_reconciler_sync_duration_seconds", "histogram", FAMILY),
    ("kubeproxy_conntrack_reconciler_deleted_entries_total", "counter", FAMILY),
];

const FAMILY: &[&str] = &["ip_family=\"IPv4\"", "ip_family=\"IPv6\""];

/// The series of a metric; of a histogram, their counts.
fn series(name: &str, kind: &str, labels: &[&str]) -> Vec<String> {
    let name = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
    match labels {
        [] => vec![name],
        labels => labels.iter().map(|labels| format!("{name}{{{labels}}}")).collect(),
    }
}

#[test]
fn all_metrics_exist_from_the_start() {
    run("metrics::all_metrics_exist_from_the_start", Api::Memory, async |site| {
        site.create_node(NODE, None).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let text = proxy.get("/metrics")?.1;
        for (name, kind, labels) in NAMES {
            ensure!(text.contains(&format!("# TYPE {name} {kind}\n")), "no {kind} {name}");
            for series in series(name, kind, labels) {
                let there = text.lines().any(|line| line.starts_with(&format!("{series} ")));
                ensure!(there, "no series {series}");
            }
        }
        Ok(())
    });
}

#[test]
fn changes_syncs_and_their_delay_are_counted() {
    run("metrics::changes_syncs_and_their_delay_are_counted", Api::Memory, async |site| {
        site.create_node(NODE, None).await?;
        site.create_cluster_ip("web", &json!({})).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let programming = |family: &str| {
            let name = "kubeproxy_network_programming_duration_seconds_count";
            proxy.metric(&format!("{name}{{ip_family=\"{family}\"}}"))
        };
        let partial =
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
        let before = proxy.metric(partial)?;
        ensure!(programming("IPv4")? == 0.0);
        let mut triggered = slice("web", &[Endpoint::here("10.244.1.1")]);
        triggered["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string()});
        site.api.post(&slices_path(), &triggered).await?.expect(201)?;
        proxy.until_programmed("web", &["10.244.1.1".parse()?])?;
        until("the delay is counted", || {
            let seen = programming("IPv4")?;
            Ok(if seen == 1.0 { Ok(()) } else { Err(format!("it is {seen}")) })
        })?;
        ensure!(programming("IPv6")? == 0.0, "a slice of IPv4 counts for IPv6");
        ensure!(proxy.metric(partial)? > before, "no partial sync was counted");
        // A slice without a trigger time adds no observation.
        site.write_slice("web", &[Endpoint::here("10.244.1.2")]).await?;
        proxy.until_programmed("web", &["10.244.1.2".parse()?])?;
        ensure!(programming("IPv4")? == 1.0);
        ensure!(proxy.metric("kubeproxy_sync_proxy_rules_endpoint_changes_total")? >= 2.0);
        ensure!(proxy.metric("kubeproxy_sync_proxy_rules_endpoint_changes_pending")? == 0.0);
        Ok(())
    });
}

/// A gauge counts Services with policy Local and no endpoint on this node.
#[test]
fn services_without_local_endpoints_are_counted() {
    run("metrics::services_without_local_endpoints_are_counted", Api::Memory, async |site| {
        site.create_node(NODE, None).await?;
        site.create_cluster_ip("web", &json!({"internalTrafficPolicy": "Local"})).await?;
        site.create_slice("web", &[Endpoint::elsewhere("10.244.1.1")]).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let until_counted = |wanted: f64| -> Result<()> {
            let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
            let series = format!("{name}{{ip_family=\"IPv4\",traffic_policy=\"internal\"}}");
            until(&format!("{wanted} ports"), || {
                let found = proxy.metric(&series)?;
                Ok(if found == wanted { Ok(()) } else { Err(format!("there are {found}")) })
            })
        };
        until_counted(3.0)?;
        site.write_slice("web", &[Endpoint::here("10.244.1.1")]).await?;
        until_counted(0.0)
    });
}
