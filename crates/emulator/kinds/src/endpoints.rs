//! Endpoints, the predecessor of EndpointSlices: defaults, validation, warnings.

use nearhop_object::FieldError;
use serde_json::Value;

use crate::errors::Report as _;
use crate::ip::{check_endpoint_ip, check_legacy_ip, warn_ip};
use crate::names;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";

/// Sets the defaults.
pub fn default(endpoints: &mut Value) {
    let subsets = endpoints.get_mut("subsets").and_then(Value::as_array_mut);
    let ports = subsets.into_iter().flatten().filter_map(|subset| subset.get_mut("ports"));
    let ports = ports.filter_map(Value::as_array_mut).flatten().filter_map(Value::as_object_mut);
    for port in ports {
        if port.get("protocol").is_none_or(|protocol| protocol.is_null() || protocol == "") {
            port.insert("protocol".to_owned(), Value::from("TCP"));
        }
    }
}

/// Validates Endpoints, except their metadata. Addresses of the old object are accepted.
pub fn validate(endpoints: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (i, subset) in list(endpoints, "subsets").iter().enumerate() {
        check_subset(&mut errors, subset, &format!("subsets[{i}]"));
    }
    if old.is_some_and(|old| list(old, "subsets") == list(endpoints, "subsets")) {
        errors.clear();
    }
    errors
}

fn check_subset(errors: &mut Vec<FieldError>, subset: &Value, field: &str) {
    let kinds = ["addresses", "notReadyAddresses"];
    if kinds.iter().all(|kind| list(subset, kind).is_empty()) {
        errors.required(field, "must specify `addresses` or `notReadyAddresses`");
    }
    for kind in kinds {
        for (i, address) in list(subset, kind).iter().enumerate() {
            check_address(errors, address, &format!("{field}.{kind}[{i}]"));
        }
    }
    let ports = list(subset, "ports");
    for (i, port) in ports.iter().enumerate() {
        check_port(errors, port, ports.len(), &format!("{field}.ports[{i}]"));
    }
}

fn check_address(errors: &mut Vec<FieldError>, address: &Value, field: &str) {
    let ip = text(address, "ip");
    let at = format!("{field}.ip");
    errors.extend(check_legacy_ip(&at, ip, &[]));
    let host = text(address, "hostname");
    if !host.is_empty() {
        complain(errors, &format!("{field}.hostname"), host, names::dns1123_label(host));
    }
    if let Some(node) = address.get("nodeName").and_then(Value::as_str) {
        complain(errors, &format!("{field}.nodeName"), node, names::dns1123_subdomain(node));
    }
    errors.extend(check_endpoint_ip(&at, ip));
}

fn check_port(errors: &mut Vec<FieldError>, port: &Value, count: usize, field: &str) {
    let name = text(port, "name");
    if !name.is_empty() {
        complain(errors, &format!("{field}.name"), name, names::dns1123_label(name));
    } else if count > 1 {
        errors.required(format!("{field}.name"), "");
    }
    let number = port.get("port").and_then(Value::as_i64).unwrap_or_default();
    errors.invalid_each(format!("{field}.port"), number, names::port_number(number));
    let protocol = text(port, "protocol");
    let at = format!("{field}.protocol");
    if protocol.is_empty() {
        errors.required(at, "");
    } else if !PROTOCOLS.contains(&protocol) {
        errors.not_supported(at, protocol, &PROTOCOLS);
    }
    if let Some(name) = port.get("appProtocol").and_then(Value::as_str) {
        complain(errors, &format!("{field}.appProtocol"), name, names::qualified_name(name));
    }
}

/// Warnings about non-canonical addresses, except those of the built-in controller.
pub fn warnings(endpoints: &Value) -> Vec<String> {
    let labels = endpoints.get("metadata").and_then(|metadata| metadata.get("labels"));
    if labels.is_some_and(|labels| text(labels, MANAGED_BY) == CONTROLLER) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (i, subset) in list(endpoints, "subsets").iter().enumerate() {
        for kind in ["addresses", "notReadyAddresses"] {
            for (j, address) in list(subset, kind).iter().enumerate() {
                let field = format!("subsets[{i}].{kind}[{j}].ip");
                all.extend(warn_ip(&field, text(address, "ip")));
            }
        }
    }
    all
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn complain(errors: &mut Vec<FieldError>, field: &str, value: &str, details: Vec<String>) {
    let value = Value::from(value);
    errors.extend(details.iter().map(|detail| FieldError::invalid(field, &value, detail)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn refuses_in_the_known_words() {
        let endpoints = json!({"subsets": [
            {"ports": [{"port": 0, "protocol": "TCP"}]},
            {"addresses": [{"ip": "127.0.0.1", "hostname": "A"}], "ports": [{}, {"name": "b", "port": 1}]},
        ]});
        let errors: Vec<String> =
            validate(&endpoints, None).iter().map(|e| e.to_string()).collect();
        let starts = [
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
            "subsets[0].ports[0].port: Invalid value: 0",
            "subsets[1].addresses[0].hostname: Invalid value: \"A\"",
            "subsets[1].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback",
            "subsets[1].ports[0].name: Required value",
            "subsets[1].ports[0].port: Invalid value: 0",
            "subsets[1].ports[0].protocol: Required value",
            "subsets[1].ports[1].protocol: Required value",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:#?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error} / {start}");
        }
        assert!(validate(&endpoints, Some(&endpoints)).is_empty());
    }

    #[test]
    fn warns_about_odd_spellings() {
        let mut endpoints = json!({"subsets": [{"notReadyAddresses": [{"ip": "FD00::1"}]}]});
        assert_eq!(warnings(&endpoints).len(), 1);
        endpoints["metadata"] = json!({"labels": {MANAGED_BY: CONTROLLER}});
        assert!(warnings(&endpoints).is_empty());
    }
}
