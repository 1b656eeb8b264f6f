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
        pub struct $object {
            $($(#[$field_about])* pub $field: Field<$shape>,)+
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
        /// Group and version.
        api_version: Name,
        /// Kind.
        kind: Name,
    }

    /// `metadata` of any object.
    Metadata {
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
        /// UID.
        uid: Name,
        /// `resourceVersion` of the object.
        resource_version: Name,
        /// `generation`: the server increments it when the spec changes.
        generation: i64,
        /// Labels.
        labels: Strings,
        /// Annotations.
        annotations: Annotations,
        /// Time of creation.
        creation_timestamp: Name,
        /// Time of the deletion request.
        deletion_timestamp: Name,
        /// Owners.
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
        /// Group and version.
        api_version: Name,
        /// Kind.
        kind: Name,
        /// Name.
        name: Name,
        /// UID.
        uid: Name,
    }

    /// A Service.
    Service {
        /// Metadata.
        metadata: Metadata,
        /// Spec.
        spec: ServiceSpec,
        /// Status.
        status: ServiceStatus,
    }

    /// `spec` of a Service.
    ServiceSpec {
        /// Type.
        r#type: Name,
        /// Selector; an absent selector is not the same as an empty one.
        selector: Strings,
        /// Ports.
        ports: List<ServicePort>,
        /// The older field, used if `clusterIPs` is empty.
        #[serde(rename = "clusterIP")]
        cluster_ip: Name,
        /// Cluster addresses.
        #[serde(rename = "clusterIPs")]
        cluster_ips: List<Name>,
        /// Families.
        ip_families: List<Name>,
        /// Target of an ExternalName Service.
        external_name: Name,
        /// External addresses.
        #[serde(rename = "externalIPs")]
        external_ips: List<Name>,
        /// Session affinity: `ClientIP` or `None`.
        session_affinity: Name,
        /// Session affinity settings.
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
        /// Name.
        name: Name,
        /// Protocol.
        protocol: Name,
        /// The port that clients connect to.
        port: i64,
        /// The port on the Pods.
        target_port: IntOrString,
        /// The port on every node.
        node_port: i64,
        /// Application protocol.
        app_protocol: Name,
    }

    /// `status` of a Service.
    ServiceStatus {
        /// Status of the load balancer.
        load_balancer: LoadBalancerStatus,
        /// Conditions that controllers report.
        conditions: List<ServiceCondition>,
    }

    /// An entry of a Service's `status.conditions`.
    ServiceCondition {
        /// Type.
        r#type: Name,
        /// `True`, `False` or `Unknown`.
        status: Name,
        /// Reason.
        reason: Name,
        /// Message.
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

    /// A Pod.
    Pod {
        /// Metadata.
        metadata: Metadata,
        /// Spec.
        spec: PodSpec,
        /// Status.
        status: PodStatus,
    }

    /// `spec` of a Pod.
    PodSpec {
        /// Node it runs on.
        node_name: Name,
        /// Host name.
        hostname: Name,
        /// Subdomain.
        subdomain: Name,
        /// Containers.
        containers: List<Container>,
        /// Init containers, among them the sidecars.
        init_containers: List<Container>,
    }

    /// A container.
    Container {
        /// `Always` makes an init container a sidecar.
        restart_policy: Name,
        /// Ports.
        ports: List<ContainerPort>,
    }

    /// A port of a container.
    ContainerPort {
        /// Name.
        name: Name,
        /// Number.
        container_port: i64,
        /// Protocol.
        protocol: Name,
    }

    /// `status` of a Pod.
    PodStatus {
        /// Phase.
        phase: Name,
        /// Addresses. `podIP` is not read, as in the in-tree controller.
        #[serde(rename = "podIPs")]
        pod_ips: List<PodIp>,
        /// Conditions.
        conditions: List<Condition>,
    }

    /// An entry of `status.podIPs`.
    PodIp {
        /// Address.
        ip: Name,
    }

    /// A condition of a Pod, a Node or a ServiceCIDR.
    Condition {
        /// Type.
        r#type: Name,
        /// `True`, `False` or `Unknown`.
        status: Name,
        /// When the status changed.
        last_transition_time: Name,
    }

    /// A Node.
    Node {
        /// Metadata.
        metadata: Metadata,
        /// Spec.
        spec: NodeSpec,
        /// Status.
        status: NodeStatus,
    }

    /// `spec` of a Node.
    NodeSpec {
        /// The older field, used if `podCIDRs` is empty.
        #[serde(rename = "podCIDR")]
        pod_cidr: Name,
        /// The ranges of the addresses of its Pods.
        #[serde(rename = "podCIDRs")]
        pod_cidrs: List<Name>,
        /// Taints.
        taints: List<Taint>,
    }

    /// An entry of a Node's `spec.taints`; the effect is not read.
    Taint {
        /// Key.
        key: Name,
    }

    /// `status` of a Node.
    NodeStatus {
        /// Addresses and host names.
        addresses: List<NodeAddress>,
        /// Resources that Pods can use.
        allocatable: Allocatable,
        /// Conditions.
        conditions: List<Condition>,
    }

    /// An entry of a Node's `status.addresses`.
    NodeAddress {
        /// `InternalIP`, `ExternalIP`, or a type that is not an IP address.
        r#type: Name,
        /// Address.
        address: Name,
    }

    /// `status.allocatable` of a Node.
    Allocatable {
        /// CPU.
        cpu: Quantity,
    }

    /// A ServiceCIDR.
    ServiceCidr {
        /// Metadata.
        metadata: Metadata,
        /// Spec.
        spec: ServiceCidrSpec,
        /// Status.
        status: ServiceCidrStatus,
    }

    /// `spec` of a ServiceCIDR.
    ServiceCidrSpec {
        /// At most one range per family.
        cidrs: List<Name>,
    }

    /// `status` of a ServiceCIDR.
    ServiceCidrStatus {
        /// Conditions.
        conditions: List<Condition>,
    }

    /// A Namespace.
    Namespace {
        /// Metadata.
        metadata: Metadata,
    }

    /// A PodLocator (nearhop.dev/v1alpha1).
    PodLocator {
        /// Metadata.
        metadata: Metadata,
        /// The Pod's addresses.
        ips: List<PodIp>,
        /// The node it runs on.
        node_name: Name,
        /// Labels of that node.
        node_labels: Strings,
    }

    /// An EndpointSlice.
    EndpointSlice {
        /// Metadata.
        metadata: Metadata,
        /// Type of its addresses.
        address_type: Name,
        /// Ports.
        ports: List<EndpointPort>,
        /// Endpoints.
        endpoints: List<Endpoint>,
    }

    /// A port of an EndpointSlice.
    EndpointPort {
        /// Name.
        name: Name,
        /// Protocol.
        protocol: Name,
        /// Number; unset means all ports.
        port: i64,
        /// Application protocol.
        app_protocol: Name,
    }

    /// An endpoint of an EndpointSlice.
    Endpoint {
        /// Addresses.
        addresses: List<Name>,
        /// Conditions.
        conditions: EndpointConditions,
        /// Host name for DNS.
        hostname: Name,
        /// Node it runs on.
        node_name: Name,
        /// Zone it runs in.
        zone: Name,
        /// The object behind the endpoint, usually a Pod.
        target_ref: ObjectReference,
        /// The zones and nodes that should use it.
        hints: EndpointHints,
    }

    /// `conditions` of an endpoint.
    EndpointConditions {
        /// Ready.
        ready: bool,
        /// Serving.
        serving: bool,
        /// Terminating.
        terminating: bool,
    }

    /// A reference to an object.
    ObjectReference {
        /// Kind.
        kind: Name,
        /// Namespace.
        namespace: Name,
        /// Name.
        name: Name,
        /// UID.
        uid: Name,
    }

    /// `hints` of an endpoint.
    EndpointHints {
        /// Zones.
        for_zones: List<Hint>,
        /// Nodes.
        for_nodes: List<Hint>,
    }

    /// An entry of `hints.forZones` or `hints.forNodes`.
    Hint {
        /// Name of the zone or node.
        name: Name,
    }
}
