//! The writes that a decision requests, as values. `execute` performs them.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nearhop_runtime::client::{ApiFailure, Event, EventType};
use serde_json::Value;

use crate::kind::{Kind, Object};
use crate::object::{self, ObjectKey};

/// One request to the API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Create(Object),
    /// Writes the status; fails if the object has changed since it was read.
    PutStatus(Object),
    /// A merge patch whose body names the resourceVersion that was read.
    Patch(Kind, ObjectKey, Value),
    /// The same to adopt an object. `execute` first asks the server whether the owner still exists:
    /// the watch may lag behind.
    Adopt(Owner, Kind, ObjectKey, Value),
    /// Deletes the object with this uid only.
    Delete {
        kind: Kind,
        name: ObjectKey,
        uid: String,
        mode: Deletion,
    },
    /// Binds a Pod to a node.
    Bind {
        pod: ObjectKey,
        uid: String,
        node: String,
    },
    /// Emits an Event as this component.
    EmitEvent(&'static str, Event),
}

/// The adopting object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) kind: Kind,
    pub(crate) name: ObjectKey,
    pub(crate) uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// With the object's grace period.
    Graceful,
    /// At once: no kubelet is left to stop the Pod.
    Forced,
}

/// The decision for one work item.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Stages run one after another, the actions of a stage concurrently. A failure ends the plan.
    pub(crate) stages: Vec<Vec<Action>>,
    /// When to decide again if nothing changes.
    pub(crate) requeue_after: Option<Duration>,
}

impl Plan {
    /// Appends a stage, unless it is empty. Events follow after the writes that they describe.
    pub(crate) fn then(&mut self, actions: impl IntoIterator<Item = Action>) {
        let (events, writes): (Vec<Action>, Vec<Action>) =
            actions.into_iter().partition(|action| matches!(action, Action::EmitEvent(..)));
        self.stages.extend([writes, events].into_iter().filter(|stage| !stage.is_empty()));
    }

    /// Decides again after this long, or earlier.
    pub(crate) fn requeue_within(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }

    /// A plan without actions that runs again after `delay`.
    pub(crate) fn after(delay: Duration) -> Self {
        Self { stages: Vec::new(), requeue_after: Some(delay) }
    }

    #[cfg(test)]
    pub(crate) fn actions(&self) -> impl Iterator<Item = &Action> {
        self.stages.iter().flatten()
    }
}

impl From<Action> for Plan {
    fn from(action: Action) -> Self {
        Self { stages: vec![vec![action]], requeue_after: None }
    }
}

impl Action {
    /// Emits an Event about an object.
    pub(crate) fn event(
        kind: Kind,
        about: &ObjectMeta,
        by: &'static str,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) -> Self {
        Self::EmitEvent(by, Event::new(reference(kind, about), event_type, reason, message))
    }

    pub(crate) fn delete(kind: Kind, meta: &ObjectMeta, mode: Deletion) -> Self {
        Self::Delete { kind, name: ObjectKey::of(meta), uid: object::uid(meta).to_owned(), mode }
    }

    /// The Event about the owner of a Pod that the server rejected.
    pub(crate) fn failed_create(&self, failure: &ApiFailure) -> Option<Self> {
        let Self::Create(Object::Pod(pod)) = self else { return None };
        let owner = object::controller_of(&pod.metadata)?;
        let about = ObjectReference {
            api_version: Some(owner.api_version.clone()),
            kind: Some(owner.kind.clone()),
            name: Some(owner.name.clone()),
            namespace: pod.metadata.namespace.clone(),
            uid: Some(owner.uid.clone()),
            ..ObjectReference::default()
        };
        let is_daemon = owner.kind == "DaemonSet";
        let by = if is_daemon { "daemonset-controller" } else { "replicaset-controller" };
        let message = format!("Error creating: {failure}");
        Some(Self::EmitEvent(by, Event::new(about, EventType::Warning, "FailedCreate", message)))
    }

    /// A merge patch that fails if the object was replaced or changed since it was read.
    pub(crate) fn patch(kind: Kind, meta: &ObjectMeta, body: Value) -> Self {
        Self::Patch(kind, ObjectKey::of(meta), bound(meta, body))
    }

    pub(crate) fn adopt(owner: Owner, kind: Kind, meta: &ObjectMeta, body: Value) -> Self {
        Self::Adopt(owner, kind, ObjectKey::of(meta), bound(meta, body))
    }
}

/// Binds a patch to this uid and resourceVersion.
fn bound(meta: &ObjectMeta, mut body: Value) -> Value {
    body["metadata"]["uid"] = object::uid(meta).into();
    body["metadata"]["resourceVersion"] =
        meta.resource_version.as_deref().unwrap_or_default().into();
    body
}

/// The reference to the object of an Event.
pub(crate) fn reference(kind: Kind, meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(kind.api_version().to_owned()),
        kind: Some(kind.name().to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_rejected_pod_emits_an_event_about_its_owner() {
        let set = testing::replica_set("web", 1);
        let mut pod = testing::owned_pod("ReplicaSet", &set.metadata, "p", "");
        let failure = ApiFailure::NotFound { what: "Pod p".to_owned() };
        let event = Action::Create(pod.clone().into()).failed_create(&failure);
        let Some(Action::EmitEvent("replicaset-controller", event)) = event else { panic!() };
        assert_eq!(event.involved_object.name.as_deref(), Some("web"));
        assert_eq!(event.message, "Error creating: Pod p: not found");
        pod.metadata.owner_references = None;
        assert_eq!(Action::Create(pod.into()).failed_create(&failure), None);
    }
}
