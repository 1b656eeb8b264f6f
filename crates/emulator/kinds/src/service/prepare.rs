//! Fields that the server sets whatever the client sends: the status, gated fields, fields that a
//! change of type makes obsolete, and allocated values that the client omits.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::extra::drop_disabled;
use super::view::{View, spec_mut};
use crate::config::ClusterConfig;
use crate::json::{carry, fill_number, int, list_mut, make, text};

/// Prepares a create.
pub fn prepare_create(service: &mut Value, config: &ClusterConfig) {
    *make(service, &["status"]) = json!({"loadBalancer": {}});
    drop_disabled(service, None, &config.gates);
    hide_internal_policy(service);
}

/// Prepares an update.
pub fn prepare_update(new: &mut Value, old: &Value, config: &ClusterConfig) {
    let status = old.get("status").cloned();
    *make(new, &["status"]) = status.unwrap_or_else(|| json!({"loadBalancer": {}}));
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
            for port in list_mut(new, &["spec", "ports"]) {
                carry(port, &Value::Null, &["nodePort"]);
            }
        }
    }
    if !View::of(new).is_load_balancer() {
        *make(new, &["status", "loadBalancer"]) = json!({});
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
    let ports = old.list("ports").iter();
    let by_name: BTreeMap<&str, i64> =
        ports.filter_map(|p| Some((text(p, &["name"]), int(p, &["nodePort"])?))).collect();
    let used: BTreeSet<i64> = View::of(new).node_ports().into_iter().collect();
    for port in list_mut(new, &["spec", "ports"]) {
        let known = by_name.get(text(port, &["name"])).copied().unwrap_or_default();
        if known != 0 && !used.contains(&known) {
            fill_number(port, "nodePort", known);
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
    match paired {
        Some(Value::Null) => remove(new, &["clusterIPs"]),
        Some(paired) => *make(new, &["spec", "clusterIPs"]) = paired,
        None => {}
    }
}

fn remove(service: &mut Value, names: &[&str]) {
    for name in names {
        carry(service, &Value::Null, &["spec", name]);
    }
}
