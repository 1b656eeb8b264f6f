//! Converts values of the core to request bodies. This module sends nothing.
//!
//! A body contains only fields that nearhop owns. An update is a merge patch, so that annotations,
//! finalizers and other fields of other clients do not change.

use nearhop_core::labels::well_known;
use nearhop_core::model::{Endpoint, Hints, Slice, SlicePort};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Condition, Labels, Name, ServiceKey, routing};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::meta::Version;

/// The body that creates a slice. The server completes the name.
pub fn slice_to_create(slice: &Slice, service: &ServiceKey) -> Vec<u8> {
    let owners: Vec<Value> = (slice.owners.iter())
        .map(|uid| {
            json!({
                "apiVersion": "v1", "kind": "Service", "name": service.name.as_str(),
                "uid": uid.as_str(), "controller": true, "blockOwnerDeletion": true,
            })
        })
        .collect();
    let mut metadata = json!({
        "generateName": generate_name(&service.name),
        "namespace": slice.namespace.as_str(),
        "labels": pairs(&slice.labels),
        "ownerReferences": owners,
    });
    let annotations: Map<String, Value> =
        annotations(slice).into_iter().filter(|(_, value)| !value.is_null()).collect();
    if !annotations.is_empty() {
        metadata["annotations"] = annotations.into();
    }
    let body = Create {
        api_version: "discovery.k8s.io/v1",
        kind: "EndpointSlice",
        metadata,
        address_type: slice.address_type.as_str(),
        endpoints: Endpoints(&slice.endpoints),
        ports: Ports(&slice.ports),
    };
    serde_json::to_vec(&body).expect("values of our own making have a JSON form")
}

/// The merge patch from the current slice to the desired one. The server rejects it if another
/// client has written the slice after that version.
pub fn slice_to_patch(before: &Slice, after: &Slice, version: &Version) -> Vec<u8> {
    let mut labels: Map<String, Value> =
        before.labels.iter().map(|(key, _)| (key.to_string(), Value::Null)).collect();
    labels.extend(pairs(&after.labels));
    let mut metadata = json!({"resourceVersion": version.as_str()});
    if before.labels != after.labels {
        metadata["labels"] = labels.into();
    }
    let (old, new) = (annotations(before), annotations(after));
    if old != new {
        metadata["annotations"] = new.into();
    }
    let body = Patch {
        metadata,
        endpoints: (before.endpoints != after.endpoints).then_some(Endpoints(&after.endpoints)),
        ports: (before.ports != after.ports).then_some(Ports(&after.ports)),
    };
    serde_json::to_vec(&body).expect("values of our own making have a JSON form")
}

/// `generateName` as upstream sets it; the server truncates a name that is too long.
fn generate_name(service: &str) -> String {
    format!("{service}-")
}

fn pairs(labels: &Labels) -> Map<String, Value> {
    labels.iter().map(|(key, value)| (key.to_string(), value.as_str().into())).collect()
}

/// nearhop's two annotations; null if there is no value.
fn annotations(slice: &Slice) -> Map<String, Value> {
    let routing = match &slice.routing {
        SliceRouting::Valid(routing) => Value::from(routing.to_string()),
        SliceRouting::Absent => Value::Null,
        // Differs from every desired value, so that the patch replaces it.
        SliceRouting::Broken(cause) => Value::from(cause.to_string()),
    };
    let trigger_time = slice.trigger_time.as_ref().map(|time| Value::from(time.as_str()));
    Map::from_iter([
        (well_known::TRIGGER_TIME.to_owned(), trigger_time.unwrap_or_default()),
        (routing::ANNOTATION.to_owned(), routing),
    ])
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Create<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Value,
    address_type: &'a str,
    endpoints: Endpoints<'a>,
    ports: Ports<'a>,
}

#[derive(Serialize)]
struct Patch<'a> {
    metadata: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Endpoints<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ports: Option<Ports<'a>>,
}

/// Endpoints in the API's format, serialized without a copy of each.
struct Endpoints<'a>(&'a [Endpoint]);

impl Serialize for Endpoints<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(WireEndpoint::new))
    }
}

/// Ports in the API's format.
struct Ports<'a>(&'a [SlicePort]);

impl Serialize for Ports<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|port| WirePort {
            name: &port.name,
            protocol: port.protocol.as_str(),
            port: port.port,
            app_protocol: port.app_protocol.as_deref(),
        }))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WirePort<'a> {
    name: &'a str,
    protocol: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_protocol: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireEndpoint<'a> {
    addresses: &'a [std::net::IpAddr],
    conditions: WireConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ref: Option<WirePodRef<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<WireHints<'a>>,
}

#[derive(Serialize)]
struct WireConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    terminating: Option<bool>,
}

#[derive(Serialize)]
struct WirePodRef<'a> {
    kind: &'static str,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireHints<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    for_zones: Vec<WireHint<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    for_nodes: Vec<WireHint<'a>>,
}

