//! Converts objects in case files to core's values, and back if a case expects an object.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::ip::parse_ip_sloppy;
use nearhop_core::labels::well_known;
use nearhop_core::model::{
    ClusterIps, Conditions, ContainerPort, Endpoint, Hints, Node, Pod, PodDns, Service,
    ServicePort, ServiceType, SlicePort, TargetPort, TopologySpec,
};
use nearhop_core::quantity::parse_cpu;
use nearhop_core::{Cidr, Family, Labels, Name, PodKey, Protocol, ServiceKey};
use serde_json::{Map, Value, json};

use crate::read::{CaseError, Field};

/// The default Service of rows.
const SERVICE: (&str, &str, &str) = ("test", "foo", "test-foo");

/// The usual Service of the cases: `foo` in `test`, IPv4, one port 80, no cluster address.
pub(crate) fn usual_service() -> Service {
    let port = ServicePort { name: Name::from("foo"), ..ServicePort::new(80) };
    Service {
        uid: Name::from(SERVICE.2),
        selector: Some([("foo", "bar")].into_iter().collect()),
        ports: vec![port],
        ip_families: vec![Family::Ipv4],
        ..Service::new(ServiceKey::new(SERVICE.0, SERVICE.1))
    }
}

pub(crate) fn service(row: &Field<'_>) -> Result<Service, CaseError> {
    let namespace = row.get("namespace")?.text_or(SERVICE.0)?;
    let name = row.get("name")?.text_or(SERVICE.1)?;
    let selector = row.get("selector")?;
    let mut topology = topology_spec(&row.get("annotations")?)?;
    topology.traffic_distribution = row.get("traffic_distribution")?.set_name()?;
    Ok(Service {
        uid: Name::from(row.get("uid")?.text_or("")?),
        labels: row.get("labels")?.labels()?,
        deleting: row.get("deleting")?.flag()?,
        service_type: service_type(&row.get("type")?)?,
        selector: if selector.is_null() { None } else { Some(selector.labels()?) },
        ports: row.get("ports")?.each(service_port)?,
        cluster_ips: cluster_ips(row)?,
        ip_families: row.get("ip_families")?.each(family)?,
        publish_not_ready_addresses: row.get("publish_not_ready")?.flag()?,
        topology,
        ..Service::new(ServiceKey::new(namespace, name))
    })
}

pub(crate) fn service_type(field: &Field<'_>) -> Result<ServiceType, CaseError> {
    let text = field.text_or("ClusterIP")?;
    ServiceType::parse(text).ok_or_else(|| field.error("is not a Service type"))
}

/// The policy that annotations request.
pub(crate) fn topology_spec(annotations: &Field<'_>) -> Result<TopologySpec, CaseError> {
    let get = |key: &str| annotations.get(key)?.set_name();
    Ok(TopologySpec {
        topology_mode: get("service.kubernetes.io/topology-mode")?,
        topology_aware_hints: get("service.kubernetes.io/topology-aware-hints")?,
        topology_keys_annotation: get("nearhop.dev/topology-keys")?,
        traffic_distribution_annotation: get("nearhop.dev/traffic-distribution")?,
        routing_preference_annotation: get("nearhop.dev/routing-preference")?,
        max_overload: get("nearhop.dev/max-overload")?,
        ..TopologySpec::default()
    })
}

/// Reads `cluster_ips`, else `cluster_ip`.
pub(crate) fn cluster_ips(row: &Field<'_>) -> Result<ClusterIps, CaseError> {
    let mut fields = row.get("cluster_ips")?.list()?;
    if fields.is_empty() {
        fields.extend(row.get("cluster_ip")?.optional());
    }
    let mut addresses = Vec::new();
    for field in &fields {
        match field.text()? {
            "" => {}
            "None" => return Ok(ClusterIps::Headless),
            _ => addresses.push(address(field)?),
        }
    }
    if addresses.is_empty() {
        return Ok(ClusterIps::Unset);
    }
    Ok(ClusterIps::Addresses(addresses))
}

