//! The node's topology, and which endpoints its clients reach.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nearhop_net::Namespace;
use nearhop_net::traffic::{Outcome, Protocol, connect};
use nearhop_tests::node::objects::{Endpoint, Port, core};
use nearhop_tests::node::process::ProxyProcess;
use nearhop_tests::node::{Api, NODE, OTHER_NODE, Site, TIMEOUT, run, until};
use nearhop_tests::scene::ControllerProcess;
use serde_json::{Value, json};

/// A Service with an endpoint in zone a and one in zone b, each hinted for its own.
async fn two_zones(site: &mut Site) -> Result<(SocketAddr, IpAddr, IpAddr)> {
    let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
    let service = site.create_cluster_ip("web", &json!({})).await?;
    let endpoints = [Endpoint::here(a).zone("a"), Endpoint::elsewhere(b).zone("b")];
    site.create_slice("web", &endpoints).await?;
    Ok((service.cluster(Port::Web)?, a, b))
}

/// Tier and reason of the TCP port's cluster set.
fn reason(proxy: &ProxyProcess) -> Result<(String, String)> {
    let described = proxy.describe("web")?.context("not served")?;
    let ports = described["ports"].as_array().cloned().unwrap_or_default();
    let tcp = ports.iter().find(|port| port["protocol"] == "TCP").context("no TCP port")?;
    let text = |field: &str| tcp["cluster"][field].as_str().unwrap_or_default().to_owned();
    Ok((text("tier"), text("reason")))
}

#[test]
fn a_late_zone_label_changes_the_endpoints() {
    run("topology::a_late_zone_label_changes_the_endpoints", Api::Memory, async |site| {
        let (to, a, b) = two_zones(site).await?;
        site.create_node(NODE, None).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a, b])?;
        let (tier, why) = reason(&proxy)?;
        ensure!(tier == "all" && why.contains("this node has no zone"), "{tier}: {why}");
        ensure!(site.reached(&site.client, to, 40)?.len() == 2);
        site.move_node(NODE, Some("a")).await?;
        proxy.until_programmed("web", &[a])?;
        ensure!(reason(&proxy)?.0 == "same-zone", "{:?}", reason(&proxy)?);
        ensure!(site.reached(&site.client, to, 20)?.iter().eq([&a]));
        // The zone label is removed again.
        site.move_node(NODE, None).await?;
        proxy.until_programmed("web", &[a, b])?;
        ensure!(site.reached(&site.client, to, 40)?.len() == 2);
        Ok(())
    });
}

/// The Node object is created late: a proxy often starts before the kubelet has registered.
#[test]
fn a_late_node_object_changes_the_endpoints() {
    run("topology::a_late_node_object_changes_the_endpoints", Api::Memory, async |site| {
        let (to, a, b) = two_zones(site).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a, b])?;
        ensure!(site.reached(&site.client, to, 40)?.len() == 2);
        site.create_node(NODE, Some("b")).await?;
        proxy.until_programmed("web", &[b])?;
        ensure!(site.reached(&site.client, to, 20)?.iter().eq([&b]));
        Ok(())
    });
}

/// Connects repeatedly until `stop` is set; returns the outcome of each connection.
fn connect_repeatedly(
    from: &Namespace,
    to: SocketAddr,
    stop: &AtomicBool,
    begun: &Sender<()>,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        outcomes.push(connect(from, Protocol::Tcp, to, TIMEOUT, None)?);
        // Only the first is received.
        let _ = begun.send(());
    }
    Ok(outcomes)
}

#[test]
fn no_connection_fails_when_the_node_moves() {
    run("topology::no_connection_fails_when_the_node_moves", Api::Memory, async |site| {
        let (to, a, b) = two_zones(site).await?;
        site.create_node(NODE, Some("a")).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a])?;
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, begun) = channel();
        let client = {
            let (from, stop) = (site.client.clone(), stop.clone());
            std::thread::spawn(move || connect_repeatedly(&from, to, &stop, &sender))
        };
        begun.recv_timeout(TIMEOUT)?;
        site.move_node(NODE, Some("b")).await?;
        let moved = proxy.until_programmed("web", &[b]);
        // A few more connections, which must all reach `b`.
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let outcomes = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        moved?;
        let servers: Vec<Option<IpAddr>> =
            outcomes.iter().map(|outcome| outcome.server().map(|at| at.ip())).collect();
        let first =
            servers.iter().position(|at| *at == Some(b)).context("no connection reached b")?;
        let (before, after) = servers.split_at(first);
        ensure!(before.iter().all(|at| *at == Some(a)) && !before.is_empty(), "{before:?}");
        ensure!(after.iter().all(|at| *at == Some(b)), "{after:?}");
        Ok(())
    });
}

