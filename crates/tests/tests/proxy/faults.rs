//! Faults on a node: other programs change the table, slices change very fast, conntrack has very many
//! flows.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nearhop_core::{Family, Name, Protocol};
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Batch, Bytes, Element, Op, Table};
use nearhop_proxy::kernel::Kernel;
use nearhop_skip::skip;
use nearhop_tests::http::{Request, Target};
use nearhop_tests::node::objects::{Endpoint, Port, core, slice_path, slices_path};
use nearhop_tests::node::process::ProxyProcess;
use nearhop_tests::node::traffic::{Sender, Way};
use nearhop_tests::node::{Api, NODE, Site, flows, run, until};
use serde_json::{Value, json};

const FOREIGN: &str = "nearhop_proxy_foreign_changes_total{ip_family=\"IPv4\"}";

fn table() -> Table {
    Table { family: Family::Ipv4, name: Name::from("nearhop") }
}

fn apply(ops: Vec<Op>) -> Result<()> {
    Kernel::open()?.apply(&Batch { table: table(), ops })?;
    Ok(())
}

/// The elements of a set of nearhop's table; empty if there is no table.
fn elements(set: SetId) -> Result<Vec<Element>> {
    let dumped = Kernel::open()?.dump_elements(&table(), set.name())?;
    Ok(dumped.into_iter().map(|dumped| dumped.element).collect())
}

fn until_repaired(proxy: &ProxyProcess, since: f64) -> Result<f64> {
    until("a repair", || {
        let now = proxy.metric(FOREIGN)?;
        Ok(if now > since { Ok(now) } else { Err(format!("still {now}")) })
    })
}

/// Creates a Service with an endpoint, and a proxy that verifies its table five times a second.
async fn start_verifying(site: &mut Site) -> Result<(ProxyProcess, SocketAddr, IpAddr)> {
    start_verifying_every(site, "200ms").await
}

async fn start_verifying_every(
    site: &mut Site,
    every: &str,
) -> Result<(ProxyProcess, SocketAddr, IpAddr)> {
    let a = site.pod("10.244.1.1")?;
    site.create_node(NODE, None).await?;
    let service = site.create_cluster_ip("web", &json!({})).await?;
    site.create_slice("web", &[Endpoint::here(a)]).await?;
    let proxy = ProxyProcess::start(site, &["--verify-period", every])?;
    proxy.until_programmed("web", &[a])?;
    let to = service.cluster(Port::Web)?;
    ensure!(site.connect(&site.client, to)? == a);
    Ok((proxy, to, a))
}

#[test]
fn a_deleted_table_is_restored() {
    run("faults::a_deleted_table_is_restored", Api::Memory, async |site| {
        let (proxy, to, a) = start_verifying(site).await?;
        let before = elements(SetId::Counted(1))?.len();
        apply(vec![Op::DeleteTable])?;
        until_repaired(&proxy, 0.0)?;
        ensure!(elements(SetId::Counted(1))?.len() == before);
        ensure!(site.connect(&site.client, to)? == a);
        // The restored table follows later changes.
        let b = site.pod("10.244.1.2")?;
        site.write_slice("web", &[Endpoint::here(b)]).await?;
        proxy.until_programmed("web", &[b])?;
        ensure!(site.connect(&site.client, to)? == b);
        Ok(())
    });
}

/// Disturbs nearhop's table `times` times. The kernel notifies the proxy, which otherwise verifies its
/// table only once an hour.
fn check_repaired_at_once(name: &str, times: usize, disturb: fn() -> Result<Disturbed>) {
    run(name, Api::Memory, async |site| -> Result<()> {
        let (proxy, to, a) = start_verifying_every(site, "1h").await?;
        let mut repairs = 0.0;
        for _ in 0..times {
            let began = Instant::now();
            if disturb()? == Disturbed::NotPossible {
                return Ok(());
            }
            repairs = until_repaired(&proxy, repairs)?;
            println!("the table is back after {:?}", began.elapsed());
            ensure!(site.connect(&site.client, to)? == a);
        }
        Ok(())
    });
}

/// Whether a test could disturb the table.
#[derive(PartialEq)]
enum Disturbed {
    Done,
    NotPossible,
}

#[test]
fn a_deleted_table_is_restored_at_once() {
    check_repaired_at_once("faults::a_deleted_table_is_restored_at_once", 3, || {
        apply(vec![Op::DeleteTable])?;
        Ok(Disturbed::Done)
    });
}

/// Most firewall scripts begin with `nft flush ruleset`.
#[test]
fn a_flush_of_all_tables_is_repaired_at_once() {
    check_repaired_at_once("faults::a_flush_of_all_tables_is_repaired_at_once", 1, || {
        let Ok(status) = Command::new("nft").args(["flush", "ruleset"]).status() else {
            skip("the nft program is not installed");
            return Ok(Disturbed::NotPossible);
        };
        ensure!(status.success());
        Ok(Disturbed::Done)
    });
}