pub(crate) fn family(field: &Field<'_>) -> Result<Family, CaseError> {
    Family::parse(field.text()?).ok_or_else(|| field.error("is not IPv4 or IPv6"))
}

/// Reads a family; IPv4 if the row has none.
pub(crate) fn family_or_ipv4(field: Field<'_>) -> Result<Family, CaseError> {
    field.optional().map_or(Ok(Family::Ipv4), |given| family(&given))
}

pub(crate) fn protocol(field: &Field<'_>) -> Result<Protocol, CaseError> {
    let text = field.text_or("TCP")?;
    Protocol::parse(text).ok_or_else(|| field.error("is not TCP, UDP or SCTP"))
}

/// Reads an address; leading zeros in IPv4 are tolerated, as upstream does.
pub(crate) fn address(field: &Field<'_>) -> Result<IpAddr, CaseError> {
    let text = field.text()?;
    parse_ip_sloppy(text).ok_or_else(|| field.error(format!("{text:?} is not an address")))
}

pub(crate) fn cidr(field: &Field<'_>) -> Result<Cidr, CaseError> {
    let text = field.text()?;
    Cidr::parse_sloppy(text)
        .ok_or_else(|| field.error(format!("{text:?} is not a range of addresses")))
}

fn service_port(row: &Field<'_>) -> Result<ServicePort, CaseError> {
    let target = row.get("target_port")?;
    let number = row.get("port")?;
    let port = if number.is_null() { 0 } else { port_number(&number)? };
    let node_port = row.get("node_port")?;
    Ok(ServicePort {
        name: Name::from(row.get("name")?.text_or("")?),
        protocol: protocol(&row.get("protocol")?)?,
        port,
        target: match target.value() {
            Value::Null => TargetPort::Number(port),
            Value::String(name) => TargetPort::Named(Name::from(name.as_str())),
            _ => TargetPort::Number(port_number(&target)?),
        },
        node_port: if node_port.is_null() { 0 } else { port_number(&node_port)? },
        app_protocol: row.get("app_protocol")?.set_name()?,
    })
}

pub(crate) fn port_number(field: &Field<'_>) -> Result<u16, CaseError> {
    Ok(field.whole(0, u16::MAX.into())? as u16)
}

pub(crate) fn service_ports(field: &Field<'_>) -> Result<Vec<ServicePort>, CaseError> {
    field.each(service_port)
}

pub(crate) fn slice_ports(field: &Field<'_>) -> Result<Arc<[SlicePort]>, CaseError> {
    let port = |row: &Field<'_>| {
        let number = row.get("port")?;
        Ok(SlicePort {
            name: Name::from(row.get("name")?.text_or("")?),
            protocol: protocol(&row.get("protocol")?)?,
            port: if number.is_null() { None } else { Some(port_number(&number)?) },
            app_protocol: row.get("app_protocol")?.set_name()?,
        })
    };
    field.each(port)
}

/// A slice port as cases write it; `number` gives the number as the case wrote it.
pub(crate) fn port_value(port: &SlicePort, number: impl Fn(u16) -> i64) -> Value {
    json!({
        "name": port.name.as_str(),
        "protocol": port.protocol.as_str(),
        "port": port.port.map(number),
        "app_protocol": port.app_protocol.as_deref(),
    })
}

/// Port numbers as cases write them. Core stores 0 to 65535, which the API server admits. Cases also
/// have other numbers (-1): an unused number of the case represents such a number.
#[derive(Debug)]
pub(crate) struct PortNumbers {
    /// Every number in the case that core can store.
    used: BTreeSet<u16>,
    stand_ins: BTreeMap<u16, i64>,
}

impl PortNumbers {
    /// The port numbers of one case.
    pub(crate) fn of(case: &Field<'_>) -> Self {
        fn collect(value: &Value, used: &mut BTreeSet<u16>) {
            match value {
                Value::Array(items) => items.iter().for_each(|item| collect(item, used)),
                Value::Object(map) => map.values().for_each(|item| collect(item, used)),
                _ => used.extend(value.as_u64().and_then(|number| u16::try_from(number).ok())),
            }
        }
        let mut used = BTreeSet::new();
        collect(case.value(), &mut used);
        Self { used, stand_ins: BTreeMap::new() }
    }

