//! Random clusters from a small set of names and addresses, so that conflicts are frequent.
//!
//! Slices are random, not planned from Pods: the table must follow any hints and annotations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use nearhop_core::labels::well_known;
use nearhop_core::model::{
    AddressType, ClusterIps, Conditions, Endpoint, Hints, Node, Service, ServicePort, ServiceType,
    Slice, SlicePort, SourceRanges, TargetPort, TrafficPolicy,
};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Change, Cidr, Family, Labels, Name, ObjectRef, Protocol, ServiceKey};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const SERVICES: usize = 3;
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

fn key(i: usize) -> ServiceKey {
    ServiceKey::new("default", format!("s{i}"))
}

/// An address of a family in a block: 1 for cluster IPs, 2 for external IPs, 3 for endpoints.
pub(crate) fn address(family: Family, block: u8, i: u8) -> IpAddr {
    match family {
        Family::Ipv4 => Ipv4Addr::new(10, block, 0, i).into(),
        Family::Ipv6 => Ipv6Addr::new(0xfd00, u16::from(block), 0, 0, 0, 0, 0, u16::from(i)).into(),
    }
}

fn both(block: u8, numbers: &[u8]) -> Vec<IpAddr> {
    let of = |family| numbers.iter().map(move |i| address(family, block, *i));
    FAMILIES.into_iter().flat_map(of).collect()
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn ports() -> impl Strategy<Value = Vec<ServicePort>> {
    let port = |name: &'static str, port: u16, node_port: u16| {
        let protocols = vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        (select(protocols), any::<bool>()).prop_map(move |(protocol, exposed)| ServicePort {
            name: Name::from(name),
            protocol,
            port,
            target: TargetPort::Number(8080),
            node_port: if exposed { node_port } else { 0 },
            app_protocol: None,
        })
    };
    // All Services use the same ports, so they compete for node ports and external addresses.
    (port("a", 80, 30_000), prop::option::weighted(0.4, port("b", 81, 30_001)))
        .prop_map(|(first, second)| [first].into_iter().chain(second).collect())
}

fn ranges() -> impl Strategy<Value = SourceRanges> {
    let all =
        ["198.51.100.0/24", "198.51.0.0/16", "10.0.0.0/8", "2001:db8::/32", "2001:db8:1::/48"];
    let some = subsequence(all.map(|text| Cidr::parse(text).unwrap()).to_vec(), 0..4);
    prop_oneof![2 => Just(SourceRanges::AnyClient), 3 => some.prop_map(SourceRanges::Only)]
}

fn cluster_ips(i: usize) -> impl Strategy<Value = ClusterIps> {
    let own = i as u8 + 1;
    // Rarely an address that another Service has too.
    let number = prop_oneof![9 => Just(own), 1 => Just(1)];
    let addresses = number.prop_map(|i| ClusterIps::Addresses(both(1, &[i])));
    prop_oneof![12 => addresses, 1 => Just(ClusterIps::Headless), 1 => Just(ClusterIps::Unset)]
}

prop_compose! {
    fn service(i: usize)(
        service_type in select(vec![
            ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer,
            ServiceType::LoadBalancer, ServiceType::ExternalName,
        ]),
        ports in ports(),
        cluster_ips in cluster_ips(i),
        families in subsequence(FAMILIES.to_vec(), 1..=2),
        external_ips in subsequence(both(2, &[1, 2]), 0..3),
        load_balancer_ips in subsequence(both(2, &[2, 3]), 0..3),
        source_ranges in ranges(),
        affinity in prop::option::weighted(0.3, select(vec![1_u64, 30])),
        internal in policy(),
        external in policy(),
    ) -> Service {
        Service {
            service_type,
            ports,
            cluster_ips,
            ip_families: families,
            external_ips,
            load_balancer_ips,
            source_ranges,
            session_affinity: affinity.map(Duration::from_secs),
            internal_traffic_policy: internal,
            external_traffic_policy: external,
            ..Service::new(key(i))
        }
    }
}

prop_compose! {
    fn node()(
        i in prop_oneof![2 => Just(1), 1 => 2..4_u8],
        zone in prop::option::weighted(0.7, select(vec!["a", "b"])),
        rack in prop::option::of(select(vec!["r1", "r2"])),
    ) -> Node {
        let pairs = [(well_known::ZONE, zone), ("rack", rack)];
        let labels: Labels =
            pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        Node { labels, ..Node::new(format!("n{i}")) }
    }
}

