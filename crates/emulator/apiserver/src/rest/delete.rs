//! delete and deletecollection: at once, after a grace period, or after the last finalizer.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nearhop_kinds::options::{DeleteOptions, DryRun, Propagation};
use nearhop_kinds::strategy::DeleteAnswers;
use nearhop_kinds::{Resource, pod};
use serde_json::Value;

use super::options::{ListOptions, Selection};
use super::read::{self, Page};
use super::update::is_finished;
use super::write::{
    ObjectKey, Outcome, TRIES, content_of, name_of, now_text, options_error, success, time_text,
    write_error, write_of,
};
use super::{Request, body, view};
use crate::api::Api;
use crate::http::Reply;
use crate::status::{ApiError, Reason, without_empty};
use crate::store::{Change, Expect, Name, Stored, WriteError};

pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";

pub(super) async fn delete(api: &Arc<Api>, request: &Request) -> Result<Reply, ApiError> {
    let deletion = deletion_of(request)?;
    let key = request.key();
    let deleted = delete_object(api, &key, &deletion).await?;
    if deleted.gone && key.resource.strategy.delete_answers == DeleteAnswers::Status {
        return Ok(Reply::json(200, &success(key.resource, key.name, &deleted.uid)));
    }
    deleted.outcome.reply(request, 200)
}

/// Deletes the selected objects; replies with their last state.
pub(super) async fn delete_collection(
    api: &Arc<Api>,
    request: &Request,
) -> Result<Reply, ApiError> {
    let deletion = deletion_of(request)?;
    let options = ListOptions::parse(&request.query)?;
    let selection = Selection::parse(&request.resource, &request.query, None)?;
    let Page { objects, meta } = read::select_page(api, request, &options, &selection).await?;
    for object in &objects {
        let Name { namespace, name } = &object.name;
        let key = ObjectKey { resource: &request.resource, namespace, name };
        match delete_object(api, &key, &deletion).await {
            // Another client deleted it.
            Ok(_) | Err(ApiError { reason: Some(Reason::NotFound), .. }) => {}
            Err(error) => return Err(error),
        }
    }
    read::render(request, Page { objects, meta }, request.form()?)
}

fn deletion_of(request: &Request) -> Result<DeleteOptions, ApiError> {
    let body = if request.body.is_empty() {
        Value::Null
    } else {
        body::decode(request, "DeleteOptions")?.value
    };
    let kind = body["kind"].as_str().unwrap_or("DeleteOptions");
    if kind != "DeleteOptions" {
        let version = body["apiVersion"].as_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "no kind {kind:?} is registered for version {version:?}"
        )));
    }
    DeleteOptions::parse(&body, request.query.pairs()).map_err(options_error)
}

pub(crate) struct Deleted {
    pub(crate) outcome: Outcome,
    pub(crate) gone: bool,
    uid: String,
}

/// Deletes an object, or marks it as terminating.
pub(crate) async fn delete_object(
    api: &Arc<Api>,
    key: &ObjectKey<'_>,
    deletion: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    let resource = key.resource;
    for _ in 0..TRIES {
        let Some(stored) = key.read(api) else {
            return Err(ApiError::not_found(resource, key.name));
        };
        let old = view::to_value(resource, &stored);
        if resource.strategy.protected.contains(&key.name) {
            let why = "this namespace may not be deleted";
            return Err(ApiError::forbidden(resource, key.name, why));
        }
        check_preconditions(resource, &old, deletion)?;
        match try_delete(api, key, deletion, &stored, &old).await {
            Ok(deleted) => return Ok(deleted),
            Err(WriteError::Conflict | WriteError::Gone) => {}
            Err(error) => return Err(write_error(resource, key.name, error)),
        }
    }
    Err(ApiError::conflict(resource, key.name))
}