    /// The number for core.
    pub(crate) fn encode(&mut self, field: &Field<'_>) -> Result<u16, CaseError> {
        let number = field.whole(i32::MIN.into(), i32::MAX.into())?;
        if let Ok(port) = u16::try_from(number) {
            return Ok(port);
        }
        if let Some((port, _)) = self.stand_ins.iter().find(|(_, known)| **known == number) {
            return Ok(*port);
        }
        let free = (1..=u16::MAX).rev().find(|port| !self.used.contains(port));
        let port = free.ok_or_else(|| field.error("is one port number too many"))?;
        self.used.insert(port);
        self.stand_ins.insert(port, number);
        Ok(port)
    }

    /// The number as the case wrote it.
    pub(crate) fn decode(&self, port: u16) -> i64 {
        self.stand_ins.get(&port).copied().unwrap_or(i64::from(port))
    }
}

/// Reads container ports. Ports with an unknown protocol are skipped: no Service can refer to them.
pub(crate) fn container_ports(
    ports: &Field<'_>,
    numbers: &mut PortNumbers,
) -> Result<Vec<ContainerPort>, CaseError> {
    let mut read = Vec::new();
    for row in ports.list()? {
        let port = numbers.encode(&row.get("containerPort")?)?;
        let name = Name::from(row.get("name")?.text_or("")?);
        if let Some(protocol) = Protocol::parse(row.get("protocol")?.text_or("TCP")?) {
            read.push(ContainerPort { name, port, protocol });
        }
    }
    Ok(read)
}

pub(crate) fn pod(row: &Field<'_>, namespace: &Name) -> Result<Pod, CaseError> {
    let namespace = row.get("namespace")?.text_or(namespace)?;
    let hostname = Name::from(row.get("hostname")?.text_or("")?);
    let subdomain = Name::from(row.get("subdomain")?.text_or("")?);
    let phase = row.get("phase")?.text_or("")?;
    let named = !hostname.is_empty() || !subdomain.is_empty();
    Ok(Pod {
        uid: Name::from(row.get("uid")?.text_or("")?),
        ips: row.get("ips")?.each(address)?,
        node: row.get("node")?.name()?,
        dns: named.then(|| Box::new(PodDns { hostname, subdomain })),
        ready: row.get("ready")?.flag()?,
        deleting: row.get("terminating")?.flag()?,
        terminal: phase == "Failed" || phase == "Succeeded",
        ..Pod::new(PodKey::new(namespace, row.get("name")?.text()?))
    })
}

/// Reads a list of Nodes.
pub(crate) fn nodes(list: &Field<'_>) -> Result<Vec<Node>, CaseError> {
    list.list()?.iter().enumerate().map(|(at, row)| node(row, at)).collect()
}

/// Reads a Node: its name alone, or an object. Nodes without a name get one.
pub(crate) fn node(row: &Field<'_>, at: usize) -> Result<Node, CaseError> {
    if let Value::String(name) = row.value() {
        return Ok(Node::new(name.as_str()));
    }
    let name = row.get("name")?.name()?.unwrap_or_else(|| Name::from(format!("node-{at}")));
    let labels = row.get("labels")?.labels()?;
    let zone = row.get("zone")?.name()?.map(|zone| (Name::from(well_known::ZONE), zone));
    let labels: Labels =
        labels.iter().map(|(key, value)| (key.clone(), value.clone())).chain(zone).collect();
    Ok(Node {
        labels,
        ready: is_ready(&row.get("ready")?)?,
        cpu_milli: cpu(&row.get("cpu")?)?,
        ..Node::new(name)
    })
}

