//! Events for people to read. One that says the same again is counted, not repeated.

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use serde_json::{Value, json};

use crate::action::{Action, Severity, Telling};
use crate::execute::{Failure, send};
use crate::kind::Object;
use crate::object;

const JSON: &str = "application/json";

/// Writes an event, or counts it once more.
pub(crate) async fn tell(client: &Client, telling: &Telling) -> Result<(), Failure> {
    let event = event(telling, Timestamp::now());
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let body = event.to_string().into_bytes();
    match send(client, Method::POST, &path, JSON, body).await {
        Err(Failure::Exists) => {}
        done => return done.map(|_| ()),
    }
    let path = format!("{path}/{}", event["metadata"]["name"].as_str().unwrap_or_default());
    let old = send(client, Method::GET, &path, JSON, Vec::new()).await?;
    let patch = json!({
        "metadata": { "resourceVersion": old["metadata"]["resourceVersion"] },
        "count": old["count"].as_i64().unwrap_or(1) + 1,
        "lastTimestamp": event["lastTimestamp"],
    });
    let body = patch.to_string().into_bytes();
    let form = "application/merge-patch+json";
    send(client, Method::PATCH, &path, form, body).await.map(|_| ())
}

/// What is to be told if an owner's pod could not be made.
pub(crate) fn failed_create(action: &Action, failure: &Failure) -> Option<Telling> {
    let Action::Create(Object::Pod(pod)) = action else { return None };
    let owner = object::controller_of(&pod.metadata)?;
    let about = ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: pod.metadata.namespace.clone(),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    };
    let by =
        if owner.kind == "DaemonSet" { "daemonset-controller" } else { "replicaset-controller" };
    let message = format!("Error creating: {failure}");
    Some(Telling { about, severity: Severity::Warning, reason: "FailedCreate", message, by })
}

/// The name follows from what is said, so that saying it again finds it.
fn event(telling: &Telling, now: Timestamp) -> Value {
    let about = &telling.about;
    let subject = about.name.as_deref().unwrap_or_default();
    let hash = object::hash(&(&about.uid, telling.reason, &telling.message, telling.by), None);
    let time = object::time(now);
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{subject}.{hash}"),
            "namespace": about.namespace.as_deref().unwrap_or("default"),
        },
        "involvedObject": about,
        "type": match telling.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        },
        "reason": telling.reason,
        "message": telling.message,
        "source": { "component": telling.by },
        "reportingComponent": telling.by,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::reference;
    use crate::kind::Kind;
    use crate::testing::{self, at};

    #[test]
    fn a_pod_that_cannot_be_made_is_its_owners_trouble() {
        let set = testing::replica_set("web", 1);
        let mut pod = testing::owned_pod("ReplicaSet", &set.metadata, "p", "");
        let refused = Failure::Refused("no room".to_owned());
        let told = failed_create(&Action::Create(pod.clone().into()), &refused).unwrap();
        assert_eq!(told.about.name.as_deref(), Some("web"));
        assert_eq!(told.message, "Error creating: refused: no room");
        pod.metadata.owner_references = None;
        assert_eq!(failed_create(&Action::Create(pod.into()), &refused), None);
    }

    #[test]
    fn the_same_said_again_has_the_same_name() {
        let mut telling = Telling {
            about: reference(Kind::Pod, &testing::meta("a")),
            severity: Severity::Warning,
            reason: "FailedScheduling",
            message: "no".to_owned(),
            by: "default-scheduler",
        };
        let first = event(&telling, at(0))["metadata"]["name"].clone();
        assert_eq!(first, event(&telling, at(9))["metadata"]["name"]);
        telling.message.push('!');
        assert_ne!(first, event(&telling, at(9))["metadata"]["name"]);
    }
}
