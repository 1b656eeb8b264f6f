//! Validation of a pod's spec, in a pod or in a template. Security contexts, affinity, devices and
//! Windows options are not validated.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{container, volume};
use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, int, is_true, list, text};
use crate::metadata::{validate_annotations, validate_labels};
use crate::names;

const RESTART: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const LABEL_FIELDS: [&str; 2] = ["hostname", "subdomain"];
const SUBDOMAIN_FIELDS: [&str; 3] = ["serviceAccountName", "nodeName", "priorityClassName"];

/// The owner of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A pod's own.
    Pod,
    /// A template's.
    Template,
}

pub(crate) fn validate_spec(spec: &Value, path: &Path<'_>, owner: Owner, errors: &mut Errors) {
    if at(spec, &["terminationGracePeriodSeconds"]).is_none() {
        errors.required(path.child("terminationGracePeriodSeconds"), "");
    }
    let volumes = volume::validate_volumes(spec, &path.child("volumes"), errors);
    container::validate_containers(spec, &volumes, path, errors);
    validate_host_ports(spec, path, owner, errors);
    one_of(spec, "restartPolicy", &RESTART, path, errors);
    one_of(spec, "dnsPolicy", &DNS, path, errors);
    validate_searches(spec, path, errors);
    validate_labels(spec, &["nodeSelector"], &path.child("nodeSelector"), errors);
    validate_gates(spec, path, errors);
    validate_names(spec, path, errors);
    if let Some(seconds) = int(spec, &["activeDeadlineSeconds"])
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.invalid(path.child("activeDeadlineSeconds"), seconds, detail);
    }
    validate_tolerations(spec, &path.child("tolerations"), errors);
    validate_host_aliases(spec, &path.child("hostAliases"), errors);
    if at(spec, &["preemptionPolicy"]).is_some() {
        one_of(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"], path, errors);
    }
}

/// Validates a template: labels, annotations and spec.
pub(crate) fn validate_template(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    validate_labels(template, &["metadata", "labels"], &path.child("labels"), errors);
    let annotations = path.child("annotations");
    validate_annotations(template, &["metadata", "annotations"], &annotations, errors);
    let spec = template.get("spec").unwrap_or(&Value::Null);
    validate_spec(spec, &path.child("spec"), Owner::Template, errors);
    if !list(spec, &["ephemeralContainers"]).is_empty() {
        let spec = path.child("spec");
        let detail = "ephemeral containers not allowed in pod template";
        errors.forbidden(spec.child("ephemeralContainers"), detail);
    }
}

pub(super) fn validate_tolerations(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, toleration) in list(spec, &["tolerations"]).iter().enumerate() {
        validate_toleration(toleration, &path.index(index), errors);
    }
}

/// Validates a required enum.
pub(super) fn one_of(
    holder: &Value,
    key: &str,
    supported: &[&str],
    path: &Path<'_>,
    errors: &mut Errors,
) {
    errors.one_of(path.child(key), text(holder, &[key]), supported);
}

/// Validates a number that must not be negative.
pub(crate) fn not_negative(holder: &Value, key: &str, path: &Path<'_>, errors: &mut Errors) {
    if let Some(value) = int(holder, &[key]).filter(|value| *value < 0) {
        errors.invalid(path.child(key), value, "must be greater than or equal to 0");
    }
}

/// DNS search paths are subdomains; underscores and a final dot are allowed.
fn validate_searches(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let config = path.child("dnsConfig");
    let searches = config.child("searches");
    for (index, search) in list(spec, &["dnsConfig", "searches"]).iter().enumerate() {
        let name = search.as_str().unwrap_or_default();
        if name != "." {
            let plain = name.strip_suffix('.').unwrap_or(name).replace('_', "0");
            errors.invalid_each(searches.index(index), search, names::dns1123_subdomain(&plain));
        }
    }
}

