//! REST paths of objects and their collections.
//!
//! Only the kinds that the tests use are listed; any other kind is treated as a namespaced custom resource with a
//! regular plural.

use serde_json::Value;

/// Kind, plural, and whether it is namespaced.
const KINDS: [(&str, &str, Scope); 21] = [
    ("ConfigMap", "configmaps", Scope::Namespaced),
    ("CustomResourceDefinition", "customresourcedefinitions", Scope::Cluster),
    ("DaemonSet", "daemonsets", Scope::Namespaced),
    ("Deployment", "deployments", Scope::Namespaced),
    ("EndpointSlice", "endpointslices", Scope::Namespaced),
    ("Endpoints", "endpoints", Scope::Namespaced),
    ("Event", "events", Scope::Namespaced),
    ("Ingress", "ingresses", Scope::Namespaced),
    ("Job", "jobs", Scope::Namespaced),
    ("Lease", "leases", Scope::Namespaced),
    ("Namespace", "namespaces", Scope::Cluster),
    ("Node", "nodes", Scope::Cluster),
    ("Pod", "pods", Scope::Namespaced),
    ("PodDisruptionBudget", "poddisruptionbudgets", Scope::Namespaced),
    ("ReplicaSet", "replicasets", Scope::Namespaced),
    ("Secret", "secrets", Scope::Namespaced),
    ("Service", "services", Scope::Namespaced),
    ("ServiceAccount", "serviceaccounts", Scope::Namespaced),
    ("StatefulSet", "statefulsets", Scope::Namespaced),
    ("Tab", "tabs", Scope::Cluster),
    ("Box", "boxes", Scope::Namespaced),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Cluster,
    Namespaced,
}

/// Path of the collection that an object belongs to. `namespace` is used if the object has none.
pub fn collection(object: &Value, namespace: &str) -> String {
    let api_version = object["apiVersion"].as_str().unwrap_or("v1");
    let kind = object["kind"].as_str().unwrap_or_default();
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    let known = KINDS.iter().find(|(name, _, _)| *name == kind);
    let plural = known.map_or(format!("{}s", kind.to_lowercase()), |(_, p, _)| (*p).to_owned());
    if known.is_some_and(|(_, _, scope)| *scope == Scope::Cluster) {
        return format!("{root}/{api_version}/{plural}");
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    format!("{root}/{api_version}/namespaces/{namespace}/{plural}")
}

/// Path of an object.
pub fn item(object: &Value, namespace: &str) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    format!("{}/{name}", collection(object, namespace))
}