/// The status of a Ready condition: `"True"`, or simply true.
fn is_ready(field: &Field<'_>) -> Result<bool, CaseError> {
    match field.value() {
        Value::String(status) => Ok(status == "True"),
        _ => field.flag(),
    }
}

fn cpu(field: &Field<'_>) -> Result<Option<u64>, CaseError> {
    let text = match field.value() {
        Value::Null => return Ok(None),
        Value::Number(number) => number.to_string(),
        _ => field.text()?.to_owned(),
    };
    let milli = parse_cpu(&text);
    milli.map(Some).ok_or_else(|| field.error(format!("{text:?} is not a CPU quantity")))
}

/// Reads an endpoint of the hint groups, whose conditions may be unset.
pub(crate) fn hinted_endpoint(row: &Field<'_>) -> Result<Endpoint, CaseError> {
    placed_endpoint(row, address(&row.get("addr")?)?, ("hint_zones", "hint_nodes"))
}

/// Reads the endpoint at `ip` from a row; the two fields have its hints.
pub(crate) fn placed_endpoint(
    row: &Field<'_>,
    ip: IpAddr,
    (zones, nodes): (&str, &str),
) -> Result<Endpoint, CaseError> {
    let (zones, nodes) = (row.get(zones)?.names()?, row.get(nodes)?.names()?);
    let hinted = !zones.is_empty() || !nodes.is_empty();
    Ok(Endpoint {
        conditions: conditions(row)?,
        node: row.get("node")?.name()?,
        zone: row.get("zone")?.name()?,
        hints: hinted.then(|| Arc::new(Hints { zones, nodes })),
        ..Endpoint::at(ip)
    })
}

/// Reads the conditions of an endpoint, each of which may be unset.
pub(crate) fn conditions(row: &Field<'_>) -> Result<Conditions, CaseError> {
    Ok(Conditions {
        ready: row.get("ready")?.condition()?,
        serving: row.get("serving")?.condition()?,
        terminating: row.get("terminating")?.condition()?,
    })
}

/// An endpoint as the hint groups write it.
pub(crate) fn hinted_value(endpoint: &Endpoint) -> Value {
    json!({
        "addr": endpoint.addresses.first().map(|address| address.to_string()),
        "ready": endpoint.conditions.ready,
        "serving": endpoint.conditions.serving,
        "terminating": endpoint.conditions.terminating,
        "node": endpoint.node.as_deref(),
        "zone": endpoint.zone.as_deref(),
        "hint_zones": texts(endpoint.hint_zones()),
        "hint_nodes": texts(endpoint.hint_nodes()),
    })
}

/// An endpoint as the reconcile groups write it.
pub(crate) fn endpoint_value(endpoint: &Endpoint) -> Value {
    let addresses = endpoint.addresses.as_slice().iter().map(ToString::to_string);
    let target = endpoint.target.as_ref();
    let target = target.map(|pod| target_value("Pod", [&pod.namespace, &pod.name, &pod.uid]));
    json!({
        "addresses": addresses.collect::<Vec<_>>(),
        "ready": endpoint.conditions.ready,
        "serving": endpoint.conditions.serving,
        "terminating": endpoint.conditions.terminating,
        "hostname": endpoint.hostname.as_deref(),
        "node": endpoint.node.as_deref(),
        "zone": endpoint.zone.as_deref(),
        "target": target,
        "hint_zones": texts(endpoint.hint_zones()),
        "hint_nodes": texts(endpoint.hint_nodes()),
    })
}

fn target_value(kind: &str, [namespace, name, uid]: [&Name; 3]) -> Value {
    json!({
        "kind": kind,
        "namespace": namespace.as_str(),
        "name": name.as_str(),
        "uid": uid.as_str(),
    })
}

pub(crate) fn texts(names: &[Name]) -> Vec<&str> {
    names.iter().map(Name::as_str).collect()
}

pub(crate) fn labels_value(labels: &Labels) -> Value {
    let pairs = labels.iter().map(|(key, value)| (key.to_string(), Value::from(value.as_str())));
    Value::Object(pairs.collect::<Map<_, _>>())
}
