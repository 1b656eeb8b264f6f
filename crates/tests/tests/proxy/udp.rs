//! What becomes of UDP flows when endpoints, Services, hints and policies change: none leads to
//! where this node may not send, all others stay as they are.
//!
//! Each test is one such change for all kinds of addresses, one way and two ways: see `matrix`.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use nearhop_core::Protocol;
use nearhop_tests::node::objects::{Endpoint, Frontends};
use nearhop_tests::node::process::ProxyProcess;
use nearhop_tests::node::{Api, NODE, Site, flows, run};
use serde_json::json;

use crate::matrix::Matrix;

/// Two pods, a Service with all kinds of addresses, and a proxy that serves it.
struct Setting {
    proxy: ProxyProcess,
    service: Frontends,
    a: IpAddr,
    b: IpAddr,
}

impl Setting {
    async fn new(site: &mut Site, arguments: &[&str]) -> Result<Self> {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, Some("z")).await?;
        let service = site.balanced("names", &json!({})).await?;
        site.create_slice("names", &[Endpoint::here(a), Endpoint::elsewhere(b)]).await?;
        let proxy = ProxyProcess::start(site, arguments)?;
        proxy.until_programmed("names", &[a, b])?;
        Ok(Self { proxy, service, a, b })
    }

    fn open(&self, site: &Site) -> Result<Matrix> {
        Matrix::open(site, &self.service, &[self.a, self.b])
    }

    /// The same with hints for this node's zone, in which both are.
    async fn hinted(site: &mut Site, arguments: &[&str]) -> Result<Self> {
        let setting = Self::new(site, arguments).await?;
        let (a, b) = (Endpoint::here(setting.a), Endpoint::elsewhere(setting.b));
        site.write_slice("names", &[a.zone("z"), b.zone("z")]).await?;
        setting.proxy.until_programmed("names", &[setting.a, setting.b])?;
        Ok(setting)
    }

    /// `a` is now for another zone.
    async fn rehint(&self, site: &Site) -> Result<()> {
        let (a, b) = (Endpoint::here(self.a), Endpoint::elsewhere(self.b));
        site.write_slice("names", &[a.zone("y"), b.zone("z")]).await?;
        self.proxy.until_programmed("names", &[self.b])
    }
}

#[test]
fn an_endpoint_is_deleted() {
    run("udp::an_endpoint_is_deleted", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        site.write_slice("names", &[Endpoint::elsewhere(setting.b)]).await?;
        matrix.follow(&[setting.b])
    });
}

#[test]
fn all_endpoints_go() {
    run("udp::all_endpoints_go", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        site.write_slice("names", &[]).await?;
        matrix.lose()?;
        // And one comes back.
        site.write_slice("names", &[Endpoint::here(setting.a)]).await?;
        matrix.follow(&[setting.a])
    });
}

/// Clients that began to send before the Service existed: the kernel remembers that they
/// were sent into the blue.
#[test]
fn the_first_endpoint_comes() {
    run("udp::the_first_endpoint_comes", Api::Forgets, async |site| {
        let a = site.pod("10.244.1.1")?;
        site.create_node(NODE, None).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let spec = json!({"clusterIP": "10.96.7.7", "ports": [
            {"name": "web", "port": 80, "nodePort": 30080},
            {"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"},
            {"name": "log", "port": 514, "nodePort": 30514, "protocol": "UDP"},
        ]});
        let planned = Frontends { name: "names".to_owned(), object: json!({"spec": spec}) };
        let mut matrix = Matrix::silent(site, &planned, 2)?;
        matrix.nowhere()?;
        let untranslated = flows(Protocol::Udp)?.iter().filter(|flow| !flow.translated()).count();
        ensure!(untranslated == 12, "{untranslated} flows lead into the blue");
        site.balanced("names", &spec).await?;
        site.create_slice("names", &[]).await?;
        proxy.until_programmed("names", &[])?;
        matrix.nowhere()?;
        site.write_slice("names", &[Endpoint::elsewhere(a)]).await?;
        matrix.follow(&[a])
    });
}

#[test]
fn the_service_is_deleted() {
    run("udp::the_service_is_deleted", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        site.delete_service("names").await?;
        matrix.lose()
    });
}

