//! Events for people to read. One that says the same again is counted, not repeated.

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use crate::action::{Severity, Telling};
use crate::effect::{Failure, send};
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
    use crate::action::about;
    use crate::kind::Kind;
    use crate::testing::{self, at};

    #[test]
    fn the_same_said_again_has_the_same_name() {
        let mut telling = Telling {
            about: about(Kind::Pod, &testing::meta("a")),
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