/// Creates a ready Pod labelled `app: web`.
async fn api_pod(site: &Site, name: &str, node: &str, ip: IpAddr) -> Result<()> {
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "nearhop/echo"}]},
    });
    site.api.post(&core("pods"), &pod).await?.expect(201)?;
    let ip = ip.to_string();
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    site.api.merge(&core(&format!("pods/{name}/status")), &status).await?.ok()?;
    Ok(())
}

fn labelled() -> Value {
    json!({
        "labels": {"service.kubernetes.io/service-proxy-name": "nearhop"},
        "annotations": {"nearhop.dev/topology-keys": "topology.kubernetes.io/zone"},
    })
}

/// Two Services for pods in zones a and b, of which `ours` has the label. The cluster's own controller
/// has written slices for both, the one of `ours` with a pod that nearhop must not use.
async fn with_in_tree_slices(site: &mut Site) -> Result<(SocketAddr, SocketAddr, IpAddr, IpAddr)> {
    let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
    let unknown = site.pod("10.244.1.3")?;
    site.create_node(NODE, Some("a")).await?;
    site.create_node(OTHER_NODE, Some("b")).await?;
    api_pod(site, "web-a", NODE, a).await?;
    api_pod(site, "web-b", OTHER_NODE, b).await?;
    let selector = json!({"selector": {"app": "web"}});
    let ours = site.create_service("ours", &labelled(), "ClusterIP", &selector).await?;
    let theirs = site.create_cluster_ip("theirs", &selector).await?;
    site.create_slice("theirs", &[Endpoint::here(a)]).await?;
    site.create_slice("ours", &[Endpoint::here(unknown)]).await?;
    Ok((ours.cluster(Port::Web)?, theirs.cluster(Port::Web)?, a, b))
}

/// nearhop in addition to the cluster's own controller and proxy, for a Service with the label.
#[test]
fn labelled_services_follow_the_topology_keys_of_nearhops_own_slices() {
    let name = "topology::labelled_services_follow_the_topology_keys_of_nearhops_own_slices";
    run(name, Api::Memory, async |site| -> Result<()> {
        let (ours, theirs, a, b) = with_in_tree_slices(site).await?;
        let server = site.server.as_ref().context("the API server does not run")?;
        let _controller = ControllerProcess::start(server, &["--mode", "labelled"])?;
        let proxy = ProxyProcess::start(site, &["--service-proxy-name", "nearhop"])?;
        proxy.until_programmed("ours", &[a])?;
        ensure!(site.reached(&site.client, ours, 20)?.iter().eq([&a]));
        let described = proxy.describe("ours")?.context("the proxy does not serve ours")?;
        let tier = &described["ports"][0]["cluster"]["tier"];
        ensure!(tier == "same topology.kubernetes.io/zone", "{tier}");
        ensure!(proxy.describe("theirs")?.is_none(), "a Service without the label is served");
        let limit = Duration::from_millis(300);
        let outcome = connect(&site.client, Protocol::Tcp, theirs, limit, None)?;
        ensure!(outcome == Outcome::TimedOut, "a rule matches `theirs`: {outcome:?}");
        // The pod in this zone is deleted: the keys have no `*`, so no endpoint is allowed.
        site.api.delete(&core("pods/web-a?gracePeriodSeconds=0")).await?.ok()?;
        proxy.until_programmed("ours", &[])?;
        site.move_node(NODE, Some("b")).await?;
        proxy.until_programmed("ours", &[b])?;
        ensure!(site.reached(&site.client, ours, 20)?.iter().eq([&b]));
        // Without the label it belongs to another proxy.
        let labels = json!({"service.kubernetes.io/service-proxy-name": null});
        site.patch_service("ours", &json!({"metadata": {"labels": labels}})).await?;
        until("ours is not served", || {
            let described = proxy.describe("ours")?;
            Ok(described.map_or(Ok(()), |described| Err(described.to_string())))
        })
    });
}
