//! A fixture's namespaces, Services and Pods as API objects. Pods run `nearhop/echo`. Pure.
//!
//! The lab assigns addresses: cluster IPs and Pod addresses of the text are ignored.

use std::collections::BTreeMap;

use nearhop_core::fixture::Fixture;
use nearhop_core::labels::Labels;
use nearhop_core::model::{
    ClusterIps, Pod, Service, ServicePort, ServiceType, SourceRanges, TargetPort, TopologySpec,
    TrafficPolicy,
};
use serde_json::{Value, json};

use crate::spec::{TAINT_EFFECT, TAINT_KEY};

/// The image of a fixture's Pods.
pub(crate) const ECHO: &str = "nearhop/echo";

/// The objects of a fixture, in an order in which they can be created.
pub(crate) fn of_fixture(fixture: &Fixture) -> Vec<Value> {
    let mut namespaces: BTreeMap<String, Value> = BTreeMap::new();
    let used = fixture.services.iter().map(|service| service.key.namespace.to_string());
    let used = used.chain(fixture.pods.iter().map(|pod| pod.key.namespace.to_string()));
    for name in used.filter(|name| name != "default") {
        namespaces.insert(name.clone(), namespace(&name, None));
    }
    for one in &fixture.namespaces {
        let distribution = one.traffic_distribution.as_ref().map(|value| value.as_str());
        namespaces.insert(one.name.to_string(), namespace(&one.name, distribution));
    }
    let mut objects: Vec<Value> = namespaces.into_values().collect();
    objects.extend(fixture.services.iter().map(service));
    objects.extend(fixture.pods.iter().map(pod));
    objects
}

/// Lets Pods run on nodes with the lab's taint.
pub(crate) fn tolerate_taint(objects: &mut [Value]) {
    for pod in objects.iter_mut().filter(|object| object["kind"] == "Pod") {
        pod["spec"]["tolerations"] =
            json!([{"key": TAINT_KEY, "operator": "Exists", "effect": TAINT_EFFECT}]);
    }
}

fn namespace(name: &str, distribution: Option<&str>) -> Value {
    let annotations = distribution.map(|value| json!({"nearhop.dev/traffic-distribution": value}));
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "annotations": annotations},
    })
}

/// A Pod that the fixture marks not ready has a failing probe.
pub(crate) fn wants_ready(pod: &Value) -> bool {
    pod["spec"]["containers"][0].get("readinessProbe").is_none()
}

fn labels(labels: &Labels) -> Value {
    labels.iter().map(|(key, value)| (key.to_string(), Value::from(value.as_str()))).collect()
}

fn service(service: &Service) -> Value {
    let mut spec = json!({
        "ports": service.ports.iter().map(service_port).collect::<Vec<_>>(),
        "selector": service.selector.as_ref().map(labels),
        "type": match service.service_type {
            ServiceType::ClusterIp => "ClusterIP",
            ServiceType::NodePort => "NodePort",
            ServiceType::LoadBalancer => "LoadBalancer",
            ServiceType::ExternalName => "ExternalName",
        },
        "ipFamilyPolicy": "PreferDualStack",
        "internalTrafficPolicy": policy(service.internal_traffic_policy),
        "publishNotReadyAddresses": service.publish_not_ready_addresses,
        "externalIPs": service.external_ips,
    });
    if service.cluster_ips == ClusterIps::Headless {
        spec["clusterIP"] = "None".into();
    }
    if matches!(service.service_type, ServiceType::NodePort | ServiceType::LoadBalancer) {
        spec["externalTrafficPolicy"] = policy(service.external_traffic_policy).into();
    }
    if let SourceRanges::Only(ranges) = &service.source_ranges {
        spec["loadBalancerSourceRanges"] = ranges.iter().map(ToString::to_string).collect();
    }
    if let Some(affinity) = service.session_affinity {
        spec["sessionAffinity"] = "ClientIP".into();
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": affinity.as_secs()}});
    }
    let annotations = ask(&service.topology, &mut spec);
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": service.key.namespace.as_str(),
            "name": service.key.name.as_str(),
            "labels": labels(&service.labels),
            "annotations": annotations,
        },
        "spec": spec,
    })
}

fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

