//! Cases of `proxy_packet_flows`: a node with its Services, and the expected ends of packets.
//!
//! `conform` sends virtual packets; the tests of the proxy also send real packets. Both use this
//! reader and this comparison. Deliberately absent: sockets, and rules; `netfilter` has the rules.

mod environment;
mod expect;
mod services;
mod walked;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nearhop_core::Protocol;
use nearhop_core::route::RouteTable;
use nearhop_netfilter::config::Config;
use nearhop_simulator::walk::Packet;

use crate::objects::{address, protocol};
use crate::read::{CaseError, Field, parse_file};
use environment::Environment;
pub use expect::{End, Expected, Masquerade, Out, Seen};
pub(crate) use services::Rows;
pub use walked::{RulesError, Walked};

/// The source port of a virtual packet.
const SOURCE_PORT: u16 = 40_000;

/// One case: a node, the configuration of its rules, its routes, and packets.
#[derive(Clone, Debug)]
pub struct FlowCase {
    /// Its id.
    pub id: String,
    /// The configuration of the rules.
    pub config: Config,
    /// The routes of the node.
    pub routes: RouteTable,
    /// The node's own addresses.
    pub node_addresses: Vec<IpAddr>,
    /// Every endpoint in the case, usable or not.
    pub endpoints: BTreeSet<(SocketAddr, Protocol)>,
    /// The packets.
    pub flows: Vec<Flow>,
}

/// The first packet of a connection, and its expected end.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Its id.
    pub id: String,
    /// The packet.
    pub packet: Packet,
    /// What is expected.
    pub expected: Expected,
}

/// Reads the cases of a file of this group.
pub fn read_cases(bytes: &[u8]) -> Result<Vec<FlowCase>, CaseError> {
    let file = parse_file(bytes)?;
    let file = Field::root(&file);
    file.get("cases")?.required()?.each(|row| {
        let mut case = read_scene(row, &file)?;
        case.flows = row.get("flows")?.each(|flow| case.read_flow(flow, row))?;
        Ok(case)
    })
}

/// Reads a case without its flows, so that an invalid flow does not affect the others.
pub(crate) fn read_scene(row: &Field<'_>, file: &Field<'_>) -> Result<FlowCase, CaseError> {
    let environment = Environment::of(row, file)?;
    let config = environment.config()?;
    let rows = Rows::read(&row.get("services")?)?;
    Ok(FlowCase {
        id: row.get("id")?.text()?.to_owned(),
        routes: rows.routes(environment.place()?),
        node_addresses: environment.node_addresses()?,
        endpoints: rows.endpoints(),
        config,
        flows: Vec::new(),
    })
}

impl FlowCase {
    /// Reads one of the case's flows.
    pub(crate) fn read_flow(&self, flow: &Field<'_>, case: &Field<'_>) -> Result<Flow, CaseError> {
        let source = address(&flow.get("src")?)?;
        let port = flow.get("sport")?;
        let port = if port.is_null() { SOURCE_PORT } else { port.whole(1, 65_535)? as u16 };
        let packet = Packet {
            source: SocketAddr::new(source, port),
            destination: SocketAddr::new(
                address(&flow.get("dst")?)?,
                flow.get("dport")?.whole(0, 65_535)? as u16,
            ),
            protocol: protocol(&flow.get("protocol")?)?,
            iif: flow.get("iif")?.text_or("eth0")?.to_owned(),
            mark: 0,
        };
        let id = flow.get("id")?.text_or(flow.path())?.to_owned();
        Ok(Flow { id, packet, expected: Expected::read(flow, case)? })
    }
}
