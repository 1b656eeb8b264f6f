//! The one place that writes: actions as requests, answers as values.

use std::time::Duration;

use futures_util::future::join_all;
use http::{Method, Request};
use kube::Client;
use nearhop_runtime::queue::Cause;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use crate::action::{Action, Deletion, Owner, Plan};
use crate::kind::{Kind, Object};
use crate::object::ObjectKey;
use crate::tell;

/// A server that is there answers well within this.
const TIMEOUT: Duration = Duration::from_secs(15);

/// What came of an action.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The object as it is now.
    Wrote(Object),
    /// The object with this uid is gone.
    Deleted(Kind, String),
    /// The pod with this uid was not bound after all.
    Unbound(String),
    /// The server is there.
    Alive,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("it has changed meanwhile")]
    Conflict,
    #[error("it exists already")]
    Exists,
    #[error("it is not there")]
    NotFound,
    #[error("refused: {0}")]
    Refused(String),
    #[error("no answer: {0}")]
    NoAnswer(String),
}

impl Failure {
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::NoAnswer(_) => Cause::Server,
            Self::Conflict | Self::Exists | Self::NotFound | Self::Refused(_) => Cause::Object,
        }
    }
}

/// Does what a plan says, and tells each answer as it comes.
pub(crate) async fn execute(
    client: &Client,
    plan: Plan,
    answers: impl Fn(Outcome),
) -> Result<(), (Action, Failure)> {
    for stage in plan.stages {
        let all = stage.into_iter().map(|action| async {
            let done = perform(client, &action).await;
            match done {
                Ok(Some(answer)) => answers(answer),
                Ok(None) => {}
                Err(failure) => {
                    if let Action::Bind { uid, .. } = &action {
                        answers(Outcome::Unbound(uid.clone()));
                    }
                    return Err((action, failure));
                }
            }
            Ok(())
        });
        let failed = join_all(all).await.into_iter().find_map(Result::err);
        if let Some(failed) = failed {
            return Err(failed);
        }
    }
    Ok(())
}

/// A sender that nobody listens to any more belongs to a manager that ends.
pub(crate) fn into_channel<T>(sender: &UnboundedSender<T>, value: T) {
    let _unread = sender.send(value);
}

async fn perform(client: &Client, action: &Action) -> Result<Option<Outcome>, Failure> {
    match action {
        Action::Create(object) => create(client, object).await.map(Some),
        Action::PutStatus(object) => {
            let (kind, name) = (object.kind(), ObjectKey::of(object.meta()));
            let path = format!("{}/{}/status", kind.path(&name.namespace), name.name);
            let body = written(object)?;
            let value = send(client, Method::PUT, &path, "application/json", body).await?;
            read(kind, value).map(Outcome::Wrote).map(Some)
        }
        Action::Patch(kind, name, body) => patch(client, *kind, name, body).await.map(Some),
        Action::Adopt(owner, kind, name, body) => {
            ask_for(client, owner).await?;
            patch(client, *kind, name, body).await.map(Some)
        }
        Action::Delete { kind, name, uid, mode } => {
            delete(client, *kind, name, uid, *mode).await.map(Some)
        }
        Action::Bind { pod, uid, node } => bind(client, pod, uid, node).await.map(|()| None),
        Action::Tell(telling) => {
            // What cannot be told is no reason to do something again.
            if let Err(failure) = tell::tell(client, telling).await {
                tracing::debug!(reason = telling.reason, "event not written: {failure}");
            }
            Ok(None)
        }
    }
}

async fn patch(
    client: &Client,
    kind: Kind,
    name: &ObjectKey,
    body: &Value,
) -> Result<Outcome, Failure> {
    let path = format!("{}/{}", kind.path(&name.namespace), name.name);
    let body = body.to_string().into_bytes();
    let value = send(client, Method::PATCH, &path, "application/merge-patch+json", body).await?;
    read(kind, value).map(Outcome::Wrote)
}

/// Asks the server itself whether an owner may adopt.
async fn ask_for(client: &Client, owner: &Owner) -> Result<(), Failure> {
    let path = format!("{}/{}", owner.kind.path(&owner.name.namespace), owner.name.name);
    match send(client, Method::GET, &path, "application/json", Vec::new()).await {
        Ok(found) if lives(owner, &found) => Ok(()),
        Ok(_) | Err(Failure::NotFound) => Err(Failure::Conflict),
        Err(failure) => Err(failure),
    }
}

