//! What a decision asks for, as values. Nothing is done here; `effect` does it.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::kind::{Kind, Object};
use crate::object::{self, ObjectKey};

/// One request to the API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Makes an object.
    Create(Object),
    /// Writes the status of an object, bound to the version that was read.
    PutStatus(Object),
    /// Merges into an object; the body names the version that was read.
    Patch(Kind, ObjectKey, Value),
    /// The same, for an object that is to be an owner's. First the server is asked whether the
    /// owner still lives: what a watch shows may be of the time before it was deleted.
    Adopt(Owner, Kind, ObjectKey, Value),
    /// Deletes the object with this uid, and no other of the same name.
    Delete {
        /// What it is.
        kind: Kind,
        /// Where it is.
        name: ObjectKey,
        /// Which one it is.
        uid: String,
        /// Whether its node has a say.
        mode: Deletion,
    },
    /// Gives a pod its node.
    Bind {
        /// The pod.
        pod: ObjectKey,
        /// Which one of that name.
        uid: String,
        /// Where it is to run.
        node: String,
    },
    /// Tells people.
    Tell(Telling),
}

/// Who adopts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// What it is.
    pub(crate) kind: Kind,
    /// Where it is.
    pub(crate) name: ObjectKey,
    /// Which one of that name.
    pub(crate) uid: String,
}

/// How an object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// With the time that it asks for.
    Graceful,
    /// At once: nobody is there to end it.
    Forced,
}

/// What an Event object will say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Telling {
    /// About which object.
    pub(crate) about: ObjectReference,
    /// Whether someone should look.
    pub(crate) severity: Severity,
    /// One word.
    pub(crate) reason: &'static str,
    /// A sentence.
    pub(crate) message: String,
    /// Who says it.
    pub(crate) by: &'static str,
}

/// Whether someone should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Things go as they should.
    Normal,
    /// Something needs attention.
    Warning,
}

/// What is to be done about one piece of work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// One stage after the other; the actions of a stage together. A failure ends it.
    pub(crate) stages: Vec<Vec<Action>>,
    /// When to look again if nothing changes.
    pub(crate) requeue_after: Option<Duration>,
}

impl Plan {
    /// Appends a stage, unless it is empty. What is told about it is told when it is done.
    pub(crate) fn then(&mut self, actions: impl IntoIterator<Item = Action>) {
        let (told, done): (Vec<Action>, Vec<Action>) =
            actions.into_iter().partition(|action| matches!(action, Action::Tell(_)));
        self.stages.extend([done, told].into_iter().filter(|stage| !stage.is_empty()));
    }

    /// Looks again after this long, or earlier.
    pub(crate) fn requeue_within(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }

    /// No action now; a new decision after this long.
    pub(crate) fn after(delay: Duration) -> Self {
        Self { stages: Vec::new(), requeue_after: Some(delay) }
    }

    /// All actions in order.
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
        severity: Severity,
        reason: &'static str,
        message: String,
    ) -> Self {
        Self::Tell(Telling { about: reference(kind, about), severity, reason, message, by })
    }

    /// Deletes an object that was read.
    pub(crate) fn delete(kind: Kind, meta: &ObjectMeta, mode: Deletion) -> Self {
        Self::Delete { kind, name: ObjectKey::of(meta), uid: object::uid(meta).to_owned(), mode }
    }

    /// Merges into an object that was read: refused if it is not that one, or has changed since.
    pub(crate) fn patch(kind: Kind, meta: &ObjectMeta, body: Value) -> Self {
        Self::Patch(kind, ObjectKey::of(meta), bound(meta, body))
    }

    /// The same for one that is to be the owner's.
    pub(crate) fn adopt(owner: Owner, kind: Kind, meta: &ObjectMeta, body: Value) -> Self {
        Self::Adopt(owner, kind, ObjectKey::of(meta), bound(meta, body))
    }
}

/// A change of this object in this version only.
fn bound(meta: &ObjectMeta, mut body: Value) -> Value {
    body["metadata"]["uid"] = object::uid(meta).into();
    body["metadata"]["resourceVersion"] =
        meta.resource_version.as_deref().unwrap_or_default().into();
    body
}

/// A reference for events.
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
