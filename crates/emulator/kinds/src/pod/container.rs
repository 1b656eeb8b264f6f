//! Validation of a container: name, image, ports, environment, mounts, resources.

use std::collections::BTreeSet;

use nearhop_object::{FieldError, FieldErrorKind};
use serde_json::{Value, json};

use super::probe::{validate_lifecycle, validate_probes};
use super::qos::milli;
use super::spec::one_of;
use super::volume::no_backsteps;
use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, entries, int, list, text};
use crate::names;
use crate::service::PROTOCOLS;

const PULL: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGES: [&str; 2] = ["File", "FallbackToLogsOnError"];
const RESTART: [&str; 3] = ["Always", "Never", "OnFailure"];
const STANDARD_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const SOURCES: [&str; 5] =
    ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];

pub(super) fn validate_containers(
    spec: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let containers = list(spec, &["containers"]);
    if containers.is_empty() {
        errors.required(path.child("containers"), "");
    }
    let grace = int(spec, &["terminationGracePeriodSeconds"]);
    let mut seen = BTreeSet::new();
    for part in ["containers", "initContainers"] {
        let parts = path.child(part);
        for (index, container) in list(spec, &[part]).iter().enumerate() {
            let path = parts.index(index);
            validate_common(container, volumes, &path, errors);
            if part == "initContainers" {
                validate_restart(container, &path, errors);
            }
            let name = text(container, &["name"]);
            if !seen.insert(name) {
                errors.duplicate(path.child("name"), name);
            }
            if part == "containers" || text(container, &["restartPolicy"]) == "Always" {
                validate_lifecycle(container, grace, &path, errors);
                validate_probes(container, grace, &path, errors);
            } else {
                forbid_probes(container, &path, errors);
            }
            if part == "containers" {
                validate_restart(container, &path, errors);
            }
        }
        if part == "containers" {
            unique_host_ports(containers, &parts, errors);
        }
    }
}

fn forbid_probes(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if at(container, &[key]).is_some() {
            let detail = "may not be set for init containers without restartPolicy=Always";
            errors.forbidden(path.child(key), detail);
        }
    }
}

/// The checks of all kinds of containers.
fn validate_common(
    container: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let name = text(container, &["name"]);
    if name.is_empty() {
        errors.required(path.child("name"), "");
    } else {
        errors.invalid_each(path.child("name"), name, names::dns1123_label(name));
    }
    if text(container, &["image"]).is_empty() {
        errors.required(path.child("image"), "");
    }
    one_of(container, "terminationMessagePolicy", &MESSAGES, path, errors);
    validate_ports(container, &path.child("ports"), errors);
    validate_env(container, &path.child("env"), errors);
    validate_mounts(container, volumes, &path.child("volumeMounts"), errors);
    one_of(container, "imagePullPolicy", &PULL, path, errors);
    validate_resources(container, &path.child("resources"), errors);
}

fn validate_restart(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    if at(container, &["restartPolicy"]).is_some() {
        one_of(container, "restartPolicy", &RESTART, path, errors);
    } else if !list(container, &["restartPolicyRules"]).is_empty() {
        let detail = "must specify restartPolicy when restart rules are used";
        errors.required(path.child("restartPolicy"), detail);
    }
}

fn validate_ports(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, port) in list(container, &["ports"]).iter().enumerate() {
        let path = path.index(index);
        let name = text(port, &["name"]);
        if !name.is_empty() {
            let complaints = names::port_name(name);
            if complaints.is_empty() && !seen.insert(name) {
                errors.duplicate(path.child("name"), name);
            }
            errors.invalid_each(path.child("name"), name, complaints);
        }
        match int(port, &["containerPort"]).unwrap_or_default() {
            0 => errors.required(path.child("containerPort"), ""),
            number => {
                errors.invalid_each(
                    path.child("containerPort"),
                    number,
                    names::port_number(number),
                );
            }
        }
        if let Some(number) = int(port, &["hostPort"]).filter(|number| *number != 0) {
            errors.invalid_each(path.child("hostPort"), number, names::port_number(number));
        }
        one_of(port, "protocol", &PROTOCOLS, &path, errors);
    }
}

fn unique_host_ports(containers: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let container_path = path.index(index);
        let path = container_path.child("ports");
        for (index, port) in list(container, &["ports"]).iter().enumerate() {
            let number = int(port, &["hostPort"]).unwrap_or_default();
            if number == 0 {
                continue;
            }
            let (protocol, ip) = (text(port, &["protocol"]), text(port, &["hostIP"]));
            if !seen.insert((protocol, ip, number)) {
                let value = json!(format!("{protocol}/{ip}/{number}"));
                let port = path.index(index);
                errors.duplicate(port.child("hostPort"), &value);
            }
        }
    }
}

fn validate_env(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, variable) in list(container, &["env"]).iter().enumerate() {
        let path = path.index(index);
        let name = text(variable, &["name"]);
        if name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !name.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
            let detail = "a valid environment variable name must consist only of printable ASCII \
                          characters other than '='";
            errors.invalid(path.child("name"), name, detail);
        }
        let Some(from) = at(variable, &["valueFrom"]) else { continue };
        let sources = SOURCES.iter().filter(|source| at(from, &[source]).is_some()).count();
        let valued = !text(variable, &["value"]).is_empty();
        let detail = match sources {
            0 => {
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
                  `secretKeyRef` or `fileKeyRef`"
            }
            _ if valued => "may not be specified when `value` is not empty",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.invalid(path.child("valueFrom"), "", detail);
    }
}

fn validate_mounts(
    container: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let mut seen = BTreeSet::new();
    for (index, mount) in list(container, &["volumeMounts"]).iter().enumerate() {
        let item = path.index(index);
        let name = text(mount, &["name"]);
        if name.is_empty() {
            errors.required(item.child("name"), "");
        }
        if !volumes.contains(name) {
            let message = format!("Not found: {}", json!(name));
            let field = item.child("name");
            errors.push(FieldError::new(FieldErrorKind::NotFound, field, message));
        }
        let target = text(mount, &["mountPath"]);
        if target.is_empty() {
            errors.required(item.child("mountPath"), "");
        }
        if !seen.insert(target) {
            errors.invalid(item.child("mountPath"), target, "must be unique");
        }
        let sub = text(mount, &["subPath"]);
        if sub.starts_with('/') {
            errors.invalid(path.child("subPath"), sub, "must be a relative path");
        }
        no_backsteps(sub, &path.child("subPath"), errors);
    }
}

fn validate_resources(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    let resources = container.get("resources").unwrap_or(&Value::Null);
    let requests = path.child("requests");
    for part in ["limits", "requests"] {
        let path = path.child(part);
        for (name, value) in entries(resources, &[part]) {
            resource_name(name, &path.key(name), errors);
            if milli(value).is_some_and(|amount| amount < 0) {
                errors.invalid(path.key(name), value, "must be greater than or equal to 0");
            }
        }
    }
    for (name, request) in entries(resources, &["requests"]) {
        let Some(limit) = at(resources, &["limits", name]) else { continue };
        if milli(request) > milli(limit) {
            let limit = limit.as_str().unwrap_or_default();
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            errors.invalid(requests, request, &detail);
        }
    }
}

fn resource_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    let before = errors.len();
    errors.invalid_each(path, name, names::qualified_name(name));
    let known = STANDARD_RESOURCES.contains(&name) || name.starts_with("hugepages-");
    if name.contains('/') || known {
        return;
    }
    if errors.len() == before {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    errors.invalid(path, name, "must be a standard resource for containers");
}
