//! The number of Service ports that need an endpoint on this node and have endpoints only on other
//! nodes: the metric `sync_proxy_rules_no_local_endpoints_total` of kube-proxy.

use super::choose::RouteSet;
use super::table::{Route, RouteTable};
use crate::key::Family;
use crate::model::TrafficPolicy;

/// Service ports without an endpoint on this node, by the policy that requires one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutLocal {
    /// `internalTrafficPolicy: Local`.
    pub internal: u64,
    /// `externalTrafficPolicy: Local`.
    pub external: u64,
}

/// Counts the Service ports of a family that have endpoints, but none on this node, and have the
/// policy Local. Services without a cluster IP in the family are not proxied and do not count.
///
/// As in kube-proxy, a LoadBalancer port that is not yet exposed has no local set, and counts as
/// `external` even if this node has endpoints.
pub fn count_without_local(routes: &RouteTable, family: Family) -> WithoutLocal {
    let mut count = WithoutLocal::default();
    for (_, route) in routes.iter().filter(|(key, _)| key.family == family) {
        if route.service.cluster_ip(family).is_none() || !lacks_local(route) {
            continue;
        }
        let policy = route.decision.policy;
        count.internal += u64::from(policy.internal == TrafficPolicy::Local);
        count.external += u64::from(policy.external == TrafficPolicy::Local);
    }
    count
}

fn lacks_local(route: &Route) -> bool {
    let empty = |set: &RouteSet| set.backends.is_empty();
    route.decision.has_any && route.decision.local.as_ref().is_none_or(empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        AddressType, ClusterIps, Endpoint, Service, ServicePort, ServiceType, Slice, SlicePort,
    };
    use crate::object::Change;
    use crate::route::Place;
    use crate::world::{Settings, World};
    use crate::{Name, Protocol, ServiceKey, labels::well_known};

    fn service(name: &str) -> Service {
        Service {
            ports: vec![ServicePort::new(80)],
            cluster_ips: ClusterIps::Addresses(vec![[10, 96, 0, 1].into()]),
            ip_families: vec![Family::Ipv4],
            ..Service::new(ServiceKey::new("ns", name))
        }
    }

    fn slice(service: &Service, node: &str) -> Slice {
        let port = SlicePort {
            name: Name::from(""),
            protocol: Protocol::Tcp,
            port: Some(80),
            app_protocol: None,
        };
        let endpoint =
            Endpoint { node: Some(Name::from(node)), ..Endpoint::at([10, 0, 0, 1].into()) };
        let name = format!("{}-1", service.key.name);
        let empty = Slice::new(service.key.namespace.clone(), name, AddressType::Ip(Family::Ipv4));
        Slice {
            labels: [(well_known::SERVICE_NAME, service.key.name.as_str())].into_iter().collect(),
            ports: [port].into(),
            endpoints: vec![endpoint],
            ..empty
        }
    }

    fn count(service: Service, node: &str) -> (u64, u64) {
        let mut world = World::new(Settings::default());
        world.apply(Change::put(slice(&service, node)));
        world.apply(Change::put(service));
        let place = Place { node: Some(Name::from("here")), ..Place::default() };
        let routes = RouteTable::build(&world, place);
        let count = count_without_local(&routes, Family::Ipv4);
        assert_eq!(count_without_local(&routes, Family::Ipv6), WithoutLocal::default());
        (count.internal, count.external)
    }

    #[test]
    fn internal_and_external_policy_are_counted_separately() {
        let internal =
            Service { internal_traffic_policy: TrafficPolicy::Local, ..service("internal") };
        let external = Service {
            external_traffic_policy: TrafficPolicy::Local,
            external_ips: vec![[192, 0, 2, 1].into()],
            ..service("external")
        };
        assert_eq!(count(internal.clone(), "elsewhere"), (1, 0));
        assert_eq!(count(internal, "here"), (0, 0));
        assert_eq!(count(external.clone(), "elsewhere"), (0, 1));
        assert_eq!(count(external, "here"), (0, 0));
        assert_eq!(count(service("neither"), "elsewhere"), (0, 0));
    }

    #[test]
    fn a_load_balancer_without_address_is_counted() {
        let waiting = Service {
            service_type: ServiceType::LoadBalancer,
            external_traffic_policy: TrafficPolicy::Local,
            ..service("waiting")
        };
        assert_eq!(count(waiting, "here"), (0, 1));
    }

    #[test]
    fn a_headless_service_is_not_counted() {
        let headless = Service {
            cluster_ips: ClusterIps::Headless,
            internal_traffic_policy: TrafficPolicy::Local,
            ..service("headless")
        };
        assert_eq!(count(headless, "elsewhere"), (0, 0));
    }
}
