//! EndpointSlices: defaults, validation, warnings.
//!
//! Validation checks the form only: hints may name unknown zones or nodes, endpoints may repeat.

use std::collections::BTreeSet;

use nearhop_core::labels::well_known;
use nearhop_core::{Family, Gate};
use nearhop_object::FieldError;
use serde_json::Value;

use crate::config::ClusterConfig;
use crate::errors::{Errors, Report as _};
use crate::ip::{
    check_canonical_ip, check_endpoint_ip, check_legacy_ip, family_of_text, is_plain_endpoint,
    warn_ip,
};
use crate::json::{Path, at, carry, fill_absent, int, list, list_mut, make, text};
use crate::metadata::validate_labels;
use crate::names;
use crate::service::PROTOCOLS;

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const MAX_TOPOLOGY: usize = 16;
const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";

/// Sets the defaults.
pub fn default(slice: &mut Value) {
    for port in list_mut(slice, &["ports"]) {
        fill_absent(port, "name", "");
        fill_absent(port, "protocol", "TCP");
    }
}

/// Prepares a create.
pub fn prepare_create(slice: &mut Value, config: &ClusterConfig) {
    *make(slice, &["metadata", "generation"]) = 1.into();
    if !config.gates.on(Gate::PreferSameTrafficDistribution) {
        drop_node_hints(slice);
    }
    drop_topology(slice, None);
}

/// Prepares an update. The generation counts changes outside the metadata, and of the labels.
pub fn prepare_update(new: &mut Value, old: &Value, config: &ClusterConfig) {
    let generation = int(old, &["metadata", "generation"]).unwrap_or_default();
    let generation = generation.saturating_add(i64::from(is_changed(new, old)));
    *make(new, &["metadata", "generation"]) = generation.into();
    let in_use = || endpoints(old).iter().any(|one| !list(one, &["hints", "forNodes"]).is_empty());
    if !config.gates.on(Gate::PreferSameTrafficDistribution) && !in_use() {
        drop_node_hints(new);
    }
    drop_topology(new, Some(old));
}

fn is_changed(new: &Value, old: &Value) -> bool {
    let differs = |name: &str| !alike(new.get(name), old.get(name));
    ["addressType", "endpoints", "ports"].into_iter().any(differs)
        || !alike(labels(new), labels(old))
}

fn labels(slice: &Value) -> Option<&Value> {
    at(slice, &["metadata", "labels"])
}

/// Equality, where absent, null and empty are the same.
fn alike(a: Option<&Value>, b: Option<&Value>) -> bool {
    let there = |value: &&Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    a.filter(there) == b.filter(there)
}

fn endpoints(slice: &Value) -> &[Value] {
    list(slice, &["endpoints"])
}

fn drop_node_hints(slice: &mut Value) {
    for endpoint in list_mut(slice, &["endpoints"]) {
        carry(endpoint, &Value::Null, &["hints", "forNodes"]);
    }
}

/// `deprecatedTopology` cannot be set, only kept. A stored node name in it moves to its own field.
fn drop_topology(new: &mut Value, old: Option<&Value>) {
    const NODE: &[&str] = &["deprecatedTopology", well_known::HOSTNAME];
    if old.is_some_and(|old| alike(new.get("endpoints"), old.get("endpoints"))) {
        return;
    }
    let old = old.map(endpoints).unwrap_or_default().iter();
    let known: BTreeSet<&str> = old.map(|one| text(one, NODE)).collect();
    for endpoint in list_mut(new, &["endpoints"]) {
        let node = text(endpoint, NODE).to_owned();
        carry(endpoint, &Value::Null, &["deprecatedTopology"]);
        if known.contains(&*node) && names::dns1123_subdomain(&node).is_empty() {
            fill_absent(endpoint, "nodeName", node);
        }
    }
}

/// Validates a new EndpointSlice, except its metadata.
pub fn validate_create(slice: &Value) -> Errors {
    check(slice, None)
}

/// Validates an update of an EndpointSlice, except its metadata.
pub fn validate_update(new: &Value, old: &Value) -> Errors {
    let mut errors = check(new, Some(old));
    if new.get("addressType") != old.get("addressType") {
        errors.invalid("addressType", text(new, &["addressType"]), "field is immutable");
    }
    errors
}

fn check(slice: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    let kind = text(slice, &["addressType"]);
    errors.one_of("addressType", kind, &ADDRESS_TYPES);
    check_ports(&mut errors, slice);
    let before = errors.len();
    check_endpoints(&mut errors, endpoints(slice), kind);
    // Addresses of the old object are accepted.
    let unchanged = || old.is_some_and(|old| alike(slice.get("endpoints"), old.get("endpoints")));
    if errors.len() > before && unchanged() {
        errors.truncate(before);
    }
    errors
}

fn check_ports(errors: &mut Errors, slice: &Value) {
    let ports = list(slice, &["ports"]);
    if ports.len() > MAX_PORTS {
        errors.push(FieldError::too_many("ports", ports.len(), MAX_PORTS));
        return;
    }
    let mut seen = BTreeSet::new();
    let path = Path::root("ports");
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = text(port, &["name"]);
        if !name.is_empty() {
            errors.invalid_each(path.child("name"), name, names::dns1123_label(name));
        }
        if !seen.insert(name) {
            errors.duplicate(path.child("name"), name);
        }
        match at(port, &["protocol"]).and_then(Value::as_str) {
            None => errors.required(path.child("protocol"), ""),
            Some(protocol) if !PROTOCOLS.contains(&protocol) => {
                errors.not_supported(path.child("protocol"), protocol, &PROTOCOLS);
            }
            Some(_) => {}
        }
        if let Some(name) = at(port, &["appProtocol"]).and_then(Value::as_str) {
            errors.invalid_each(path.child("appProtocol"), name, names::qualified_name(name));
        }
    }
}

