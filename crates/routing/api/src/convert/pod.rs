//! Pods.

use std::fmt::Arguments;

use nearhop_core::model::{Addresses, ContainerPort, Pod, PodDns};
use nearhop_core::{Kind, Name, PodKey};

use super::Converted;
use super::node::read_ready;
use super::reader::{Identity, Reader, read_object};
use super::value::{ADDRESS, TIME, parse_address, parse_time};
use crate::field::{Field, List};
use crate::wire;

pub(crate) fn convert_pod(pod: wire::Pod) -> Converted<Pod> {
    read_object(Kind::Pod, pod.metadata, |reader, identity| {
        let spec = reader.take(pod.spec, format_args!("spec")).unwrap_or_default();
        let status = reader.take(pod.status, format_args!("status")).unwrap_or_default();
        read_pod(reader, identity, spec, status)
    })
}

fn read_pod(
    reader: &mut Reader,
    identity: Identity,
    spec: wire::PodSpec,
    status: wire::PodStatus,
) -> Pod {
    let Identity { namespace, name, metadata } = identity;
    let (ready, transition) = read_ready(reader, status.conditions);
    let ready_since = transition.and_then(|(i, time)| {
        let at = format_args!("status.conditions[{i}].lastTransitionTime");
        reader.text(time, at, parse_time, TIME)
    });
    let phase = reader.take(status.phase, format_args!("status.phase"));
    let deleting =
        reader.take(metadata.deletion_timestamp, format_args!("metadata.deletionTimestamp"));
    let node = reader.take(spec.node_name, format_args!("spec.nodeName"));
    Pod {
        key: PodKey { namespace, name },
        uid: reader.take(metadata.uid, format_args!("metadata.uid")).unwrap_or_else(empty),
        labels: reader.labels(metadata.labels, format_args!("metadata.labels")),
        ips: read_ips(reader, status.pod_ips, "status.podIPs"),
        node: node.filter(|node| !node.is_empty()),
        dns: read_dns(reader, spec.hostname, spec.subdomain),
        ports: read_ports(reader, spec.containers, spec.init_containers).into(),
        ready_since: ready_since.map(Into::into),
        ready,
        deleting: deleting.is_some(),
        terminal: phase.is_some_and(|phase| phase == "Failed" || phase == "Succeeded"),
    }
}

fn empty() -> Name {
    Name::from("")
}

pub(super) fn read_ips(
    reader: &mut Reader,
    field: Field<List<wire::PodIp>>,
    at: &str,
) -> Addresses {
    let ips = reader.list(field, format_args!("{at}"));
    let ips = ips.into_iter().filter_map(|(i, pod_ip)| {
        reader.text(pod_ip.ip, format_args!("{at}[{i}].ip"), parse_address, ADDRESS)
    });
    ips.collect()
}

fn read_dns(
    reader: &mut Reader,
    hostname: Field<Name>,
    subdomain: Field<Name>,
) -> Option<Box<PodDns>> {
    let hostname = reader.take(hostname, format_args!("spec.hostname")).unwrap_or_else(empty);
    let subdomain = reader.take(subdomain, format_args!("spec.subdomain")).unwrap_or_else(empty);
    let said = !hostname.is_empty() || !subdomain.is_empty();
    said.then(|| Box::new(PodDns { hostname, subdomain }))
}

/// Reads the ports of containers, then of sidecars (init containers that keep running).
fn read_ports(
    reader: &mut Reader,
    containers: Field<List<wire::Container>>,
    init_containers: Field<List<wire::Container>>,
) -> Vec<ContainerPort> {
    let mut ports = Vec::new();
    for (i, container) in reader.list(containers, format_args!("spec.containers")) {
        add_ports(reader, container.ports, format_args!("spec.containers[{i}].ports"), &mut ports);
    }
    for (i, container) in reader.list(init_containers, format_args!("spec.initContainers")) {
        let at = format_args!("spec.initContainers[{i}].restartPolicy");
        let policy = reader.take(container.restart_policy, at);
        if policy.is_some_and(|policy| policy == "Always") {
            let at = format_args!("spec.initContainers[{i}].ports");
            add_ports(reader, container.ports, at, &mut ports);
        }
    }
    ports
}

/// Adds the named ports; a targetPort cannot refer to unnamed ones.
fn add_ports(
    reader: &mut Reader,
    field: Field<List<wire::ContainerPort>>,
    at: Arguments<'_>,
    ports: &mut Vec<ContainerPort>,
) {
    for (i, port) in reader.list(field, at) {
        let name = reader.take(port.name, format_args!("{at}[{i}].name"));
        let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
        let protocol = reader.protocol(port.protocol, format_args!("{at}[{i}].protocol"));
        let number = reader.take(port.container_port, format_args!("{at}[{i}].containerPort"));
        let at = format_args!("{at}[{i}].containerPort");
        let number = number.and_then(|number| reader.port(number, at));
        if number == Some(0) {
            reader.zero_port(at);
        }
        if let (Some(port), Some(protocol)) = (number.filter(|port| *port != 0), protocol) {
            ports.push(ContainerPort { name, port, protocol });
        }
    }
}
