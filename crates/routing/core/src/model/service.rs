//! Services.

use core::time::Duration;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::cidr::Cidr;
use crate::key::{Family, Name, Protocol, ServiceKey};
use crate::labels::Labels;
use crate::object::ObjectRef;
use crate::problem::{Problem, quote};

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    #[default]
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also at a load balancer's address.
    LoadBalancer,
    /// A DNS alias; nothing is routed.
    ExternalName,
}

impl ServiceType {
    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "ClusterIP" => Some(Self::ClusterIp),
            "NodePort" => Some(Self::NodePort),
            "LoadBalancer" => Some(Self::LoadBalancer),
            "ExternalName" => Some(Self::ExternalName),
            _ => None,
        }
    }
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrafficPolicy {
    /// Any endpoint.
    #[default]
    Cluster,
    /// Only endpoints on the node that received the packet.
    Local,
}

impl TrafficPolicy {
    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Cluster" => Some(Self::Cluster),
            "Local" => Some(Self::Local),
            _ => None,
        }
    }
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

/// `spec.loadBalancerSourceRanges`.
///
/// "No ranges" and "no readable ranges" are different: the first admits all clients, the second
/// none, so that a typing error does not open a Service.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum SourceRanges {
    /// The field has no ranges: all clients are admitted.
    #[default]
    AnyClient,
    /// Clients with an address in one of these ranges; no client if the list is empty.
    Only(Vec<Cidr>),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty for a single unnamed port.
    pub name: Name,
    /// Protocol.
    pub protocol: Protocol,
    /// The port that clients connect to.
    pub port: u16,
    /// The port on the Pods.
    pub target: TargetPort,
    /// `nodePort`, 0 if there is none.
    pub node_port: u16,
    /// `appProtocol`, copied to the slices.
    pub app_protocol: Option<Name>,
}

impl ServicePort {
    /// An unnamed TCP port with the same number on the Pods. The caller sets the other fields.
    pub fn new(port: u16) -> Self {
        Self {
            name: Name::from(""),
            protocol: Protocol::Tcp,
            port,
            target: TargetPort::Number(port),
            node_port: 0,
            app_protocol: None,
        }
    }
}

/// `targetPort`: a number, or the name of a container port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// A number.
    Number(u16),
    /// A container port's name.
    Named(Name),
}

/// The default duration of session affinity.
pub const DEFAULT_AFFINITY: Duration = Duration::from_secs(10_800);

/// The longest duration of session affinity; the shortest is one second.
pub const LONGEST_AFFINITY: Duration = Duration::from_secs(86_400);

/// All topology requests of a Service, as written and not yet validated. Field names follow the
/// names in the API; `intent` interprets them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TopologySpec {
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
    /// Whether it has a deletionTimestamp. The controller then creates nothing new for it.
    pub deleting: bool,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.externalName`, for a Service of that type.
    pub external_name: Option<Name>,
    /// `spec.selector`; without it, only the user writes slices.
    pub selector: Option<Labels>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIPs`.
    pub cluster_ips: ClusterIps,
    /// `spec.ipFamilies`.
    pub ip_families: Vec<Family>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` that the proxy handles (ipMode VIP).
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`: clients that may use the load balancer's addresses.
    pub source_ranges: SourceRanges,
    /// `spec.sessionAffinity: ClientIP`: how long after its last packet a client stays with its
    /// endpoint.
    pub session_affinity: Option<Duration>,
    /// `spec.healthCheckNodePort`, 0 if there is none.
    pub health_check_node_port: u16,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready_addresses: bool,
    /// Its topology requests.
    pub topology: TopologySpec,
}

impl Service {
    /// Its cluster IP in a family.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        let ClusterIps::Addresses(addresses) = &self.cluster_ips else { return None };
        addresses.iter().copied().find(|address| Family::of(*address) == family)
    }

    /// A ClusterIP Service without ports and selector. The caller sets the other fields.
    pub fn new(key: ServiceKey) -> Self {
        Self {
            key,
            uid: Name::from(""),
            labels: Labels::default(),
            created: None,
            deleting: false,
            service_type: ServiceType::default(),
            external_name: None,
            selector: None,
            ports: Vec::new(),
            cluster_ips: ClusterIps::default(),
            ip_families: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: SourceRanges::default(),
            session_affinity: None,
            health_check_node_port: 0,
            internal_traffic_policy: TrafficPolicy::default(),
            external_traffic_policy: TrafficPolicy::default(),
            publish_not_ready_addresses: false,
            topology: TopologySpec::default(),
        }
    }

    /// Whether its slices have the headless label: the Service has no cluster IP.
    pub fn is_headless(&self) -> bool {
        !matches!(self.cluster_ips, ClusterIps::Addresses(_))
    }

    /// Whether the controller manages slices for it.
    pub(crate) fn wants_slices(&self) -> bool {
        self.selector.is_some() && self.service_type != ServiceType::ExternalName
    }

    /// Its IP families: as listed, else by its cluster IP, else both.
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

    /// Whether traffic from outside the cluster can reach this port, so that the external policy
    /// applies.
    pub(crate) fn externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port != 0 || !self.load_balancer_ips.is_empty() || !self.external_ips.is_empty()
    }

    /// `externalTrafficPolicy: Local`, if the Service type uses it.
    pub fn external_policy_local(&self) -> bool {
        let exposed = match self.service_type {
            ServiceType::NodePort | ServiceType::LoadBalancer => true,
            ServiceType::ClusterIp => !self.external_ips.is_empty(),
            ServiceType::ExternalName => false,
        };
        exposed && self.external_traffic_policy == TrafficPolicy::Local
    }

    /// The problems of the Service. Decisions ignore the parts that a problem names.
    pub fn problems(&self) -> Vec<Problem> {
        let object = || ObjectRef::Service(self.key.clone());
        let mut problems = Vec::new();
        for (i, port) in self.ports.iter().enumerate() {
            if port.port == 0 {
                problems.push(Problem::new(
                    object(),
                    format!("spec.ports[{i}].port"),
                    "0 is not a port",
                    "give a port from 1 to 65535; this port is not served until then",
                ));
            }
            let twin =
                |other: &ServicePort| other.name == port.name && other.protocol == port.protocol;
            if self.ports[..i].iter().any(twin) {
                problems.push(Problem::new(
                    object(),
                    format!("spec.ports[{i}].name"),
                    format!("{} occurs twice for {}", quote(&port.name), port.protocol),
                    "give each port a name of its own; the later one is served until then",
                ));
            }
        }
        problems
    }
}