/// In the host network, hostPort must equal containerPort.
fn validate_host_ports(spec: &Value, path: &Path<'_>, owner: Owner, errors: &mut Errors) {
    if !is_true(spec, &["hostNetwork"]) {
        return;
    }
    let containers = path.child("containers");
    for (index, container) in list(spec, &["containers"]).iter().enumerate() {
        let container_path = containers.index(index);
        let ports = container_path.child("ports");
        for (index, port) in list(container, &["ports"]).iter().enumerate() {
            let host = int(port, &["hostPort"]).unwrap_or_default();
            let inner = int(port, &["containerPort"]).unwrap_or_default();
            if (owner == Owner::Pod || host != 0) && host != inner {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                let port = ports.index(index);
                errors.invalid(port.child("hostPort"), host, detail);
            }
        }
    }
}

fn validate_gates(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let gates = path.child("readinessGates");
    for (index, gate) in list(spec, &["readinessGates"]).iter().enumerate() {
        let kind = text(gate, &["conditionType"]);
        let field = gates.index(index);
        errors.invalid_each(field.child("conditionType"), kind, names::qualified_name(kind));
    }
    let gates = path.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (index, gate) in list(spec, &["schedulingGates"]).iter().enumerate() {
        let name = text(gate, &["name"]);
        errors.invalid_each(gates.index(index), name, names::qualified_name(name));
        if !seen.insert(name) {
            errors.duplicate(gates.index(index), name);
        }
    }
}

fn validate_names(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut check = |key: &str, complaints: fn(&str) -> Vec<String>| {
        let name = text(spec, &[key]);
        if name.is_empty() {
            return;
        }
        errors.invalid_each(path.child(key), name, complaints(name));
    };
    for key in SUBDOMAIN_FIELDS {
        check(key, names::dns1123_subdomain);
    }
    for key in LABEL_FIELDS {
        check(key, names::dns1123_label);
    }
    check("runtimeClassName", names::dns1123_subdomain);
}

fn validate_toleration(toleration: &Value, path: &Path<'_>, errors: &mut Errors) {
    let [key, operator, value, effect] =
        ["key", "operator", "value", "effect"].map(|field| text(toleration, &[field]));
    if key.is_empty() {
        if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all \
                          values and all keys\"";
            errors.invalid(path.child("operator"), operator, detail);
        }
    } else {
        errors.invalid_each(path.child("key"), key, names::qualified_name(key));
    }
    if at(toleration, &["tolerationSeconds"]).is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(path.child("effect"), effect, detail);
    }
    let field = path.child("operator");
    match operator {
        "" | "Equal" => {
            let complaints = names::label_value(value).join(";");
            if !complaints.is_empty() {
                errors.invalid(field, value, &complaints);
            }
        }
        "Exists" if !value.is_empty() => {
            errors.invalid(field, value, "value must be empty when `operator` is 'Exists'");
        }
        "Exists" => {}
        "Lt" | "Gt" => errors.not_supported(field, operator, &["Equal", "Exists", "Lt", "Gt"]),
        _ => errors.not_supported(field, operator, &["Equal", "Exists"]),
    }
    if !effect.is_empty() && !EFFECTS.contains(&effect) {
        errors.not_supported(path.child("effect"), effect, &EFFECTS);
    }
}

fn validate_host_aliases(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, alias) in list(spec, &["hostAliases"]).iter().enumerate() {
        let path = path.index(index);
        let ip = text(alias, &["ip"]);
        if ip.parse::<std::net::IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.invalid(path.child("ip"), ip, detail);
        }
        let hostnames = path.child("hostnames");
        for (index, name) in list(alias, &["hostnames"]).iter().enumerate() {
            let complaints = names::dns1123_subdomain(name.as_str().unwrap_or_default());
            errors.invalid_each(hostnames.index(index), name, complaints);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn search_paths_are_subdomains() {
        for (search, valid) in
            [(".", true), ("a_b.example.", true), ("a\nnameserver 1.2.3.4", false)]
        {
            let mut errors = Vec::new();
            let spec = json!({"dnsConfig": {"searches": [search]}});
            validate_searches(&spec, &Path::root("spec"), &mut errors);
            assert_eq!(errors.is_empty(), valid, "{search:?}: {errors:?}");
            assert!(errors.iter().all(|error| error.field == "spec.dnsConfig.searches[0]"));
        }
    }
}