#[test]
fn foreign_changes_of_elements_are_repaired() {
    let name = "faults::foreign_changes_of_elements_are_repaired";
    run(name, Api::Memory, async |site| -> Result<()> {
        let (proxy, to, a) = start_verifying(site).await?;
        let set = Name::from(SetId::Counted(1).name());
        let ours = elements(SetId::Counted(1))?;
        let mut foreign = ours.first().context("the Service has no element")?.clone();
        foreign.key = Bytes::EMPTY.address("10.96.200.200".parse()?).protocol(6).port(81);
        apply(vec![Op::AddElements { set: set.clone(), elements: vec![foreign.clone()] }])?;
        let once = until_repaired(&proxy, 0.0)?;
        let left = elements(SetId::Counted(1))?;
        ensure!(left.iter().all(|element| element.key != foreign.key), "{left:?}");
        ensure!(left.len() == ours.len() && site.connect(&site.client, to)? == a);
        apply(vec![Op::DeleteElements { set, elements: ours.clone() }])?;
        until_repaired(&proxy, once)?;
        ensure!(elements(SetId::Counted(1))?.len() == ours.len());
        ensure!(site.connect(&site.client, to)? == a);
        Ok(())
    });
}

/// A program that changes other tables all the time causes verifications, not repairs.
#[test]
fn changes_of_other_tables_cause_no_repair() {
    run("faults::changes_of_other_tables_cause_no_repair", Api::Memory, async |site| {
        let (proxy, to, a) = start_verifying(site).await?;
        let theirs = Table { family: Family::Ipv4, name: Name::from("theirs") };
        for _ in 0..20 {
            let add = Op::AddTable { comment: Name::from("not ours") };
            for op in [add, Op::DeleteTable] {
                Kernel::open()?.apply(&Batch { table: theirs.clone(), ops: vec![op] })?;
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        ensure!(proxy.metric(FOREIGN)? == 0.0, "the proxy repaired its table");
        ensure!(site.connect(&site.client, to)? == a);
        Ok(())
    });
}

/// Toggles an endpoint of `flap`, on several connections at once, at least a thousand times and
/// until it is stopped.
fn flood(api: &Target, ip: IpAddr, writes: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = slice_path("flap");
    let write = async |connection: &mut nearhop_tests::http::Connection, number: u64| {
        let endpoints: Value = match number % 2 {
            0 => json!([]),
            _ => json!([{"addresses": [ip.to_string()], "conditions": {"ready": true}}]),
        };
        let body = json!({"endpoints": endpoints}).to_string();
        let patch = Request::new("PATCH", &path).bytes("application/merge-patch+json", body);
        connection.send(patch).await?.ok()
    };
    let writer = async || -> Result<()> {
        let mut connection = api.connect().await?;
        while !stop.load(Ordering::Relaxed) || writes.load(Ordering::Relaxed) < 1_000 {
            write(&mut connection, writes.fetch_add(1, Ordering::Relaxed)).await?;
        }
        Ok(())
    };
    runtime.block_on(async { tokio::try_join!(writer(), writer(), writer(), writer()).map(drop) })
}

fn syncs(proxy: &ProxyProcess) -> Result<f64> {
    proxy.metric("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}")
}

/// Changes `steady` while the flood lasts, and waits for each change to be in the kernel.
async fn change_steady(
    site: &Site,
    proxy: &ProxyProcess,
    to: SocketAddr,
    writes: &AtomicU64,
    order: &[IpAddr],
) -> Result<()> {
    until("the flood", || {
        let so_far = writes.load(Ordering::Relaxed);
        Ok(if so_far > 100 { Ok(()) } else { Err(format!("{so_far} writes")) })
    })?;
    for at in order {
        site.write_slice("steady", &[Endpoint::here(at)]).await?;
        proxy.until_programmed("steady", &[*at])?;
        ensure!(site.connect(&site.client, to)? == *at);
    }
    Ok(())
}

#[test]
fn a_flapping_service_does_not_delay_others() {
    run("faults::a_flapping_service_does_not_delay_others", Api::Memory, async |site| {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let steady = site.create_cluster_ip("steady", &json!({})).await?.cluster(Port::Web)?;
        let flap = site.create_cluster_ip("flap", &json!({})).await?.cluster(Port::Web)?;
        site.create_slice("steady", &[Endpoint::here(a)]).await?;
        site.create_slice("flap", &[]).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("steady", &[a])?;
        let (before, api) = (syncs(&proxy)?, site.api.clone());
        let (writes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let flooding = {
            let (writes, stop) = (writes.clone(), stop.clone());
            std::thread::spawn(move || flood(&api, a, &writes, &stop))
        };
        let changed = change_steady(site, &proxy, steady, &writes, &[b, a, b]).await;
        stop.store(true, Ordering::Relaxed);
        flooding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        changed?;
        site.write_slice("flap", &[Endpoint::here(b)]).await?;
        proxy.until_programmed("flap", &[b])?;
        ensure!(site.connect(&site.client, flap)? == b);
        let (syncs, writes) = (syncs(&proxy)? - before, writes.load(Ordering::Relaxed));
        println!("{writes} writes, {syncs} syncs");
        ensure!(writes >= 1_000 && syncs < writes as f64 / 2.0, "{writes} writes, {syncs} syncs");
        Ok(())
    });
}

/// Ports of the Service that most flows go through.
const PORTS: u16 = 100;

/// Creates a Service with 100 ports, which all lead to the port that does not answer.
async fn wide_service(site: &Site, endpoints: &[IpAddr]) -> Result<IpAddr> {
    let numbers = 0..PORTS;
    let ports: Vec<Value> = numbers
        .clone()
        .map(|n| json!({"name": format!("p{n}"), "port": 1000 + n, "protocol": "UDP"}))
        .collect();
    let service = json!({"metadata": {"name": "wide"}, "spec": {"ports": ports}});
    let made = site.api.post(&core("services"), &service).await?.expect(201)?.json();
    let ports: Vec<Value> = numbers
        .map(|n| json!({"name": format!("p{n}"), "port": 5140, "protocol": "UDP"}))
        .collect();
    let endpoints: Vec<Value> = endpoints.iter().map(|ip| json!({"addresses": [ip]})).collect();
    let slice = json!({
        "metadata": {"name": "wide", "labels": {"kubernetes.io/service-name": "wide"}},
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    });
    site.api.post(&slices_path(), &slice).await?.expect(201)?;
    Ok(made["spec"]["clusterIP"].as_str().unwrap_or_default().parse()?)
}

/// Sends one datagram from each of `sources` ports to each port of the wide Service.
fn fill(site: &Site, to: IpAddr, sources: u16) -> Result<()> {
    site.client.run(|| -> Result<()> {
        for source in 0..sources {
            let socket = UdpSocket::bind(("0.0.0.0", 10_000 + source))?;
            for port in 0..PORTS {
                socket.send_to(b"-", SocketAddr::new(to, 1000 + port))?;
            }
        }
        Ok(())
    })
}

/// Number of source ports for [`fill`]. The limit of conntrack entries is that of the machine, not of
/// the network namespace.
fn sources() -> Result<u16> {
    let limit = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max")?;
    let most = limit.trim().parse::<usize>()? / 2 / usize::from(PORTS);
    Ok(u16::try_from(most.min(1_000))?)
}

/// The conntrack ids of the flows to an address, sorted.
fn flows_to(ip: IpAddr) -> Result<Vec<u32>> {
    let all = flows(Protocol::Udp)?;
    let to = all.iter().filter(|flow| flow.original.destination.ip() == ip);
    let mut ids: Vec<u32> = to.map(|flow| flow.id).collect();
    ids.sort_unstable();
    Ok(ids)
}

#[test]
fn only_stale_flows_are_deleted_among_100_000() {
    run("faults::only_stale_flows_are_deleted_among_100_000", Api::Memory, async |site| {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let wide = wide_service(site, &[a, b]).await?;
        let one = site.create_cluster_ip("one", &json!({})).await?.cluster(Port::Dns)?;
        site.create_slice("one", &[Endpoint::here(a)]).await?;
        let proxy = ProxyProcess::start(site, &["--conntrack-udp-timeout", "10m"])?;
        proxy.until_programmed("wide", &[a, b])?;
        let sources = sources()?;
        let all = usize::from(sources) * usize::from(PORTS);
        until("conntrack has every flow", || {
            // A datagram may be lost; existing flows do not change.
            fill(site, wide, sources)?;
            let found = flows_to(wide)?.len();
            Ok(if found == all { Ok(()) } else { Err(format!("{found} of {all}")) })
        })?;
        let sender = |_| Sender::new(&site.client, one, Way::Two, &site.arrivals);
        let senders: Vec<Sender> = (0..10).map(sender).collect::<Result<_>>()?;
        ensure!(senders.iter().all(|sender| sender.locate() == Some(a)));
        let (many, few) = (flows_to(wide)?, flows_to(one.ip())?);
        let began = Instant::now();
        site.write_slice("one", &[Endpoint::here(b)]).await?;
        let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
        until("ten stale flows are deleted", || {
            let found = proxy.metric(deleted)?;
            Ok(if found == 10.0 { Ok(()) } else { Err(format!("{found} are")) })
        })?;
        println!("{} flows: 10 of them gone after {:?}", many.len() + 10, began.elapsed());
        ensure!(flows_to(one.ip())?.iter().all(|id| !few.contains(id)));
        ensure!(senders.iter().all(|sender| sender.locate() == Some(b)));
        // No client sends on these flows now: a deleted flow would not return.
        until("the other flows are unchanged", || {
            let found = flows_to(wide)?;
            Ok(if found == many { Ok(()) } else { Err(format!("there are {}", found.len())) })
        })
    });
}
