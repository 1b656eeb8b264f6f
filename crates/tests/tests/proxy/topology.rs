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
use nearhop_tests::node::{Api, NODE, OTHER_NODE, PATIENCE, Site, run, until};
use nearhop_tests::scene::ControllerProcess;
use serde_json::{Value, json};

/// A Service with an endpoint in zone a and one in zone b, each hinted for its own.
async fn two_zones(site: &mut Site) -> Result<(SocketAddr, IpAddr, IpAddr)> {
    let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
    let service = site.clustered("web", &json!({})).await?;
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
fn a_zone_that_comes_late_is_followed_when_it_comes() {
    run("topology::a_zone_that_comes_late_is_followed_when_it_comes", Api::Forgets, async |site| {
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
        // And goes again.
        site.move_node(NODE, None).await?;
        proxy.until_programmed("web", &[a, b])?;
        ensure!(site.reached(&site.client, to, 40)?.len() == 2);
        Ok(())
    });
}

/// The Node itself comes late: a proxy often starts before the kubelet has registered.
#[test]
fn a_node_that_comes_late_is_followed_when_it_comes() {
    run("topology::a_node_that_comes_late_is_followed_when_it_comes", Api::Forgets, async |site| {
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

/// Connects again and again until it is stopped: what became of each connection.
fn hammer(
    from: &Namespace,
    to: SocketAddr,
    stop: &AtomicBool,
    begun: &Sender<()>,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        outcomes.push(connect(from, Protocol::Tcp, to, PATIENCE, None)?);
        // Only the first is received.
        let _ = begun.send(());
    }
    Ok(outcomes)
}

#[test]
fn a_node_that_moves_loses_no_connection() {
    run("topology::a_node_that_moves_loses_no_connection", Api::Forgets, async |site| {
        let (to, a, b) = two_zones(site).await?;
        site.create_node(NODE, Some("a")).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a])?;
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, begun) = channel();
        let client = {
            let (from, stop) = (site.client.clone(), stop.clone());
            std::thread::spawn(move || hammer(&from, to, &stop, &tell))
        };
        begun.recv_timeout(PATIENCE)?;
        site.move_node(NODE, Some("b")).await?;
        let moved = proxy.until_programmed("web", &[b]);
        // A few more, of which all must be there.
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let outcomes = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        moved?;
        let servers: Vec<Option<IpAddr>> =
            outcomes.iter().map(|outcome| outcome.server().map(|at| at.ip())).collect();
        let first = servers.iter().position(|at| *at == Some(b)).context("never moved")?;
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
/// has written slices for both, the one of `ours` with a pod that nearhop must not know.
async fn beside_another(site: &mut Site) -> Result<(SocketAddr, SocketAddr, IpAddr, IpAddr)> {
    let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
    let unknown = site.pod("10.244.1.3")?;
    site.create_node(NODE, Some("a")).await?;
    site.create_node(OTHER_NODE, Some("b")).await?;
    api_pod(site, "web-a", NODE, a).await?;
    api_pod(site, "web-b", OTHER_NODE, b).await?;
    let selector = json!({"selector": {"app": "web"}});
    let ours = site.expose("ours", &labelled(), "ClusterIP", &selector).await?;
    let theirs = site.clustered("theirs", &selector).await?;
    site.create_slice("theirs", &[Endpoint::here(a)]).await?;
    site.create_slice("ours", &[Endpoint::here(unknown)]).await?;
    Ok((ours.cluster(Port::Web)?, theirs.cluster(Port::Web)?, a, b))
}

/// nearhop beside the cluster's own controller and proxy, for a Service that asks for it.
#[test]
fn labelled_services_follow_the_topology_keys_of_nearhops_own_slices() {
    let name = "topology::labelled_services_follow_the_topology_keys_of_nearhops_own_slices";
    run(name, Api::Forgets, async |site| -> Result<()> {
        let (ours, theirs, a, b) = beside_another(site).await?;
        let server = site.server.as_ref().context("it runs")?;
        let _controller = ControllerProcess::start(server, &["--mode", "labelled"])?;
        let proxy = ProxyProcess::start(site, &["--service-proxy-name", "nearhop"])?;
        proxy.until_programmed("ours", &[a])?;
        ensure!(site.reached(&site.client, ours, 20)?.iter().eq([&a]));
        let described = proxy.describe("ours")?.context("served")?;
        let tier = &described["ports"][0]["cluster"]["tier"];
        ensure!(tier == "same topology.kubernetes.io/zone", "{tier}");
        ensure!(proxy.describe("theirs")?.is_none(), "a Service without the label is served");
        let patience = Duration::from_millis(300);
        let outcome = connect(&site.client, Protocol::Tcp, theirs, patience, None)?;
        ensure!(outcome == Outcome::TimedOut, "a rule handles it: {outcome:?}");
        // The pod in this zone goes: the keys are hard, so no endpoint is in reach.
        site.api.delete(&core("pods/web-a?gracePeriodSeconds=0")).await?.ok()?;
        proxy.until_programmed("ours", &[])?;
        site.move_node(NODE, Some("b")).await?;
        proxy.until_programmed("ours", &[b])?;
        ensure!(site.reached(&site.client, ours, 20)?.iter().eq([&b]));
        // Without the label it belongs to another proxy.
        let labels = json!({"service.kubernetes.io/service-proxy-name": null});
        site.patch_service("ours", &json!({"metadata": {"labels": labels}})).await?;
        until("ours is given up", || {
            let described = proxy.describe("ours")?;
            Ok(described.map_or(Ok(()), |described| Err(described.to_string())))
        })
    });
}
