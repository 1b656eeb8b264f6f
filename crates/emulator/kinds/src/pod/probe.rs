//! Validation of probes and lifecycle hooks.

use serde_json::Value;

use super::spec::not_negative;
use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, int, list, text};

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HANDLERS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
const NUMBERS: [&str; 5] = [
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
];
const SCHEMES: [&str; 2] = ["HTTP", "HTTPS"];

pub(super) fn validate_probes(
    container: &Value,
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    for name in PROBES {
        if let Some(probe) = at(container, &[name]) {
            validate_probe(probe, name, grace, &path.child(name), errors);
        }
    }
}

pub(super) fn validate_lifecycle(
    container: &Value,
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let path = path.child("lifecycle");
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = at(container, &["lifecycle", hook]) {
            validate_handler(handler, grace, &path.child(hook), errors);
        }
    }
}

fn validate_probe(
    probe: &Value,
    name: &str,
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    const GRACE: &str = "terminationGracePeriodSeconds";
    validate_handler(probe, grace, path, errors);
    for key in NUMBERS {
        not_negative(probe, key, path, errors);
    }
    let own = int(probe, &[GRACE]);
    if let Some(seconds) = own.filter(|seconds| *seconds <= 0) {
        errors.invalid(path.child(GRACE), seconds, "must be greater than 0");
    }
    if name == "readinessProbe" {
        if let Some(seconds) = own {
            errors.invalid(path.child(GRACE), seconds, "must not be set for readinessProbes");
        }
        return;
    }
    let threshold = int(probe, &["successThreshold"]).unwrap_or_default();
    if threshold != 1 {
        errors.invalid(path.child("successThreshold"), threshold, "must be 1");
    }
}

fn validate_handler(handler: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut Errors) {
    let mut present = HANDLERS.iter().filter_map(|key| Some((*key, at(handler, &[key])?)));
    let Some((key, action)) = present.next() else {
        errors.required(path, "must specify a handler type");
        return;
    };
    validate_action(key, action, grace, &path.child(key), errors);
    for (key, _) in present {
        errors.forbidden(path.child(key), "may not specify more than 1 handler type");
    }
}

fn validate_action(
    key: &str,
    action: &Value,
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    match key {
        "exec" if list(action, &["command"]).is_empty() => {
            errors.required(path.child("command"), "");
        }
        "httpGet" => {
            if text(action, &["path"]).is_empty() {
                errors.required(path.child("path"), "");
            }
            errors.port(path.child("port"), at(action, &["port"]));
            let scheme = text(action, &["scheme"]);
            errors.supported(path.child("scheme"), scheme, &SCHEMES);
        }
        "tcpSocket" | "grpc" => errors.port(path.child("port"), at(action, &["port"])),
        "sleep" => {
            let seconds = int(action, &["seconds"]).unwrap_or_default();
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let detail = format!(
                    "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                );
                errors.invalid(path, seconds, &detail);
            }
        }
        _ => {}
    }
}