fn check_endpoints(errors: &mut Errors, endpoints: &[Value], kind: &str) {
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), MAX_ENDPOINTS));
        return;
    }
    let path = Path::root("endpoints");
    for (i, endpoint) in endpoints.iter().enumerate() {
        let path = path.index(i);
        check_addresses(errors, endpoint, kind, &path.child("addresses"));
        if let Some(node) = at(endpoint, &["nodeName"]).and_then(Value::as_str) {
            errors.invalid_each(path.child("nodeName"), node, names::dns1123_subdomain(node));
        }
        check_topology(errors, endpoint, &path.child("deprecatedTopology"));
        if let Some(host) = at(endpoint, &["hostname"]).and_then(Value::as_str) {
            errors.invalid_each(path.child("hostname"), host, names::dns1123_label(host));
        }
        let path = path.child("hints");
        let zones = list(endpoint, &["hints", "forZones"]);
        if check_hints(errors, zones, &path.child("forZones"), names::label_value) {
            let nodes = list(endpoint, &["hints", "forNodes"]);
            check_hints(errors, nodes, &path.child("forNodes"), names::dns1123_subdomain);
        }
    }
}

fn check_addresses(errors: &mut Errors, endpoint: &Value, kind: &str, path: &Path<'_>) {
    let addresses = list(endpoint, &["addresses"]);
    if addresses.is_empty() {
        errors.required(path, "must contain at least 1 address");
    } else if addresses.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many(path, addresses.len(), MAX_ADDRESSES));
    }
    for (j, address) in addresses.iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        if Family::parse(kind).is_some_and(|family| is_plain_endpoint(address, family)) {
            continue;
        }
        let one = path.index(j).to_string();
        let (wrong, family) = match kind {
            "IPv4" => (check_legacy_ip(&one, address, &[]), Family::Ipv4),
            "IPv6" => (check_canonical_ip(&one, address), Family::Ipv6),
            "FQDN" => {
                errors.extend(check_domain(&one, address));
                continue;
            }
            _ => continue,
        };
        if !wrong.is_empty() {
            errors.extend(wrong);
            continue;
        }
        if family_of_text(address) != Some(family) {
            errors.invalid(path, address, &format!("must be an {family} address"));
        }
        errors.extend(check_endpoint_ip(&one, address));
    }
}

/// A domain name of at least two labels, with or without the final dot.
fn check_domain(field: &str, name: &str) -> Option<FieldError> {
    if name.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let invalid =
        |part: &str, detail: &str| Some(FieldError::invalid(field, &Value::from(part), detail));
    let wrong = names::dns1123_subdomain(name);
    if !wrong.is_empty() {
        return invalid(name, &wrong.join(","));
    }
    if !name.contains('.') {
        return invalid(name, "should be a domain with at least two segments separated by dots");
    }
    name.split('.').find_map(|label| {
        let wrong = names::dns1123_label(label);
        if wrong.is_empty() { None } else { invalid(label, &wrong.join(",")) }
    })
}

fn check_topology(errors: &mut Errors, endpoint: &Value, path: &Path<'_>) {
    let Some(map) = at(endpoint, &["deprecatedTopology"]).and_then(Value::as_object) else {
        return;
    };
    if map.len() > MAX_TOPOLOGY {
        errors.push(FieldError::too_many(path, map.len(), MAX_TOPOLOGY));
    }
    validate_labels(endpoint, &["deprecatedTopology"], path, errors);
}

/// Whether the number of hints is valid; if not, they are not checked further.
fn check_hints(
    errors: &mut Errors,
    hints: &[Value],
    path: &Path<'_>,
    rule: fn(&str) -> Vec<String>,
) -> bool {
    if hints.len() > MAX_HINTS {
        errors.push(FieldError::too_many(path, hints.len(), MAX_HINTS));
        return false;
    }
    let mut seen = BTreeSet::new();
    for (i, hint) in hints.iter().enumerate() {
        let (name, path) = (text(hint, &["name"]), path.index(i));
        if !seen.insert(name) {
            errors.duplicate(path.child("name"), name);
        }
        errors.invalid_each(path.child("name"), name, rule(name));
    }
    true
}

/// Warnings about an EndpointSlice. The built-in controllers write canonical addresses.
pub fn warnings(slice: &Value, old: Option<&Value>) -> Vec<String> {
    let mut all = Vec::new();
    if old.is_none() && text(slice, &["addressType"]) == "FQDN" {
        all.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let writer = text(slice, &["metadata", "labels", well_known::MANAGED_BY]);
    if [well_known::IN_TREE_CONTROLLER, MIRRORING_CONTROLLER].contains(&writer) {
        return all;
    }
    for (i, endpoint) in endpoints(slice).iter().enumerate() {
        for (j, address) in list(endpoint, &["addresses"]).iter().enumerate() {
            let address = address.as_str().unwrap_or_default();
            all.extend(warn_ip(&format!("endpoints[{i}].addresses[{j}]"), address));
        }
    }
    all
}
