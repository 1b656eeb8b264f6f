//! Finds the ReplicaSet with the Deployment's template, and numbers revisions. Pure.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::{DESIRED, MAX, Rollout, TEMPLATE_HASH};
use crate::action::Action;
use crate::kind::Kind;
use crate::object::{self, Labels};

pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// As in Kubernetes: about a hundred revisions.
const HISTORY_LENGTH: usize = 2000;

/// Annotations that are not copied to ReplicaSets.
const NOT_COPIED: [&str; 6] =
    [LAST_APPLIED, REVISION, HISTORY, DESIRED, MAX, "deprecated.deployment.rollback.to"];

/// The revision number; 0 if there is none.
pub(super) fn of(meta: &ObjectMeta) -> i64 {
    object::annotation(meta, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn next(rollout: &Rollout<'_>) -> i64 {
    let last = rollout.old.iter().map(|set| of(&set.metadata)).max();
    last.unwrap_or(0).saturating_add(1)
}

pub(super) fn find_new<'a>(
    template: &PodTemplateSpec,
    sets: &[&'a ReplicaSet],
) -> Option<&'a ReplicaSet> {
    let wanted = without_hash(template);
    let same = |set: &&&ReplicaSet| {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        template.is_some_and(|template| without_hash(template) == wanted)
    };
    sets.iter().find(same).copied()
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let meta = template.metadata.get_or_insert_default();
    meta.creation_timestamp = None;
    let labels = meta.labels.get_or_insert_default();
    labels.remove(TEMPLATE_HASH);
    template
}

/// Updates revisions and copied annotations, one object at a time.
pub(super) fn sync(rollout: &Rollout<'_>) -> Option<Action> {
    let new = rollout.new?;
    let spec = rollout.deployment.spec.as_ref()?;
    let mut annotations = Map::new();
    for (key, value) in copied(rollout) {
        if object::annotation(&new.metadata, &key) != Some(&value) {
            annotations.insert(key, value.into());
        }
    }
    let newest = next(rollout);
    let current = of(&new.metadata);
    if current < newest {
        annotations.insert(REVISION.to_owned(), newest.to_string().into());
        if current > 0 {
            let history = object::annotation(&new.metadata, HISTORY);
            annotations.insert(HISTORY.to_owned(), append_history(history, current).into());
        }
    }
    let patience = spec.min_ready_seconds.unwrap_or(0);
    let its = new.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    if !annotations.is_empty() || patience != its {
        let body = json!({
            "metadata": { "annotations": annotations },
            "spec": { "minReadySeconds": patience },
        });
        return Some(Action::patch(Kind::ReplicaSet, &new.metadata, body));
    }
    if of(&rollout.deployment.metadata) == current {
        return None;
    }
    let body = json!({ "metadata": { "annotations": { REVISION: current.to_string() } } });
    Some(Action::patch(Kind::Deployment, &rollout.deployment.metadata, body))
}

/// Appends to the history of a set that was rolled back to; drops the oldest entries beyond the
/// limit.
fn append_history(history: Option<&str>, revision: i64) -> String {
    let mut all = history.unwrap_or_default().to_owned();
    if !all.is_empty() {
        all.push(',');
    }
    all.push_str(&revision.to_string());
    while all.len() > HISTORY_LENGTH {
        let Some((_, rest)) = all.split_once(',') else { break };
        all = rest.to_owned();
    }
    all
}

fn copied(rollout: &Rollout<'_>) -> impl Iterator<Item = (String, String)> {
    let all = rollout.deployment.metadata.annotations.iter().flatten();
    let wanted = all.filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()));
    wanted.map(|(key, value)| (key.clone(), value.clone()))
}

/// Annotations by which a later plan distinguishes scaling from a rollout.
pub(super) fn replicas_annotations(rollout: &Rollout<'_>) -> Value {
    json!({
        DESIRED: rollout.replicas.to_string(),
        MAX: rollout.most().to_string(),
    })
}

/// The ReplicaSet for the Deployment's template. Its name is a hash of the template, so a repeated
/// create is idempotent.
pub(super) fn new_set(rollout: &Rollout<'_>, count: i32) -> ReplicaSet {
    let deployment = rollout.deployment;
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = object::hash(&spec.template, collisions);
    let mut template = spec.template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let newest = next(rollout);
    let mut annotations: Labels = copied(rollout).collect();
    annotations.insert(REVISION.to_owned(), newest.to_string());
    annotations.insert(DESIRED.to_owned(), rollout.replicas.to_string());
    annotations.insert(MAX.to_owned(), rollout.most().to_string());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", object::name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![object::owned_by("Deployment", &deployment.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(count),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}
