//! EndpointSlices: defaults, validation, warnings.
//!
//! Validation checks the form only: hints may name unknown zones or nodes, endpoints may repeat.

use std::collections::BTreeSet;

use nearhop_core::labels::well_known;
use nearhop_core::{Family, Gate};
use nearhop_object::FieldError;
use serde_json::{Map, Value};

use crate::config::ClusterConfig;
use crate::errors::Report as _;
use crate::ip::{
    check_canonical_ip, check_endpoint_ip, check_legacy_ip, family_of_text, is_plain_endpoint,
    warn_ip,
};
use crate::names;

const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const MAX_TOPOLOGY: usize = 16;
const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";

/// Sets the defaults.
pub fn default(slice: &mut Value) {
    let ports = slice.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        for (name, value) in [("name", ""), ("protocol", "TCP")] {
            if port.get(name).is_none_or(Value::is_null) {
                port.insert(name.to_owned(), Value::from(value));
            }
        }
    }
}

/// Prepares a create.
pub fn prepare_create(slice: &mut Value, config: &ClusterConfig) {
    set_generation(slice, 1);
    if !config.gates.on(Gate::PreferSameTrafficDistribution) {
        drop_node_hints(slice);
    }
    drop_topology(slice, None);
}

/// Prepares an update. The generation counts changes outside the metadata, and of the labels.
pub fn prepare_update(new: &mut Value, old: &Value, config: &ClusterConfig) {
    let generation = old.get("metadata").and_then(|m| m.get("generation")?.as_i64()).unwrap_or(0);
    let changed = is_changed(new, old);
    set_generation(new, if changed { generation.saturating_add(1) } else { generation });
    let in_use = || endpoints(old).iter().any(|one| !hints(one, "forNodes").is_empty());
    if !config.gates.on(Gate::PreferSameTrafficDistribution) && !in_use() {
        drop_node_hints(new);
    }
    drop_topology(new, Some(old));
}

fn set_generation(slice: &mut Value, generation: i64) {
    if let Some(metadata) = slice.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("generation".to_owned(), Value::from(generation));
    }
}

fn is_changed(new: &Value, old: &Value) -> bool {
    let differs = |name: &str| !alike(new.get(name), old.get(name));
    ["addressType", "endpoints", "ports"].into_iter().any(differs)
        || !alike(labels(new), labels(old))
}

fn labels(slice: &Value) -> Option<&Value> {
    slice.get("metadata")?.get("labels")
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
    slice.get("endpoints").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn endpoints_mut(slice: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let list = slice.get_mut("endpoints").and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn hints<'a>(endpoint: &'a Value, name: &str) -> &'a [Value] {
    let list = endpoint.get("hints").and_then(|hints| hints.get(name)?.as_array());
    list.map_or(&[], Vec::as_slice)
}

fn drop_node_hints(slice: &mut Value) {
    for endpoint in endpoints_mut(slice) {
        if let Some(hints) = endpoint.get_mut("hints").and_then(Value::as_object_mut) {
            hints.remove("forNodes");
        }
    }
}

/// `deprecatedTopology` cannot be set, only kept. A stored node name in it moves to its own field.
fn drop_topology(new: &mut Value, old: Option<&Value>) {
    let host = |one: &Value| {
        let host = one.get("deprecatedTopology").and_then(|map| map.get(well_known::HOSTNAME));
        host.and_then(Value::as_str).filter(|host| !host.is_empty()).map(str::to_owned)
    };
    if old.is_some_and(|old| alike(new.get("endpoints"), old.get("endpoints"))) {
        return;
    }
    let known: BTreeSet<String> =
        old.map(endpoints).unwrap_or_default().iter().filter_map(host).collect();
    for endpoint in endpoints_mut(new) {
        let Some(topology) = endpoint.remove("deprecatedTopology") else { continue };
        let node = topology.get(well_known::HOSTNAME).and_then(Value::as_str).unwrap_or_default();
        let valid = known.contains(node) && names::dns1123_subdomain(node).is_empty();
        if valid && endpoint.get("nodeName").is_none_or(Value::is_null) {
            endpoint.insert("nodeName".to_owned(), Value::from(node));
        }
    }
}

/// Validates a new EndpointSlice, except its metadata.
pub fn validate_create(slice: &Value) -> Vec<FieldError> {
    check(slice, None)
}

/// Validates an update of an EndpointSlice, except its metadata.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = check(new, Some(old));
    if new.get("addressType") != old.get("addressType") {
        let shown = Value::from(text(new, "addressType"));
        errors.invalid("addressType", &shown, "field is immutable");
    }
    errors
}

