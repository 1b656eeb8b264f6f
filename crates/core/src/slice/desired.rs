//! From Pods to the endpoints that should be published (endpoint eligibility, fields and ports).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::key::{Family, Name, Protocol};
use crate::model::{
    Addresses, Conditions, ContainerPort, Endpoint, Node, Pod, Service, SlicePort, Target,
    TargetPort,
};
use crate::problem::{ObjectRef, Problem};

/// A selected Pod and the Node it runs on, if that is known.
pub type PodOnNode<'a> = (&'a Pod, Option<&'a Node>);

/// Endpoints that belong into slices with the same ports.
#[derive(Debug, Default)]
pub(super) struct PortGroup {
    /// Sorted by the name of their Pod.
    pub endpoints: Vec<Endpoint>,
}

/// What should be published in one family, by slice ports.
#[derive(Debug, Default)]
pub(super) struct Desired {
    /// Ports (sorted: the group is an unordered collection) to endpoints. A group is there as
    /// soon as one eligible Pod maps to it, even if that Pod is then skipped.
    pub groups: BTreeMap<Arc<[SlicePort]>, PortGroup>,
    /// Pods left out because their Node is not known (yet): the plan is to be repeated.
    pub missing_nodes: Vec<Problem>,
}

/// Collects what should be published for a Service in one family.
pub(super) fn desired_endpoints(
    service: &Service,
    pods: &[PodOnNode<'_>],
    family: Family,
) -> Desired {
    let mut desired = Desired::default();
    let mut ports = PortResolver::new(service);
    let mut last: Option<Arc<[SlicePort]>> = None;
    for (pod, node) in pods.iter().filter(|(pod, _)| pod.is_eligible()) {
        let key = ports.resolve(pod);
        // Interleaving groups is rare: look the group up again only when it changes.
        if last.as_ref() != Some(&key) {
            desired.groups.entry(key.clone()).or_default();
            last = Some(key.clone());
        }
        if node.is_none() && !service.publish_not_ready_addresses {
            desired.missing_nodes.push(missing_node(service, pod));
        } else if let Some(endpoint) = pod_to_endpoint(service, pod, *node, family) {
            let group = desired.groups.get_mut(&key).expect("entered above");
            group.endpoints.push(endpoint);
        }
    }
    for group in desired.groups.values_mut() {
        group.endpoints.sort_by(|a, b| pod_name(a).cmp(&pod_name(b)));
    }
    desired
}

/// The name of the Pod behind an endpoint.
pub(super) fn pod_name(endpoint: &Endpoint) -> Option<&Name> {
    endpoint.target.namespaced_name().map(|(_, name)| name)
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

/// The endpoint of a Pod in one family, or none if it has no address there.
pub fn pod_to_endpoint(
    service: &Service,
    pod: &Pod,
    node: Option<&Node>,
    family: Family,
) -> Option<Endpoint> {
    let addresses: Addresses =
        pod.ips.as_slice().iter().copied().filter(|ip| Family::of(*ip) == family).collect();
    addresses.first()?;
    let ready = service.publish_not_ready_addresses || (pod.ready && !pod.deleting);
    let dns = pod.dns.as_deref().filter(|dns| {
        !dns.hostname.is_empty()
            && dns.subdomain == service.key.name
            && pod.key.namespace == service.key.namespace
    });
    Some(Endpoint {
        addresses,
        conditions: Conditions {
            ready: Some(ready),
            serving: Some(pod.ready),
            terminating: Some(pod.deleting),
        },
        hostname: dns.map(|dns| dns.hostname.clone()),
        node: pod.node.clone().filter(|node| !node.is_empty()),
        zone: node.and_then(Node::zone).cloned(),
        target: Target::Pod {
            namespace: pod.key.namespace.clone(),
            name: pod.key.name.clone(),
            uid: pod.uid.clone(),
        },
        hints: None,
    })
}

/// Finds the number behind a targetPort: name and protocol must both match.
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
/// is a 0, for which the API server would refuse the whole slice.
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

/// Resolves ports Pod by Pod, once where no name has to be looked up.
struct PortResolver<'a> {
    service: &'a Service,
    named: bool,
    last: Option<(Arc<[ContainerPort]>, Arc<[SlicePort]>)>,
}

impl<'a> PortResolver<'a> {
    fn new(service: &'a Service) -> Self {
        let named = service.ports.iter().any(|port| matches!(port.target, TargetPort::Named(_)));
        Self { service, named, last: None }
    }

    fn resolve(&mut self, pod: &Pod) -> Arc<[SlicePort]> {
        if let Some((container_ports, ports)) = &self.last
            && (!self.named || *container_ports == pod.ports)
        {
            return ports.clone();
        }
        let mut ports = endpoint_ports(self.service, pod);
        ports.sort();
        let ports: Arc<[SlicePort]> = ports.into();
        self.last = Some((pod.ports.clone(), ports.clone()));
        ports
    }
}
