//! Clusters for the benchmarks, of the sizes for which operators report problems.

use jiff::Timestamp;
use nearhop_core::labels::well_known;
use nearhop_core::model::{ClusterIps, Node, Pod, Service, ServicePort, TargetPort};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Change, Family, Name, PodKey, Protocol, ServiceKey, World};

pub(crate) fn now() -> PlanTime {
    PlanTime::at(Timestamp::UNIX_EPOCH)
}

pub(crate) fn node(i: usize) -> Node {
    let name = format!("node-{i:05}");
    let labels = [
        (well_known::HOSTNAME, name.clone()),
        (well_known::ZONE, format!("zone-{}", ["a", "b", "c"][i % 3])),
        (well_known::REGION, "region-1".to_owned()),
    ];
    Node { labels: labels.into_iter().collect(), cpu_milli: Some(4000), ..Node::new(name) }
}

pub(crate) fn service_key(i: usize) -> ServiceKey {
    ServiceKey::new(format!("ns-{:03}", i % 100), format!("service-{i:05}"))
}

pub(crate) fn service(i: usize, traffic_distribution: &str) -> Service {
    let mut service = Service::new(service_key(i));
    service.uid = Name::from(format!("00000000-0000-0000-0000-{i:012}"));
    service.selector = Some([("app", service.key.name.to_string())].into_iter().collect());
    service.ports = vec![ServicePort {
        name: Name::from("http"),
        protocol: Protocol::Tcp,
        port: 80,
        target: TargetPort::Number(8080),
        node_port: 0,
        app_protocol: None,
    }];
    let ip = [10, 96, (i >> 8) as u8, i as u8];
    service.cluster_ips = ClusterIps::Addresses(vec![ip.into()]);
    service.ip_families = vec![Family::Ipv4];
    service.topology.traffic_distribution =
        (!traffic_distribution.is_empty()).then(|| Name::from(traffic_distribution));
    service
}

pub(crate) fn pod(of: usize, i: usize, nodes: usize) -> Pod {
    let key = service_key(of);
    let number = of * 1009 + i;
    let mut pod = Pod::new(PodKey::new(key.namespace, format!("{}-{i:05}-x7k2p", key.name)));
    pod.uid = Name::from(format!("11111111-0000-{of:06}-{i:012}"));
    pod.labels = [("app", key.name.to_string()), ("pod-template-hash", "5f6d8c9b7".to_owned())]
        .into_iter()
        .collect();
    let ip = [10, (number >> 16) as u8, (number >> 8) as u8, number as u8];
    pod.ips = [ip.into()].into_iter().collect();
    pod.node = Some(Name::from(format!("node-{:05}", number % nodes)));
    pod.ready_since = Some(Timestamp::UNIX_EPOCH.into());
    pod
}

/// A world of Services with Pods on nodes in three zones, without any plan yet.
pub(crate) fn cold(services: usize, pods: usize, nodes: usize, distribution: &str) -> World {
    let mut world = World::new(Settings::default());
    world.apply_all((0..nodes).map(|i| Change::put(node(i))));
    world.apply_all((0..services).map(|i| Change::put(service(i, distribution))));
    for of in 0..services {
        world.apply_all((0..pods).map(|i| Change::put(pod(of, i, nodes))));
    }
    world
}

/// Plans one Service and applies the plan.
pub(crate) fn settle(world: &mut World, key: &ServiceKey) {
    let plan = world.plan(key, now()).expect("the Service exists");
    nearhop_core::fixture::apply_plan(world, key, plan);
}
