//! UDP flows when endpoints, Services, hints and policies change: the proxy deletes flows to endpoints
//! that this node may not use, and keeps all others.
//!
//! Each test makes one such change, with all kinds of addresses, one-way and two-way: see `matrix`.

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
        let service = site.create_load_balancer("names", &json!({})).await?;
        site.create_slice("names", &[Endpoint::here(a), Endpoint::elsewhere(b)]).await?;
        let proxy = ProxyProcess::start(site, arguments)?;
        proxy.until_programmed("names", &[a, b])?;
        Ok(Self { proxy, service, a, b })
    }

    fn open(&self, site: &Site) -> Result<Matrix> {
        Matrix::open(site, &self.service, &[self.a, self.b])
    }

    /// The same with both endpoints in this node's zone, and hints for it.
    async fn hinted(site: &mut Site, arguments: &[&str]) -> Result<Self> {
        let setting = Self::new(site, arguments).await?;
        let (a, b) = (Endpoint::here(setting.a), Endpoint::elsewhere(setting.b));
        site.write_slice("names", &[a.zone("z"), b.zone("z")]).await?;
        setting.proxy.until_programmed("names", &[setting.a, setting.b])?;
        Ok(setting)
    }

    /// Changes the hint of `a` to another zone.
    async fn rehint(&self, site: &Site) -> Result<()> {
        let (a, b) = (Endpoint::here(self.a), Endpoint::elsewhere(self.b));
        site.write_slice("names", &[a.zone("y"), b.zone("z")]).await?;
        self.proxy.until_programmed("names", &[self.b])
    }
}

#[test]
fn flows_of_a_deleted_endpoint_move() {
    run("udp::flows_of_a_deleted_endpoint_move", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        site.write_slice("names", &[Endpoint::elsewhere(setting.b)]).await?;
        matrix.until_only_at(&[setting.b])
    });
}

#[test]
fn flows_are_deleted_with_the_last_endpoint() {
    run("udp::flows_are_deleted_with_the_last_endpoint", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        site.write_slice("names", &[]).await?;
        matrix.until_unreachable()?;
        // One endpoint is back.
        site.write_slice("names", &[Endpoint::here(setting.a)]).await?;
        matrix.until_only_at(&[setting.a])
    });
}

/// Clients that send before the Service exists: conntrack has their flows without a translation.
#[test]
fn flows_older_than_the_service_reach_the_first_endpoint() {
    run("udp::flows_older_than_the_service_reach_the_first_endpoint", Api::Memory, async |site| {
        let a = site.pod("10.244.1.1")?;
        site.create_node(NODE, None).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let spec = json!({"clusterIP": "10.96.7.7", "ports": [
            {"name": "web", "port": 80, "nodePort": 30080},
            {"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"},
            {"name": "log", "port": 514, "nodePort": 30514, "protocol": "UDP"},
        ]});
        let planned = Frontends { name: "names".to_owned(), object: json!({"spec": spec}) };
        let mut matrix = Matrix::idle(site, &planned, 2)?;
        matrix.check_nothing_arrives()?;
        let untranslated = flows(Protocol::Udp)?.iter().filter(|flow| !flow.translated()).count();
        ensure!(untranslated == 12, "{untranslated} flows without a translation");
        site.create_load_balancer("names", &spec).await?;
        site.create_slice("names", &[]).await?;
        proxy.until_programmed("names", &[])?;
        matrix.check_nothing_arrives()?;
        site.write_slice("names", &[Endpoint::elsewhere(a)]).await?;
        matrix.until_only_at(&[a])
    });
}

#[test]
fn flows_are_deleted_with_the_service() {
    run("udp::flows_are_deleted_with_the_service", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        site.delete_service("names").await?;
        matrix.until_unreachable()
    });
}

/// Flows stay with an endpoint while it terminates, and new clients reach another one. When it is
/// removed, its flows move.
#[test]
fn flows_stay_at_a_terminating_endpoint_until_its_removal() {
    run("udp::flows_stay_at_a_terminating_endpoint_until_its_removal", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let (a, b) = (setting.a, setting.b);
        let mut matrix = setting.open(site)?;
        let ends = Endpoint::here(a).terminating();
        site.write_slice("names", &[ends, Endpoint::elsewhere(b)]).await?;
        setting.proxy.until_programmed("names", &[b])?;
        Matrix::check_new_clients(site, &setting.service, &[b])?;
        matrix.until_only_at(&[a, b])?;
        site.write_slice("names", &[Endpoint::elsewhere(b)]).await?;
        matrix.until_only_at(&[b])
    });
}

