//! The Service `kube-system/kube-dns`: one DNS server per node, each hinted for its own node, so that
//! Pods use the server on their node (the example of KEP-3015).

use serde_json::{Value, json};

use crate::spec::Spec;
use crate::topology::LabNode;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";

/// The usual labels of cluster DNS.
fn labels() -> Value {
    json!({"k8s-app": NAME, "kubernetes.io/name": "nearhop-dns"})
}

/// The Service and its slices; none in a joined cluster, which has its own.
pub(crate) fn objects(spec: &Spec) -> Vec<Value> {
    let Some(addresses) = spec.dns_addresses() else { return Vec::new() };
    let port = |name: &str, protocol: &str| json!({"name": name, "protocol": protocol, "port": 53});
    let ports = [port("dns", "UDP"), port("dns-tcp", "TCP")];
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": NAME, "labels": labels()},
        "spec": {
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
            "trafficDistribution": "PreferSameNode",
            "ports": ports,
        },
    });
    let families = [("IPv4", 0), ("IPv6", 1)];
    let slices = families.map(|(family, at)| slice(spec, family, at, &ports));
    std::iter::once(service).chain(slices).collect()
}

/// The Service has no selector, because the servers are not Pods.
fn slice(spec: &Spec, family: &str, at: usize, ports: &[Value]) -> Value {
    let endpoint = |node: &LabNode| {
        let zone = Some(node.zone()).filter(|zone| !zone.is_empty());
        let for_zones: Vec<Value> = zone.iter().map(|zone| json!({"name": zone})).collect();
        json!({
            "addresses": [node.addresses[at]],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node.name,
            "zone": zone,
            "hints": {"forZones": for_zones, "forNodes": [{"name": node.name}]},
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE,
            "name": format!("{NAME}-{}", family.to_lowercase()),
            "labels": {
                "kubernetes.io/service-name": NAME,
                "endpointslice.kubernetes.io/managed-by": "nearhop-lab",
            },
        },
        "addressType": family,
        "ports": ports,
        "endpoints": spec.topology.nodes.iter().map(endpoint).collect::<Vec<_>>(),
    })
}
