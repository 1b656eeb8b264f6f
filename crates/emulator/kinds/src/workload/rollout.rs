//! Validation of the update strategies of Deployments, DaemonSets and StatefulSets.

use nearhop_object::{FieldError, FieldErrorKind};
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, int, text};
use crate::names;
use crate::pod::not_negative;

pub(super) fn validate_deployment(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let strategy = spec.get("strategy").unwrap_or(&Value::Null);
    let strategy_path = path.child("strategy");
    let rolling_path = strategy_path.child("rollingUpdate");
    match (text(strategy, &["type"]), at(strategy, &["rollingUpdate"])) {
        ("Recreate", Some(_)) => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.forbidden(rolling_path, detail);
        }
        ("Recreate", None) => {}
        ("RollingUpdate", None) => {
            errors.required(rolling_path, "this should be defaulted and never be nil");
        }
        ("RollingUpdate", Some(rolling)) => validate_rolling(rolling, &rolling_path, errors),
        _ => errors.push(unsupported(strategy, &strategy_path, ["Recreate", "RollingUpdate"])),
    }
    not_negative(spec, "revisionHistoryLimit", path, errors);
    not_negative(spec, "progressDeadlineSeconds", path, errors);
    let ready = int(spec, &["minReadySeconds"]).unwrap_or_default();
    if let Some(seconds) = int(spec, &["progressDeadlineSeconds"]).filter(|it| *it <= ready) {
        let field = path.child("progressDeadlineSeconds");
        errors.invalid(field, seconds, "must be greater than minReadySeconds");
    }
}

pub(super) fn validate_daemon_set(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let strategy = spec.get("updateStrategy").unwrap_or(&Value::Null);
    let strategy_path = path.child("updateStrategy");
    let rolling_path = strategy_path.child("rollingUpdate");
    match (text(strategy, &["type"]), at(strategy, &["rollingUpdate"])) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(rolling_path, ""),
        ("RollingUpdate", Some(rolling)) => {
            validate_rolling_daemons(rolling, &rolling_path, errors);
        }
        _ => errors.push(unsupported(strategy, &strategy_path, ["RollingUpdate", "OnDelete"])),
    }
    not_negative(spec, "revisionHistoryLimit", path, errors);
}

pub(super) fn validate_stateful_set(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let policy = text(spec, &["podManagementPolicy"]);
    let field = path.child("podManagementPolicy");
    match policy {
        "" => errors.required(field, ""),
        "OrderedReady" | "Parallel" => {}
        _ => errors.invalid(field, policy, "must be 'OrderedReady' or 'Parallel'"),
    }
    let strategy = spec.get("updateStrategy").unwrap_or(&Value::Null);
    let strategy_path = path.child("updateStrategy");
    let rolling_path = strategy_path.child("rollingUpdate");
    match (text(strategy, &["type"]), at(strategy, &["rollingUpdate"])) {
        ("", _) => errors.required(strategy_path, ""),
        ("OnDelete", Some(rolling)) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.invalid(rolling_path, rolling, detail);
        }
        ("RollingUpdate", Some(rolling)) => {
            not_negative(rolling, "partition", &rolling_path, errors);
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        _ => errors.invalid(strategy_path, strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    let retention_path = path.child("persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        let policy = text(spec, &["persistentVolumeClaimRetentionPolicy", key]);
        errors.supported(retention_path.child(key), policy, &["Retain", "Delete"]);
    }
    let service = text(spec, &["serviceName"]);
    if !service.is_empty() {
        errors.invalid_each(path.child("serviceName"), service, names::dns1123_label(service));
    }
}

/// A strategy in the format of Go.
fn unsupported(strategy: &Value, path: &Path<'_>, supported: [&str; 2]) -> FieldError {
    let [first, second] = supported;
    let rolling = at(strategy, &["rollingUpdate"]).map_or("null".to_owned(), |rolling| {
        let part = |key: &str| rolling.get(key).cloned().unwrap_or(json!(0));
        let (unavailable, surge) = (part("maxUnavailable"), part("maxSurge"));
        format!("{{\"MaxUnavailable\":{unavailable},\"MaxSurge\":{surge}}}")
    });
    let kind = json!(text(strategy, &["type"]));
    let message = format!(
        "Unsupported value: {{\"Type\":{kind},\"RollingUpdate\":{rolling}}}: supported values: \
         {first:?}, {second:?}"
    );
    FieldError::new(FieldErrorKind::NotSupported, path, message)
}

fn validate_rolling(rolling: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["maxUnavailable", "maxSurge"] {
        int_or_percent(rolling, key, path, errors);
    }
    if amount(rolling, "maxUnavailable") == 0 && amount(rolling, "maxSurge") == 0 {
        let value = rolling.get("maxUnavailable").unwrap_or(&Value::Null);
        errors.invalid(path.child("maxUnavailable"), value, "may not be 0 when `maxSurge` is 0");
    }
    at_most_all(rolling, "maxUnavailable", path, errors);
}

fn validate_rolling_daemons(rolling: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["maxUnavailable", "maxSurge"] {
        int_or_percent(rolling, key, path, errors);
    }
    for key in ["maxUnavailable", "maxSurge"] {
        at_most_all(rolling, key, path, errors);
    }
    match (amount(rolling, "maxUnavailable") != 0, amount(rolling, "maxSurge") != 0) {
        (true, true) => {
            let value = rolling.get("maxSurge").unwrap_or(&Value::Null);
            let detail = "may not be set when maxUnavailable is non-zero";
            errors.invalid(path.child("maxSurge"), value, detail);
        }
        (false, false) => {
            errors.required(path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
        }
        _ => {}
    }
}

fn int_or_percent(holder: &Value, key: &str, path: &Path<'_>, errors: &mut Errors) {
    match holder.get(key) {
        Some(Value::String(text)) if percent(text).is_none() => {
            let detail = "a valid percent string must be a numeric string followed by an ending \
                          '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.invalid(path.child(key), text, detail);
        }
        Some(Value::Number(_)) => not_negative(holder, key, path, errors),
        _ => {}
    }
}

fn at_most_all(holder: &Value, key: &str, path: &Path<'_>, errors: &mut Errors) {
    let text = text(holder, &[key]);
    if percent(text).is_some_and(|percent| percent > 100) {
        errors.invalid(path.child(key), text, "must not be greater than 100%");
    }
}

/// A number, or the number before the percent sign.
fn amount(holder: &Value, key: &str) -> i64 {
    match holder.get(key) {
        Some(Value::String(text)) => percent(text).unwrap_or_default(),
        Some(other) => other.as_i64().unwrap_or_default(),
        None => 0,
    }
}

fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(i64::MAX))
}
