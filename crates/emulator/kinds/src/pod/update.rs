//! Validation of pod updates: only images, a shorter deadline, more tolerations and fewer scheduling
//! gates can change.

use serde_json::Value;

use super::spec::validate_tolerations;
use super::validate_pod;
use crate::errors::{Errors, Report as _};
use crate::json::{Path, int, list, list_mut, text};

const REFUSAL: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(crate) fn validate_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    validate_pod(new, &mut errors);
    for part in ["containers", "initContainers"] {
        if list(new, &["spec", part]).len() != list(old, &["spec", part]).len() {
            let detail = "pod updates may not add or remove containers";
            errors.forbidden(format!("spec.{part}"), detail);
            return errors;
        }
        validate_images(new, part, &mut errors);
    }
    if !validate_deadline(new, old, &mut errors) {
        return errors;
    }
    validate_more_tolerations(new, old, &mut errors);
    validate_fewer_gates(new, old, &mut errors);
    validate_rest(new, old, &mut errors);
    errors
}

fn validate_images(new: &Value, part: &str, errors: &mut Errors) {
    for (index, container) in list(new, &["spec", part]).iter().enumerate() {
        let image = text(container, &["image"]);
        let field = || format!("spec.{part}[{index}].image");
        if image.is_empty() {
            errors.required(field(), "");
        }
        if image.trim() != image {
            errors.invalid(field(), image, "must not have leading or trailing whitespace");
        }
    }
}

/// Whether the rest can be compared.
fn validate_deadline(new: &Value, old: &Value, errors: &mut Errors) -> bool {
    const FIELD: &str = "spec.activeDeadlineSeconds";
    let before = int(old, &["spec", "activeDeadlineSeconds"]);
    let Some(now) = int(new, &["spec", "activeDeadlineSeconds"]) else {
        if before.is_some() {
            let detail = "must not update from a positive integer to nil value";
            errors.invalid(FIELD, &Value::Null, detail);
        }
        return true;
    };
    if !(0..=i64::from(i32::MAX)).contains(&now) {
        errors.invalid(FIELD, now, "must be between 0 and 2147483647, inclusive");
        return false;
    }
    if before.is_some_and(|before| before < now) {
        errors.invalid(FIELD, now, "must be less than or equal to previous value");
        return false;
    }
    true
}

fn validate_more_tolerations(new: &Value, old: &Value, errors: &mut Errors) {
    let tolerations = list(new, &["spec", "tolerations"]);
    let same = |one: &Value, other: &Value| {
        ["key", "operator", "value", "effect"]
            .iter()
            .all(|field| text(one, &[field]) == text(other, &[field]))
    };
    let kept = |known: &Value| tolerations.iter().any(|toleration| same(toleration, known));
    if !list(old, &["spec", "tolerations"]).iter().all(kept) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden("spec.tolerations", detail);
        return;
    }
    let spec = new.get("spec").unwrap_or(&Value::Null);
    let path = Path::root("spec");
    validate_tolerations(spec, &path.child("tolerations"), errors);
}

fn validate_fewer_gates(new: &Value, old: &Value, errors: &mut Errors) {
    let known = list(old, &["spec", "schedulingGates"]);
    for (index, gate) in list(new, &["spec", "schedulingGates"]).iter().enumerate() {
        let name = text(gate, &["name"]);
        if !known.iter().any(|gate| text(gate, &["name"]) == name) {
            let field = format!("spec.schedulingGates[{index}].name");
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.forbidden(field, &detail);
        }
    }
}

/// Copies the old values of mutable fields; then the specs must be equal.
fn validate_rest(new: &Value, old: &Value, errors: &mut Errors) {
    let (Some(spec), Some(before)) = (new.get("spec"), old.get("spec")) else { return };
    if spec == before {
        return;
    }
    let mut spec = spec.clone();
    for part in ["containers", "initContainers"] {
        let images = list(before, &[part]).iter().map(|container| container.get("image"));
        for (container, image) in list_mut(&mut spec, &[part]).iter_mut().zip(images) {
            if let (Some(now), Some(image)) = (container.get_mut("image"), image) {
                *now = image.clone();
            }
        }
    }
    let grace = "terminationGracePeriodSeconds";
    if int(before, &[grace]).is_some_and(|was| was < 0) && int(&spec, &[grace]) == Some(1) {
        crate::json::carry(&mut spec, before, &[grace]);
    }
    let mut free = vec!["activeDeadlineSeconds", "schedulingGates", "tolerations"];
    if !list(before, &["schedulingGates"]).is_empty() {
        // A gated pod is not scheduled yet: its node selection can be narrowed.
        free.extend(["nodeSelector", "affinity"]);
    }
    for key in free {
        crate::json::carry(&mut spec, before, &[key]);
    }
    if &spec != before {
        errors.forbidden("spec", REFUSAL);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        super::super::default(&mut pod);
        pod
    }

    fn errors_of(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let old = pod();
        let mut new = old.clone();
        change(&mut new);
        validate_update(&new, &old).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn images_deadlines_and_tolerations_can_change() {
        assert!(errors_of(|pod| pod["spec"]["containers"][0]["image"] = json!("j")).is_empty());
        assert!(errors_of(|pod| pod["spec"]["activeDeadlineSeconds"] = json!(100)).is_empty());
        let toleration = json!([{"key": "k", "operator": "Exists"}]);
        assert!(errors_of(|pod| pod["spec"]["tolerations"] = toleration).is_empty());
    }

    #[test]
    fn other_fields_cannot_change() {
        let refusal = format!("spec: Forbidden: {REFUSAL}");
        assert_eq!(errors_of(|pod| pod["spec"]["hostNetwork"] = json!(true)), [refusal]);
        let more = json!({"name": "d", "image": "i", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File"});
        let two = errors_of(|pod| {
            pod["spec"]["containers"].as_array_mut().expect("containers is a list").push(more);
        });
        let text = "spec.containers: Forbidden: pod updates may not add or remove containers";
        assert_eq!(two, [text]);
    }
}