/// Writes the topology fields of a Service into its spec and returns its annotations.
fn ask(asks: &TopologySpec, spec: &mut Value) -> Value {
    let fields = [
        ("trafficPolicy", &asks.traffic_policy),
        ("trafficDistribution", &asks.traffic_distribution),
        ("routingPreference", &asks.routing_preference),
    ];
    for (field, value) in fields.into_iter().filter_map(|(f, value)| Some((f, value.as_ref()?))) {
        spec[field] = value.as_str().into();
    }
    if !asks.topology_keys.is_empty() {
        spec["topologyKeys"] = asks.topology_keys.iter().map(|key| key.as_str()).collect();
    }
    let annotations = [
        ("service.kubernetes.io/topology-mode", &asks.topology_mode),
        ("service.kubernetes.io/topology-aware-hints", &asks.topology_aware_hints),
        ("nearhop.dev/topology-keys", &asks.topology_keys_annotation),
        ("nearhop.dev/traffic-distribution", &asks.traffic_distribution_annotation),
        ("nearhop.dev/routing-preference", &asks.routing_preference_annotation),
        ("nearhop.dev/max-overload", &asks.max_overload),
    ];
    let given = annotations.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    given.map(|(key, value)| (key.to_owned(), Value::from(value.as_str()))).collect()
}

fn service_port(port: &ServicePort) -> Value {
    let mut object = json!({
        "name": port.name.as_str(),
        "protocol": port.protocol.as_str(),
        "port": port.port,
        "targetPort": match &port.target {
            TargetPort::Number(number) => Value::from(*number),
            TargetPort::Named(name) => Value::from(name.as_str()),
        },
    });
    if port.node_port != 0 {
        object["nodePort"] = port.node_port.into();
    }
    object
}

fn pod(pod: &Pod) -> Value {
    let port = |port: &nearhop_core::model::ContainerPort| json!({"name": port.name.as_str(), "containerPort": port.port, "protocol": port.protocol.as_str()});
    let mut container = json!({
        "name": "echo",
        "image": ECHO,
        "ports": pod.ports.iter().map(port).collect::<Vec<_>>(),
    });
    if !pod.ready {
        container["readinessProbe"] = json!({"exec": {"command": ["/bin/false"]}});
    }
    let mut spec = json!({"containers": [container], "terminationGracePeriodSeconds": 5});
    if let Some(node) = &pod.node {
        spec["nodeName"] = node.as_str().into();
    }
    if let Some(dns) = &pod.dns {
        spec["hostname"] = dns.hostname.as_str().into();
        spec["subdomain"] = dns.subdomain.as_str().into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": pod.key.namespace.as_str(),
            "name": pod.key.name.as_str(),
            "labels": labels(&pod.labels),
        },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::name_of;

    #[test]
    fn fixture_becomes_objects_in_creatable_order() {
        let text = "\
namespace team traffic-distribution=PreferSameZone
node n1 zone=a
service shop/cart port=http:80->8080 port=53->5353/udp node-port=30053 type=NodePort etp=Local topology-mode=Auto
service team/db cluster-ip=None topology-keys=rack,*
pod shop/cart-0 for=cart on=n1
pod shop/sick for=cart on=n1 notready
";
        let objects = of_fixture(&Fixture::parse(text).expect("a valid fixture"));
        let kinds: Vec<(&str, &str)> =
            objects.iter().map(|one| (one["kind"].as_str().unwrap_or(""), name_of(one))).collect();
        let expected = [
            ("Namespace", "shop"),
            ("Namespace", "team"),
            ("Service", "cart"),
            ("Service", "db"),
            ("Pod", "cart-0"),
            ("Pod", "sick"),
        ];
        assert_eq!(kinds, expected);
        let annotation = &objects[1]["metadata"]["annotations"]["nearhop.dev/traffic-distribution"];
        assert_eq!(annotation, "PreferSameZone");
        let cart = &objects[2];
        assert_eq!(cart["metadata"]["annotations"]["service.kubernetes.io/topology-mode"], "Auto");
        assert_eq!(cart["spec"]["externalTrafficPolicy"], "Local");
        assert_eq!(cart["spec"]["ports"][1]["nodePort"], 30053);
        assert_eq!(cart["spec"]["ports"][1]["protocol"], "UDP");
        assert_eq!(cart["spec"].get("clusterIP"), None, "the lab assigns addresses");
        assert_eq!(objects[3]["spec"]["clusterIP"], "None");
        assert_eq!(objects[3]["spec"]["topologyKeys"], json!(["rack", "*"]));
        assert_eq!(objects[4]["spec"]["containers"][0]["image"], ECHO);
        assert!(wants_ready(&objects[4]) && !wants_ready(&objects[5]));
    }
}
