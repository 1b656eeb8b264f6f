//! `kill -9` and a restart: the proxy writes only what has changed meanwhile, and connections stay
//! open.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use nearhop_net::traffic::{Client, Protocol};
use nearhop_tests::node::objects::{Endpoint, Frontends, Port};
use nearhop_tests::node::process::ProxyProcess;
use nearhop_tests::node::{Api, NODE, Site, TIMEOUT, generation, run};
use serde_json::{Value, json};

/// Number of Services in addition to the sticky one.
const OTHERS: usize = 10;

/// A Service with affinity and two endpoints, other Services, and a proxy.
struct Setting {
    proxy: ProxyProcess,
    sticky: Frontends,
    a: IpAddr,
    b: IpAddr,
}

impl Setting {
    async fn new(site: &mut Site) -> Result<Self> {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, Some("z")).await?;
        let endpoints = [Endpoint::here(a), Endpoint::elsewhere(b)];
        let sticky =
            site.create_load_balancer("sticky", &json!({"sessionAffinity": "ClientIP"})).await?;
        site.create_slice("sticky", &endpoints).await?;
        for other in 0..OTHERS {
            let name = format!("other-{other}");
            site.create_cluster_ip(&name, &json!({})).await?;
            site.create_slice(&name, &endpoints).await?;
        }
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("sticky", &[a, b])?;
        Ok(Self { proxy, sticky, a, b })
    }

    /// A connection to the Service with affinity, and the endpoint that it reached.
    fn connect(&self, site: &Site) -> Result<(Client, IpAddr)> {
        let to = self.sticky.cluster(Port::Web)?;
        let mut stream = Client::new(&site.client, Protocol::Tcp, to, TIMEOUT, None)?;
        let outcome = stream.ask()?;
        let server = outcome.server().ok_or_else(|| anyhow::anyhow!("{outcome:?}"))?;
        Ok((stream, server.ip()))
    }
}

/// A proxy that starts creates its lock table: one batch.
const LOCK: u32 = 1;

/// What the last sync of a family did.
fn last_sync(described: &Value, family: &str) -> (String, u64) {
    let families = described["families"].as_array().cloned().unwrap_or_default();
    let found = families.iter().find(|one| one["family"] == family).cloned().unwrap_or_default();
    let last = &found["lastSync"];
    let pass = last["pass"].as_str().unwrap_or_default().to_owned();
    (pass, last["elements"].as_u64().unwrap_or(u64::MAX))
}

#[test]
fn nothing_is_written_when_nothing_has_changed() {
    run("restart::nothing_is_written_when_nothing_has_changed", Api::Memory, async |site| {
        let setting = Setting::new(site).await?;
        let (mut stream, at) = setting.connect(site)?;
        let before = generation()?;
        setting.proxy.kill()?;
        ensure!(generation()? == before);
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("sticky", &[setting.a, setting.b])?;
        ensure!(generation()? == before.wrapping_add(LOCK), "the proxy wrote to the kernel");
        let described = proxy.describe("sticky")?.unwrap_or_default();
        for family in ["IPv4", "IPv6"] {
            ensure!(last_sync(&described, family) == ("Full".to_owned(), 0), "{described:#}");
        }
        ensure!(stream.ask()?.server().is_some(), "an established connection ended");
        // New connections of a client reach the same endpoint.
        let reached = site.reached(&site.client, setting.sticky.cluster(Port::Web)?, 12)?;
        ensure!(reached.iter().eq([&at]), "the client was at {at}, and is at {reached:?}");
        Ok(())
    });
}

#[test]
fn only_changes_during_the_restart_are_written() {
    run("restart::only_changes_during_the_restart_are_written", Api::Memory, async |site| {
        let setting = Setting::new(site).await?;
        let (mut stream, at) = setting.connect(site)?;
        let before = generation()?;
        setting.proxy.kill()?;
        site.write_slice("other-3", &[Endpoint::here(setting.a)]).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("other-3", &[setting.a])?;
        let one = before.wrapping_add(LOCK + 1);
        ensure!(generation()? == one, "the proxy wrote more than one batch");
        let described = proxy.describe("other-3")?.unwrap_or_default();
        let (pass, elements) = last_sync(&described, "IPv4");
        // Two slots become one, at three ports.
        ensure!(pass == "Full" && (1..=12).contains(&elements), "{described:#}");
        ensure!(last_sync(&described, "IPv6") == ("Full".to_owned(), 0), "{described:#}");
        ensure!(stream.ask()?.server().is_some(), "an established connection ended");
        let reached = site.reached(&site.client, setting.sticky.cluster(Port::Web)?, 12)?;
        ensure!(reached.iter().eq([&at]), "the client was at {at}, and is at {reached:?}");
        Ok(())
    });
}

/// A client with affinity to an endpoint that was removed while the proxy was down gets another one.
#[test]
fn affinity_to_removed_endpoints_is_deleted_after_a_restart() {
    run(
        "restart::affinity_to_removed_endpoints_is_deleted_after_a_restart",
        Api::Memory,
        async |site| {
            let setting = Setting::new(site).await?;
            let (_stream, at) = setting.connect(site)?;
            let other = if at == setting.a { setting.b } else { setting.a };
            setting.proxy.kill()?;
            site.write_slice("sticky", &[Endpoint::here(other)]).await?;
            let proxy = ProxyProcess::start(site, &[])?;
            proxy.until_programmed("sticky", &[other])?;
            let reached = site.reached(&site.client, setting.sticky.cluster(Port::Web)?, 12)?;
            ensure!(reached.iter().eq([&other]), "{reached:?}");
            Ok(())
        },
    );
}
