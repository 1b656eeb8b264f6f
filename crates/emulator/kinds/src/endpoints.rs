//! Endpoints, the predecessor of EndpointSlices: defaults, validation, warnings.

use serde_json::Value;

use crate::errors::{Errors, Report as _};
use crate::ip::{check_endpoint_ip, check_legacy_ip, warn_ip};
use crate::json::{Path, at, fill, int, list, list_mut, text};
use crate::names;
use crate::service::PROTOCOLS;

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];

/// Sets the defaults.
pub fn default(endpoints: &mut Value) {
    for subset in list_mut(endpoints, &["subsets"]) {
        for port in list_mut(subset, &["ports"]) {
            fill(port, "protocol", "TCP");
        }
    }
}

/// Validates Endpoints, except their metadata. Subsets of the old object are accepted.
pub fn validate(endpoints: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    let subsets = list(endpoints, &["subsets"]);
    if old.is_some_and(|old| list(old, &["subsets"]) == subsets) {
        return errors;
    }
    let path = Path::root("subsets");
    for (i, subset) in subsets.iter().enumerate() {
        check_subset(&mut errors, subset, &path.index(i));
    }
    errors
}

fn check_subset(errors: &mut Errors, subset: &Value, path: &Path<'_>) {
    if ADDRESSES.iter().all(|kind| list(subset, &[kind]).is_empty()) {
        errors.required(path, "must specify `addresses` or `notReadyAddresses`");
    }
    for kind in ADDRESSES {
        let path = path.child(kind);
        for (i, address) in list(subset, &[kind]).iter().enumerate() {
            check_address(errors, address, &path.index(i));
        }
    }
    let ports = list(subset, &["ports"]);
    let path = path.child("ports");
    for (i, port) in ports.iter().enumerate() {
        check_port(errors, port, ports.len(), &path.index(i));
    }
}

fn check_address(errors: &mut Errors, address: &Value, path: &Path<'_>) {
    let ip = text(address, &["ip"]);
    let field = path.child("ip").to_string();
    errors.extend(check_legacy_ip(&field, ip, &[]));
    let host = text(address, &["hostname"]);
    if !host.is_empty() {
        errors.invalid_each(path.child("hostname"), host, names::dns1123_label(host));
    }
    if let Some(node) = at(address, &["nodeName"]).and_then(Value::as_str) {
        errors.invalid_each(path.child("nodeName"), node, names::dns1123_subdomain(node));
    }
    errors.extend(check_endpoint_ip(&field, ip));
}

fn check_port(errors: &mut Errors, port: &Value, count: usize, path: &Path<'_>) {
    let name = text(port, &["name"]);
    if !name.is_empty() {
        errors.invalid_each(path.child("name"), name, names::dns1123_label(name));
    } else if count > 1 {
        errors.required(path.child("name"), "");
    }
    let number = int(port, &["port"]).unwrap_or_default();
    errors.invalid_each(path.child("port"), number, names::port_number(number));
    errors.one_of(path.child("protocol"), text(port, &["protocol"]), &PROTOCOLS);
    if let Some(name) = at(port, &["appProtocol"]).and_then(Value::as_str) {
        errors.invalid_each(path.child("appProtocol"), name, names::qualified_name(name));
    }
}

/// Warnings about non-canonical addresses, except those of the built-in controller.
pub fn warnings(endpoints: &Value) -> Vec<String> {
    if text(endpoints, &["metadata", "labels", MANAGED_BY]) == CONTROLLER {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (i, subset) in list(endpoints, &["subsets"]).iter().enumerate() {
        for kind in ADDRESSES {
            for (j, address) in list(subset, &[kind]).iter().enumerate() {
                let field = format!("subsets[{i}].{kind}[{j}].ip");
                all.extend(warn_ip(&field, text(address, &["ip"])));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_match_kubernetes() {
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
    fn non_canonical_addresses_cause_warnings() {
        let mut endpoints = json!({"subsets": [{"notReadyAddresses": [{"ip": "FD00::1"}]}]});
        assert_eq!(warnings(&endpoints).len(), 1);
        endpoints["metadata"] = json!({"labels": {MANAGED_BY: CONTROLLER}});
        assert!(warnings(&endpoints).is_empty());
    }
}
