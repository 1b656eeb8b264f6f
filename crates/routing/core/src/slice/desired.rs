//! From Pods to the endpoints to publish (endpoint eligibility, fields and ports).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::key::{Family, Name, Protocol};
use crate::model::{
    Addresses, Conditions, ContainerPort, Endpoint, Node, Pod, PodRef, Service, SlicePort,
    TargetPort,
};
use crate::object::ObjectRef;
use crate::problem::Problem;

/// A selected Pod and its Node, if the Node is known.
pub type PodOnNode<'a> = (&'a Pod, Option<&'a Node>);

/// An endpoint to publish, borrowed from its Pod: most endpoints already exist unchanged in a slice
/// and need no copy.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) addresses: Addresses,
    pub(super) conditions: Conditions,
    pub(super) hostname: Option<&'a Name>,
    pub(super) node: Option<&'a Name>,
    pub(super) zone: Option<&'a Name>,
    pub(super) pod: &'a Pod,
}

impl Wanted<'_> {
    /// The endpoint itself, without hints.
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            addresses: self.addresses.clone(),
            conditions: self.conditions,
            hostname: self.hostname.cloned(),
            node: self.node.cloned(),
            zone: self.zone.cloned(),
            target: Some(PodRef {
                namespace: self.pod.key.namespace.clone(),
                name: self.pod.key.name.clone(),
                uid: self.pod.uid.clone(),
            }),
            hints: None,
        }
    }
}

/// Slice ports to endpoints.
pub(super) type Groups<'a> = BTreeMap<Arc<[SlicePort]>, Vec<Wanted<'a>>>;

/// The endpoints to publish in one family, by slice ports.
#[derive(Debug, Default)]
pub(super) struct Desired<'a> {
    /// Ports (sorted, because their order has no meaning) to endpoints, sorted by the name of their
    /// Pod. A group exists as soon as one eligible Pod has these ports, even if that Pod is then
    /// skipped.
    pub(super) groups: Groups<'a>,
    /// Pods that are left out because their Node is not known (yet). The plan must be repeated.
    pub(super) missing_nodes: Vec<Problem>,
}

/// Collects the endpoints to publish for a Service in one family.
pub(super) fn desired_endpoints<'a>(
    service: &Service,
    pods: &[PodOnNode<'a>],
    family: Family,
) -> Desired<'a> {
    let mut desired = Desired::default();
    let mut ports = PortResolver::new(service);
    for (pod, node) in pods.iter().filter(|(pod, _)| pod.is_eligible()) {
        let group = ports.group(pod, &mut desired.groups);
        if node.is_none() && !service.publish_not_ready_addresses {
            desired.missing_nodes.push(missing_node(service, pod));
        } else {
            group.extend(want(service, pod, *node, family));
        }
    }
    ports.close(&mut desired.groups);
    for group in desired.groups.values_mut() {
        group.sort_by(|a, b| a.pod.key.name.cmp(&b.pod.key.name));
    }
    desired
}

fn missing_node(service: &Service, pod: &Pod) -> Problem {
    let node = pod.node.as_deref().unwrap_or("");
    Problem::new(
        ObjectRef::Pod(pod.key.clone()),
        "spec.nodeName",
        format!("skipping Pod {} for Service {}: Node {node} Not Found", pod.key.name, service.key),
        "it is published as soon as its Node is known",
    )
}

/// The endpoint of a Pod in one family, or none if the Pod has no address in it.
pub fn pod_to_endpoint(
    service: &Service,
    pod: &Pod,
    node: Option<&Node>,
    family: Family,
) -> Option<Endpoint> {
    want(service, pod, node, family).map(|wanted| wanted.endpoint())
}

fn want<'a>(
    service: &Service,
    pod: &'a Pod,
    node: Option<&'a Node>,
    family: Family,
) -> Option<Wanted<'a>> {
    let addresses: Addresses =
        pod.ips.as_slice().iter().copied().filter(|ip| Family::of(*ip) == family).collect();
    addresses.first()?;
    let ready = service.publish_not_ready_addresses || (pod.ready && !pod.deleting);
    let dns = pod.dns.as_deref().filter(|dns| {
        !dns.hostname.is_empty()
            && dns.subdomain == service.key.name
            && pod.key.namespace == service.key.namespace
    });
    Some(Wanted {
        addresses,
        conditions: Conditions {
            ready: Some(ready),
            serving: Some(pod.ready),
            terminating: Some(pod.deleting),
        },
        hostname: dns.map(|dns| &dns.hostname),
        node: pod.node.as_ref().filter(|node| !node.is_empty()),
        zone: node.and_then(Node::zone),
        pod,
    })
}

/// Finds the number of a targetPort: name and protocol must both match.
pub fn find_port(target: &TargetPort, protocol: Protocol, ports: &[ContainerPort]) -> Option<u16> {
    match target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Named(name) => ports
            .iter()
            .find(|port| port.name == *name && port.protocol == protocol)
            .map(|port| port.port),
    }
}

/// The slice ports of a Service for one Pod. A port that the Pod does not have is left out, and so
/// is a port 0, because the API server would reject the whole slice.
pub fn endpoint_ports(service: &Service, pod: &Pod) -> Vec<SlicePort> {
    service
        .ports
        .iter()
        .filter_map(|port| {
            let number = find_port(&port.target, port.protocol, &pod.ports)?;
            (number != 0).then(|| SlicePort {
                name: port.name.clone(),
                protocol: port.protocol,
                port: Some(number),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

/// Sorts Pods into port groups. Consecutive Pods usually have the same ports, so the group stays
/// open until a Pod has other ports.
struct PortResolver<'s, 'a> {
    service: &'s Service,
    named: bool,
    open: Option<OpenGroup<'a>>,
}

struct OpenGroup<'a> {
    container_ports: Arc<Vec<ContainerPort>>,
    ports: Arc<[SlicePort]>,
    endpoints: Vec<Wanted<'a>>,
}

impl<'s, 'a> PortResolver<'s, 'a> {
    fn new(service: &'s Service) -> Self {
        let named = service.ports.iter().any(|port| matches!(port.target, TargetPort::Named(_)));
        Self { service, named, open: None }
    }

    /// The group for a Pod's ports.
    fn group(&mut self, pod: &Pod, groups: &mut Groups<'a>) -> &mut Vec<Wanted<'a>> {
        let fits = |open: &OpenGroup<'_>| !self.named || open.container_ports == pod.ports;
        if !self.open.as_ref().is_some_and(fits) {
            self.close(groups);
            let mut ports = endpoint_ports(self.service, pod);
            ports.sort();
            let ports: Arc<[SlicePort]> = ports.into();
            let endpoints = groups.remove(&ports).unwrap_or_default();
            self.open = Some(OpenGroup { container_ports: pod.ports.clone(), ports, endpoints });
        }
        &mut self.open.as_mut().expect("opened above").endpoints
    }

    fn close(&mut self, groups: &mut Groups<'a>) {
        if let Some(open) = self.open.take() {
            groups.insert(open.ports, open.endpoints);
        }
    }
}
