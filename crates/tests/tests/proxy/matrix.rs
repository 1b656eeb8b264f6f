//! UDP flows through every kind of Service address, one-way and two-way, with the endpoint of each;
//! and TCP connections, which the proxy must never affect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nearhop_core::Protocol;
use nearhop_net::Namespace;
use nearhop_net::traffic::{Client, Protocol as Transport};
use nearhop_tests::node::objects::{Frontends, Port};
use nearhop_tests::node::traffic::{Sender, Way};
use nearhop_tests::node::{FlowId, Site, TIMEOUT, flows, id_of, until};

/// Number of clients to try before an endpoint counts as unreachable.
const CLIENTS: usize = 100;

/// Which kind of address a client uses: the pod uses the cluster IP, the outside host the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entrance {
    Cluster,
    Node,
    Balancer,
}

const CELLS: [(Entrance, Way); 6] = [
    (Entrance::Cluster, Way::One),
    (Entrance::Cluster, Way::Two),
    (Entrance::Node, Way::One),
    (Entrance::Node, Way::Two),
    (Entrance::Balancer, Way::One),
    (Entrance::Balancer, Way::Two),
];

fn port(way: Way) -> Port {
    match way {
        Way::One => Port::Log,
        Way::Two => Port::Dns,
    }
}

fn address(service: &Frontends, entrance: Entrance, way: Way) -> Result<SocketAddr> {
    Ok(match entrance {
        Entrance::Cluster => service.cluster(port(way))?,
        Entrance::Node => service.node(port(way)),
        Entrance::Balancer => service.balancer(port(way)),
    })
}

fn from(site: &Site, entrance: Entrance) -> &Namespace {
    match entrance {
        Entrance::Cluster => &site.client,
        Entrance::Node | Entrance::Balancer => &site.outside,
    }
}

/// A client in one cell, and the endpoint that it reached last.
struct Probe {
    cell: (Entrance, Way),
    sender: Sender,
    at: Option<IpAddr>,
}

impl Probe {
    fn new(site: &Site, service: &Frontends, cell: (Entrance, Way)) -> Result<Self> {
        let to = address(service, cell.0, cell.1)?;
        let sender = Sender::new(from(site, cell.0), to, cell.1, &site.arrivals)?;
        Ok(Self { cell, sender, at: None })
    }
}

/// Clients in every cell, which is a kind of address and one or two ways, and their flows.
pub(crate) struct Matrix {
    probes: Vec<Probe>,
    streams: Vec<Client>,
    /// The flows at the last check.
    udp: BTreeSet<FlowId>,
    tcp: BTreeSet<FlowId>,
}

fn endpoint_of(flow: &FlowId) -> IpAddr {
    flow.2.source.ip()
}

/// TCP flows without those of the node's own programs.
fn tcp_flows() -> Result<BTreeSet<FlowId>> {
    let flows = flows(Protocol::Tcp)?;
    let all = flows.iter().filter(|flow| !flow.original.destination.ip().is_loopback());
    Ok(all.map(id_of).collect())
}

impl Matrix {
    /// Opens flows in each cell until each of these endpoints has one, and TCP connections until each
    /// endpoint has one.
    pub(crate) fn open(site: &Site, service: &Frontends, reach: &[IpAddr]) -> Result<Self> {
        let mut matrix = Self::idle(site, service, 0)?;
        for cell in CELLS {
            let mut missing: BTreeSet<IpAddr> = reach.iter().copied().collect();
            for _ in 0..CLIENTS {
                if missing.is_empty() {
                    break;
                }
                let mut probe = Probe::new(site, service, cell)?;
                let at = probe.sender.locate().with_context(|| format!("{cell:?}: lost"))?;
                ensure!(reach.contains(&at), "{cell:?} reached {at}");
                missing.remove(&at);
                probe.at = Some(at);
                matrix.probes.push(probe);
            }
            ensure!(missing.is_empty(), "{cell:?} never reached {missing:?}");
        }
        matrix.open_streams(site, service, reach)?;
        matrix.remember()?;
        matrix.check_ways()?;
        Ok(matrix)
    }

