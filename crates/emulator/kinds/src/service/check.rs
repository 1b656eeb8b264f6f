//! Validation of a Service, in the order in which Kubernetes reports errors.

use std::collections::BTreeSet;

use nearhop_core::ip::parse_ip_sloppy;
use nearhop_object::{FieldError, FieldErrorKind};
use serde_json::Value;

use super::check_ips::{check_cluster_ips, check_cluster_ips_change, check_families_change};
use super::policies::{
    check_affinity, check_class, check_external_policy, check_health_port_change,
    check_internal_policy,
};
use super::view::View;
use super::{extra, view::NONE};
use crate::config::ClusterConfig;
use crate::errors::{Errors, Report as _};
use crate::ip::{check_endpoint_ip, check_legacy_cidr, check_legacy_ip};
use crate::json::{Path, at, int, list, text};
use crate::metadata::validate_labels;
use crate::names;

const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
pub(crate) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";

/// Validates a new Service, except its metadata.
pub fn validate_create(service: &Value, config: &ClusterConfig) -> Errors {
    let mut errors = Vec::new();
    check(&mut errors, View::of(service), None, config);
    errors
}

/// Validates an update of a Service, except its metadata.
pub fn validate_update(new: &Value, old: &Value, config: &ClusterConfig) -> Errors {
    let (new, old) = (View::of(new), View::of(old));
    let mut errors = Vec::new();
    check_cluster_ips_change(&mut errors, new, old);
    check_families_change(&mut errors, new, old);
    check_class(&mut errors, new, Some(old));
    check_health_port_change(&mut errors, new, old);
    check(&mut errors, new, Some(old), config);
    errors
}

/// Validates an update of the status.
pub fn validate_status_update(new: &Value, old: &Value) -> Errors {
    const MODES: [&str; 2] = ["Proxy", "VIP"];
    let mut errors = Vec::new();
    let now = ingress(new);
    if !now.is_empty() && !View::of(new).is_load_balancer() {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        return vec![FieldError::forbidden("status.loadBalancer.ingress", detail)];
    }
    let was_there: Vec<&str> = ingress(old).iter().map(|one| text(one, &["ip"])).collect();
    for (i, one) in now.iter().enumerate() {
        let at = |name: &str| format!("status.loadBalancer.ingress[{i}].{name}");
        let (ip, host) = (text(one, &["ip"]), text(one, &["hostname"]));
        if !ip.is_empty() {
            errors.extend(check_legacy_ip(&at("ip"), ip, &was_there));
        }
        match (one.get("ipMode").and_then(Value::as_str), ip.is_empty()) {
            (None, false) => {
                errors.required(at("ipMode"), "must be specified when `ip` is set");
            }
            (Some(_), true) => {
                errors.forbidden(at("ipMode"), "may not be specified when `ip` is not set");
            }
            (Some(mode), false) if !MODES.contains(&mode) => {
                errors.not_supported(at("ipMode"), mode, &MODES);
            }
            _ => {}
        }
        if !host.is_empty() {
            errors.invalid_each(at("hostname"), host, names::dns1123_subdomain(host));
            if parse_ip_sloppy(host).is_some() {
                errors.invalid(at("hostname"), host, "must be a DNS name, not an IP address");
            }
        }
    }
    errors
}

pub(super) fn ingress(service: &Value) -> &[Value] {
    list(service, &["status", "loadBalancer", "ingress"])
}

fn check(errors: &mut Errors, view: View<'_>, old: Option<View<'_>>, config: &ClusterConfig) {
    check_annotations(errors, view);
    check_type_demands(errors, view);
    check_ports(errors, view);
    check_selector(errors, view);
    check_affinity(errors, view);
    check_cluster_ips(errors, view, old);
    check_external_ips(errors, view, old);
    check_type(errors, view);
    check_node_ports(errors, view);
    check_port_pairs(errors, view);
    check_source_ranges(errors, view, old);
    check_node_port_switch(errors, view);
    check_class(errors, view, None);
    check_external_policy(errors, view);
    check_internal_policy(errors, view);
    extra::check_distribution(errors, view, &config.gates);
    extra::check_extra(errors, view, &config.gates);
}

fn check_annotations(errors: &mut Errors, view: View<'_>) {
    let older = "service.kubernetes.io/topology-aware-hints";
    let newer = "service.kubernetes.io/topology-mode";
    if let (Some(hints), Some(mode)) = (view.annotation(older), view.annotation(newer))
        && hints != mode
    {
        let field = format!("metadata.annotations[{newer}]");
        let detail = format!("must match annotations[{older}] when both are specified");
        errors.invalid(field, mode, &detail);
    }
}

/// The required and forbidden fields of each type.
fn check_type_demands(errors: &mut Errors, view: View<'_>) {
    if view.list("ports").is_empty() && !view.is_headless() && !view.is_external_name() {
        errors.required("spec.ports", "");
    }
    if view.has_node_ports() && view.is_headless() {
        let detail = format!("may not be set to 'None' for {} services", view.text("type"));
        errors.invalid("spec.clusterIPs[0]", NONE, &detail);
    }
    if !view.is_external_name() {
        return;
    }
    let mut forbid = |present: bool, field: &str| {
        if present {
            errors.forbidden(field, "may not be set for ExternalName services");
        }
    };
    forbid(!view.list("clusterIPs").is_empty(), "spec.clusterIPs");
    forbid(!view.list("ipFamilies").is_empty(), "spec.ipFamilies");
    forbid(view.get("ipFamilyPolicy").is_some(), "spec.ipFamilyPolicy");
    let name = view.text("externalName");
    // A fully qualified name ends with a dot.
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        errors.required("spec.externalName", "");
    } else {
        errors.invalid_each("spec.externalName", name, names::dns1123_subdomain(name));
    }
}

