//! Cells of Services, endpoints, Ingresses and addresses.

use std::collections::BTreeSet;

use nearhop_core::model::ServiceType;
use serde_json::Value;

use super::{Rules, at_most, or};
use crate::table::column::{dig, int, list, shown, text};

pub(super) const RULES: Rules = &[
    ("service-external-ip", |object, _| external_ip(object).into()),
    ("service-ports", |object, _| or(&ports(object), "<none>").into()),
    ("slice-ports", |object, _| or(&at_most(3, slice_ports(object)), "<unset>").into()),
    ("slice-endpoints", |object, _| or(&at_most(3, slice_addresses(object)), "<unset>").into()),
    ("endpoints", |object, _| endpoints(object).into()),
    ("ingress-hosts", |object, _| hosts(object).into()),
    ("ingress-address", |object, _| load_balancer(object).join(",").into()),
    ("ingress-ports", |object, _| {
        if list(object, "spec.tls").is_empty() { "80" } else { "80, 443" }.into()
    }),
    ("ingress-class-parameters", |object, _| class_parameters(object).into()),
    ("ip-parent", |object, _| ip_parent(object).into()),
];

fn external_ip(service: &Value) -> String {
    let addresses = || strings(service, "spec.externalIPs");
    match ServiceType::parse(text(service, "spec.type")) {
        Some(ServiceType::ClusterIp | ServiceType::NodePort) => {
            or(&addresses().join(","), "<none>")
        }
        Some(ServiceType::LoadBalancer) => {
            let mut all = load_balancer(service);
            all.extend(addresses());
            or(&all.join(","), "<pending>")
        }
        Some(ServiceType::ExternalName) => text(service, "spec.externalName").to_owned(),
        None => "<unknown>".to_owned(),
    }
}

/// Sorted, each once, as a real server shows them.
fn load_balancer(object: &Value) -> Vec<&str> {
    let points = list(object, "status.loadBalancer.ingress").iter();
    let addresses = points.map(|point| match text(point, "ip") {
        "" => text(point, "hostname"),
        ip => ip,
    });
    addresses.filter(|address| !address.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn ports(service: &Value) -> String {
    let ports = list(service, "spec.ports").iter().map(|port| {
        let (number, protocol) = (int(port, "port"), text(port, "protocol"));
        match int(port, "nodePort") {
            0 => format!("{number}/{protocol}"),
            node_port => format!("{number}:{node_port}/{protocol}"),
        }
    });
    ports.collect::<Vec<_>>().join(",")
}

fn slice_ports(slice: &Value) -> Vec<String> {
    let ports = list(slice, "ports").iter();
    let shown = ports.map(|port| match (dig(port, "port").as_i64(), dig(port, "name").as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => "*".to_owned(),
    });
    shown.collect()
}

fn slice_addresses(slice: &Value) -> Vec<String> {
    let endpoints = list(slice, "endpoints").iter();
    endpoints.flat_map(|endpoint| strings(endpoint, "addresses")).map(str::to_owned).collect()
}

fn endpoints(object: &Value) -> String {
    let subsets = list(object, "subsets");
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = || list(subset, "addresses").iter().map(|address| text(address, "ip"));
        let ports = list(subset, "ports");
        if ports.is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            all.extend(addresses().map(|ip| host_port(ip, int(port, "port"))));
        }
    }
    at_most(3, all)
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// The number of further hosts counts rules, those without a host included.
fn hosts(ingress: &Value) -> String {
    let rules = list(ingress, "spec.rules");
    let named: Vec<&str> =
        rules.iter().map(|rule| text(rule, "host")).filter(|host| !host.is_empty()).collect();
    if named.is_empty() {
        return "*".to_owned();
    }
    let shown = named.iter().take(3).copied().collect::<Vec<_>>().join(",");
    // More only if a rule follows the one that has the third host.
    let third = rules.iter().enumerate().filter(|(_, rule)| !text(rule, "host").is_empty()).nth(2);
    match third {
        Some((at, _)) if at + 1 < rules.len() => format!("{shown} + {} more...", rules.len() - 3),
        _ => shown,
    }
}

fn class_parameters(class: &Value) -> String {
    let parameters = dig(class, "spec.parameters");
    if !parameters.is_object() {
        return "<none>".to_owned();
    }
    let group =
        shown(dig(parameters, "apiGroup")).map(|group| format!(".{group}")).unwrap_or_default();
    format!("{}{group}/{}", text(parameters, "kind"), text(parameters, "name"))
}

fn ip_parent(address: &Value) -> String {
    let parent = dig(address, "spec.parentRef");
    if !parent.is_object() {
        return "<none>".to_owned();
    }
    let mut path = text(parent, "resource").to_lowercase();
    for (before, field) in [(".", "group"), ("/", "namespace")] {
        if let Some(part) = shown(dig(parent, field)) {
            path = format!("{path}{before}{part}");
        }
    }
    format!("{path}/{}", text(parent, "name"))
}

fn strings<'a>(value: &'a Value, path: &str) -> Vec<&'a str> {
    list(value, path).iter().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ingress_hosts_are_printed() {
        let of = |hosts: &[&str]| {
            let rules: Vec<Value> = hosts.iter().map(|host| json!({"host": host})).collect();
            super::hosts(&json!({"spec": {"rules": rules}}))
        };
        assert_eq!(of(&[]), "*");
        assert_eq!(of(&[""]), "*");
        assert_eq!(of(&["a", "b", "c"]), "a,b,c");
        assert_eq!(of(&["a", "b", "c", "d", "e"]), "a,b,c + 2 more...");
    }

    #[test]
    fn endpoints_of_both_families_are_printed() {
        let subset =
            json!({"addresses": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}], "ports": [{"port": 80}]});
        assert_eq!(endpoints(&json!({"subsets": [subset]})), "[fd00::1]:80,10.0.0.1:80");
        assert_eq!(
            endpoints(&json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]})),
            "10.0.0.1"
        );
        assert_eq!(endpoints(&json!({})), "<none>");
    }

    #[test]
    fn references_are_printed() {
        let class =
            json!({"spec": {"parameters": {"apiGroup": "k.example", "kind": "P", "name": "x"}}});
        assert_eq!(class_parameters(&class), "P.k.example/x");
        let address = json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "k"}}});
        assert_eq!(ip_parent(&address), "services/default/k");
    }
}
