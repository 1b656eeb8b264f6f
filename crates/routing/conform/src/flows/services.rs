//! The rows of a case's `services`: each row is a port; rows with the same name are one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nearhop_core::ip::parse_ip_sloppy;
use nearhop_core::labels::well_known;
use nearhop_core::model::{
    AddressType, ClusterIps, DEFAULT_AFFINITY, Endpoint, Service, ServicePort, ServiceType, Slice,
    SlicePort, SourceRanges, TrafficPolicy,
};
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::routing::SliceRouting;
use nearhop_core::world::{Settings, World};
use nearhop_core::{Change, Cidr, Family, Name, Protocol, ServiceKey};
use serde_json::Value;

use crate::objects::{address, cluster_ips, placed_endpoint, port_number, protocol, service_type};
use crate::read::{CaseError, Field};

/// The Services and slices of a case.
pub(crate) struct Rows {
    services: BTreeMap<ServiceKey, Service>,
    slices: Vec<Slice>,
}

impl Rows {
    pub(crate) fn read(rows: &Field<'_>) -> Result<Self, CaseError> {
        let mut read = Self { services: BTreeMap::new(), slices: Vec::new() };
        for row in rows.list()? {
            read.add(&row)?;
        }
        Ok(read)
    }

    /// The routes of the node.
    pub(crate) fn routes(&self, place: Place) -> RouteTable {
        let mut world = World::new(Settings::default());
        let services = self.services.values().cloned().map(Change::put);
        let slices = self.slices.iter().cloned().map(Change::put);
        world.apply_all(services.chain(slices));
        RouteTable::build(&world, place)
    }

    pub(super) fn endpoints(&self) -> BTreeSet<(SocketAddr, Protocol)> {
        let of_slice = |slice: &Slice| {
            let ports: Vec<(u16, Protocol)> =
                slice.ports.iter().filter_map(|port| Some((port.port?, port.protocol))).collect();
            let addresses = slice.endpoints.iter().filter_map(|e| e.addresses.first());
            let at = |ip: IpAddr| {
                ports.clone().into_iter().map(move |(port, by)| (SocketAddr::new(ip, port), by))
            };
            addresses.flat_map(at).collect::<Vec<_>>()
        };
        self.slices.iter().flat_map(of_slice).collect()
    }

    fn add(&mut self, row: &Field<'_>) -> Result<(), CaseError> {
        let key = ServiceKey::new(row.get("ns")?.text_or("ns1")?, row.get("name")?.text()?);
        let port = ServicePort {
            name: Name::from(row.get("port_name")?.text_or("")?),
            protocol: protocol(&row.get("protocol")?)?,
            node_port: row.get("node_port")?.count_or(0, u16::MAX.into())? as u16,
            ..ServicePort::new(port_number(&row.get("port")?)?)
        };
        self.add_slices(row, &key, &port)?;
        let service = self.services.entry(key.clone()).or_insert_with(|| Service::new(key));
        add_addresses(row, service)?;
        add_access(row, service)?;
        service.service_type = kind(row, service, port.node_port)?;
        // A second row for a port is its address in the other family.
        let known = |p: &ServicePort| (&p.name, p.protocol) == (&port.name, port.protocol);
        if !service.ports.iter().any(known) {
            service.ports.push(port);
        }
        Ok(())
    }

    /// One slice for each family and port number, because each endpoint has its own port number.
    fn add_slices(
        &mut self,
        row: &Field<'_>,
        key: &ServiceKey,
        port: &ServicePort,
    ) -> Result<(), CaseError> {
        let mut grouped: BTreeMap<(Family, u16), Vec<Endpoint>> = BTreeMap::new();
        for item in row.get("endpoints")?.list()? {
            let (at, endpoint) = endpoint(&item)?;
            grouped.entry((Family::of(at.ip()), at.port())).or_default().push(endpoint);
        }
        let routing = routing(&row.get("routing")?)?;
        for ((family, number), endpoints) in grouped {
            let slice_port = SlicePort {
                name: port.name.clone(),
                protocol: port.protocol,
                port: Some(number),
                app_protocol: None,
            };
            let name = format!("{}-{}", key.name, self.slices.len());
            self.slices.push(Slice {
                labels: [(well_known::SERVICE_NAME, key.name.as_str())].into_iter().collect(),
                ports: [slice_port].into(),
                endpoints,
                routing: routing.clone(),
                ..Slice::new(key.namespace.clone(), name, AddressType::Ip(family))
            });
        }
        Ok(())
    }
}

fn add_addresses(row: &Field<'_>, service: &mut Service) -> Result<(), CaseError> {
    match (cluster_ips(row)?, &mut service.cluster_ips) {
        (ClusterIps::Addresses(more), ClusterIps::Addresses(known)) => merge(known, more),
        (given, known) => *known = given,
    }
    if let ClusterIps::Addresses(addresses) = &service.cluster_ips {
        service.ip_families = addresses.iter().copied().map(Family::of).collect();
    }
    merge(&mut service.external_ips, row.get("external_ips")?.each(address)?);
    for item in row.get("lb_ips")?.list()? {
        merge(&mut service.load_balancer_ips, load_balancer_ip(&item)?.into_iter().collect());
    }
    Ok(())
}

