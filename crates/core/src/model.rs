//! The objects nearhop decides about, reduced to what it reads.
//!
//! They mirror the Kubernetes kinds of the same name, but hold only parsed values: an address
//! that could not be read never gets here (see `nearhop-api`). What is representable and still
//! wrong (a port 0, a zone name nobody could hint at) is found by the `problems` functions.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::key::{Family, Name, PodKey, Protocol, ServiceKey};
use crate::labels::{Labels, well_known};
use crate::problem::{ObjectRef, Problem, quote};
use crate::routing::SliceRouting;

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    #[default]
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also by a load balancer's address.
    LoadBalancer,
    /// A DNS alias; nothing is routed.
    ExternalName,
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrafficPolicy {
    /// Any endpoint.
    #[default]
    Cluster,
    /// Only endpoints on the node that the packet is on.
    Local,
}

/// `spec.clusterIPs`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ClusterIps {
    /// Not allocated.
    #[default]
    Unset,
    /// `None`: the name resolves to the endpoints themselves.
    Headless,
    /// One address, or one per family.
    Addresses(Vec<IpAddr>),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty for a single unnamed port.
    pub name: Name,
    /// Protocol.
    pub protocol: Protocol,
    /// The port clients connect to.
    pub port: u16,
    /// The port on the pods.
    pub target: TargetPort,
    /// `nodePort`, 0 when there is none.
    pub node_port: u16,
    /// `appProtocol`, copied to the slices.
    pub app_protocol: Option<Name>,
}

/// `targetPort`: a number, or the name of a container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// A number.
    Number(u16),
    /// A container port's name.
    Named(Name),
}

