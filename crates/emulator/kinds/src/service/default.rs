//! Defaults of a Service. The client owns them (they are in its managed fields), unlike allocated
//! values.

use serde_json::{Map, Value, json};

/// The default session affinity: three hours.
const AFFINITY_SECONDS: u32 = 10_800;

/// Sets the defaults.
pub fn default(service: &mut Value) {
    let Some(object) = service.as_object_mut() else { return };
    let spec = object.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if let Some(spec) = spec.as_object_mut() {
        default_affinity(spec);
        fill(spec, "type", "ClusterIP");
        default_ports(spec);
        default_policies(spec);
    }
    if object.get("spec").is_some_and(|spec| text(spec, "type") == "LoadBalancer") {
        default_ingress(object.get_mut("status"));
    }
}

fn default_affinity(spec: &mut Map<String, Value>) {
    fill(spec, "sessionAffinity", "None");
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => {
            spec.remove("sessionAffinityConfig");
        }
        Some("ClientIP") => {
            let config = spec.get("sessionAffinityConfig");
            let timeout = config.and_then(|config| config.get("clientIP")?.get("timeoutSeconds"));
            if timeout.is_none_or(Value::is_null) {
                let config = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
                spec.insert("sessionAffinityConfig".to_owned(), config);
            }
        }
        _ => {}
    }
}

fn default_ports(spec: &mut Map<String, Value>) {
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        fill(port, "protocol", "TCP");
        let unset = match port.get("targetPort") {
            None | Some(Value::Null) => true,
            Some(Value::Number(number)) => number.as_i64() == Some(0),
            Some(value) => value == "",
        };
        if unset {
            let number = port.get("port").cloned().unwrap_or_else(|| Value::from(0));
            port.insert("targetPort".to_owned(), number);
        }
    }
}

fn default_policies(spec: &mut Map<String, Value>) {
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default();
    let node_ports = matches!(kind, "NodePort" | "LoadBalancer");
    let cluster_ip = kind == "ClusterIP";
    let load_balancer = kind == "LoadBalancer";
    let external_ips = || {
        let list = spec.get("externalIPs").and_then(Value::as_array);
        list.is_some_and(|list| !list.is_empty())
    };
    if node_ports || (cluster_ip && external_ips()) {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if node_ports || cluster_ip {
        fill_absent(spec, "internalTrafficPolicy", Value::from("Cluster"));
    }
    if load_balancer {
        fill_absent(spec, "allocateLoadBalancerNodePorts", Value::Bool(true));
    }
}

fn default_ingress(status: Option<&mut Value>) {
    let list = status.and_then(|status| status.get_mut("loadBalancer")?.get_mut("ingress"));
    let list = list.and_then(Value::as_array_mut);
    for ingress in list.into_iter().flatten() {
        if text(ingress, "ip").is_empty() {
            continue;
        }
        if let Some(ingress) = ingress.as_object_mut() {
            fill_absent(ingress, "ipMode", Value::from("VIP"));
        }
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Sets a string that is absent or empty.
fn fill(map: &mut Map<String, Value>, name: &str, value: &str) {
    if map.get(name).is_none_or(|old| old.is_null() || old == "") {
        map.insert(name.to_owned(), Value::from(value));
    }
}

/// Sets a value that is absent; an empty one stays.
fn fill_absent(map: &mut Map<String, Value>, name: &str, value: Value) {
    if map.get(name).is_none_or(Value::is_null) {
        map.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_what_is_no_service() {
        for mut value in [json!(null), json!([]), json!({"spec": 1}), json!({"spec": {"ports": 1}})]
        {
            default(&mut value);
        }
    }

    #[test]
    fn an_address_given_by_a_load_balancer_is_a_vip() {
        let mut service = json!({
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "a.b"}]}},
        });
        default(&mut service);
        let ingress = &service["status"]["loadBalancer"]["ingress"];
        assert_eq!(ingress, &json!([{"ip": "1.2.3.4", "ipMode": "VIP"}, {"hostname": "a.b"}]));
    }
}