fn check_ports(errors: &mut Errors, view: View<'_>) {
    let ports = view.list("ports");
    let mut seen = BTreeSet::new();
    let path = Path::root("spec");
    let path = path.child("ports");
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = text(port, &["name"]);
        if !name.is_empty() {
            errors.invalid_each(path.child("name"), name, names::dns1123_label(name));
            if !seen.insert(name) {
                errors.duplicate(path.child("name"), name);
            }
        } else if ports.len() > 1 {
            errors.required(path.child("name"), "");
        }
        let number = int(port, &["port"]).unwrap_or_default();
        errors.invalid_each(path.child("port"), number, names::port_number(number));
        errors.one_of(path.child("protocol"), text(port, &["protocol"]), &PROTOCOLS);
        errors.port(path.child("targetPort"), at(port, &["targetPort"]));
        if let Some(name) = at(port, &["appProtocol"]).and_then(Value::as_str) {
            errors.invalid_each(path.child("appProtocol"), name, names::qualified_name(name));
        }
    }
}

fn check_selector(errors: &mut Errors, view: View<'_>) {
    let selector = view.shown("selector");
    validate_labels(&selector, &[], &Path::root("spec.selector"), errors);
}

fn check_external_ips(errors: &mut Errors, view: View<'_>, old: Option<View<'_>>) {
    let was_there = old.map(|old| old.texts("externalIPs")).unwrap_or_default();
    for (i, ip) in view.texts("externalIPs").into_iter().enumerate() {
        let field = format!("spec.externalIPs[{i}]");
        let wrong = check_legacy_ip(&field, ip, &was_there);
        if wrong.is_empty() {
            errors.extend(check_endpoint_ip(&field, ip));
        } else {
            errors.extend(wrong);
        }
    }
}

fn check_type(errors: &mut Errors, view: View<'_>) {
    const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    errors.one_of("spec.type", view.text("type"), &TYPES);
}

fn check_node_ports(errors: &mut Errors, view: View<'_>) {
    let at = |i: usize| format!("spec.ports[{i}].nodePort");
    let given = || {
        let ports = view.list("ports").iter().enumerate();
        ports
            .map(|(i, port)| (i, port, int(port, &["nodePort"]).unwrap_or(0)))
            .filter(|(.., port)| *port != 0)
    };
    if view.is_cluster_ip() {
        for (i, ..) in given() {
            errors.forbidden(at(i), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port, node_port) in given() {
        if !seen.insert((text(port, &["protocol"]), node_port)) {
            errors.duplicate(at(i), node_port);
        }
    }
}

fn check_port_pairs(errors: &mut Errors, view: View<'_>) {
    let mut seen = BTreeSet::new();
    for (i, port) in view.list("ports").iter().enumerate() {
        let protocol = text(port, &["protocol"]);
        let port = int(port, &["port"]).unwrap_or_default();
        if !seen.insert((protocol, port)) {
            // Kubernetes shows the pair as a port with all other fields at zero.
            let message = format!(
                "Duplicate value: {{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\
                 \"Port\":{port},\"TargetPort\":0,\"NodePort\":0}}",
                Value::from(protocol)
            );
            let field = format!("spec.ports[{i}]");
            errors.push(FieldError::new(FieldErrorKind::Duplicate, field, message));
        }
    }
}

fn check_source_ranges(errors: &mut Errors, view: View<'_>, old: Option<View<'_>>) {
    let ranges = view.texts("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        let field = "spec.LoadBalancerSourceRanges";
        if !view.is_load_balancer() {
            errors.forbidden(field, ONLY_LOAD_BALANCER);
        }
        let old = old.map(|old| old.texts("loadBalancerSourceRanges")).unwrap_or_default();
        let was_there: Vec<&str> = old.into_iter().map(str::trim).collect();
        for (i, range) in ranges.into_iter().enumerate() {
            errors.extend(check_legacy_cidr(&format!("{field}[{i}]"), range.trim(), &was_there));
        }
    } else if let Some(list) = view.annotation(SOURCE_RANGES) {
        let field = format!("metadata.annotations[{SOURCE_RANGES}]");
        if !view.is_load_balancer() {
            errors.forbidden(field.as_str(), ONLY_LOAD_BALANCER);
        }
        let unchanged = old.and_then(|old| old.annotation(SOURCE_RANGES)) == Some(list);
        if !unchanged && !list.trim().is_empty() {
            for range in list.trim().split(',') {
                errors.extend(check_legacy_cidr(&field, range.trim(), &[]));
            }
        }
    }
}

fn check_node_port_switch(errors: &mut Errors, view: View<'_>) {
    match (view.get("allocateLoadBalancerNodePorts"), view.is_load_balancer()) {
        (Some(_), false) => {
            errors.forbidden("spec.allocateLoadBalancerNodePorts", ONLY_LOAD_BALANCER);
        }
        (None, true) => errors.required("allocateLoadBalancerNodePorts", ""),
        _ => {}
    }
}