/// While it terminates its clients may stay with it, newcomers go elsewhere; then it is gone.
#[test]
fn an_endpoint_terminates_and_is_gone() {
    run("udp::an_endpoint_terminates_and_is_gone", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let (a, b) = (setting.a, setting.b);
        let mut matrix = setting.open(site)?;
        let ends = Endpoint::here(a).terminating();
        site.write_slice("names", &[ends, Endpoint::elsewhere(b)]).await?;
        setting.proxy.until_programmed("names", &[b])?;
        Matrix::newcomers(site, &setting.service, &[b])?;
        matrix.follow(&[a, b])?;
        site.write_slice("names", &[Endpoint::elsewhere(b)]).await?;
        matrix.follow(&[b])
    });
}

#[test]
fn hints_change_and_old_flows_stay() {
    run("udp::hints_change_and_old_flows_stay", Api::Forgets, async |site| {
        let setting = Setting::hinted(site, &["--udp-rehome", "new-only"]).await?;
        let mut matrix = setting.open(site)?;
        let before = matrix.at(setting.a);
        setting.rehint(site).await?;
        Matrix::newcomers(site, &setting.service, &[setting.b])?;
        matrix.follow(&[setting.a, setting.b])?;
        ensure!(before.len() == 6 && matrix.at(setting.a) == before, "{before:?}");
        // Who stayed is not forgotten when the whole Service goes.
        site.delete_service("names").await?;
        matrix.lose()
    });
}

/// Flows that stayed with an endpoint which is not the nearest go with it.
#[test]
fn hints_change_and_then_the_endpoint_goes() {
    run("udp::hints_change_and_then_the_endpoint_goes", Api::Forgets, async |site| {
        let setting = Setting::hinted(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.rehint(site).await?;
        matrix.follow(&[setting.a, setting.b])?;
        // A new proxy knows no more than the kernel and the API.
        setting.proxy.kill()?;
        let _proxy = ProxyProcess::start(site, &[])?;
        matrix.follow(&[setting.a, setting.b])?;
        site.write_slice("names", &[Endpoint::elsewhere(setting.b).zone("z")]).await?;
        matrix.follow(&[setting.b])
    });
}

#[test]
fn hints_change_and_old_flows_move() {
    run("udp::hints_change_and_old_flows_move", Api::Forgets, async |site| {
        let setting = Setting::hinted(site, &["--udp-rehome", "immediate"]).await?;
        let mut matrix = setting.open(site)?;
        setting.rehint(site).await?;
        Matrix::newcomers(site, &setting.service, &[setting.b])?;
        matrix.follow(&[setting.b])
    });
}

#[test]
fn the_first_endpoint_on_this_node_comes() {
    run("udp::the_first_endpoint_on_this_node_comes", Api::Forgets, async |site| {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let local = json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"});
        let service = site.balanced("names", &local).await?;
        site.create_slice("names", &[Endpoint::elsewhere(b)]).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("names", &[])?;
        let mut matrix = Matrix::silent(site, &service, 2)?;
        matrix.nowhere()?;
        site.write_slice("names", &[Endpoint::elsewhere(b), Endpoint::here(a)]).await?;
        matrix.follow(&[a])
    });
}

#[test]
fn the_policies_become_local() {
    run("udp::the_policies_become_local", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        let local = json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"});
        site.patch_service("names", &json!({"spec": local})).await?;
        matrix.follow(&[setting.a])?;
        let cluster =
            json!({"internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster"});
        site.patch_service("names", &json!({"spec": cluster})).await?;
        setting.proxy.until_programmed("names", &[setting.a, setting.b])?;
        matrix.follow(&[setting.a])
    });
}

#[test]
fn the_proxy_is_killed_and_nothing_has_changed() {
    run("udp::the_proxy_is_killed_and_nothing_has_changed", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.proxy.kill()?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("names", &[setting.a, setting.b])?;
        matrix.follow(&[setting.a, setting.b])?;
        let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
        ensure!(proxy.metric(deleted)? == 0.0, "flows were deleted");
        Ok(())
    });
}

#[test]
fn the_proxy_is_killed_and_an_endpoint_goes_meanwhile() {
    run("udp::the_proxy_is_killed_and_an_endpoint_goes_meanwhile", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.proxy.kill()?;
        site.write_slice("names", &[Endpoint::here(setting.a)]).await?;
        matrix.nudge();
        let _proxy = ProxyProcess::start(site, &[])?;
        matrix.follow(&[setting.a])
    });
}

#[test]
fn the_proxy_is_killed_and_the_service_goes_meanwhile() {
    run("udp::the_proxy_is_killed_and_the_service_goes_meanwhile", Api::Forgets, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.proxy.kill()?;
        site.delete_service("names").await?;
        let _proxy = ProxyProcess::start(site, &[])?;
        matrix.lose()
    });
}
