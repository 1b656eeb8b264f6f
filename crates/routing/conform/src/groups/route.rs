//! The endpoints that one node uses.

use std::net::SocketAddr;
use std::sync::Arc;

use nearhop_core::model::{
    Conditions, Endpoint, Hints, Node, Service, ServicePort, ServiceType, TrafficPolicy,
};
use nearhop_core::route::{
    Agreed, Backend, HintGates, Place, PortPolicy, RouteEndpoint, RouteInput, choose_route,
};
use nearhop_core::{EndpointKey, Name};
use serde_json::{Value, json};

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{address, usual_service};
use crate::read::{CaseError, Field};

const SET: Rule = Rule::Bag(&Rule::Exact);

/// `categorize_endpoints`: the choice of endpoints on one node.
pub(super) fn categorize(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let policy = policy(&case.row.get("service")?)?;
    let place = place(&case.row)?;
    let rows = case.row.get("endpoints")?.list()?;
    let endpoints = rows.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
    let locals = rows.iter().map(|row| row.get("local")?.flag()).collect::<Result<Vec<_>, _>>()?;
    let endpoints: Vec<RouteEndpoint<'_>> = (endpoints.iter().zip(locals))
        .map(|((key, endpoint), local)| {
            // Cases mark local endpoints without the name of the node.
            RouteEndpoint { local, ..RouteEndpoint::read(*key, endpoint, None) }
        })
        .collect();
    let nodes = case.row.get("prefer_same_gate")?.flag()?;
    let decision = choose_route(RouteInput {
        policy,
        endpoints: &endpoints,
        routing: Agreed::Absent,
        place: &place,
        gates: HintGates { zones: true, nodes },
    });
    let cluster = || decision.cluster.iter().flat_map(|set| &set.backends);
    let local = || decision.local.iter().flat_map(|set| &set.backends);
    check.fields(&case.row, |key| match key {
        "uses_cluster" => Some((Rule::Exact, json!(policy.uses_cluster()))),
        "uses_local" => Some((Rule::Exact, json!(policy.uses_local()))),
        "cluster" => Some((SET, keys(cluster()))),
        "local" => Some((SET, keys(local()))),
        "all_reachable" => Some((SET, keys(decision.reachable().into_iter()))),
        "has_any" => Some((Rule::Exact, json!(decision.has_any))),
        _ => None,
    })
}

fn keys<'a>(backends: impl Iterator<Item = &'a Backend>) -> Value {
    backends.map(|backend| backend.key.to_string()).collect()
}

/// The policies of a NodePort Service, on which both can be set.
fn policy(row: &Field<'_>) -> Result<PortPolicy, CaseError> {
    let policy = |key: &str| {
        let local = row.get(key)?.flag()?;
        Ok(if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster })
    };
    let addresses = |key: &str| row.get(key)?.each(address);
    let service = Service {
        service_type: ServiceType::NodePort,
        internal_traffic_policy: policy("internal_policy_local")?,
        external_traffic_policy: policy("external_policy_local")?,
        external_ips: addresses("external_ips")?,
        load_balancer_ips: addresses("load_balancer_ips")?,
        ..usual_service()
    };
    let node_port = row.get("node_port")?.count_or(0, u16::MAX.into())? as u16;
    let port = ServicePort { node_port, ..ServicePort::new(80) };
    Ok(PortPolicy::of(&service, &port))
}

fn place(row: &Field<'_>) -> Result<Place, CaseError> {
    let name = row.get("node_name")?.name()?;
    let labels = row.get("node_labels")?.labels()?;
    let node = Node { labels, ..Node::new(name.clone().unwrap_or_else(|| Name::from(""))) };
    Ok(Place { node: name, ..Place::of(&node) })
}

/// Endpoint flags are false where absent, unlike in a slice.
fn endpoint(row: &Field<'_>) -> Result<(EndpointKey, Endpoint), CaseError> {
    let ep = row.get("ep")?;
    let socket: SocketAddr =
        ep.text()?.parse().map_err(|_| ep.error("is not an address and a port"))?;
    let flag = |key: &str| Ok(Some(row.get(key)?.flag()?));
    let hints =
        Hints { zones: row.get("zone_hints")?.names()?, nodes: row.get("node_hints")?.names()? };
    let endpoint = Endpoint {
        conditions: Conditions {
            ready: flag("ready")?,
            serving: flag("serving")?,
            terminating: flag("terminating")?,
        },
        hints: Some(Arc::new(hints)),
        ..Endpoint::at(socket.ip())
    };
    Ok((EndpointKey { ip: socket.ip(), port: socket.port() }, endpoint))
}