#[derive(Serialize)]
struct WireHint<'a> {
    name: &'a str,
}

impl<'a> WireEndpoint<'a> {
    fn new(endpoint: &'a Endpoint) -> Self {
        Self {
            addresses: endpoint.addresses.as_slice(),
            conditions: WireConditions {
                ready: endpoint.conditions.ready,
                serving: endpoint.conditions.serving,
                terminating: endpoint.conditions.terminating,
            },
            hostname: endpoint.hostname.as_deref(),
            node_name: endpoint.node.as_deref(),
            zone: endpoint.zone.as_deref(),
            target_ref: endpoint.target.as_ref().map(|pod| WirePodRef {
                kind: "Pod",
                namespace: &pod.namespace,
                name: &pod.name,
                uid: &pod.uid,
            }),
            hints: endpoint.hints.as_deref().map(WireHints::new),
        }
    }
}

impl<'a> WireHints<'a> {
    fn new(hints: &'a Hints) -> Self {
        let named = |names: &'a [Name]| names.iter().map(|name| WireHint { name }).collect();
        Self { for_zones: named(&hints.zones), for_nodes: named(&hints.nodes) }
    }
}

/// The server-side apply of a Service's conditions; an empty list removes nearhop's conditions. The
/// UID ensures that it is still the same Service.
pub fn conditions_to_apply(service: &ServiceKey, uid: &str, conditions: &[Condition]) -> Vec<u8> {
    let conditions: Vec<Value> = (conditions.iter())
        .map(|condition| {
            json!({
                "type": condition.kind.as_str(),
                "status": condition.status.as_str(),
                "reason": condition.reason.as_str(),
                "message": condition.message.as_str(),
                "observedGeneration": condition.observed_generation,
                "lastTransitionTime": condition.since.map(|time| time.to_string()),
            })
        })
        .collect();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service.name.as_str(), "namespace": service.namespace.as_str(), "uid": uid,
        },
        "status": {"conditions": conditions},
    });
    body.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use nearhop_core::Object;

    use super::*;
    use crate::convert_json;

    const SLICE: &str = r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
        "metadata":{"namespace":"shop","name":"cart-x","labels":{"kubernetes.io/service-name":"cart","team":"a"},
          "annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-03-01T09:15:02Z",
            "nearhop.dev/routing":"{\"version\":\"broken\"}"},
          "ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"cart","uid":"1111"}]},
        "addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":8080,"appProtocol":"h2c"}],
        "endpoints":[{"addresses":["10.4.0.17"],"conditions":{"ready":true,"serving":true,"terminating":false},
          "nodeName":"worker-3","zone":"eu-1b","hostname":"cart-0",
          "targetRef":{"kind":"Pod","namespace":"shop","name":"cart-0","uid":"2222"},
          "hints":{"forZones":[{"name":"eu-1b"}],"forNodes":[{"name":"worker-3"}]}},
         {"addresses":["10.4.1.9"],"conditions":{"ready":false}}]}"#;

    fn slice(text: &str) -> Slice {
        match convert_json(text.as_bytes()).0 {
            Some(Object::Slice(slice)) => *slice,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn created_slices_round_trip() {
        let mut slice = slice(SLICE);
        slice.routing = SliceRouting::Absent;
        let body = slice_to_create(&slice, &ServiceKey::new("shop", "cart"));
        let mut created: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(created["metadata"]["generateName"], "cart-");
        created["metadata"]["name"] = "cart-x".into();
        assert_eq!(super::tests::slice(&created.to_string()), slice);
    }

    #[test]
    fn a_patch_contains_the_version_and_only_changed_fields() {
        let before = slice(SLICE);
        let patch = |after: &Slice| -> Value {
            serde_json::from_slice(&slice_to_patch(&before, after, &Version::from("7"))).unwrap()
        };
        let same = json!({"metadata": {"resourceVersion": "7"}});
        assert_eq!(patch(&before), same);

        let mut after = before.clone();
        after.endpoints.pop();
        assert!(patch(&after)["endpoints"].as_array().unwrap().len() == 1);
        assert_eq!(patch(&after).get("ports"), None);

        let mut after = before.clone();
        after.labels = [("kubernetes.io/service-name", "cart")].into_iter().collect();
        let labels = &patch(&after)["metadata"]["labels"];
        assert_eq!(*labels, json!({"kubernetes.io/service-name": "cart", "team": null}));

        let mut after = before.clone();
        (after.trigger_time, after.routing) = (None, SliceRouting::Absent);
        let annotations = &patch(&after)["metadata"]["annotations"];
        let gone = json!({"endpoints.kubernetes.io/last-change-trigger-time": null, "nearhop.dev/routing": null});
        assert_eq!(*annotations, gone, "the patch does not contain annotations of other programs");
    }
}
