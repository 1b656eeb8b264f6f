//! Structural schemas, compared with the recorded replies of kube-apiserver 1.36.2: the objects
//! that it stored, the fields that it dropped, and its errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use nearhop_object::structural::{
    apply_defaults, check_schema, has_rules, prune, to_schema, validate,
};
use nearhop_object::{FieldError, FieldErrorKind};
use serde_json::Value;

fn recorded() -> Value {
    serde_json::from_str(include_str!("data/structural.json")).unwrap()
}

fn causes(errors: &[FieldError]) -> BTreeSet<String> {
    let cause = |e: &FieldError| format!("{} {}: {}", e.kind.reason(), e.field, e.message);
    errors.iter().map(cause).collect()
}

fn recorded_causes(case: &Value) -> BTreeSet<String> {
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap().to_owned();
    let causes = case["causes"].as_array().unwrap().iter();
    causes
        .map(|c| format!("{} {}: {}", text(c, "reason"), text(c, "field"), text(c, "message")))
        .collect()
}

#[test]
fn objects_become_what_kubernetes_stores() {
    let recorded = recorded();
    let mut compared = 0;
    for case in recorded["objects"].as_array().unwrap() {
        let source = &case["source"];
        let schema = &recorded["schemas"][case["schema"].as_str().unwrap()];
        let shape = to_schema(schema);
        let mut object = case["input"].clone();
        let unknown = prune(shape.node(), &mut object);
        if let Some(strict) = case.get("strict") {
            let fields: Vec<_> = unknown.iter().map(|f| format!("unknown field \"{f}\"")).collect();
            assert_eq!(fields.join(", "), *strict, "{source}");
            compared += 1;
            continue;
        }
        if let Some(recorded) = case.get("unknown") {
            assert_eq!(serde_json::json!(unknown), *recorded, "{source}");
        }
        apply_defaults(schema, &mut object);
        let errors = validate(schema, &object, None);
        match case["status"].as_u64() {
            Some(201) => {
                // The status subresource drops the status, not the schema.
                object.as_object_mut().unwrap().remove("status");
                assert_eq!(object, case["output"], "{source}");
                assert!(errors.is_empty(), "{source}: {errors:?}");
            }
            _ => {
                let wanted = recorded_causes(case);
                let rule = wanted.iter().any(|c| c.contains("n over 5 needs size large"));
                if rule {
                    assert!(errors.is_empty(), "rules are not evaluated");
                } else {
                    // The scale subresource checks the replica count again.
                    let wanted = wanted.into_iter().filter(|c| !c.contains(" .spec.")).collect();
                    assert_eq!(causes(&errors), wanted, "{source}");
                }
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 16);
}

#[test]
fn schemas_that_kubernetes_accepts_or_refuses() {
    let recorded = recorded();
    for (name, schema) in recorded["schemas"].as_object().unwrap() {
        assert_eq!(check_schema(schema, "s"), [], "{name}");
        assert_eq!(has_rules(schema), name == "box");
    }
    for case in recorded["badSchemas"].as_array().unwrap() {
        let errors = check_schema(&case["schema"], "spec.validation.openAPIV3Schema");
        assert_eq!(causes(&errors), recorded_causes(case));
        assert_eq!(errors[0].kind, FieldErrorKind::Required);
    }
}
