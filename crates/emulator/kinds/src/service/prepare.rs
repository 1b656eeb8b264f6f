//! Fields that the server sets whatever the client sends: the status, gated fields, fields that a
//! change of type makes obsolete, and allocated values that the client omits.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::extra::drop_disabled;
use super::view::{View, number, spec_mut, text};
use crate::config::ClusterConfig;

/// Prepares a create.
pub fn prepare_create(service: &mut Value, config: &ClusterConfig) {
    if let Some(object) = service.as_object_mut() {
        object.insert("status".to_owned(), json!({"loadBalancer": {}}));
    }
    drop_disabled(service, None, &config.gates);
    hide_internal_policy(service);
}

/// Prepares an update.
pub fn prepare_update(new: &mut Value, old: &Value, config: &ClusterConfig) {
    if let Some(object) = new.as_object_mut() {
        let status = old.get("status").cloned();
        object.insert("status".to_owned(), status.unwrap_or_else(|| json!({"loadBalancer": {}})));
    }
    drop_disabled(new, Some(old), &config.gates);
    drop_by_type(new, old);
    hide_internal_policy(new);
}

/// ExternalName Services have no internal policy. An invalid value stays, for validation to refuse.
fn hide_internal_policy(service: &mut Value) {
    let view = View::of(service);
    if view.is_external_name() && matches!(view.text("internalTrafficPolicy"), "Cluster" | "Local")
    {
        remove(service, &["internalTrafficPolicy"]);
    }
}

/// Clears obsolete fields that the server may have set. A field that the client changed stays, for
/// validation to refuse.
fn drop_by_type(new: &mut Value, old: &Value) {
    let gone: Vec<&str> = obsolete_fields(View::of(new), View::of(old));
    remove(new, &gone);
    let (now, was) = (View::of(new), View::of(old));
    if was.has_node_ports() && !now.has_node_ports() {
        let known: BTreeSet<i64> = was.node_ports().into_iter().collect();
        if now.node_ports().iter().all(|port| known.contains(port)) {
            for port in ports_mut(new) {
                port.remove("nodePort");
            }
        }
    }
    if !View::of(new).is_load_balancer()
        && let Some(status) = new.get_mut("status").and_then(Value::as_object_mut)
    {
        status.insert("loadBalancer".to_owned(), json!({}));
    }
}

fn obsolete_fields(new: View<'_>, old: View<'_>) -> Vec<&'static str> {
    let same = |name: &str| new.get(name) == old.get(name);
    let mut gone = Vec::new();
    let mut drop_if = |obsolete: bool, names: &[&'static str]| {
        if obsolete && names.iter().all(|name| same(name)) {
            gone.extend_from_slice(names);
        }
    };
    let no_address = !old.is_external_name() && new.is_external_name();
    drop_if(no_address, &["clusterIP", "clusterIPs"]);
    drop_if(no_address, &["ipFamilies"]);
    drop_if(no_address, &["ipFamilyPolicy"]);
    let unchecked = old.needs_health_check() && !new.needs_health_check();
    drop_if(unchecked, &["healthCheckNodePort"]);
    let unbalanced = old.is_load_balancer() && !new.is_load_balancer();
    drop_if(unbalanced, &["allocateLoadBalancerNodePorts"]);
    drop_if(unbalanced, &["loadBalancerClass"]);
    let internal = old.is_externally_accessible() && !new.is_externally_accessible();
    drop_if(internal, &["externalTrafficPolicy"]);
    gone
}

/// Copies allocated values that the client omits, so that the same manifest can be written twice.
pub(crate) fn carry_over(new: &mut Value, old: &Value) {
    let (now, was) = (View::of(new), View::of(old));
    let addresses = !now.is_external_name() && !was.is_external_name();
    let health = now.needs_health_check() && was.needs_health_check();
    let node_ports = now.fills_node_ports() && was.fills_node_ports();
    if let Some(spec) = spec_mut(new) {
        if addresses {
            take_over(spec, was, "clusterIP");
            take_over(spec, was, "clusterIPs");
        }
        if health {
            take_over(spec, was, "healthCheckNodePort");
        }
    }
    if node_ports {
        carry_node_ports(new, was);
    }
}

fn take_over(spec: &mut Map<String, Value>, old: View<'_>, name: &str) {
    let empty = spec.get(name).is_none_or(|value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        value => value.as_i64() == Some(0),
    });
    if let (true, Some(value)) = (empty, old.get(name)) {
        spec.insert(name.to_owned(), value.clone());
    }
}

/// By port name, unless another port of the new object has the number.
fn carry_node_ports(new: &mut Value, old: View<'_>) {
    let by_name: BTreeMap<&str, i64> =
        old.list("ports").iter().map(|p| (text(p, "name"), number(p, "nodePort"))).collect();
    let used: BTreeSet<i64> = View::of(new).node_ports().into_iter().collect();
    for port in ports_mut(new) {
        let given = port.get("nodePort").and_then(Value::as_i64).unwrap_or_default();
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        let known = by_name.get(name).copied().unwrap_or_default();
        if given == 0 && known != 0 && !used.contains(&known) {
            port.insert("nodePort".to_owned(), Value::from(known));
        }
    }
}

/// Sets `clusterIPs` by `clusterIP`, the only field of old clients.
pub(crate) fn pair_cluster_ips(new: &mut Value, old: Option<&Value>) {
    let now = View::of(new);
    let (one, many) = (now.text("clusterIP"), now.list("clusterIPs"));
    let paired = match old.map(View::of) {
        None if !one.is_empty() && many.is_empty() => Some(json!([one])),
        None => None,
        Some(was) => {
            let (was_one, was_many) = (was.text("clusterIP"), was.list("clusterIPs"));
            if one == was_one {
                (many.is_empty() && !was_many.is_empty()).then(|| json!(was_many))
            } else if many == was_many {
                Some(if one.is_empty() { Value::Null } else { json!([one]) })
            } else {
                None
            }
        }
    };
    match (paired, spec_mut(new)) {
        (Some(Value::Null), Some(spec)) => {
            spec.remove("clusterIPs");
        }
        (Some(paired), Some(spec)) => {
            spec.insert("clusterIPs".to_owned(), paired);
        }
        _ => {}
    }
}

fn ports_mut(service: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let ports = spec_mut(service).and_then(|spec| spec.get_mut("ports")?.as_array_mut());
    ports.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn remove(service: &mut Value, names: &[&str]) {
    if let Some(spec) = spec_mut(service) {
        for name in names {
            spec.remove(*name);
        }
    }
}
