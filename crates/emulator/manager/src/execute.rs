//! The only writer: actions become requests, responses become values.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::Client;
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender, EventWriter};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use crate::action::{Action, Deletion, Owner, Plan};
use crate::kind::{Kind, Object};
use crate::object::ObjectKey;

const NAME: &str = "nearhop-manager";
const JSON: &str = "application/json";

/// The result of an action.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The object as the server has it now.
    Wrote(Object),
    /// The object with this name and uid is gone.
    Deleted(Kind, ObjectKey, String),
    /// The binding of the Pod with this uid failed.
    Unbound(String),
    /// The server responds.
    Alive,
}

/// Sends the manager's requests.
#[derive(Clone)]
pub(crate) struct Executor {
    sender: ApiSender,
    events: EventWriter,
}

impl Executor {
    pub(crate) fn new(client: Client) -> Self {
        let sender = ApiSender::new(client, NAME);
        Self { events: EventWriter::new(sender.clone(), NAME, NAME), sender }
    }

    /// Executes a plan, and passes each outcome on as soon as it is known.
    pub(crate) async fn execute(
        &self,
        plan: Plan,
        outcomes: impl Fn(Outcome),
    ) -> Result<(), (Action, ApiFailure)> {
        for stage in plan.stages {
            let all = stage.into_iter().map(|action| async {
                match self.perform(&action).await {
                    Ok(outcome) => {
                        outcome.into_iter().for_each(&outcomes);
                        Ok(())
                    }
                    Err(failure) => {
                        if let Action::Bind { uid, .. } = &action {
                            outcomes(Outcome::Unbound(uid.clone()));
                        }
                        Err((action, failure))
                    }
                }
            });
            join_all(all).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    async fn perform(&self, action: &Action) -> Result<Option<Outcome>, ApiFailure> {
        match action {
            Action::Create(object) => self.create(object).await.map(Some),
            Action::PutStatus(object) => {
                let (kind, key) = (object.kind(), ObjectKey::of(object.meta()));
                let path = format!("{}/status", kind.object_path(&key));
                let what = describe(kind, &key);
                self.write(kind, ApiCall::new(Method::PUT, path, JSON, object.write(), what)).await
            }
            Action::Patch(kind, key, body) => self.patch(*kind, key, body).await,
            Action::Adopt(owner, kind, key, body) => {
                self.check_owner(owner).await?;
                self.patch(*kind, key, body).await
            }
            Action::Delete { kind, name, uid, mode } => {
                self.delete(*kind, name, uid, *mode).await.map(Some)
            }
            Action::Bind { pod, uid, node } => self.bind(pod, uid, node).await.map(|()| None),
            Action::EmitEvent(component, event) => {
                // A lost event is no reason to retry the plan.
                if let Err(error) = self.events.with_component(component).write(event).await {
                    tracing::debug!(reason = event.reason, %error, "event not written");
                }
                Ok(None)
            }
        }
    }

    /// Sends a request whose response is the object.
    async fn write(&self, kind: Kind, call: ApiCall) -> Result<Option<Outcome>, ApiFailure> {
        let what = call.what.clone();
        let value = self.sender.send_json(call).await?;
        read(kind, value, what).map(Outcome::Wrote).map(Some)
    }

    async fn patch(
        &self,
        kind: Kind,
        key: &ObjectKey,
        body: &Value,
    ) -> Result<Option<Outcome>, ApiFailure> {
        let call = ApiCall::merge_patch(kind.object_path(key), body, describe(kind, key));
        self.write(kind, call).await
    }

    /// Asks the server whether the owner still exists and may adopt.
    async fn check_owner(&self, owner: &Owner) -> Result<(), ApiFailure> {
        let what = describe(owner.kind, &owner.name);
        let call = ApiCall::get(owner.kind.object_path(&owner.name), what.clone());
        match self.sender.send_json(call).await {
            Ok(found) if may_adopt(owner, &found) => Ok(()),
            Ok(_) | Err(ApiFailure::NotFound { .. }) => Err(ApiFailure::Conflict { what }),
            Err(failure) => Err(failure),
        }
    }

    async fn create(&self, object: &Object) -> Result<Outcome, ApiFailure> {
        let (kind, meta) = (object.kind(), object.meta());
        let path = kind.path(meta.namespace.as_deref().unwrap_or_default());
        let what = describe(kind, &ObjectKey::of(meta));
        let created = self.sender.send_json(ApiCall::create(&path, object.write(), &what)).await;
        let value = match (created, &meta.name) {
            // An own object from an earlier attempt, or a foreign one: the next plan decides.
            (Err(ApiFailure::AlreadyExists { .. }), Some(name)) => {
                self.sender.send_json(ApiCall::get(format!("{path}/{name}"), &what)).await?
            }
            (created, _) => created?,
        };
        read(kind, value, what).map(Outcome::Wrote)
    }

    async fn delete(
        &self,
        kind: Kind,
        key: &ObjectKey,
        uid: &str,
        mode: Deletion,
    ) -> Result<Outcome, ApiFailure> {
        let gone = Outcome::Deleted(kind, key.clone(), uid.to_owned());
        let uid = Some(uid.to_owned());
        let options = DeleteOptions {
            preconditions: Some(Preconditions { uid, resource_version: None }),
            propagation_policy: (kind == Kind::ReplicaSet).then(|| "Background".to_owned()),
            grace_period_seconds: (mode == Deletion::Forced).then_some(0),
            ..DeleteOptions::default()
        };
        let what = describe(kind, key);
        let call = ApiCall::delete_with(kind.object_path(key), &options, what.clone());
        match self.sender.send_json::<Value>(call).await {
            // Only this proves the deletion. A conflict may have any cause; the watch shows a
            // replaced object.
            Err(ApiFailure::NotFound { .. }) => Ok(gone),
            Err(failure) => Err(failure),
            Ok(value) => {
                let meta = &value["metadata"];
                let held = meta["finalizers"].as_array().is_some_and(|all| !all.is_empty());
                let lingers = mode == Deletion::Graceful && meta["deletionTimestamp"].is_string();
                if value["kind"] == kind.name() && (held || lingers) {
                    read(kind, value, what).map(Outcome::Wrote)
                } else {
                    Ok(gone)
                }
            }
        }
    }

    async fn bind(&self, pod: &ObjectKey, uid: &str, node: &str) -> Result<(), ApiFailure> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let path = format!("{}/binding", Kind::Pod.object_path(pod));
        let body = body.to_string().into_bytes();
        let call = ApiCall::create(path, body, format!("binding of Pod {pod} to Node {node}"));
        self.sender.send(call).await.map(drop)
    }

    /// Probes the API server.
    pub(crate) async fn ping(&self, timeout: Duration) -> Option<Outcome> {
        let call = ApiCall::get("/livez", "the API server");
        let response = tokio::time::timeout(timeout, self.sender.send(call)).await;
        matches!(response, Ok(Ok(_))).then_some(Outcome::Alive)
    }
}

/// Sends to the loop; ignored if the manager is shutting down.
pub(crate) fn into_channel<T>(sender: &UnboundedSender<T>, value: T) {
    let _closed = sender.send(value);
}

fn describe(kind: Kind, key: &ObjectKey) -> String {
    format!("{} {key}", kind.name())
}

/// Whether the object on the server is this owner, and is not being deleted.
fn may_adopt(owner: &Owner, found: &Value) -> bool {
    let meta = &found["metadata"];
    meta["uid"] == owner.uid && meta["deletionTimestamp"].is_null()
}

fn read(kind: Kind, value: Value, what: String) -> Result<Object, ApiFailure> {
    kind.read(value).map_err(|error| {
        let message = format!("not a {}: {error}", kind.name());
        ApiFailure::Unreachable { what, message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_terminating_or_replaced_owner_does_not_adopt() {
        let uid = "1".to_owned();
        let owner = Owner { kind: Kind::ReplicaSet, name: ObjectKey::new("x", "web"), uid };
        for (meta, expected) in [
            (json!({ "uid": "1" }), true),
            (json!({ "uid": "2" }), false),
            (json!({ "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z" }), false),
            (json!({}), false),
        ] {
            assert_eq!(may_adopt(&owner, &json!({ "metadata": meta })), expected, "{meta}");
        }
    }
}
