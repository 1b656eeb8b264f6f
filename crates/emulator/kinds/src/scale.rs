//! The `autoscaling/v1` Scale of workloads and custom resources.

use nearhop_object::{FieldError, LabelSelector};
use serde_json::{Value, json};

use crate::crd;
use crate::json::{at, carry, int, make, object, text};
use crate::resource::Resource;
use crate::verb::Subresource;

/// The Scale of an object; `None` if its kind has none.
pub fn scale_of(resource: &Resource, workload: &Value) -> Option<Value> {
    if resource.is_custom() {
        return crd::scale_for_update(resource, workload).ok();
    }
    if !resource.has(Subresource::Scale) {
        return None;
    }
    let mut spec = json!({});
    if let Some(replicas) = int(workload, &["spec", "replicas"]).filter(|it| *it != 0) {
        object(&mut spec).insert("replicas".to_owned(), json!(replicas));
    }
    let mut status =
        json!({"replicas": int(workload, &["status", "replicas"]).unwrap_or_default()});
    let selector = selector_text(workload);
    if !selector.is_empty() {
        object(&mut status).insert("selector".to_owned(), json!(selector));
    }
    Some(scale_object(workload, &spec, &status))
}

/// A Scale with the identity of its object.
pub(crate) fn scale_object(of: &Value, spec: &Value, status: &Value) -> Value {
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {}, "spec": spec, "status": status});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        carry(&mut scale, of, &["metadata", key]);
    }
    scale
}

/// Writes the replicas of a Scale into its object, and its resourceVersion, if it has one, as the
/// condition for the write.
///
/// # Errors
/// A number below zero, or none where there must be one.
pub fn set_scale(
    resource: &Resource,
    workload: &mut Value,
    scale: &Value,
) -> Result<(), FieldError> {
    let replicas = int(scale, &["spec", "replicas"]).unwrap_or_default();
    if replicas < 0 {
        let detail = "must be greater than or equal to 0";
        return Err(FieldError::invalid("spec.replicas", &json!(replicas), detail));
    }
    let version = text(scale, &["metadata", "resourceVersion"]);
    if !version.is_empty() {
        *make(workload, &["metadata", "resourceVersion"]) = json!(version);
    }
    if resource.is_custom() {
        let set = crd::set_scale(resource, workload, scale);
        return set.map_err(|error| FieldError::required("spec.replicas", &error.to_string()));
    }
    if resource.has(Subresource::Scale) {
        *make(workload, &["spec", "replicas"]) = json!(replicas);
    }
    Ok(())
}

/// The selector in the form of a query. That of a ReplicationController is a map of labels.
fn selector_text(workload: &Value) -> String {
    let Some(selector) = at(workload, &["spec", "selector"]) else { return String::new() };
    let labels = selector.as_object().is_some_and(|map| map.values().all(Value::is_string));
    let read = if labels {
        LabelSelector::from_json(&json!({"matchLabels": selector}))
    } else {
        LabelSelector::from_json(selector)
    };
    read.map(|selector| selector.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::registry;

    #[test]
    fn shows_and_sets_replicas() {
        let registry = registry();
        let resource = registry.find("apps", "v1", "deployments").expect("the kind is built in");
        let mut deployment = json!({
            "metadata": {"name": "dep", "namespace": "lab", "uid": "u", "resourceVersion": "264",
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "dep"}}}, "status": {}});
        let expected = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": "dep", "namespace": "lab", "uid": "u", "resourceVersion": "264",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3}, "status": {"replicas": 0, "selector": "app=dep"}});
        assert_eq!(scale_of(resource, &deployment), Some(expected));
        let scale = json!({"metadata": {"resourceVersion": "270"}, "spec": {"replicas": 5}});
        assert_eq!(set_scale(resource, &mut deployment, &scale), Ok(()));
        assert_eq!(deployment["spec"]["replicas"], 5);
        assert_eq!(deployment["metadata"]["resourceVersion"], "270");
        let error = set_scale(resource, &mut deployment, &json!({"spec": {"replicas": -1}}));
        let text = "spec.replicas: Invalid value: -1: must be greater than or equal to 0";
        assert_eq!(error.expect_err("the replica count is below zero").to_string(), text);
        let resource = registry.find("", "v1", "pods").expect("the kind is built in");
        assert_eq!(scale_of(resource, &deployment), None);
    }
}
