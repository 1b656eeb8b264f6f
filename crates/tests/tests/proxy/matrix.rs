//! UDP flows through every kind of address, one way and two ways, and what becomes of them; with
//! TCP connections beside them, of which nothing ever becomes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nearhop_core::Protocol;
use nearhop_net::Namespace;
use nearhop_net::traffic::{Client, Protocol as Transport};
use nearhop_tests::node::objects::{Frontends, Port};
use nearhop_tests::node::traffic::{Sender, Way};
use nearhop_tests::node::{FlowId, PATIENCE, Site, flows, id_of, until};

/// Clients that are tried, before it is said that an endpoint gets none.
const CLIENTS: usize = 100;

/// Which address a client uses. Those outside use the last two.
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

/// A client in one cell, and the endpoint that it was seen to reach last.
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

/// Flows in every cell.
pub(crate) struct Matrix {
    probes: Vec<Probe>,
    streams: Vec<Client>,
    /// The flows that there were at the last look.
    udp: BTreeSet<FlowId>,
    tcp: BTreeSet<FlowId>,
}

fn endpoint_of(flow: &FlowId) -> IpAddr {
    flow.2.source.ip()
}

/// Those of the node's own programs are left out.
fn tcp_flows() -> Result<BTreeSet<FlowId>> {
    let flows = flows(Protocol::Tcp)?;
    let all = flows.iter().filter(|flow| !flow.original.destination.ip().is_loopback());
    Ok(all.map(id_of).collect())
}

impl Matrix {
    /// Clients of a Service, in each cell as many as it takes for each of these endpoints to have
    /// one; and a TCP connection to each.
    pub(crate) fn open(site: &Site, service: &Frontends, reach: &[IpAddr]) -> Result<Self> {
        let mut matrix = Self::silent(site, service, 0)?;
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
        matrix.look()?;
        matrix.check_ways()?;
        Ok(matrix)
    }

    /// So many clients in each cell, which have not reached an endpoint.
    pub(crate) fn silent(site: &Site, service: &Frontends, each: usize) -> Result<Self> {
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
            let mut stream = Client::new(&site.client, Transport::Tcp, to, PATIENCE, None)?;
            let outcome = stream.ask()?;
            let at = outcome.server().with_context(|| format!("TCP: {outcome:?}"))?;
            missing.remove(&at.ip());
            self.streams.push(stream);
        }
        ensure!(missing.is_empty(), "no connection reached {missing:?}");
        Ok(())
    }

    /// Flows to the addresses that clients send to. An answer that was under way when its flow was
    /// deleted begins one of its own, from the endpoint to the client, which does not matter here.
    fn udp_flows(&self) -> Result<BTreeSet<FlowId>> {
        let addresses: BTreeSet<SocketAddr> =
            self.probes.iter().map(|probe| probe.sender.to).collect();
        let flows = flows(Protocol::Udp)?;
        let ours = flows.iter().filter(|flow| addresses.contains(&flow.original.destination));
        Ok(ours.map(id_of).collect())
    }

    fn look(&mut self) -> Result<()> {
        (self.udp, self.tcp) = (self.udp_flows()?, tcp_flows()?);
        Ok(())
    }

    /// The kernel must have seen answers to those with two ways, and to no other.
    fn check_ways(&self) -> Result<()> {
        const SEEN_REPLY: u32 = 1 << 1;
        for flow in flows(Protocol::Udp)? {
            let answered = flow.status & SEEN_REPLY != 0;
            ensure!(answered == (flow.endpoint().port == 5353), "{flow:?}");
        }
        Ok(())
    }

    /// Each client sends once and does not wait.
    pub(crate) fn nudge(&self) -> Vec<u64> {
        self.probes.iter().map(|probe| probe.sender.send()).collect()
    }

    /// Waits until nothing is left that leads to others than these endpoints, while all clients go
    /// on sending. Then the same clients reach these endpoints, those who were there already at the
    /// same one, by the same flow.
    pub(crate) fn follow(&mut self, allowed: &[IpAddr]) -> Result<()> {
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
        self.look()
    }

    /// Waits until nothing is left that leads to any endpoint: there are no endpoints any more.
    pub(crate) fn lose(&mut self) -> Result<()> {
        self.until_swept(&[])?;
        self.nowhere()?;
        self.check_kept(&[])?;
        self.look()
    }

    /// No endpoint receives what is sent now.
    pub(crate) fn nowhere(&self) -> Result<()> {
        let numbers = self.nudge();
        std::thread::sleep(Duration::from_millis(200));
        for (number, probe) in numbers.iter().zip(&self.probes) {
            let by = self.probes[0].sender.arrived(*number);
            ensure!(by.is_none(), "{:?} reaches {by:?}", probe.cell);
        }
        Ok(())
    }

    fn until_swept(&self, allowed: &[IpAddr]) -> Result<()> {
        until(&format!("flows to {allowed:?} only"), || {
            self.nudge();
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

    /// New clients in each cell reach these endpoints and no other.
    pub(crate) fn newcomers(site: &Site, service: &Frontends, allowed: &[IpAddr]) -> Result<()> {
        for cell in CELLS.into_iter().flat_map(|cell| std::iter::repeat_n(cell, 5)) {
            let found = Probe::new(site, service, cell)?.sender.locate();
            let at = found.with_context(|| format!("{cell:?} is lost"))?;
            ensure!(allowed.contains(&at), "{cell:?} reaches {at}");
        }
        Ok(())
    }
}