    /// `each` clients in each cell, which have not reached an endpoint.
    pub(crate) fn idle(site: &Site, service: &Frontends, each: usize) -> Result<Self> {
        let mut probes = Vec::new();
        for cell in CELLS.into_iter().flat_map(|cell| std::iter::repeat_n(cell, each)) {
            probes.push(Probe::new(site, service, cell)?);
        }
        let (udp, tcp) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { probes, streams: Vec::new(), udp, tcp })
    }

    fn open_streams(&mut self, site: &Site, service: &Frontends, reach: &[IpAddr]) -> Result<()> {
        let mut missing: BTreeSet<IpAddr> = reach.iter().copied().collect();
        let to = service.cluster(Port::Web)?;
        while !missing.is_empty() && self.streams.len() < CLIENTS {
            let mut stream = Client::new(&site.client, Transport::Tcp, to, TIMEOUT, None)?;
            let outcome = stream.ask()?;
            let at = outcome.server().with_context(|| format!("TCP: {outcome:?}"))?;
            missing.remove(&at.ip());
            self.streams.push(stream);
        }
        ensure!(missing.is_empty(), "no connection reached {missing:?}");
        Ok(())
    }

    /// Flows to the addresses that clients send to. If a flow is deleted while an answer is in flight,
    /// the answer starts a new flow from the endpoint to the client, which does not matter here.
    fn udp_flows(&self) -> Result<BTreeSet<FlowId>> {
        let addresses: BTreeSet<SocketAddr> =
            self.probes.iter().map(|probe| probe.sender.to).collect();
        let flows = flows(Protocol::Udp)?;
        let ours = flows.iter().filter(|flow| addresses.contains(&flow.original.destination));
        Ok(ours.map(id_of).collect())
    }

    fn remember(&mut self) -> Result<()> {
        (self.udp, self.tcp) = (self.udp_flows()?, tcp_flows()?);
        Ok(())
    }

    /// Checks that the kernel has seen answers in two-way flows, and in no others.
    fn check_ways(&self) -> Result<()> {
        const SEEN_REPLY: u32 = 1 << 1;
        for flow in flows(Protocol::Udp)? {
            let answered = flow.status & SEEN_REPLY != 0;
            ensure!(answered == (flow.endpoint().port == 5353), "{flow:?}");
        }
        Ok(())
    }

    /// Each client sends one datagram without waiting.
    pub(crate) fn send_once(&self) -> Vec<u64> {
        self.probes.iter().map(|probe| probe.sender.send()).collect()
    }

    /// Waits until no flow leads to other endpoints, while all clients continue to send. Then checks
    /// that all clients reach these endpoints, and that a client that was at one of them still has
    /// the same endpoint and flow.
    pub(crate) fn until_only_at(&mut self, allowed: &[IpAddr]) -> Result<()> {
        self.until_swept(allowed)?;
        for probe in &mut self.probes {
            let found = probe.sender.locate();
            let at = found.with_context(|| format!("{:?} is lost", probe.cell))?;
            ensure!(allowed.contains(&at), "{:?} reaches {at}", probe.cell);
            if let Some(before) = probe.at.filter(|before| allowed.contains(before)) {
                ensure!(at == before, "{:?} was moved from {before} to {at}", probe.cell);
            }
            probe.at = Some(at);
        }
        self.check_kept(allowed)?;
        self.remember()
    }

    /// Waits until no flow leads to any endpoint, and checks that no datagram arrives.
    pub(crate) fn until_unreachable(&mut self) -> Result<()> {
        self.until_swept(&[])?;
        self.check_nothing_arrives()?;
        self.check_kept(&[])?;
        self.remember()
    }

    /// Checks that no endpoint receives the datagrams that are sent now.
    pub(crate) fn check_nothing_arrives(&self) -> Result<()> {
        let numbers = self.send_once();
        std::thread::sleep(Duration::from_millis(200));
        for (number, probe) in numbers.iter().zip(&self.probes) {
            let by = self.probes[0].sender.arrived(*number);
            ensure!(by.is_none(), "{:?} reaches {by:?}", probe.cell);
        }
        Ok(())
    }

    fn until_swept(&self, allowed: &[IpAddr]) -> Result<()> {
        until(&format!("flows to {allowed:?} only"), || {
            self.send_once();
            let now = self.udp_flows()?;
            let stale = self.udp.iter().filter(|flow| !allowed.contains(&endpoint_of(flow)));
            let left: Vec<&FlowId> = stale.filter(|flow| now.contains(flow)).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("there are {left:?}")) })
        })
    }

    fn check_kept(&mut self, allowed: &[IpAddr]) -> Result<()> {
        let (udp, tcp) = (self.udp_flows()?, tcp_flows()?);
        let kept = self.udp.iter().filter(|flow| allowed.contains(&endpoint_of(flow)));
        let lost: Vec<&FlowId> = kept.filter(|flow| !udp.contains(flow)).collect();
        ensure!(lost.is_empty(), "UDP flows to good endpoints were deleted: {lost:?}");
        let lost: Vec<&FlowId> = self.tcp.difference(&tcp).collect();
        ensure!(lost.is_empty(), "TCP flows were deleted: {lost:?}");
        for stream in &mut self.streams {
            let outcome = stream.ask()?;
            ensure!(outcome.server().is_some(), "a connection ended: {outcome:?}");
        }
        Ok(())
    }

    /// How many clients each cell has at an endpoint.
    pub(crate) fn at(&self, endpoint: IpAddr) -> BTreeMap<(Entrance, Way), usize> {
        let mut counts = BTreeMap::new();
        for probe in self.probes.iter().filter(|probe| probe.at == Some(endpoint)) {
            *counts.entry(probe.cell).or_default() += 1;
        }
        counts
    }

    /// Checks that new clients in each cell reach these endpoints and no others.
    pub(crate) fn check_new_clients(
        site: &Site,
        service: &Frontends,
        allowed: &[IpAddr],
    ) -> Result<()> {
        for cell in CELLS.into_iter().flat_map(|cell| std::iter::repeat_n(cell, 5)) {
            let found = Probe::new(site, service, cell)?.sender.locate();
            let at = found.with_context(|| format!("{cell:?} is lost"))?;
            ensure!(allowed.contains(&at), "{cell:?} reaches {at}");
        }
        Ok(())
    }
}
