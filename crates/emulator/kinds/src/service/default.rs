//! Defaults of a Service. The client owns them (they are in its managed fields), unlike allocated
//! values.

use serde_json::{Value, json};

use super::view::View;
use crate::json::{at, carry, fill, fill_absent, list_mut, make, object, text};

/// The default session affinity: three hours.
const AFFINITY_SECONDS: u32 = 10_800;

/// Sets the defaults.
pub fn default(service: &mut Value) {
    let spec = make(service, &["spec"]);
    default_affinity(spec);
    fill(spec, "type", "ClusterIP");
    for port in list_mut(spec, &["ports"]) {
        default_port(port);
    }
    let view = View::of(service);
    let external = view.is_externally_accessible();
    let internal = view.has_cluster_ips();
    let load_balancer = view.is_load_balancer();
    let spec = make(service, &["spec"]);
    if external {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if internal {
        fill_absent(spec, "internalTrafficPolicy", "Cluster");
    }
    if load_balancer {
        fill_absent(spec, "allocateLoadBalancerNodePorts", true);
        for ingress in list_mut(service, &["status", "loadBalancer", "ingress"]) {
            if !text(ingress, &["ip"]).is_empty() {
                fill_absent(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn default_affinity(spec: &mut Value) {
    fill(spec, "sessionAffinity", "None");
    match text(spec, &["sessionAffinity"]) {
        "None" => carry(spec, &Value::Null, &["sessionAffinityConfig"]),
        "ClientIP" => {
            let config = make(spec, &["sessionAffinityConfig"]);
            if at(config, &["clientIP", "timeoutSeconds"]).is_none() {
                *config = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
            }
        }
        _ => {}
    }
}

fn default_port(port: &mut Value) {
    fill(port, "protocol", "TCP");
    let unset = match at(port, &["targetPort"]) {
        None => true,
        Some(target) => target == "" || *target == json!(0),
    };
    if unset {
        let number = at(port, &["port"]).cloned().unwrap_or_else(|| json!(0));
        object(port).insert("targetPort".to_owned(), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaulting_ignores_invalid_objects() {
        for mut value in [json!(null), json!([]), json!({"spec": 1}), json!({"spec": {"ports": 1}})]
        {
            default(&mut value);
        }
    }

    #[test]
    fn load_balancer_addresses_default_to_vip() {
        let mut service = json!({
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "a.b"}]}},
        });
        default(&mut service);
        let ingress = &service["status"]["loadBalancer"]["ingress"];
        assert_eq!(ingress, &json!([{"ip": "1.2.3.4", "ipMode": "VIP"}, {"hostname": "a.b"}]));
    }
}