const ROUTINGS: [&str; 7] = [
    "",
    "",
    "",
    r#"{"v":1,"keys":["rack","*"],"nodes":{"n1":["r1"],"n2":["r2"]}}"#,
    r#"{"v":1,"keys":["rack"],"nodes":{"n1":["r1"],"n3":[null]}}"#,
    r#"{"v":1,"weights":{"a":{"a":1000000},"b":{"a":400000,"b":600000}}}"#,
    r#"{"v":1,"weights":{"a":{"a":700000,"b":300000},"b":{"b":1000000}}}"#,
];

prop_compose! {
    fn endpoint(family: Family)(
        i in 1..7_u8,
        node in 1..4_u8,
        zone in prop::option::of(select(vec!["a", "b"])),
        zones in subsequence(vec!["a", "b"], 0..=2),
        nodes in subsequence(vec!["n1", "n2"], 0..=1),
        hinted in prop::bool::weighted(0.6),
        ready in prop::bool::weighted(0.8),
        serving in any::<bool>(),
        terminating in prop::bool::weighted(0.3),
    ) -> Endpoint {
        let names = |list: Vec<&str>| list.into_iter().map(Name::from).collect();
        let hints = Hints { zones: names(zones), nodes: names(nodes) };
        Endpoint {
            conditions: Conditions {
                ready: Some(ready), serving: Some(serving || ready), terminating: Some(terminating),
            },
            node: Some(Name::from(format!("n{node}"))),
            zone: zone.map(Name::from),
            hints: hinted.then(|| Arc::new(hints)),
            ..Endpoint::at(address(family, 3, i))
        }
    }
}

fn slice_ports() -> Arc<[SlicePort]> {
    let port = |name: &str, protocol, port| SlicePort {
        name: Name::from(name),
        protocol,
        port: Some(port),
        app_protocol: None,
    };
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let ports = |protocol| [port("a", protocol, 8080), port("b", protocol, 8081)];
    protocols.into_iter().flat_map(ports).collect()
}

fn slice_name(service: usize, family: Family, i: u8) -> Name {
    Name::from(format!("s{service}-{family:?}-{i}"))
}

prop_compose! {
    fn slice(family: Family)(
        service in 0..SERVICES,
        i in 0..2_u8,
        endpoints in prop::collection::vec(endpoint(family), 0..5),
        routing in select(&ROUTINGS[..]),
    ) -> Slice {
        let name = format!("s{service}");
        Slice {
            namespace: Name::from("default"),
            name: slice_name(service, family, i),
            labels: [(well_known::SERVICE_NAME, name.as_str())].into_iter().collect(),
            owners: Vec::new(),
            deleting: false,
            address_type: AddressType::Ip(family),
            ports: slice_ports(),
            endpoints,
            trigger_time: None,
            routing: SliceRouting::read((!routing.is_empty()).then_some(routing)),
        }
    }
}

/// A random change.
pub(crate) fn change(family: Family) -> impl Strategy<Value = Change> {
    let other = if family == Family::Ipv4 { Family::Ipv6 } else { Family::Ipv4 };
    let slice_gone = (0..SERVICES, 0..2_u8);
    prop_oneof![
        2 => service(0).prop_map(Change::put),
        2 => service(1).prop_map(Change::put),
        2 => service(2).prop_map(Change::put),
        1 => (0..SERVICES).prop_map(|i| Change::Gone(ObjectRef::Service(key(i)))),
        8 => slice(family).prop_map(Change::put),
        1 => slice(other).prop_map(Change::put),
        1 => slice_gone.prop_map(move |(service, i)| {
            Change::Gone(ObjectRef::Slice(Name::from("default"), slice_name(service, family, i)))
        }),
        2 => node().prop_map(Change::put),
    ]
}

/// A random cluster with objects in this family. The Node may be missing.
pub(crate) fn cluster(family: Family) -> impl Strategy<Value = Vec<Change>> {
    let services = (service(0), service(1), service(2));
    let slices = prop::collection::vec(slice(family), 1..6);
    (services, slices, prop::option::of(node())).prop_map(
        |((first, second, third), slices, node)| {
            let services = [first, second, third].map(Change::put);
            let slices = slices.into_iter().map(Change::put);
            services.into_iter().chain(slices).chain(node.map(Change::put)).collect()
        },
    )
}
