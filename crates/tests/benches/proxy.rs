//! Performance of the proxy: a full sync, one change, memory, and new connections through the rules.
//!
//! `cargo bench -p nearhop-tests --bench proxy` prints figures and asserts nothing, because they depend
//! on the machine as much as on the proxy. It runs in a new network namespace. `-- sync`, `-- weights`,
//! `-- sticky`, `-- connections` and `-- flows` select parts; `NEARHOP_BENCH_SERVICES=44000` selects one
//! size of `sync` and `sticky`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nearhop_core::labels::{Labels, well_known};
use nearhop_core::model::{
    AddressType, ClusterIps, Endpoint, Node, Service, ServicePort, Slice, SlicePort, TargetPort,
};
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::routing::SliceRouting;
use nearhop_core::world::{KnownNodes, Settings};
use nearhop_core::{Change, Family, Name, Object, ObjectRef, Protocol, ServiceKey, World};
use nearhop_net::traffic::{self, Server, connect_many};
use nearhop_net::{Namespace, Star, sandbox};
use nearhop_netfilter::config::Config;
use nearhop_proxy::engine::{Engine, Scope};
use nearhop_proxy::kernel::Kernel;

fn main() -> Result<()> {
    sandbox::enter()?;
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == part);
    println!("kernel {}", read("/proc/sys/kernel/osrelease"));
    let only: Option<usize> =
        std::env::var("NEARHOP_BENCH_SERVICES").ok().and_then(|text| text.parse().ok());
    if runs("sync") {
        for (services, endpoints) in [(10_000, 10), (44_000, 10), (1, 1_000), (1, 5_000)] {
            if only.is_none_or(|only| only == services) {
                measure_sync(services, endpoints, Setup::Plain)?;
            }
        }
    }
    if runs("weights") {
        measure_sync(10_000, 10, Setup::OneWeighted)?;
        measure_sync(10_000, 10, Setup::AllWeighted)?;
    }
    if runs("sticky") {
        for services in [1_000, 2_000, 10_000] {
            if only.is_none_or(|only| only == services) {
                measure_sync(services, 10, Setup::AllSticky)?;
            }
        }
    }
    if runs("connections") {
        measure_connections()?;
    }
    if runs("flows") {
        measure_flows()?;
    }
    Ok(())
}

/// Additional settings of the Services in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    Plain,
    /// One Service has weights.
    OneWeighted,
    /// All Services have weights; no two Services have the same.
    AllWeighted,
    /// All Services have session affinity.
    AllSticky,
}

impl Setup {
    /// Whether a Service has weights. Changes are made to those that do.
    fn has_weights(self, service: usize) -> bool {
        match self {
            Self::Plain | Self::AllSticky => false,
            Self::OneWeighted => service == 0,
            Self::AllWeighted => true,
        }
    }

