//! Services.

use std::fmt::Arguments;
use std::net::IpAddr;
use std::time::Duration;

use nearhop_core::model::{
    ClusterIps, DEFAULT_AFFINITY, LONGEST_AFFINITY, Service, ServicePort, ServiceType,
    SourceRanges, TargetPort, TopologySpec, TrafficPolicy,
};
use nearhop_core::problem::quote;
use nearhop_core::{Cidr, Family, Kind, Name, ServiceKey};

use super::Converted;
use super::reader::{Identity, Reader, read_object};
use super::value::{ADDRESS, CIDR, TIME, parse_address, parse_time};
use crate::field::{Field, IntOrString, List};
use crate::{Meta, wire};

pub(crate) fn convert_service(service: wire::Service) -> Converted<Service> {
    let meta = Meta::of_service(&service);
    let converted = read_object(Kind::Service, service.metadata, |reader, identity| {
        let spec = reader.take(service.spec, format_args!("spec")).unwrap_or_default();
        let status = reader.take(service.status, format_args!("status")).unwrap_or_default();
        read_service(reader, identity, spec, status)
    });
    Converted { meta, ..converted }
}

fn read_service(
    reader: &mut Reader,
    identity: Identity,
    mut spec: wire::ServiceSpec,
    status: wire::ServiceStatus,
) -> Service {
    let Identity { namespace, name, metadata } = identity;
    let mut service = Service::new(ServiceKey { namespace, name });
    service.topology = read_asks(reader, metadata.annotations, &mut spec);
    read_access(reader, &mut spec, &mut service);
    service.uid = reader.take(metadata.uid, format_args!("metadata.uid")).unwrap_or(service.uid);
    service.labels = reader.labels(metadata.labels, format_args!("metadata.labels"));
    let at = format_args!("metadata.creationTimestamp");
    service.created = reader.text(metadata.creation_timestamp, at, parse_time, TIME);
    let at = format_args!("metadata.deletionTimestamp");
    service.deleting = reader.take(metadata.deletion_timestamp, at).is_some();
    let types = "ClusterIP, NodePort, LoadBalancer or ExternalName";
    let service_type =
        reader.text(spec.r#type, format_args!("spec.type"), ServiceType::parse, types);
    service.service_type = service_type.unwrap_or_default();
    service.selector = reader.selector(spec.selector, format_args!("spec.selector"));
    service.ports = read_ports(reader, spec.ports);
    service.cluster_ips = read_cluster_ips(reader, spec.cluster_ips, spec.cluster_ip);
    let families = reader.list(spec.ip_families, format_args!("spec.ipFamilies"));
    service.ip_families = (families.into_iter())
        .filter_map(|(i, family)| {
            let at = format_args!("spec.ipFamilies[{i}]");
            reader.text(Field::Read(family), at, Family::parse, "IPv4 or IPv6")
        })
        .collect();
    let external_name = reader.take(spec.external_name, format_args!("spec.externalName"));
    service.external_name = external_name.filter(|name| !name.is_empty());
    let external_ips = reader.list(spec.external_ips, format_args!("spec.externalIPs"));
    service.external_ips = read_addresses(reader, external_ips, "spec.externalIPs");
    service.load_balancer_ips = read_ingress(reader, status);
    let at = format_args!("spec.internalTrafficPolicy");
    service.internal_traffic_policy = read_policy(reader, spec.internal_traffic_policy, at);
    let at = format_args!("spec.externalTrafficPolicy");
    service.external_traffic_policy = read_policy(reader, spec.external_traffic_policy, at);
    let at = format_args!("spec.publishNotReadyAddresses");
    service.publish_not_ready_addresses =
        reader.take(spec.publish_not_ready_addresses, at).unwrap_or_default();
    service
}

/// Reads the source ranges, the session affinity and the health check port.
fn read_access(reader: &mut Reader, spec: &mut wire::ServiceSpec, service: &mut Service) {
    service.source_ranges =
        read_source_ranges(reader, std::mem::take(&mut spec.load_balancer_source_ranges));
    let affinity = std::mem::take(&mut spec.session_affinity);
    let config = std::mem::take(&mut spec.session_affinity_config);
    service.session_affinity = read_affinity(reader, affinity, config);
    let at = format_args!("spec.healthCheckNodePort");
    let port = reader.take(std::mem::take(&mut spec.health_check_node_port), at);
    service.health_check_node_port =
        port.and_then(|number| reader.port(number, at)).unwrap_or_default();
}

/// The readable ranges. If ranges are present and none is readable, no client is admitted: a typing
/// error must not open a Service.
fn read_source_ranges(reader: &mut Reader, field: Field<List<Name>>) -> SourceRanges {
    let entries = match field {
        Field::Absent => return SourceRanges::AnyClient,
        Field::Wrong(found) => {
            let cure = "give a list of address ranges; no client is admitted until then";
            let cause = format!("is {found}, not a list");
            reader.problem("spec.loadBalancerSourceRanges", cause, cure);
            return SourceRanges::Only(Vec::new());
        }
        Field::Read(entries) if entries.is_empty() => return SourceRanges::AnyClient,
        Field::Read(entries) => entries,
    };
    let ranges = entries.into_iter().enumerate();
    let ranges = ranges.filter_map(|(i, entry)| read_source_range(reader, entry, i));
    SourceRanges::Only(ranges.collect())
}

/// One range; spaces around it are allowed, as in the API.
fn read_source_range(reader: &mut Reader, entry: Field<Name>, i: usize) -> Option<Cidr> {
    let cause = match entry {
        Field::Read(text) => match Cidr::parse_sloppy(text.trim()) {
            Some(range) => return Some(range),
            None => format!("{} is not {CIDR}", quote(&text)),
        },
        Field::Absent => "is null, not a string".to_owned(),
        Field::Wrong(found) => format!("is {found}, not a string"),
    };
    let cure = format!("give {CIDR}; it admits no client until then");
    reader.problem(format_args!("spec.loadBalancerSourceRanges[{i}]"), cause, cure);
    None
}

/// The duration of the session affinity, if it is on.
fn read_affinity(
    reader: &mut Reader,
    affinity: Field<Name>,
    config: Field<wire::SessionAffinityConfig>,
) -> Option<Duration> {
    let read = |text: &str| match text {
        "ClientIP" => Some(true),
        "None" => Some(false),
        _ => None,
    };
    let at = format_args!("spec.sessionAffinity");
    if !reader.text(affinity, at, read, "ClientIP or None").unwrap_or_default() {
        return None;
    }
    let at = format_args!("spec.sessionAffinityConfig");
    let client_ip = reader.take(config, at).unwrap_or_default().client_ip;
    let at = format_args!("spec.sessionAffinityConfig.clientIP");
    let seconds = reader.take(client_ip, at).unwrap_or_default().timeout_seconds;
    let at = format_args!("spec.sessionAffinityConfig.clientIP.timeoutSeconds");
    let timeout = reader.take(seconds, at).and_then(|seconds| read_timeout(reader, seconds, at));
    Some(timeout.unwrap_or(DEFAULT_AFFINITY))
}

fn read_timeout(reader: &mut Reader, seconds: i64, at: Arguments<'_>) -> Option<Duration> {
    let timeout = u64::try_from(seconds).ok().map(Duration::from_secs);
    let timeout = timeout.filter(|timeout| !timeout.is_zero() && *timeout <= LONGEST_AFFINITY);
    if timeout.is_none() {
        let (most, usual) = (LONGEST_AFFINITY.as_secs(), DEFAULT_AFFINITY.as_secs());
        let cure = format!("give seconds from 1 to {most}; {usual} are used until then");
        reader.problem(at, format!("{seconds} is out of range"), cure);
    }
    timeout
}

fn read_policy(reader: &mut Reader, field: Field<Name>, at: Arguments<'_>) -> TrafficPolicy {
    reader.text(field, at, TrafficPolicy::parse, "Cluster or Local").unwrap_or_default()
}

fn read_addresses(reader: &mut Reader, texts: Vec<(usize, Name)>, at: &str) -> Vec<IpAddr> {
    let addresses = texts.into_iter().filter_map(|(i, text)| {
        reader.text(Field::Read(text), format_args!("{at}[{i}]"), parse_address, ADDRESS)
    });
    addresses.collect()
}

/// `clusterIPs`, or the older `clusterIP` if it is empty.
fn read_cluster_ips(
    reader: &mut Reader,
    several: Field<List<Name>>,
    single: Field<Name>,
) -> ClusterIps {
    let several = reader.list(several, format_args!("spec.clusterIPs"));
    if several.iter().any(|(_, text)| *text == "None") {
        return ClusterIps::Headless;
    }
    let addresses = if several.is_empty() {
        let at = format_args!("spec.clusterIP");
        match reader.take(single, at) {
            Some(text) if text == "None" => return ClusterIps::Headless,
            text => reader.text(text.into(), at, parse_address, ADDRESS).into_iter().collect(),
        }
    } else {
        read_addresses(reader, several, "spec.clusterIPs")
    };
    if addresses.is_empty() { ClusterIps::Unset } else { ClusterIps::Addresses(addresses) }
}

/// Addresses that the proxy handles. An entry with a host name has none, and traffic to an entry
/// with mode `Proxy` must pass through the load balancer (KEP-1860).
fn read_ingress(reader: &mut Reader, status: wire::ServiceStatus) -> Vec<IpAddr> {
    let at = format_args!("status.loadBalancer");
    let ingress = reader.take(status.load_balancer, at).unwrap_or_default().ingress;
    let ingress = reader.list(ingress, format_args!("status.loadBalancer.ingress"));
    let addresses = ingress.into_iter().filter_map(|(i, entry)| {
        let at = format_args!("status.loadBalancer.ingress[{i}].ipMode");
        let mode = reader.take(entry.ip_mode, at).filter(|mode| !mode.is_empty());
        if mode.is_some_and(|mode| mode != "VIP") {
            return None;
        }
        let at = format_args!("status.loadBalancer.ingress[{i}].ip");
        reader.text(entry.ip, at, parse_address, ADDRESS)
    });
    addresses.collect()
}

fn read_ports(reader: &mut Reader, field: Field<List<wire::ServicePort>>) -> Vec<ServicePort> {
    let mut ports = Vec::new();
    for (i, port) in reader.list(field, format_args!("spec.ports")) {
        let Some(port) = read_port(reader, port, i) else { continue };
        if port.port == 0 && ports.len() != i {
            reader.zero_port(format_args!("spec.ports[{i}].port"));
        } else {
            ports.push(port);
        }
    }
    ports
}

/// One port, or nothing if the port is invalid.
fn read_port(reader: &mut Reader, wire: wire::ServicePort, i: usize) -> Option<ServicePort> {
    let name = match wire.name {
        Field::Absent => Name::from(""),
        name => reader.take(name, format_args!("spec.ports[{i}].name"))?,
    };
    let protocol = reader.protocol(wire.protocol, format_args!("spec.ports[{i}].protocol"))?;
    let at = format_args!("spec.ports[{i}].port");
    let number = match wire.port {
        Field::Absent => {
            reader.problem(
                at,
                "missing",
                "give a port from 1 to 65535; it is not served until then",
            );
            return None;
        }
        number => reader.take(number, at)?,
    };
    let port = reader.port(number, at)?;
    let target = read_target(reader, wire.target_port, port, i)?;
    let at = format_args!("spec.ports[{i}].nodePort");
    let node_port = reader.take(wire.node_port, at).and_then(|number| reader.port(number, at));
    let app_protocol = reader.take(wire.app_protocol, format_args!("spec.ports[{i}].appProtocol"));
    let node_port = node_port.unwrap_or_default();
    Some(ServicePort { name, protocol, port, target, node_port, app_protocol })
}

/// The target port. The default is the port itself (also if the value is 0 or empty, as in the
/// API).
fn read_target(
    reader: &mut Reader,
    field: Field<IntOrString>,
    port: u16,
    i: usize,
) -> Option<TargetPort> {
    let at = format_args!("spec.ports[{i}].targetPort");
    let target = match field {
        Field::Absent => return Some(TargetPort::Number(port)),
        field => reader.take(field, at)?,
    };
    match target {
        IntOrString::String(name) if !name.is_empty() => Some(TargetPort::Named(name)),
        IntOrString::String(_) | IntOrString::Int(0) => Some(TargetPort::Number(port)),
        IntOrString::Int(number) => reader.port(number, at).map(TargetPort::Number),
    }
}

fn read_asks(
    reader: &mut Reader,
    annotations: Field<wire::Annotations>,
    spec: &mut wire::ServiceSpec,
) -> TopologySpec {
    let at = format_args!("metadata.annotations");
    let annotations = reader.take(annotations, at).unwrap_or_default();
    let mut annotation = |field: Field<Name>, key: &str| {
        reader.take(field, format_args!("metadata.annotations[{key}]"))
    };
    let mut asks = TopologySpec {
        topology_mode: annotation(annotations.topology_mode, "service.kubernetes.io/topology-mode"),
        topology_aware_hints: annotation(
            annotations.topology_aware_hints,
            "service.kubernetes.io/topology-aware-hints",
        ),
        topology_keys_annotation: annotation(
            annotations.topology_keys,
            "nearhop.dev/topology-keys",
        ),
        traffic_distribution_annotation: annotation(
            annotations.traffic_distribution,
            "nearhop.dev/traffic-distribution",
        ),
        routing_preference_annotation: annotation(
            annotations.routing_preference,
            "nearhop.dev/routing-preference",
        ),
        max_overload: annotation(annotations.max_overload, "nearhop.dev/max-overload"),
        ..TopologySpec::default()
    };
    let mut field = |field: &mut Field<Name>, name: &str| {
        reader.take(std::mem::take(field), format_args!("spec.{name}"))
    };
    asks.traffic_policy = field(&mut spec.traffic_policy, "trafficPolicy");
    asks.traffic_distribution = field(&mut spec.traffic_distribution, "trafficDistribution");
    asks.routing_preference = field(&mut spec.routing_preference, "routingPreference");
    asks.topology_keys = read_topology_keys(reader, std::mem::take(&mut spec.topology_keys));
    asks
}

/// All keys, or none: a list without one of its keys has another meaning.
fn read_topology_keys(reader: &mut Reader, field: Field<List<Name>>) -> Vec<Name> {
    let wanted = match &field {
        Field::Read(keys) => keys.len(),
        _ => 0,
    };
    let keys = reader.list(field, format_args!("spec.topologyKeys"));
    if keys.len() != wanted {
        return Vec::new();
    }
    keys.into_iter().map(|(_, key)| key).collect()
}