async fn try_delete(
    api: &Arc<Api>,
    key: &ObjectKey<'_>,
    deletion: &DeleteOptions,
    stored: &Arc<Stored>,
    old: &Value,
) -> Result<Deleted, WriteError> {
    let resource = key.resource;
    let uid = stored.content.uid.to_string();
    let deleted = |outcome, gone| Deleted { outcome, gone, uid: uid.clone() };
    let Plan { marked, gone } = plan_deletion(resource, old, deletion);
    if deletion.dry_run == DryRun::All {
        return Ok(deleted(Outcome::Shown(marked.unwrap_or_else(|| old.clone())), gone));
    }
    let write = |expect, change| write_of(resource, key.in_storage(), expect, change);
    let mut writes = Vec::new();
    if let Some(marked) = &marked {
        let put = Change::Put(content_of(resource, marked));
        writes.push(write(Expect::Version(stored.version), put));
    }
    if gone {
        let expect =
            if marked.is_some() { Expect::Previous } else { Expect::Version(stored.version) };
        writes.push(write(expect, Change::Delete));
    }
    if writes.is_empty() {
        return Ok(deleted(Outcome::Stored(Arc::clone(stored)), gone));
    }
    let objects = api.store.write(writes).await?;
    if gone {
        api.release(resource, old);
    }
    Ok(match objects.into_iter().next() {
        Some(object) if marked.is_some() => deleted(Outcome::Stored(object), gone),
        _ => deleted(Outcome::Shown(old.clone()), gone),
    })
}

/// The effect of a deletion.
#[derive(Default)]
struct Plan {
    /// The object with its mark as terminating; `None` if the object gets no new mark. Watchers of
    /// Pods see the mark before the deletion.
    marked: Option<Value>,
    /// Whether the object is removed.
    gone: bool,
}

fn plan_deletion(resource: &Resource, old: &Value, deletion: &DeleteOptions) -> Plan {
    let graceful = resource.strategy.graceful;
    let grace = if graceful { pod::grace_period(old, deletion.grace_period_seconds) } else { 0 };
    let marked_before = old["metadata"].get("deletionTimestamp").is_some();
    let mut new = old.clone();
    if marked_before {
        let left = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // A longer period does not delay the deletion.
        let asked = deletion.grace_period_seconds.map_or(left, |_| grace);
        if !graceful || asked >= left && left > 0 || left == 0 {
            return Plan::default();
        }
        shorten(&mut new, left, asked);
    } else {
        match resource.strategy.terminate {
            Some(terminate) => terminate(&mut new, &now_text()),
            None => mark(&mut new, grace),
        }
        add_finalizers(&mut new, deletion.propagation);
    }
    let gone = is_finished(resource, &new);
    Plan { marked: (!gone || graceful).then_some(new), gone }
}

fn mark(object: &mut Value, grace: i64) {
    let metadata = &mut object["metadata"];
    metadata["deletionTimestamp"] = later(&now_text(), grace).into();
    metadata["deletionGracePeriodSeconds"] = grace.into();
    if let Some(generation) = metadata["generation"].as_i64() {
        metadata["generation"] = (generation + 1).into();
    }
}

fn shorten(object: &mut Value, left: i64, asked: i64) {
    let metadata = &mut object["metadata"];
    let until = metadata["deletionTimestamp"].as_str().unwrap_or_default();
    metadata["deletionTimestamp"] = later(until, asked - left).into();
    metadata["deletionGracePeriodSeconds"] = asked.into();
}

fn later(time: &str, seconds: i64) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return time.to_owned() };
    time_text(time.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(time))
}

fn add_finalizers(object: &mut Value, propagation: Option<Propagation>) {
    let mut finalizers: Vec<Value> =
        object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.retain(|name| *name != FOREGROUND && *name != ORPHAN);
    match propagation {
        None | Some(Propagation::Background) => {}
        Some(Propagation::Foreground) => finalizers.push(FOREGROUND.into()),
        Some(Propagation::Orphan) => finalizers.push(ORPHAN.into()),
    }
    if finalizers.is_empty() {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("finalizers"));
    } else {
        object["metadata"]["finalizers"] = finalizers.into();
    }
}

fn check_preconditions(
    resource: &Resource,
    object: &Value,
    deletion: &DeleteOptions,
) -> Result<(), ApiError> {
    let Some(why) = deletion.precondition_conflict(object) else { return Ok(()) };
    let name = name_of(object);
    let details =
        without_empty([("name", name), ("kind", &resource.kind), ("group", &resource.group)]);
    Err(ApiError::conflict_because(&resource.qualified_kind(), details, name, &why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deletion_counts_where_generations_count() {
        let mut pod = json!({"metadata": {"generation": 2}});
        mark(&mut pod, 30);
        assert_eq!(pod["metadata"]["generation"], 3);
        let mut map = json!({"metadata": {}});
        mark(&mut map, 0);
        assert_eq!(map["metadata"]["deletionGracePeriodSeconds"], 0);
        assert_eq!(map["metadata"].get("generation"), None);
    }
}