    fn routing(self, service: usize) -> SliceRouting {
        if !self.has_weights(service) {
            return SliceRouting::default();
        }
        let (a, b) = (700_000 - service, 200_000 + service);
        let row = format!(r#"{{"v":1,"weights":{{"a":{{"a":{a},"b":{b},"c":100000}}}}}}"#);
        SliceRouting::read(Some(&row))
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Resident memory of this process, in MB.
fn resident() -> f64 {
    let status = read("/proc/self/status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kilobytes: f64 =
        line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    kilobytes / 1024.0
}

fn cluster_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0000 + service as u32 + 1)
}

fn endpoint_ip(service: usize, endpoint: usize) -> IpAddr {
    Ipv4Addr::from(0x0ac8_0000_u32.wrapping_add((service * 5_003 + endpoint) as u32)).into()
}

fn key(service: usize) -> ServiceKey {
    ServiceKey::new(format!("ns-{}", service % 100), format!("service-{service}"))
}

fn service(number: usize, setup: Setup) -> Change {
    let mut service = Service::new(key(number));
    service.cluster_ips = ClusterIps::Addresses(vec![cluster_ip(number).into()]);
    service.ip_families = vec![Family::Ipv4];
    service.ports = vec![ServicePort {
        name: Name::from("http"),
        protocol: Protocol::Tcp,
        port: 80,
        target: TargetPort::Number(8080),
        node_port: 0,
        app_protocol: None,
    }];
    if setup == Setup::AllSticky {
        service.session_affinity = Some(Duration::from_secs(10_800));
    }
    Change::put(service)
}

/// Slices of at most 100 endpoints, in three zones.
fn slices(number: usize, addresses: &[IpAddr], setup: Setup) -> Vec<Change> {
    let routing = setup.routing(number);
    let key = key(number);
    let ports: Arc<[SlicePort]> = Arc::from([SlicePort {
        name: Name::from("http"),
        protocol: Protocol::Tcp,
        port: Some(8080),
        app_protocol: None,
    }]);
    let slice = |(part, addresses): (usize, &[IpAddr])| {
        let endpoints = addresses.iter().enumerate().map(|(i, address)| Endpoint {
            node: Some(Name::from(format!("node-{}", (number + i) % 5_000))),
            zone: Some(Name::from(["a", "b", "c"][i % 3])),
            ..Endpoint::at(*address)
        });
        let labels = [
            (well_known::SERVICE_NAME, key.name.as_str()),
            (well_known::MANAGED_BY, well_known::IN_TREE_CONTROLLER),
        ];
        Change::put(Slice {
            namespace: key.namespace.clone(),
            name: Name::from(format!("{}-{part}", key.name)),
            labels: labels.into_iter().collect::<Labels>(),
            owners: Vec::new(),
            deleting: false,
            address_type: AddressType::Ip(Family::Ipv4),
            ports: ports.clone(),
            endpoints: endpoints.collect(),
            trigger_time: None,
            routing: routing.clone(),
        })
    };
    addresses.chunks(100).enumerate().map(slice).collect()
}

fn addresses(service: usize, endpoints: usize) -> Vec<IpAddr> {
    (0..endpoints).map(|endpoint| endpoint_ip(service, endpoint)).collect()
}

/// The proxy without its event loop: world, routes, rules.
struct Proxy {
    world: World,
    routes: RouteTable,
    engine: Engine,
    kernel: Kernel,
}

impl Proxy {
    fn new() -> Result<Self> {
        let mut world = World::new(Settings { nodes: KnownNodes::Own, ..Settings::default() });
        let mut node = Node::new("node-0");
        node.labels = [(well_known::ZONE, "a")].into_iter().collect();
        world.apply(Change::put(node.clone()));
        let routes = RouteTable::build(&world, Place::of(&node));
        let engine = Engine::new(Config::new(Family::Ipv4));
        Ok(Self { world, routes, engine, kernel: Kernel::open()? })
    }

    /// Applies changes and syncs the kernel; returns the time until its acknowledgement.
    fn apply(&mut self, changes: Vec<Change>) -> Result<Duration> {
        let began = Instant::now();
        let touched = self.world.apply_all(changes);
        self.routes.refresh(&self.world, &touched);
        let services: BTreeSet<ServiceKey> = touched.routes;
        self.engine.sync(&mut self.kernel, &self.routes, Scope::Some(&services))?;
        Ok(began.elapsed())
    }
}

fn measure_sync(services: usize, endpoints: usize, setup: Setup) -> Result<()> {
    let namespace = Namespace::new("sync")?;
    namespace.run(|| {
        println!("\n{services} Services x {endpoints} endpoints, {setup:?}");
        let before = resident();
        let mut proxy = Proxy::new()?;
        let mut changes = Vec::new();
        for number in 0..services {
            changes.push(service(number, setup));
            changes.extend(slices(number, &addresses(number, endpoints), setup));
        }
        println!("  full sync from decoded objects   {:8.0} ms", ms(proxy.apply(changes)?));
        println!(
            "  resident memory                  {:8.0} MB ({before:.0} MB before)",
            resident()
        );
        let began = Instant::now();
        proxy.engine.full(&mut proxy.kernel, &proxy.routes)?;
        println!("  full pass that finds no change   {:8.0} ms", ms(began.elapsed()));
        let (world, place) = (&proxy.world, proxy.routes.place().clone());
        let began = Instant::now();
        std::hint::black_box(RouteTable::build(world, place));
        println!("  of it, choosing all routes       {:8.0} ms", ms(began.elapsed()));
        measure_changes(&mut proxy, services, endpoints, setup)?;
        let mut kernel = Kernel::open()?;
        Engine::remove(&mut kernel, proxy.engine.config())?;
        Ok(())
    })
}

fn measure_changes(
    proxy: &mut Proxy,
    services: usize,
    endpoints: usize,
    setup: Setup,
) -> Result<()> {
    // Additions to verdict maps are slow where each Service has elements in them.
    let count = if setup == Setup::AllSticky { 100 } else { 2_000 };
    let mut replaced = Vec::new();
    let mut grown = Vec::new();
    for i in 0..count {
        let number = if setup == Setup::OneWeighted { 0 } else { (i * 7_919) % services };
        let mut all = addresses(number, endpoints);
        // Replaces one endpoint, and restores it with the next change.
        let at = i % endpoints;
        let old = std::mem::replace(&mut all[at], Ipv4Addr::from(0x0b00_0000 + i as u32).into());
        replaced.push(proxy.apply(slices(number, &all, setup))?);
        all[at] = old;
        proxy.apply(slices(number, &all, setup))?;
        // Adds one endpoint, and removes it again.
        all.push(Ipv4Addr::from(0x0c00_0000 + i as u32).into());
        grown.push(proxy.apply(slices(number, &all, setup))?);
        all.pop();
        let mut back = slices(number, &all, setup);
        if endpoints.is_multiple_of(100) {
            let key = key(number);
            let name = Name::from(format!("{}-{}", key.name, endpoints / 100));
            back.push(Change::Gone(ObjectRef::Slice(key.namespace, name)));
        }
        grown.push(proxy.apply(back)?);
    }
    show("one endpoint replaced", &mut replaced);
    show("one endpoint more or less", &mut grown);
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for i in 0..count / 4 {
        let number = services + i;
        let mut new = vec![service(number, setup)];
        new.extend(slices(number, &addresses(number, 10), setup));
        added.push(proxy.apply(new)?);
        let key = key(number);
        let slice = Name::from(format!("{}-0", key.name));
        let gone = vec![
            Change::Gone(ObjectRef::Service(key.clone())),
            Change::Gone(ObjectRef::Slice(key.namespace.clone(), slice)),
        ];
        removed.push(proxy.apply(gone)?);
    }
    show("a Service added", &mut added);
    show("a Service removed", &mut removed);
    Ok(())
}

fn show(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| ms(times[((times.len() - 1) as f64 * share) as usize]);
    println!(
        "  {what:32} p50 {:7.3} ms, p99 {:7.3} ms, most {:7.3} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// New connections per second through the rules and without rules, in turns.
fn measure_connections() -> Result<()> {
    const CONNECTIONS: usize = 5_000;
    const ROUNDS: usize = 5;
    println!("\nnew TCP connections per second, {CONNECTIONS} each, median of {ROUNDS} rounds");
    let node: IpAddr = Ipv4Addr::new(192, 168, 0, 2).into();
    let mut star = Star::new(&[node])?;
    let client = star.host("client", &[Ipv4Addr::new(10, 244, 0, 2).into()])?;
    let backends: Vec<IpAddr> = (0..4).map(|i| Ipv4Addr::new(10, 244, 1, i + 1).into()).collect();
    let mut servers = Vec::new();
    for (i, address) in backends.iter().enumerate() {
        let host = star.host(&format!("pod{i}"), &[*address])?;
        let at = SocketAddr::new(*address, 8080);
        servers.push(Server::start(&host, traffic::Protocol::Tcp, at)?);
    }
    let rate = |to: SocketAddr| -> Result<f64> {
        let began = Instant::now();
        connect_many(&client, &[], to, CONNECTIONS, 8)?;
        Ok(CONNECTIONS as f64 / began.elapsed().as_secs_f64())
    };
    let direct = SocketAddr::new(backends[0], 8080);
    let mut rates: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    for services in [1, 1_000, 10_000] {
        star.node().run(|| -> Result<()> {
            let mut proxy = Proxy::new()?;
            let mut changes = Vec::new();
            for number in 0..services {
                changes.push(service(number, Setup::Plain));
                let all = if number == 0 { backends.clone() } else { addresses(number, 10) };
                changes.extend(slices(number, &all, Setup::Plain));
            }
            proxy.apply(changes)?;
            Ok(())
        })?;
        for _ in 0..ROUNDS {
            let through = rate(SocketAddr::new(cluster_ip(0).into(), 80))?;
            star.node().run(|| -> Result<()> {
                let mut kernel = Kernel::open()?;
                let held = kernel.tables()?;
                anyhow::ensure!(!held.is_empty(), "the rules are missing");
                Ok(())
            })?;
            rates.entry(services).or_default().push((through, rate(direct)?));
        }
        star.node().run(|| -> Result<()> {
            let mut kernel = Kernel::open()?;
            Engine::remove(&mut kernel, &Config::new(Family::Ipv4)).context("removing")
        })?;
        rates.entry(0).or_default().push((rate(direct)?, 1.0));
    }
    let median = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let none = median(rates[&0].iter().map(|(rate, _)| *rate).collect());
    println!("  no rules at all, to the endpoint {none:8.0}");
    for (services, rates) in rates.iter().filter(|(services, _)| **services > 0) {
        let through = median(rates.iter().map(|(through, _)| *through).collect());
        let beside = median(rates.iter().map(|(_, direct)| *direct).collect());
        println!(
            "  {services:6} Services: through the rules {through:8.0}, past them {beside:8.0} ({:.0} %)",
            through / beside * 100.0
        );
    }
    drop(servers);
    Ok(())
}

/// New UDP flows per second from a pod through a node's rules to a thousand endpoints that do not
/// answer: through a Service with weights and one without, in turns. UDP adds little other work, so
/// this shows the cost of the rules more clearly than TCP connections do.
fn measure_flows() -> Result<()> {
    const FLOWS: usize = 8_000;
    const ROUNDS: usize = 7;
    const ENDPOINTS: usize = 1_000;
    println!("\nnew UDP flows per second, {FLOWS} each, median of {ROUNDS} rounds");
    let mut star = Star::new(&[Ipv4Addr::new(192, 168, 0, 2).into()])?;
    let sources: Vec<IpAddr> =
        (0..2 * ROUNDS + 2).map(|i| Ipv4Addr::new(10, 244, 0, i as u8 + 1).into()).collect();
    let client = star.host("client", &sources)?;
    let pods = addresses(0, ENDPOINTS);
    let _silent = star.host("pods", &pods)?;
    star.node().run(|| -> Result<()> {
        let mut changes = Vec::new();
        for number in [0, 1] {
            let setup = if number == 0 { Setup::OneWeighted } else { Setup::Plain };
            changes.push(with_protocol(service(number, setup), Protocol::Udp));
            let slices = slices(number, &pods, setup).into_iter();
            changes.extend(slices.map(|slice| with_protocol(slice, Protocol::Udp)));
        }
        Proxy::new()?.apply(changes)?;
        Ok(())
    })?;
    let rate = |source: IpAddr, service: usize| -> Result<f64> {
        let to = SocketAddr::new(cluster_ip(service).into(), 80);
        client.run(|| -> Result<f64> {
            let began = Instant::now();
            for port in 0..FLOWS as u16 {
                let socket = UdpSocket::bind(SocketAddr::new(source, 20_000 + port))?;
                socket.send_to(b"x", to)?;
            }
            Ok(FLOWS as f64 / began.elapsed().as_secs_f64())
        })
    };
    let mut rates = [Vec::new(), Vec::new()];
    for pair in sources.chunks(2) {
        for (service, source) in pair.iter().enumerate() {
            rates[service].push(rate(*source, service)?);
        }
    }
    let [weighted, even] = rates.map(|mut rates| {
        // The first round is the warm-up.
        rates.remove(0);
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("  without weights                  {even:8.0}");
    let percent = weighted / even * 100.0;
    println!("  with weights, in three zones     {weighted:8.0} ({percent:.1} %)");
    Ok(())
}

fn with_protocol(change: Change, protocol: Protocol) -> Change {
    match change {
        Change::Put(Object::Service(mut service)) => {
            service.ports.iter_mut().for_each(|port| port.protocol = protocol);
            Change::Put(Object::Service(service))
        }
        Change::Put(Object::Slice(mut slice)) => {
            let ports = slice.ports.iter().cloned();
            slice.ports = ports.map(|port| SlicePort { protocol, ..port }).collect();
            Change::Put(Object::Slice(slice))
        }
        other => other,
    }
}