/// Everything by which a Service can ask for topology, as written and not yet judged.
/// Field names follow the spelling; `intent` gives them meaning.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Asks {
    /// Annotation `service.kubernetes.io/topology-mode`.
    pub topology_mode: Option<Name>,
    /// Annotation `service.kubernetes.io/topology-aware-hints`, the older name.
    pub topology_aware_hints: Option<Name>,
    /// `spec.trafficPolicy` (embedded API only).
    pub traffic_policy: Option<Name>,
    /// `spec.topologyKeys` (embedded API only).
    pub topology_keys: Vec<Name>,
    /// Annotation `nearhop.dev/topology-keys`.
    pub topology_keys_annotation: Option<Name>,
    /// Annotation `nearhop.dev/traffic-distribution`.
    pub traffic_distribution_annotation: Option<Name>,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<Name>,
    /// `spec.routingPreference` (embedded API only).
    pub routing_preference: Option<Name>,
    /// Annotation `nearhop.dev/routing-preference`.
    pub routing_preference_annotation: Option<Name>,
    /// Annotation `nearhop.dev/max-overload`.
    pub max_overload: Option<Name>,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: ServiceKey,
    /// `metadata.uid`, which owned slices refer to.
    pub uid: Name,
    /// Labels, mirrored to the slices.
    pub labels: Labels,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Whether it has a deletionTimestamp: then nothing new is created for it.
    pub deleting: bool,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.selector`; without one nobody but the user writes slices.
    pub selector: Option<Labels>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIPs`.
    pub cluster_ips: ClusterIps,
    /// `spec.ipFamilies`.
    pub ip_families: Vec<Family>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` that the proxy answers for (ipMode VIP).
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready_addresses: bool,
    /// What it asks for.
    pub asks: Asks,
}

impl Service {
    /// A ClusterIP Service without ports or selector, to be filled in.
    pub fn new(key: ServiceKey) -> Self {
        Self {
            key,
            uid: Name::from(""),
            labels: Labels::default(),
            created: None,
            deleting: false,
            service_type: ServiceType::default(),
            selector: None,
            ports: Vec::new(),
            cluster_ips: ClusterIps::default(),
            ip_families: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            internal_traffic_policy: TrafficPolicy::default(),
            external_traffic_policy: TrafficPolicy::default(),
            publish_not_ready_addresses: false,
            asks: Asks::default(),
        }
    }

    /// Whether slices are labelled headless: no cluster address at all.
    pub fn is_headless(&self) -> bool {
        !matches!(self.cluster_ips, ClusterIps::Addresses(_))
    }

    /// Whether the controller keeps slices for it.
    pub fn wants_slices(&self) -> bool {
        self.selector.is_some() && self.service_type != ServiceType::ExternalName
    }

    /// The families it is served in: as listed, else by its cluster address, else both.
    pub fn families(&self) -> Vec<Family> {
        if !self.ip_families.is_empty() {
            let mut families: Vec<Family> = Vec::with_capacity(2);
            for family in &self.ip_families {
                if !families.contains(family) {
                    families.push(*family);
                }
            }
            return families;
        }
        match &self.cluster_ips {
            ClusterIps::Addresses(addresses) if !addresses.is_empty() => {
                vec![Family::of(addresses[0])]
            }
            _ => vec![Family::Ipv4, Family::Ipv6],
        }
    }

    /// Whether packets from outside can reach this port, and so whether its external policy
    /// matters.
    pub fn externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port != 0 || !self.load_balancer_ips.is_empty() || !self.external_ips.is_empty()
    }

    /// `externalTrafficPolicy: Local`, where the type gives it a meaning.
    pub fn external_policy_local(&self) -> bool {
        let exposed = match self.service_type {
            ServiceType::NodePort | ServiceType::LoadBalancer => true,
            ServiceType::ClusterIp => !self.external_ips.is_empty(),
            ServiceType::ExternalName => false,
        };
        exposed && self.external_traffic_policy == TrafficPolicy::Local
    }

    /// What is wrong with it. The parts named here are left out of every decision.
    pub fn problems(&self) -> Vec<Problem> {
        let object = || ObjectRef::Service(self.key.clone());
        self.ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.port == 0)
            .map(|(i, _)| {
                Problem::new(
                    object(),
                    format!("spec.ports[{i}].port"),
                    "0 is not a port",
                    "give a port from 1 to 65535; this port is not served until then",
                )
            })
            .collect()
    }
}

/// A container port that a named `targetPort` can mean.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerPort {
    /// Name; unnamed ports cannot be meant.
    pub name: Name,
    /// Number.
    pub port: u16,
    /// Protocol, which must match too.
    pub protocol: Protocol,
}

/// One or more addresses; nearly always one, which then needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addresses {
    /// The usual case.
    One(IpAddr),
    /// None, or several.
    Many(Box<[IpAddr]>),
}

impl Addresses {
    /// As a slice.
    pub fn as_slice(&self) -> &[IpAddr] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Many(addresses) => addresses,
        }
    }

    /// The address that proxies use.
    pub fn first(&self) -> Option<IpAddr> {
        self.as_slice().first().copied()
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut addresses = addresses.into_iter();
        match (addresses.next(), addresses.next()) {
            (Some(only), None) => Self::One(only),
            (Some(first), Some(second)) => {
                Self::Many([first, second].into_iter().chain(addresses).collect())
            }
            (None, _) => Self::Many(Box::default()),
        }
    }
}

/// `spec.hostname` and `spec.subdomain` of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDns {
    /// Host name.
    pub hostname: Name,
    /// Subdomain, which must be the Service's name for the host name to count.
    pub subdomain: Name,
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// `metadata.uid`.
    pub uid: Name,
    /// Labels, which Services select by.
    pub labels: Labels,
    /// `status.podIPs`.
    pub ips: Addresses,
    /// `spec.nodeName`.
    pub node: Option<Name>,
    /// Host name and subdomain, where set.
    pub dns: Option<Box<PodDns>>,
    /// Ports of containers and then of sidecars, in the order a name is looked up.
    pub ports: Arc<[ContainerPort]>,
    /// lastTransitionTime of the Ready condition.
    pub ready_since: Option<Timestamp>,
    /// Whether the Ready condition is True.
    pub ready: bool,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether its phase is Failed or Succeeded.
    pub terminal: bool,
}

impl Pod {
    /// A ready Pod without labels, addresses or node, to be filled in.
    pub fn new(key: PodKey) -> Self {
        Self {
            key,
            uid: Name::from(""),
            labels: Labels::default(),
            ips: Addresses::Many(Box::default()),
            node: None,
            dns: None,
            ports: Arc::from([]),
            ready_since: None,
            ready: true,
            deleting: false,
            terminal: false,
        }
    }

    /// Whether it can be an endpoint at all: neither finished nor without an address.
    pub fn is_eligible(&self) -> bool {
        !self.terminal && !self.ips.as_slice().is_empty()
    }
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: Name,
    /// Labels: the place it stands in.
    pub labels: Labels,
    /// Whether the Ready condition is True.
    pub ready: bool,
    /// Allocatable CPU in thousandths of a core, where the node says it.
    pub cpu_milli: Option<u64>,
}

impl Node {
    /// A ready Node without labels or CPU, to be filled in.
    pub fn new(name: impl Into<Name>) -> Self {
        Self { name: name.into(), labels: Labels::default(), ready: true, cpu_milli: None }
    }

    /// Its zone, if the label is there and usable as a hint.
    pub fn zone(&self) -> Option<&Name> {
        self.labels.get(well_known::ZONE).filter(|zone| is_zone_name(zone))
    }

    /// Its region.
    pub fn region(&self) -> Option<&Name> {
        self.labels.get(well_known::REGION).filter(|region| !region.is_empty())
    }

    /// Whether it counts as capacity: ready, and not a control-plane node.
    pub fn counts_as_capacity(&self) -> bool {
        self.ready
            && self.labels.get(well_known::CONTROL_PLANE).is_none()
            && self.labels.get(well_known::MASTER).is_none()
    }

    /// What is wrong with it.
    pub fn problems(&self) -> Vec<Problem> {
        let zone = self.labels.get(well_known::ZONE);
        zone.filter(|zone| !is_zone_name(zone))
            .map(|zone| {
                let field = format!("metadata.labels[{}]", well_known::ZONE);
                zone_problem(ObjectRef::Node(self.name.clone()), field, zone)
            })
            .into_iter()
            .collect()
    }
}

/// A Namespace, as far as it sets defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Name.
    pub name: Name,
    /// Annotation `nearhop.dev/traffic-distribution`.
    pub traffic_distribution: Option<Name>,
}

/// `addressType` of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressType {
    /// IPv4 or IPv6.
    Ip(Family),
    /// Anything else (`FQDN`, or the obsolete `IP`): never routed, never written.
    Other(Name),
}

impl AddressType {
    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Self {
        Family::parse(text).map_or_else(|| Self::Other(Name::from(text)), Self::Ip)
    }

    /// The API's spelling.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ip(family) => family.as_str(),
            Self::Other(text) => text,
        }
    }

    /// The family, if it is one.
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::Ip(family) => Some(*family),
            Self::Other(_) => None,
        }
    }
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlicePort {
    /// The Service port's name.
    pub name: Name,
    /// Protocol.
    pub protocol: Protocol,
    /// Number on the pods; unset means "all ports" and is not routed.
    pub port: Option<u16>,
    /// `appProtocol`.
    pub app_protocol: Option<Name>,
}

/// Conditions of an endpoint, unset kept apart from false: the controller reads an unset `ready`
/// as not ready, a proxy as ready (both as upstream does).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Conditions {
    /// `ready`.
    pub ready: Option<bool>,
    /// `serving`.
    pub serving: Option<bool>,
    /// `terminating`.
    pub terminating: Option<bool>,
}

/// The object behind an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nobody says.
    Unknown,
    /// A Pod.
    Pod {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
        /// UID.
        uid: Name,
    },
    /// Another object.
    Other(Arc<OtherTarget>),
}

/// A `targetRef` that is not a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTarget {
    /// Kind.
    pub kind: Name,
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
    /// UID.
    pub uid: Name,
}

impl Target {
    /// Namespace and name, which are part of an endpoint's identity.
    pub fn namespaced_name(&self) -> Option<(&Name, &Name)> {
        match self {
            Self::Unknown => None,
            Self::Pod { namespace, name, .. } => Some((namespace, name)),
            Self::Other(other) => Some((&other.namespace, &other.name)),
        }
    }
}

/// `hints` of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Hints {
    /// `forZones[].name`.
    pub zones: Vec<Name>,
    /// `forNodes[].name`.
    pub nodes: Vec<Name>,
}

impl Hints {
    /// Hints for zones only.
    pub fn for_zones(zones: Vec<Name>) -> Self {
        Self { zones, nodes: Vec::new() }
    }
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Addresses; proxies use the first.
    pub addresses: Addresses,
    /// Conditions.
    pub conditions: Conditions,
    /// Host name for DNS.
    pub hostname: Option<Name>,
    /// Node it runs on.
    pub node: Option<Name>,
    /// Zone it runs in.
    pub zone: Option<Name>,
    /// What is behind it.
    pub target: Target,
    /// Who should use it. Shared: endpoints of a zone usually carry the same hint.
    pub hints: Option<Arc<Hints>>,
}

impl Endpoint {
    /// A ready endpoint at an address, to be filled in.
    pub fn at(address: IpAddr) -> Self {
        Self {
            addresses: Addresses::One(address),
            conditions: Conditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            },
            hostname: None,
            node: None,
            zone: None,
            target: Target::Unknown,
            hints: None,
        }
    }

    /// Ready in the controller's sense: explicitly so.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready == Some(true)
    }

    /// Zones it is hinted for.
    pub fn hint_zones(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |hints| &hints.zones)
    }

    /// Nodes it is hinted for.
    pub fn hint_nodes(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |hints| &hints.nodes)
    }
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace.
    pub namespace: Name,
    /// Name; empty while the API server has not yet given one.
    pub name: Name,
    /// Labels.
    pub labels: Labels,
    /// UIDs of the Services (v1) that own it.
    pub owners: Vec<Name>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// `addressType`.
    pub address_type: AddressType,
    /// Ports, shared between the slices of a Service.
    pub ports: Arc<[SlicePort]>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub trigger_time: Option<Name>,
    /// Annotation `nearhop.dev/routing`.
    pub routing: SliceRouting,
}

impl Slice {
    /// The Service it belongs to, if its label says.
    pub fn service(&self) -> Option<ServiceKey> {
        let name = self.labels.get(well_known::SERVICE_NAME).filter(|name| !name.is_empty())?;
        Some(ServiceKey { namespace: self.namespace.clone(), name: name.clone() })
    }

    /// Who writes it.
    pub fn managed_by(&self) -> Option<&Name> {
        self.labels.get(well_known::MANAGED_BY)
    }

    /// What is wrong with it. Endpoints named here are left out of every decision.
    pub fn problems(&self) -> Vec<Problem> {
        let object = || ObjectRef::Slice(self.namespace.clone(), self.name.clone());
        let mut problems = Vec::new();
        if self.service().is_none() {
            problems.push(Problem::new(
                object(),
                format!("metadata.labels[{}]", well_known::SERVICE_NAME),
                "missing or empty, so the slice belongs to no Service",
                "label it with its Service's name; it is ignored until then",
            ));
        }
        if let AddressType::Other(other) = &self.address_type {
            problems.push(Problem::new(
                object(),
                "addressType",
                format!("{} is not routed", quote(other)),
                "use IPv4 or IPv6; the slice is ignored until then",
            ));
        }
        if let SliceRouting::Broken(cause) = &self.routing {
            problems.push(Problem::new(
                object(),
                format!("metadata.annotations[{}]", crate::routing::ANNOTATION),
                cause.to_string(),
                "remove it, the controller writes it anew; hints are used until then",
            ));
        }
        for (i, port) in self.ports.iter().enumerate().filter(|(_, port)| port.port == Some(0)) {
            problems.push(Problem::new(
                object(),
                format!("ports[{i}].port"),
                format!("0 is not a port (port name {})", quote(&port.name)),
                "give a port from 1 to 65535; this port is not routed until then",
            ));
        }
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            self.endpoint_problems(i, endpoint, &mut problems);
        }
        problems
    }

    fn endpoint_problems(&self, i: usize, endpoint: &Endpoint, problems: &mut Vec<Problem>) {
        let object = || ObjectRef::Slice(self.namespace.clone(), self.name.clone());
        let family = self.address_type.family();
        for address in endpoint.addresses.as_slice() {
            if family.is_some_and(|family| family != Family::of(*address)) {
                problems.push(Problem::new(
                    object(),
                    format!("endpoints[{i}].addresses"),
                    format!("{address} is not an {} address", self.address_type.as_str()),
                    "move it to a slice of its own family; this endpoint is ignored until then",
                ));
            }
        }
        if let Some(zone) = endpoint.zone.as_ref().filter(|zone| !is_zone_name(zone)) {
            problems.push(zone_problem(object(), format!("endpoints[{i}].zone"), zone));
        }
        for (j, zone) in endpoint.hint_zones().iter().enumerate() {
            if !is_zone_name(zone) {
                let field = format!("endpoints[{i}].hints.forZones[{j}].name");
                problems.push(zone_problem(object(), field, zone));
            }
        }
    }
}

/// Whether a text can be a zone in a hint: a non-empty label value (the API server refuses
/// others in `forZones`).
pub fn is_zone_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(inner)
        && outer(text.chars().next())
        && outer(text.chars().next_back())
}

fn zone_problem(object: ObjectRef, field: String, zone: &str) -> Problem {
    Problem::new(
        object,
        field,
        format!("{} is not a zone name", quote(zone)),
        "use 1 to 63 letters, digits, '-', '_' or '.'; it counts as no zone until then",
    )
}
