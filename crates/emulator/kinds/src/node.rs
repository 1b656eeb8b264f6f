//! Node: podCIDR and podCIDRs mirror each other, a new node is tainted until it is ready, and
//! allocatable defaults to capacity.

use std::collections::BTreeSet;

use nearhop_core::{Cidr, Family};
use nearhop_object::{FieldError, FieldErrorKind};
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::ip::NOT_A_CIDR;
use crate::json::{self, Path, at, list, make, push, text};
use crate::metadata::ordered;
use crate::names;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(crate) fn default(node: &mut Value) {
    mirror_pod_cidrs(node);
    if at(node, &["status", "allocatable"]).is_none()
        && let Some(capacity) = at(node, &["status", "capacity"]).cloned()
    {
        *make(node, &["status", "allocatable"]) = capacity;
    }
}

/// `podCIDR` is the first of `podCIDRs`, and wins if they differ.
fn mirror_pod_cidrs(node: &mut Value) {
    let one = text(node, &["spec", "podCIDR"]);
    let first = list(node, &["spec", "podCIDRs"]).first();
    if one.is_empty() {
        if let Some(first) = first.cloned() {
            *make(node, &["spec", "podCIDR"]) = first;
        }
    } else if first.is_none_or(|first| first != one) {
        let all = json!([one]);
        *make(node, &["spec", "podCIDRs"]) = all;
    }
}

/// A new node is tainted until it is ready.
pub(crate) fn prepare_create(node: &mut Value) {
    let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
    let tainted = |known: &Value| {
        text(known, &["key"]) == NOT_READY && text(known, &["effect"]) == "NoSchedule"
    };
    if !list(node, &["spec", "taints"]).iter().any(tainted) {
        push(node, &["spec", "taints"], taint);
    }
}

/// Validates a node, and what an update may change.
pub(crate) fn validate(node: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    validate_taints(node, &mut errors);
    validate_resources(node, &mut errors);
    validate_pod_cidrs(node, &mut errors);
    errors.extend(old.into_iter().flat_map(|old| validate_update(node, old)));
    errors
}

pub(crate) fn validate_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    validate_resources(new, &mut errors);
    validate_addresses(new, &mut errors);
    let (now, was) = (list(new, &["spec", "podCIDRs"]), list(old, &["spec", "podCIDRs"]));
    if !was.is_empty() && now != was {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        errors.forbidden("spec.podCIDRs", detail);
    }
    let (now, was) = (text(new, &["spec", "providerID"]), text(old, &["spec", "providerID"]));
    if !was.is_empty() && now != was {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.forbidden("spec.providerID", detail);
    }
    validate_taints(new, &mut errors);
    if text(new, &["spec", "externalID"]) != text(old, &["spec", "externalID"]) {
        errors.forbidden("spec.externalID", "may not be updated");
    }
    errors
}

pub(crate) fn warnings(node: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if at(node, &["spec", "configSource"]).is_some() {
        warnings.push("spec.configSource: the feature is removed".to_owned());
    }
    if !text(node, &["spec", "externalID"]).is_empty() {
        let text = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        warnings.push(text.to_owned());
    }
    warnings
}

/// Taints are reported below `metadata`, as Kubernetes does.
fn validate_taints(node: &Value, errors: &mut Errors) {
    let meta = Path::root("metadata");
    let path = meta.child("taints");
    let mut seen = BTreeSet::new();
    for (index, taint) in list(node, &["spec", "taints"]).iter().enumerate() {
        let path = path.index(index);
        let (key, value) = (text(taint, &["key"]), text(taint, &["value"]));
        errors.invalid_each(path.child("key"), key, names::qualified_name(key));
        let complaints = names::label_value(value).join(";");
        if !complaints.is_empty() {
            errors.invalid(path.child("value"), value, &complaints);
        }
        let effect = text(taint, &["effect"]);
        errors.one_of(path.child("effect"), effect, &EFFECTS);
        if !seen.insert((effect, key)) {
            let message = format!(
                "Duplicate value: {}: taints must be unique by key and effect pair",
                taint_text(taint)
            );
            errors.push(FieldError::new(FieldErrorKind::Duplicate, path, message));
        }
    }
}

fn taint_text(taint: &Value) -> String {
    let internal = json!({
        "Key": text(taint, &["key"]),
        "Value": text(taint, &["value"]),
        "Effect": text(taint, &["effect"]),
        "TimeAdded": at(taint, &["timeAdded"]),
    });
    ordered(&internal, &["Key", "Value", "Effect", "TimeAdded"])
}

fn validate_resources(node: &Value, errors: &mut Errors) {
    for part in ["capacity", "allocatable"] {
        for (name, value) in json::entries(node, &["status", part]) {
            if value.as_str().is_some_and(|text| text.starts_with('-')) {
                let detail = "must be greater than or equal to 0";
                errors.invalid(format!("status.{part}.{name}"), value, detail);
            }
        }
    }
}

fn validate_addresses(node: &Value, errors: &mut Errors) {
    let addresses = list(node, &["status", "addresses"]);
    for (index, address) in addresses.iter().enumerate() {
        if addresses.iter().take(index).any(|known| known == address) {
            let internal = json!({
                "Type": text(address, &["type"]),
                "Address": text(address, &["address"]),
            });
            let message = format!("Duplicate value: {}", ordered(&internal, &["Type", "Address"]));
            let field = format!("status.addresses[{index}]");
            errors.push(FieldError::new(FieldErrorKind::Duplicate, field, message));
        }
    }
}

fn validate_pod_cidrs(node: &Value, errors: &mut Errors) {
    const FIELD: &str = "spec.podCIDRs";
    let cidrs = list(node, &["spec", "podCIDRs"]);
    let families: Vec<Option<Family>> =
        cidrs.iter().map(|cidr| Some(Cidr::parse(cidr.as_str()?)?.family())).collect();
    for (index, (cidr, family)) in cidrs.iter().zip(&families).enumerate() {
        if family.is_none() {
            errors.invalid(format!("{FIELD}[{index}]"), cidr, NOT_A_CIDR);
        }
    }
    if let [first, second, rest @ ..] = families.as_slice() {
        let dual = match (first, second) {
            (Some(first), Some(second)) => first != second,
            _ => false,
        };
        if !dual || !rest.is_empty() {
            let detail = "may specify no more than one CIDR for each IP family";
            errors.invalid(FIELD, Value::Array(cidrs.to_vec()), detail);
        }
    }
}