fn check(slice: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = text(slice, "addressType");
    if kind.is_empty() {
        errors.required("addressType", "");
    } else if !ADDRESS_TYPES.contains(&kind) {
        let shown = Value::from(kind);
        errors.not_supported("addressType", &shown, &ADDRESS_TYPES);
    }
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

fn check_ports(errors: &mut Vec<FieldError>, slice: &Value) {
    let ports = slice.get("ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if ports.len() > MAX_PORTS {
        errors.push(FieldError::too_many("ports", ports.len(), MAX_PORTS));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = |name: &str| format!("ports[{i}].{name}");
        let name = text(port, "name");
        if !name.is_empty() {
            complain(errors, || at("name"), name, names::dns1123_label(name));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(at("name"), &Value::from(name)));
        }
        match port.get("protocol").and_then(Value::as_str) {
            None => errors.required(at("protocol"), ""),
            Some(protocol) if !PROTOCOLS.contains(&protocol) => {
                let shown = Value::from(protocol);
                errors.not_supported(at("protocol"), &shown, &PROTOCOLS);
            }
            Some(_) => {}
        }
        if let Some(name) = port.get("appProtocol").and_then(Value::as_str) {
            complain(errors, || at("appProtocol"), name, names::qualified_name(name));
        }
    }
}

fn check_endpoints(errors: &mut Vec<FieldError>, endpoints: &[Value], kind: &str) {
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), MAX_ENDPOINTS));
        return;
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        let at = |name: &str| format!("endpoints[{i}].{name}");
        check_addresses(errors, endpoint, kind, i);
        if let Some(node) = endpoint.get("nodeName").and_then(Value::as_str) {
            complain(errors, || at("nodeName"), node, names::dns1123_subdomain(node));
        }
        check_topology(errors, endpoint, || at("deprecatedTopology"));
        if let Some(host) = endpoint.get("hostname").and_then(Value::as_str) {
            complain(errors, || at("hostname"), host, names::dns1123_label(host));
        }
        let zones = hints(endpoint, "forZones");
        let right = check_hints(errors, zones, || at("hints.forZones"), names::label_value);
        if right {
            let nodes = hints(endpoint, "forNodes");
            check_hints(errors, nodes, || at("hints.forNodes"), names::dns1123_subdomain);
        }
    }
}

fn check_addresses(errors: &mut Vec<FieldError>, endpoint: &Value, kind: &str, at: usize) {
    let list = endpoint.get("addresses").and_then(Value::as_array);
    let list = list.map_or(&[][..], Vec::as_slice);
    let field = || format!("endpoints[{at}].addresses");
    if list.is_empty() {
        errors.required(field(), "must contain at least 1 address");
    } else if list.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many(field(), list.len(), MAX_ADDRESSES));
    }
    for (j, address) in list.iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        if Family::parse(kind).is_some_and(|family| is_plain_endpoint(address, family)) {
            continue;
        }
        let one = format!("endpoints[{at}].addresses[{j}]");
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
            errors.invalid(field(), address, &format!("must be an {family} address"));
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

fn check_topology(errors: &mut Vec<FieldError>, endpoint: &Value, field: impl Fn() -> String) {
    let Some(map) = endpoint.get("deprecatedTopology").and_then(Value::as_object) else { return };
    if map.len() > MAX_TOPOLOGY {
        errors.push(FieldError::too_many(field(), map.len(), MAX_TOPOLOGY));
    }
    for (key, value) in map {
        complain(errors, &field, key, names::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        complain(errors, &field, value, names::label_value(value));
    }
}

/// Whether the number of hints is valid; if not, they are not checked further.
fn check_hints(
    errors: &mut Vec<FieldError>,
    hints: &[Value],
    field: impl Fn() -> String,
    rule: fn(&str) -> Vec<String>,
) -> bool {
    if hints.len() > MAX_HINTS {
        errors.push(FieldError::too_many(field(), hints.len(), MAX_HINTS));
        return false;
    }
    let names: Vec<&str> = hints.iter().map(|hint| text(hint, "name")).collect();
    for (i, name) in names.iter().enumerate() {
        let at = || format!("{}[{i}].name", field());
        if names.iter().take(i).any(|earlier| earlier == name) {
            errors.push(FieldError::duplicate(at(), &Value::from(*name)));
        }
        complain(errors, at, name, rule(name));
    }
    true
}

/// Warnings about an EndpointSlice. The built-in controllers write canonical addresses.
pub fn warnings(slice: &Value, old: Option<&Value>) -> Vec<String> {
    let mut all = Vec::new();
    if old.is_none() && text(slice, "addressType") == "FQDN" {
        all.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let writer = labels(slice).and_then(|labels| labels.get(well_known::MANAGED_BY));
    let writer = writer.and_then(Value::as_str).unwrap_or_default();
    if [well_known::IN_TREE_CONTROLLER, MIRRORING_CONTROLLER].contains(&writer) {
        return all;
    }
    for (i, endpoint) in endpoints(slice).iter().enumerate() {
        let list = endpoint.get("addresses").and_then(Value::as_array);
        for (j, address) in list.into_iter().flatten().enumerate() {
            let address = address.as_str().unwrap_or_default();
            all.extend(warn_ip(&format!("endpoints[{i}].addresses[{j}]"), address));
        }
    }
    all
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn complain(
    errors: &mut Vec<FieldError>,
    field: impl Fn() -> String,
    value: &str,
    details: Vec<String>,
) {
    let shown = |detail: String| FieldError::invalid(field(), &Value::from(value), &detail);
    errors.extend(details.into_iter().map(shown));
}