/// Whether what the server has is this owner, and it stays.
fn lives(owner: &Owner, found: &Value) -> bool {
    let meta = &found["metadata"];
    meta["uid"] == owner.uid && meta["deletionTimestamp"].is_null()
}

async fn create(client: &Client, object: &Object) -> Result<Outcome, Failure> {
    let kind = object.kind();
    let path = kind.path(object.meta().namespace.as_deref().unwrap_or_default());
    let body = written(object)?;
    let made = send(client, Method::POST, &path, "application/json", body).await;
    match (made, &object.meta().name) {
        // Ours from before, or another's: the next look will tell, once it has been seen.
        (Err(Failure::Exists), Some(name)) => {
            let path = format!("{path}/{name}");
            let found = send(client, Method::GET, &path, "application/json", Vec::new()).await?;
            read(kind, found).map(Outcome::Wrote)
        }
        (made, _) => read(kind, made?).map(Outcome::Wrote),
    }
}

async fn delete(
    client: &Client,
    kind: Kind,
    name: &ObjectKey,
    uid: &str,
    mode: Deletion,
) -> Result<Outcome, Failure> {
    let mut options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": uid },
    });
    if kind == Kind::ReplicaSet {
        options["propagationPolicy"] = "Background".into();
    }
    if mode == Deletion::Forced {
        options["gracePeriodSeconds"] = 0.into();
    }
    let path = format!("{}/{}", kind.path(&name.namespace), name.name);
    let body = options.to_string().into_bytes();
    let gone = Outcome::Deleted(kind, uid.to_owned());
    match send(client, Method::DELETE, &path, "application/json", body).await {
        // Only this proves it. A conflict may be about anything: the watch will tell if another
        // has the name by now.
        Err(Failure::NotFound) => Ok(gone),
        Err(failure) => Err(failure),
        Ok(value) => {
            let meta = &value["metadata"];
            let held = meta["finalizers"].as_array().is_some_and(|all| !all.is_empty());
            let lingers = mode == Deletion::Graceful && meta["deletionTimestamp"].is_string();
            if value["kind"] == kind.name() && (held || lingers) {
                read(kind, value).map(Outcome::Wrote)
            } else {
                Ok(gone)
            }
        }
    }
}

async fn bind(client: &Client, pod: &ObjectKey, uid: &str, node: &str) -> Result<(), Failure> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let path = format!("{}/{}/binding", Kind::Pod.path(&pod.namespace), pod.name);
    let body = body.to_string().into_bytes();
    send(client, Method::POST, &path, "application/json", body).await.map(|_| ())
}

/// Asks the server for a sign of life.
pub(crate) async fn ping(client: &Client, patience: Duration) -> Option<Outcome> {
    let request = Request::get("/livez").body(Vec::new()).ok()?;
    let answer = tokio::time::timeout(patience, client.request_text(request)).await;
    matches!(answer, Ok(Ok(_))).then_some(Outcome::Alive)
}

fn written(object: &Object) -> Result<Vec<u8>, Failure> {
    object.write().map_err(|error| Failure::Refused(error.to_string()))
}

fn read(kind: Kind, value: Value) -> Result<Object, Failure> {
    kind.read(value).map_err(|error| Failure::NoAnswer(format!("not a {}: {error}", kind.name())))
}

/// Sends one request and reads the answer.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> Result<Value, Failure> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .body(body)
        .map_err(|error| Failure::Refused(error.to_string()))?;
    match tokio::time::timeout(TIMEOUT, client.request::<Value>(request)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => Err(match (status.code, status.reason.as_str()) {
            (404, _) => Failure::NotFound,
            (409, "AlreadyExists") => Failure::Exists,
            (409, _) => Failure::Conflict,
            (429 | 500.., _) => Failure::NoAnswer(status.message),
            _ => Failure::Refused(status.message),
        }),
        Ok(Err(error)) => Err(Failure::NoAnswer(error.to_string())),
        Err(_) => Err(Failure::NoAnswer(format!("none within {TIMEOUT:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_is_gone_leaving_or_another_does_not_adopt() {
        let uid = "1".to_owned();
        let owner = Owner { kind: Kind::ReplicaSet, name: ObjectKey::new("x", "web"), uid };
        for (meta, expected) in [
            (json!({ "uid": "1" }), true),
            (json!({ "uid": "2" }), false),
            (json!({ "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z" }), false),
            (json!({}), false),
        ] {
            assert_eq!(lives(&owner, &json!({ "metadata": meta })), expected, "{meta}");
        }
    }
}