#[test]
fn flows_stay_when_hints_change() {
    run("udp::flows_stay_when_hints_change", Api::Memory, async |site| {
        let setting = Setting::hinted(site, &["--udp-rehome", "new-only"]).await?;
        let mut matrix = setting.open(site)?;
        let before = matrix.at(setting.a);
        setting.rehint(site).await?;
        Matrix::check_new_clients(site, &setting.service, &[setting.b])?;
        matrix.until_only_at(&[setting.a, setting.b])?;
        ensure!(before.len() == 6 && matrix.at(setting.a) == before, "{before:?}");
        // The flows that stayed are deleted with the Service.
        site.delete_service("names").await?;
        matrix.until_unreachable()
    });
}

/// Flows that stayed with an endpoint of another zone are deleted when it is removed.
#[test]
fn flows_that_stayed_move_when_the_endpoint_is_removed() {
    run("udp::flows_that_stayed_move_when_the_endpoint_is_removed", Api::Memory, async |site| {
        let setting = Setting::hinted(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.rehint(site).await?;
        matrix.until_only_at(&[setting.a, setting.b])?;
        // A new proxy has only the state of the kernel and of the API.
        setting.proxy.kill()?;
        let _proxy = ProxyProcess::start(site, &[])?;
        matrix.until_only_at(&[setting.a, setting.b])?;
        site.write_slice("names", &[Endpoint::elsewhere(setting.b).zone("z")]).await?;
        matrix.until_only_at(&[setting.b])
    });
}

#[test]
fn flows_move_when_hints_change_with_immediate_rehome() {
    run("udp::flows_move_when_hints_change_with_immediate_rehome", Api::Memory, async |site| {
        let setting = Setting::hinted(site, &["--udp-rehome", "immediate"]).await?;
        let mut matrix = setting.open(site)?;
        setting.rehint(site).await?;
        Matrix::check_new_clients(site, &setting.service, &[setting.b])?;
        matrix.until_only_at(&[setting.b])
    });
}

#[test]
fn flows_reach_the_first_local_endpoint() {
    run("udp::flows_reach_the_first_local_endpoint", Api::Memory, async |site| {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let local = json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"});
        let service = site.create_load_balancer("names", &local).await?;
        site.create_slice("names", &[Endpoint::elsewhere(b)]).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("names", &[])?;
        let mut matrix = Matrix::idle(site, &service, 2)?;
        matrix.check_nothing_arrives()?;
        site.write_slice("names", &[Endpoint::elsewhere(b), Endpoint::here(a)]).await?;
        matrix.until_only_at(&[a])
    });
}

#[test]
fn flows_move_when_the_policies_become_local() {
    run("udp::flows_move_when_the_policies_become_local", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        let local = json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"});
        site.patch_service("names", &json!({"spec": local})).await?;
        matrix.until_only_at(&[setting.a])?;
        let cluster =
            json!({"internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster"});
        site.patch_service("names", &json!({"spec": cluster})).await?;
        setting.proxy.until_programmed("names", &[setting.a, setting.b])?;
        matrix.until_only_at(&[setting.a])
    });
}

#[test]
fn a_restart_without_changes_deletes_no_flow() {
    run("udp::a_restart_without_changes_deletes_no_flow", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.proxy.kill()?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("names", &[setting.a, setting.b])?;
        matrix.until_only_at(&[setting.a, setting.b])?;
        let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
        ensure!(proxy.metric(deleted)? == 0.0, "flows were deleted");
        Ok(())
    });
}

#[test]
fn a_restart_moves_flows_of_an_endpoint_removed_meanwhile() {
    run("udp::a_restart_moves_flows_of_an_endpoint_removed_meanwhile", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.proxy.kill()?;
        site.write_slice("names", &[Endpoint::here(setting.a)]).await?;
        matrix.send_once();
        let _proxy = ProxyProcess::start(site, &[])?;
        matrix.until_only_at(&[setting.a])
    });
}

#[test]
fn a_restart_deletes_flows_of_a_service_deleted_meanwhile() {
    run("udp::a_restart_deletes_flows_of_a_service_deleted_meanwhile", Api::Memory, async |site| {
        let setting = Setting::new(site, &[]).await?;
        let mut matrix = setting.open(site)?;
        setting.proxy.kill()?;
        site.delete_service("names").await?;
        let _proxy = ProxyProcess::start(site, &[])?;
        matrix.until_unreachable()
    });
}
