//! The fields that field selectors know, besides name and namespace.

use serde_json::Value;

use crate::json::{at, int, is_true, list, text};
use crate::resource::{Origin, Resource};
use crate::strategy::Strategy;

/// The source of a field's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The text at this path.
    Text(&'static [&'static str]),
    /// The number at this path; absent is 0.
    Number(&'static [&'static str]),
    /// `true` or `false` at this path; absent is `false`.
    Flag(&'static [&'static str]),
    /// The first of a pod's addresses.
    PodIp,
    /// The reporter of an event.
    Reporter,
    /// Known, but always empty.
    Nothing,
}

use Source::{Flag, Nothing, Number, PodIp, Reporter, Text};

pub(crate) type Fields = &'static [(&'static str, Source)];

pub(crate) const POD: Fields = &[
    ("spec.nodeName", Text(&["spec", "nodeName"])),
    ("spec.restartPolicy", Text(&["spec", "restartPolicy"])),
    ("spec.schedulerName", Text(&["spec", "schedulerName"])),
    ("spec.serviceAccountName", Text(&["spec", "serviceAccountName"])),
    ("spec.hostNetwork", Flag(&["spec", "hostNetwork"])),
    ("status.phase", Text(&["status", "phase"])),
    ("status.podIP", PodIp),
    ("status.podIPs", Nothing),
    ("status.nominatedNodeName", Text(&["status", "nominatedNodeName"])),
    // The oldest name of spec.nodeName.
    ("spec.host", Text(&["spec", "nodeName"])),
];
pub(crate) const SERVICE: Fields =
    &[("spec.clusterIP", Text(&["spec", "clusterIP"])), ("spec.type", Text(&["spec", "type"]))];
pub(crate) const NODE: Fields = &[("spec.unschedulable", Flag(&["spec", "unschedulable"]))];
pub(crate) const NAMESPACE: Fields = &[("status.phase", Text(&["status", "phase"]))];
pub(crate) const SECRET: Fields = &[("type", Text(&["type"]))];
pub(crate) const JOB: Fields = &[("status.successful", Number(&["status", "succeeded"]))];
pub(crate) const CONTROLLER: Fields = &[("status.replicas", Number(&["status", "replicas"]))];
pub(crate) const SIGNING_REQUEST: Fields = &[("spec.signerName", Text(&["spec", "signerName"]))];
pub(crate) const CORE_EVENT: Fields = &[
    ("involvedObject.kind", Text(&["involvedObject", "kind"])),
    ("involvedObject.namespace", Text(&["involvedObject", "namespace"])),
    ("involvedObject.name", Text(&["involvedObject", "name"])),
    ("involvedObject.uid", Text(&["involvedObject", "uid"])),
    ("involvedObject.apiVersion", Text(&["involvedObject", "apiVersion"])),
    ("involvedObject.resourceVersion", Text(&["involvedObject", "resourceVersion"])),
    ("involvedObject.fieldPath", Text(&["involvedObject", "fieldPath"])),
    ("reason", Text(&["reason"])),
    ("reportingComponent", Text(&["reportingComponent"])),
    ("source", Reporter),
    ("type", Text(&["type"])),
];
/// The stored form is that of `v1`.
pub(crate) const EVENT: Fields = &[
    ("regarding.kind", Text(&["involvedObject", "kind"])),
    ("regarding.namespace", Text(&["involvedObject", "namespace"])),
    ("regarding.name", Text(&["involvedObject", "name"])),
    ("regarding.uid", Text(&["involvedObject", "uid"])),
    ("regarding.apiVersion", Text(&["involvedObject", "apiVersion"])),
    ("regarding.resourceVersion", Text(&["involvedObject", "resourceVersion"])),
    ("regarding.fieldPath", Text(&["involvedObject", "fieldPath"])),
    ("reason", Text(&["reason"])),
    ("reportingController", Text(&["reportingComponent"])),
    ("type", Text(&["type"])),
];

/// Whether field selectors know a field.
pub fn supports_field(resource: &Resource, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => resource.strategy.namespace_field,
        _ => {
            resource.strategy.fields.iter().any(|(name, _)| *name == field)
                || custom_paths(resource).any(|path| path.trim_start_matches('.') == field)
        }
    }
}

/// The values of the fields that field selectors know, besides name and namespace. The object is in
/// its stored form.
pub fn selectable(strategy: &Strategy, object: &Value) -> Vec<(&'static str, String)> {
    strategy.fields.iter().map(|(name, source)| (*name, read(object, *source))).collect()
}

/// The value of a field; `None` if field selectors do not know it. Unlike [`selectable`] it has the
/// fields that a custom resource declares.
pub fn field_value(resource: &Resource, object: &Value, field: &str) -> Option<String> {
    match field {
        "metadata.name" => Some(text(object, &["metadata", "name"]).to_owned()),
        "metadata.namespace" => Some(text(object, &["metadata", "namespace"]).to_owned()),
        _ => {
            let known = resource.strategy.fields.iter().find(|(name, _)| *name == field);
            if let Some((_, source)) = known {
                return Some(read(object, *source));
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

fn read(object: &Value, source: Source) -> String {
    match source {
        Text(path) => text(object, path).to_owned(),
        Number(path) => int(object, path).unwrap_or_default().to_string(),
        Flag(path) => is_true(object, path).to_string(),
        PodIp => {
            let first = list(object, &["status", "podIPs"]).first();
            first.map(|first| text(first, &["ip"])).unwrap_or_default().to_owned()
        }
        Reporter => match text(object, &["source", "component"]) {
            "" => text(object, &["reportingComponent"]).to_owned(),
            component => component.to_owned(),
        },
        Nothing => String::new(),
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

    /// Besides name and namespace, as tried on a server.
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
    fn knows_the_fields_of_each_kind() {
        let registry = registry();
        for (group, plural, fields) in ACCEPTED {
            let resource = registry.find(group, "v1", plural).expect("it is built in");
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
    fn reads_values() {
        let registry = registry();
        let pods = registry.find("", "v1", "pods").expect("it is built in");
        let pod = json!({"spec": {"nodeName": "n"}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        let value = |field: &str| field_value(pods, &pod, field);
        assert_eq!(value("spec.nodeName").as_deref(), Some("n"));
        assert_eq!(value("spec.hostNetwork").as_deref(), Some("false"));
        assert_eq!(value("status.podIP").as_deref(), Some("10.0.0.1"));
        assert_eq!(value("spec.foo"), None);
        assert!(selectable(pods.strategy, &pod).contains(&("status.podIP", "10.0.0.1".to_owned())));
        let events = registry.find("", "v1", "events").expect("it is built in");
        let event = json!({"source": {}, "reportingComponent": "c"});
        assert_eq!(field_value(events, &event, "source").as_deref(), Some("c"));
    }
}
