//! PodLocators: the CustomResourceDefinition, which a cluster needs first, and the request bodies.
//! This module sends nothing.

use nearhop_core::labels::well_known;
use nearhop_core::model::Locator;
use nearhop_core::{Kind, Name};
use serde_json::{Map, Value, json};

use crate::meta::Version;

/// API group.
pub const GROUP: &str = "nearhop.dev";

/// The CustomResourceDefinition (KEP-536 "New PodLocator resource").
pub fn definition() -> Value {
    let (kind, resource) = (Kind::Locator.as_str(), Kind::Locator.resource());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{resource}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "plural": resource,
                "singular": "podlocator", "shortNames": ["podloc"],
            },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema()},
                "additionalPrinterColumns": columns(),
            }],
        },
    })
}

fn schema() -> Value {
    json!({
        "type": "object",
        "description": "Location of the Pod with the same namespace and name. nearhop controller \
                        writes it and reverts other changes.",
        "properties": {
            "ips": {
                "type": "array",
                "description": "Addresses of the Pod; none once it has ended.",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["ip"],
                    "properties": {"ip": {"type": "string", "maxLength": 45}},
                },
            },
            "nodeName": {
                "type": "string",
                "description": "Node of the Pod; unset without a node, or if the Node is deleted.",
            },
            "nodeLabels": {
                "type": "object",
                "description": "Labels of that node, as selected by --locator-labels.",
                "additionalProperties": {"type": "string"},
            },
        },
    })
}

fn columns() -> Value {
    // A JSON path escapes a dot in a key.
    let zone = format!(".nodeLabels.{}", well_known::ZONE.replace('.', r"\."));
    let column =
        |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    json!([
        column("IPs", "string", ".ips[*].ip"),
        column("Node", "string", ".nodeName"),
        column("Zone", "string", &zone),
        column("Age", "date", ".metadata.creationTimestamp"),
    ])
}

/// The body that creates a PodLocator, owned by its Pod.
pub fn locator_to_create(locator: &Locator) -> Vec<u8> {
    let mut body = json!({
        "apiVersion": Kind::Locator.api_version(),
        "kind": Kind::Locator.as_str(),
        "metadata": {
            "name": locator.key.name.as_str(),
            "namespace": locator.key.namespace.as_str(),
            "ownerReferences": owners(locator),
        },
        "ips": ips(locator),
    });
    if let Some(node) = &locator.node {
        body["nodeName"] = node.as_str().into();
        body["nodeLabels"] = labels(locator).into();
    }
    body.to_string().into_bytes()
}

/// The merge patch from the current PodLocator to the desired one. It contains only the
/// differences. The server rejects it if another client has written the PodLocator after that
/// version.
pub fn locator_to_patch(before: &Locator, after: &Locator, version: &Version) -> Vec<u8> {
    let mut body = json!({"metadata": {"resourceVersion": version.as_str()}});
    if before.owner != after.owner {
        body["metadata"]["ownerReferences"] = owners(after);
    }
    if before.ips != after.ips {
        body["ips"] = ips(after);
    }
    if before.node != after.node {
        body["nodeName"] = after.node.as_ref().map(Name::as_str).into();
    }
    if before.node_labels != after.node_labels {
        let gone = before.node_labels.iter().map(|(key, _)| (key.to_string(), Value::Null));
        body["nodeLabels"] = gone.chain(labels(after)).collect::<Map<String, Value>>().into();
    }
    body.to_string().into_bytes()
}

fn owners(locator: &Locator) -> Value {
    let owner = locator.owner.iter().map(|uid| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "name": locator.key.name.as_str(),
            "uid": uid.as_str(), "controller": true,
        })
    });
    owner.collect()
}

fn ips(locator: &Locator) -> Value {
    locator.ips.as_slice().iter().map(|ip| json!({"ip": ip.to_string()})).collect()
}

fn labels(locator: &Locator) -> Map<String, Value> {
    let pairs = locator.node_labels.iter();
    pairs.map(|(key, value)| (key.to_string(), value.as_str().into())).collect()
}

#[cfg(test)]
mod tests {
    use nearhop_core::{Labels, Object, PodKey};

    use super::*;
    use crate::convert_json;

    fn locator() -> Locator {
        let ips = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().expect("a valid address"));
        Locator {
            key: PodKey::new("shop", "cart-0"),
            owner: Some(Name::from("1111")),
            ips: ips.into_iter().collect(),
            node: Some(Name::from("worker-3")),
            node_labels: [(well_known::ZONE, "eu-1b"), ("rack", "r7")].into_iter().collect(),
        }
    }

    fn read(object: &Value) -> Locator {
        match convert_json(object.to_string().as_bytes()) {
            (Some(Object::Locator(locator)), problems) if problems.is_empty() => *locator,
            other => panic!("{other:?}"),
        }
    }

    fn created(locator: &Locator) -> Value {
        serde_json::from_slice(&locator_to_create(locator)).expect("JSON")
    }

    fn patched(before: &Locator, after: &Locator) -> (Value, Value) {
        let patch = locator_to_patch(before, after, &Version::from("7"));
        let patch: Value = serde_json::from_slice(&patch).expect("JSON");
        let mut object = created(before);
        json_patch::merge(&mut object, &patch);
        (patch, object)
    }

    #[test]
    fn created_locators_round_trip() {
        assert_eq!(read(&created(&locator())), locator());
        let bare = Locator {
            ips: [].into_iter().collect(),
            node: None,
            node_labels: Labels::default(),
            ..locator()
        };
        assert_eq!(read(&created(&bare)), bare);
        assert_eq!(created(&bare).get("nodeName"), None);
    }

    #[test]
    fn a_patch_has_the_version_and_gives_the_new_locator() {
        let moved = Locator {
            owner: Some(Name::from("2222")),
            ips: ["10.0.9.9".parse().expect("a valid address")].into_iter().collect(),
            node: Some(Name::from("worker-4")),
            node_labels: [(well_known::ZONE, "eu-1c"), ("row", "2")].into_iter().collect(),
            ..locator()
        };
        let lost = Locator { node: None, node_labels: Labels::default(), ..locator() };
        for (before, after) in [
            (locator(), moved.clone()),
            (locator(), lost.clone()),
            (lost, moved),
            (locator(), locator()),
        ] {
            let (patch, object) = patched(&before, &after);
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
            assert_eq!(read(&object), after);
        }
    }

    #[test]
    fn a_patch_contains_only_changed_fields() {
        let same = json!({"metadata": {"resourceVersion": "7"}});
        assert_eq!(patched(&locator(), &locator()).0, same);
        let relabelled =
            Locator { node_labels: [("rack", "r8")].into_iter().collect(), ..locator() };
        let (patch, _) = patched(&locator(), &relabelled);
        assert_eq!(patch["nodeLabels"], json!({"rack": "r8", well_known::ZONE: null}));
        assert_eq!((patch.get("ips"), patch.get("nodeName")), (None, None));
        assert_eq!(patch["metadata"].get("ownerReferences"), None);
    }

    #[test]
    fn the_crd_matches_the_written_objects() {
        let spec = &definition()["spec"];
        let version = spec["versions"][0]["name"].as_str().unwrap_or_default();
        assert_eq!(
            format!("{}/{version}", spec["group"].as_str().unwrap_or_default()),
            Kind::Locator.api_version()
        );
        let shape = &spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let written = created(&locator());
        for field in ["ips", "nodeName", "nodeLabels"] {
            assert!(shape.get(field).is_some() && written.get(field).is_some(), "{field}");
        }
    }
}