fn merge(known: &mut Vec<IpAddr>, more: Vec<IpAddr>) {
    for address in more {
        if !known.contains(&address) {
            known.push(address);
        }
    }
}

/// An address, or `{"ip", "ip_mode"}`. The proxy does not serve addresses with mode `Proxy`.
fn load_balancer_ip(item: &Field<'_>) -> Result<Option<IpAddr>, CaseError> {
    if !item.value().is_object() {
        return address(item).map(Some);
    }
    let mode = item.get("ip_mode")?;
    match mode.text_or("VIP")? {
        "VIP" => address(&item.get("ip")?).map(Some),
        "Proxy" => Ok(None),
        _ => Err(mode.error("is not VIP or Proxy")),
    }
}

fn add_access(row: &Field<'_>, service: &mut Service) -> Result<(), CaseError> {
    if let Some(policy) = policy(&row.get("itp")?)? {
        service.internal_traffic_policy = policy;
    }
    if let Some(policy) = policy(&row.get("etp")?)? {
        service.external_traffic_policy = policy;
    }
    let ranges = row.get("source_ranges")?.list()?;
    if !ranges.is_empty() {
        // As in the API, spaces are allowed, and an invalid range admits no client.
        let read = |item: &Field<'_>| Ok(Cidr::parse_sloppy(item.text()?.trim()));
        let read = ranges.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        service.source_ranges = SourceRanges::Only(read.into_iter().flatten().collect());
    }
    let given = ["affinity", "session_affinity"].map(|key| row.get(key).and_then(|f| affinity(&f)));
    for timeout in given {
        service.session_affinity = timeout?.or(service.session_affinity);
    }
    Ok(())
}

fn policy(field: &Field<'_>) -> Result<Option<TrafficPolicy>, CaseError> {
    let Some(text) = field.name()? else { return Ok(None) };
    let policy = TrafficPolicy::parse(&text);
    policy.map(Some).ok_or_else(|| field.error("is not Cluster or Local"))
}

/// True or `ClientIP`, or the seconds alone or as `timeout_seconds`.
fn affinity(field: &Field<'_>) -> Result<Option<Duration>, CaseError> {
    match field.value() {
        Value::Null | Value::Bool(false) => Ok(None),
        Value::Bool(true) => Ok(Some(DEFAULT_AFFINITY)),
        Value::String(text) => match text.as_str() {
            "ClientIP" => Ok(Some(DEFAULT_AFFINITY)),
            "None" | "" => Ok(None),
            _ => Err(field.error("is not ClientIP or None")),
        },
        Value::Object(_) => affinity(&field.get("timeout_seconds")?),
        _ => {
            let seconds = field.whole(0, 86_400)?.unsigned_abs();
            Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
        }
    }
}

/// The given type, or the simplest type with the features of the rows so far.
fn kind(row: &Field<'_>, service: &Service, node_port: u16) -> Result<ServiceType, CaseError> {
    for key in ["type", "service_type"] {
        let given = row.get(key)?;
        if !given.is_null() {
            return service_type(&given);
        }
    }
    let balanced = row.get("lb_ips")?.list()?.len() + service.load_balancer_ips.len() > 0;
    Ok(match service.service_type {
        ServiceType::ClusterIp | ServiceType::NodePort if balanced => ServiceType::LoadBalancer,
        ServiceType::ClusterIp if node_port != 0 => ServiceType::NodePort,
        other => other,
    })
}

/// The annotation that carries topology keys or weights, as text or as its JSON.
fn routing(field: &Field<'_>) -> Result<SliceRouting, CaseError> {
    let read = match field.value() {
        Value::Null => SliceRouting::Absent,
        Value::String(text) => SliceRouting::read(Some(text)),
        other => SliceRouting::read(Some(&other.to_string())),
    };
    match read {
        SliceRouting::Broken(error) => Err(field.error(error.to_string())),
        read => Ok(read),
    }
}

fn endpoint(row: &Field<'_>) -> Result<(SocketAddr, Endpoint), CaseError> {
    let at = socket(&row.get("addr")?)?;
    Ok((at, placed_endpoint(row, at.ip(), ("zone_hints", "node_hints"))?))
}

/// Reads an address and a port; leading zeros in IPv4 are tolerated, as upstream does.
pub(super) fn socket(field: &Field<'_>) -> Result<SocketAddr, CaseError> {
    let text = field.text()?;
    let parts = || {
        let (ip, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(parse_ip_sloppy(ip)?, port.parse().ok()?))
    };
    let read = text.parse().ok().or_else(parts);
    read.ok_or_else(|| field.error(format!("{text:?} is not an address and a port")))
}
