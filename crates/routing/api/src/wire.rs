//! Service, Pod, Node, Namespace, ServiceCIDR, EndpointSlice (v1) and PodLocator as the API server
//! sends them, with only the fields that nearhop reads. The decoder skips all other fields and does
//! not allocate memory for them.
//!
//! This module sets no defaults and validates nothing; `convert` does both.

use nearhop_core::Name;
use serde::Deserialize;
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;

use crate::field::{Field, IntOrString, List, Quantity, Shape, Strings};

/// Declares objects of the API. Each field can be absent or invalid independently of the others.
macro_rules! objects {
    ($($(#[$about:meta])* $object:ident {
        $($(#[$field_about:meta])* $field:ident: $shape:ty,)+
    })+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub(crate) struct $object {
            $($(#[$field_about])* pub(crate) $field: Field<$shape>,)+
        }

        impl<'de> Shape<'de> for $object {
            const WANTED: &'static str = "an object";

            fn from_object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
                Self::deserialize(MapAccessDeserializer::new(object)).map(Some)
            }
        }
    )+};
}

objects! {
    /// Type of an object.
    TypeMeta {
        api_version: Name,
        kind: Name,
    }

    /// `metadata` of any object.
    Metadata {
        namespace: Name,
        name: Name,
        uid: Name,
        /// `resourceVersion` of the object.
        resource_version: Name,
        /// `generation`: the server increments it when the spec changes.
        generation: i64,
        labels: Strings,
        annotations: Annotations,
        creation_timestamp: Name,
        deletion_timestamp: Name,
        owner_references: List<OwnerReference>,
    }

    /// The annotations that nearhop reads, on all kinds of objects.
    Annotations {
        /// On a Service.
        #[serde(rename = "service.kubernetes.io/topology-mode")]
        topology_mode: Name,
        /// On a Service: the older name.
        #[serde(rename = "service.kubernetes.io/topology-aware-hints")]
        topology_aware_hints: Name,
        /// On a Service.
        #[serde(rename = "nearhop.dev/topology-keys")]
        topology_keys: Name,
        /// On a Service or a Namespace.
        #[serde(rename = "nearhop.dev/traffic-distribution")]
        traffic_distribution: Name,
        /// On a Service.
        #[serde(rename = "nearhop.dev/routing-preference")]
        routing_preference: Name,
        /// On a Service.
        #[serde(rename = "nearhop.dev/max-overload")]
        max_overload: Name,
        /// On an EndpointSlice.
        #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
        trigger_time: Name,
        /// On an EndpointSlice.
        #[serde(rename = "nearhop.dev/routing")]
        routing: Name,
    }

    /// An entry of `metadata.ownerReferences`.
    OwnerReference {
        api_version: Name,
        kind: Name,
        name: Name,
        uid: Name,
    }

    Service {
        metadata: Metadata,
        spec: ServiceSpec,
        status: ServiceStatus,
    }

    ServiceSpec {
        r#type: Name,
        /// Selector; an absent selector is not the same as an empty one.
        selector: Strings,
        ports: List<ServicePort>,
        /// The older field, used if `clusterIPs` is empty.
        #[serde(rename = "clusterIP")]
        cluster_ip: Name,
        #[serde(rename = "clusterIPs")]
        cluster_ips: List<Name>,
        ip_families: List<Name>,
        /// Target of an ExternalName Service.
        external_name: Name,
        #[serde(rename = "externalIPs")]
        external_ips: List<Name>,
        /// Session affinity: `ClientIP` or `None`.
        session_affinity: Name,
        session_affinity_config: SessionAffinityConfig,
        /// Client ranges that may use the load balancer's addresses.
        load_balancer_source_ranges: List<Name>,
        /// The port of the load balancer's health check.
        health_check_node_port: i64,
        /// Policy for traffic from inside the cluster.
        internal_traffic_policy: Name,
        /// Policy for traffic from outside the cluster.
        external_traffic_policy: Name,
        /// Whether endpoints are published before they are ready.
        publish_not_ready_addresses: bool,
        /// KEP-536 (embedded API only).
        topology_keys: List<Name>,
        /// The first form of KEP-2433 (embedded API only).
        traffic_policy: Name,
        /// The first draft of KEP-4444 (embedded API only).
        routing_preference: Name,
        /// KEP-4444 and KEP-3015.
        traffic_distribution: Name,
    }

    /// `spec.sessionAffinityConfig` of a Service.
    SessionAffinityConfig {
        /// Affinity by client address.
        #[serde(rename = "clientIP")]
        client_ip: ClientIpConfig,
    }

    /// `spec.sessionAffinityConfig.clientIP` of a Service.
    ClientIpConfig {
        /// Duration of the affinity.
        timeout_seconds: i64,
    }

    /// An entry of a Service's `spec.ports`.
    ServicePort {
        name: Name,
        protocol: Name,
        /// The port that clients connect to.
        port: i64,
        /// The port on the Pods.
        target_port: IntOrString,
        /// The port on every node.
        node_port: i64,
        app_protocol: Name,
    }

    ServiceStatus {
        load_balancer: LoadBalancerStatus,
        /// Conditions that controllers report.
        conditions: List<ServiceCondition>,
    }

    /// An entry of a Service's `status.conditions`.
    ServiceCondition {
        r#type: Name,
        /// `True`, `False` or `Unknown`.
        status: Name,
        reason: Name,
        message: Name,
        /// The generation that this condition describes.
        observed_generation: i64,
        /// When the status changed.
        last_transition_time: Name,
    }

    /// `status.loadBalancer` of a Service.
    LoadBalancerStatus {
        /// Ingress points of the load balancer.
        ingress: List<LoadBalancerIngress>,
    }

    /// An entry of `status.loadBalancer.ingress`.
    LoadBalancerIngress {
        /// Address; absent if the entry has a host name.
        ip: Name,
        /// `VIP` (also when unset) or `Proxy`.
        ip_mode: Name,
    }

    Pod {
        metadata: Metadata,
        spec: PodSpec,
        status: PodStatus,
    }

    PodSpec {
        node_name: Name,
        hostname: Name,
        subdomain: Name,
        containers: List<Container>,
        /// Init containers, among them the sidecars.
        init_containers: List<Container>,
    }

    Container {
        /// `Always` makes an init container a sidecar.
        restart_policy: Name,
        ports: List<ContainerPort>,
    }

    ContainerPort {
        name: Name,
        container_port: i64,
        protocol: Name,
    }

    PodStatus {
        phase: Name,
        /// Addresses. `podIP` is not read, as in the in-tree controller.
        #[serde(rename = "podIPs")]
        pod_ips: List<PodIp>,
        conditions: List<Condition>,
    }

    /// An entry of `status.podIPs`.
    PodIp {
        ip: Name,
    }

    /// A condition of a Pod, a Node or a ServiceCIDR.
    Condition {
        r#type: Name,
        /// `True`, `False` or `Unknown`.
        status: Name,
        /// When the status changed.
        last_transition_time: Name,
    }

    Node {
        metadata: Metadata,
        spec: NodeSpec,
        status: NodeStatus,
    }

    NodeSpec {
        /// The older field, used if `podCIDRs` is empty.
        #[serde(rename = "podCIDR")]
        pod_cidr: Name,
        /// The ranges of the addresses of its Pods.
        #[serde(rename = "podCIDRs")]
        pod_cidrs: List<Name>,
        taints: List<Taint>,
    }

    /// An entry of a Node's `spec.taints`; the effect is not read.
    Taint {
        key: Name,
    }

    NodeStatus {
        /// Addresses and host names.
        addresses: List<NodeAddress>,
        /// Resources that Pods can use.
        allocatable: Allocatable,
        conditions: List<Condition>,
    }

    /// An entry of a Node's `status.addresses`.
    NodeAddress {
        /// `InternalIP`, `ExternalIP`, or a type that is not an IP address.
        r#type: Name,
        address: Name,
    }

    /// `status.allocatable` of a Node.
    Allocatable {
        cpu: Quantity,
    }

    ServiceCidr {
        metadata: Metadata,
        spec: ServiceCidrSpec,
        status: ServiceCidrStatus,
    }

    ServiceCidrSpec {
        /// At most one range per family.
        cidrs: List<Name>,
    }

    ServiceCidrStatus {
        conditions: List<Condition>,
    }

    Namespace {
        metadata: Metadata,
    }

    /// A PodLocator (nearhop.dev/v1alpha1).
    PodLocator {
        metadata: Metadata,
        /// The Pod's addresses.
        ips: List<PodIp>,
        node_name: Name,
        node_labels: Strings,
    }

    EndpointSlice {
        metadata: Metadata,
        address_type: Name,
        ports: List<EndpointPort>,
        endpoints: List<Endpoint>,
    }

    EndpointPort {
        name: Name,
        protocol: Name,
        /// Number; unset means all ports.
        port: i64,
        app_protocol: Name,
    }

    Endpoint {
        addresses: List<Name>,
        conditions: EndpointConditions,
        /// Host name for DNS.
        hostname: Name,
        node_name: Name,
        zone: Name,
        /// The object behind the endpoint, usually a Pod.
        target_ref: ObjectReference,
        /// The zones and nodes that should use it.
        hints: EndpointHints,
    }

    EndpointConditions {
        ready: bool,
        serving: bool,
        terminating: bool,
    }

    /// A reference to an object.
    ObjectReference {
        kind: Name,
        namespace: Name,
        name: Name,
        uid: Name,
    }

    EndpointHints {
        for_zones: List<Hint>,
        for_nodes: List<Hint>,
    }

    /// An entry of `hints.forZones` or `hints.forNodes`.
    Hint {
        /// Name of the zone or node.
        name: Name,
    }
}
