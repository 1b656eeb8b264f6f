//! The fields that field selectors know, besides name and namespace.

use serde_json::Value;

use crate::json::{at, int, is_true, list, text};
use crate::resource::{Origin, Resource};
use crate::strategy::Strategy;

/// Names of fields, separated by spaces. A name is a path, except in [`read`].
pub(crate) type Fields = &'static str;

pub(crate) const POD: Fields = "spec.nodeName spec.restartPolicy spec.schedulerName \
    spec.serviceAccountName spec.hostNetwork status.phase status.podIP status.podIPs \
    status.nominatedNodeName spec.host";
pub(crate) const CORE_EVENT: Fields = "involvedObject.kind involvedObject.namespace \
    involvedObject.name involvedObject.uid involvedObject.apiVersion \
    involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type";
pub(crate) const EVENT: Fields = "regarding.kind regarding.namespace regarding.name regarding.uid \
    regarding.apiVersion regarding.resourceVersion regarding.fieldPath reason \
    reportingController type";

/// Whether field selectors know a field.
pub fn supports_field(resource: &Resource, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => resource.strategy.namespace_field,
        _ => {
            resource.strategy.fields.split_whitespace().any(|name| name == field)
                || custom_paths(resource).any(|path| path.trim_start_matches('.') == field)
        }
    }
}

/// The values of the fields that field selectors know, besides name and namespace. The object is in
/// its stored form.
pub fn selectable(strategy: &Strategy, object: &Value) -> Vec<(&'static str, String)> {
    strategy.fields.split_whitespace().map(|name| (name, read(object, name))).collect()
}

/// The value of a field; `None` if field selectors do not know it. Unlike [`selectable`] it has the
/// fields that a custom resource declares.
pub fn field_value(resource: &Resource, object: &Value, field: &str) -> Option<String> {
    match field {
        "metadata.name" => Some(text(object, &["metadata", "name"]).to_owned()),
        "metadata.namespace" => Some(text(object, &["metadata", "namespace"]).to_owned()),
        _ => {
            if resource.strategy.fields.split_whitespace().any(|name| name == field) {
                return Some(read(object, field));
            }
            let path = custom_paths(resource).find(|path| path.trim_start_matches('.') == field)?;
            Some(read_path(object, path))
        }
    }
}

/// The `selectableFields` of a custom resource's version: `.spec.color`.
fn custom_paths(resource: &Resource) -> impl Iterator<Item = &str> {
    let fields = match &resource.origin {
        Origin::Custom(version) => list(version, &["selectableFields"]),
        Origin::BuiltIn => &[],
    };
    fields.iter().map(|field| text(field, &["jsonPath"]))
}

/// The value of a built-in field. Events are stored in the form of `v1`.
fn read(object: &Value, field: &str) -> String {
    let number = |path: &[&str]| int(object, path).unwrap_or_default().to_string();
    match field {
        "spec.hostNetwork" | "spec.unschedulable" => {
            is_true(object, &field.split('.').collect::<Vec<_>>()).to_string()
        }
        "status.successful" => number(&["status", "succeeded"]),
        "status.replicas" => number(&["status", "replicas"]),
        // The oldest name of spec.nodeName.
        "spec.host" => text(object, &["spec", "nodeName"]).to_owned(),
        "status.podIP" => {
            let first = list(object, &["status", "podIPs"]).first();
            first.map(|first| text(first, &["ip"])).unwrap_or_default().to_owned()
        }
        "status.podIPs" => String::new(),
        "source" if !text(object, &["source", "component"]).is_empty() => {
            text(object, &["source", "component"]).to_owned()
        }
        "source" | "reportingController" => text(object, &["reportingComponent"]).to_owned(),
        _ => {
            let path = field.replace("regarding.", "involvedObject.");
            text(object, &path.split('.').collect::<Vec<_>>()).to_owned()
        }
    }
}

fn read_path(object: &Value, path: &str) -> String {
    let steps: Vec<&str> = path.split('.').filter(|step| !step.is_empty()).collect();
    match at(object, &steps) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::registry;
    use serde_json::json;

    /// Supported fields besides name and namespace, as observed on a real server.
    const ACCEPTED: &[(&str, &str, &[&str])] = &[
        ("", "services", &["spec.clusterIP", "spec.type"]),
        ("", "nodes", &["spec.unschedulable"]),
        ("", "namespaces", &["status.phase"]),
        ("", "secrets", &["type"]),
        ("", "replicationcontrollers", &["status.replicas"]),
        ("batch", "jobs", &["status.successful"]),
        ("events.k8s.io", "events", &["type", "reason"]),
        ("", "events", &["type", "source", "involvedObject.fieldPath", "reportingComponent"]),
        ("", "pods", &["status.podIPs", "spec.hostNetwork", "spec.serviceAccountName"]),
        ("apps", "deployments", &[]),
        ("", "endpoints", &[]),
    ];

    #[test]
    fn supported_fields_match_a_real_server() {
        let registry = registry();
        for (group, plural, fields) in ACCEPTED {
            let resource = registry.find(group, "v1", plural).expect("the kind is built in");
            assert!(supports_field(resource, "metadata.name"), "{plural}");
            let cluster = matches!(*plural, "nodes" | "namespaces");
            assert_eq!(supports_field(resource, "metadata.namespace"), !cluster, "{plural}");
            assert!(!supports_field(resource, "spec.foo"), "{plural}");
            for field in *fields {
                assert!(supports_field(resource, field), "{plural} {field}");
            }
        }
    }

    #[test]
    fn field_values_are_read() {
        let registry = registry();
        let pods = registry.find("", "v1", "pods").expect("the kind is built in");
        let pod = json!({"spec": {"nodeName": "n"}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        let value = |field: &str| field_value(pods, &pod, field);
        assert_eq!(value("spec.nodeName").as_deref(), Some("n"));
        assert_eq!(value("spec.hostNetwork").as_deref(), Some("false"));
        assert_eq!(value("status.podIP").as_deref(), Some("10.0.0.1"));
        assert_eq!(value("spec.foo"), None);
        assert!(selectable(pods.strategy, &pod).contains(&("status.podIP", "10.0.0.1".to_owned())));
        let events = registry.find("", "v1", "events").expect("the kind is built in");
        let event = json!({"source": {}, "reportingComponent": "c"});
        assert_eq!(field_value(events, &event, "source").as_deref(), Some("c"));
    }
}
