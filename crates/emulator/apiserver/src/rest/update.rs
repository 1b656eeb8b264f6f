//! update: how PUT, patches and subresources change a stored object.
//!
//! The new object is computed from the stored one. If another write came first, it is computed
//! again, unless the client named the version to replace.

use std::sync::Arc;

use nearhop_kinds::metadata::missing_resource_version;
use nearhop_kinds::options::WriteVerb;
use nearhop_kinds::{Resource, strategy};
use nearhop_object::{FieldError, apply};
use serde_json::Value;

use super::create::create_object;
use super::write::{
    ObjectKey, Outcome, TRIES, Writer, content_of, name_of, refuse, set_namespace, write_error,
    write_of, write_options,
};
use super::{Request, body, view};
use crate::api::{Api, Reservation};
use crate::http::Reply;
use crate::status::ApiError;
use crate::store::{Change, Expect, Stored, WriteError};

/// Replaces an object, or a subresource.
pub(super) async fn put(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Update)?;
    let (key, resource) = (request.key(), &request.resource);
    let decoded = body::decode(request, &resource.kind)?;
    let mut object = body::to_object(request, decoded, options.field_validation, warnings)?;
    check_name(&mut object, key.name)?;
    set_namespace(resource, key.namespace, &mut object)?;
    let writer = Writer::of(request, &options);
    let stored = key.read(api);
    if stored.is_none() && writer.subresource.is_none() && resource.strategy.create_on_update {
        return create_object(api, &key, object, &writer, warnings).await?.reply(request, 201);
    }
    let outcome = update_object(api, &key, stored, &writer, warnings, |old, _| {
        check_uid(resource, &object, old)?;
        Ok(object.clone())
    });
    outcome.await?.reply(request, 200)
}

/// Checks the name in a body against the path, and sets it if it is absent.
pub(super) fn check_name(object: &mut Value, name: &str) -> Result<(), ApiError> {
    let given = name_of(object);
    if given.is_empty() {
        object["metadata"]["name"] = name.into();
    } else if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

fn check_uid(resource: &Resource, object: &Value, old: &Value) -> Result<(), ApiError> {
    let (given, found) = (&object["metadata"]["uid"], &old["metadata"]["uid"]);
    let Some(text) = given.as_str().filter(|uid| !uid.is_empty()) else { return Ok(()) };
    if given == found {
        return Ok(());
    }
    let why = format!(
        "Precondition failed: UID in precondition: {text}, UID in object meta: {}",
        found.as_str().unwrap_or_default()
    );
    Err(ApiError::conflict_on(resource, name_of(old), &why))
}

/// Changes an object. `compute` makes the new object from the stored one, which has kind and
/// version; it runs again if another write came first.
pub(crate) async fn update_object<F>(
    api: &Arc<Api>,
    key: &ObjectKey<'_>,
    mut stored: Option<Arc<Stored>>,
    writer: &Writer,
    warnings: &mut Vec<String>,
    mut compute: F,
) -> Result<Outcome, ApiError>
where
    F: FnMut(&Value, &mut Vec<String>) -> Result<Value, ApiError> + Send,
{
    let before = warnings.len();
    for _ in 0..TRIES {
        let Some(current) = stored else {
            return Err(ApiError::not_found(key.resource, key.name));
        };
        let old = view::to_value(key.resource, &current);
        let new = compute(&old, warnings)?;
        if let Some(outcome) = try_update(api, key, writer, warnings, (&current, &old), new).await?
        {
            return Ok(outcome);
        }
        warnings.truncate(before);
        stored = key.read(api);
    }
    Err(ApiError::conflict(key.resource, key.name))
}

/// Writes a new object in place of the one that it was computed from; `None` if another write came
/// first.
async fn try_update(
    api: &Arc<Api>,
    key: &ObjectKey<'_>,
    writer: &Writer,
    warnings: &mut Vec<String>,
    (stored, old): (&Arc<Stored>, &Value),
    mut new: Value,
) -> Result<Option<Outcome>, ApiError> {
    let (resource, name, sub) = (key.resource, key.name, writer.subresource);
    check_version(resource, name, &new, stored)?;
    carry_over(&mut new, old);
    strategy::default(resource, &mut new);
    writer.track(resource, Some(old), &mut new);
    let reservation = match sub {
        None => Some(api.allocate(resource, &mut new, Some(old), writer.dry_run)?),
        Some(_) => None,
    };
    let (ignored, errors) = api.with_context(|context| {
        let ignored = strategy::warn_ignored(resource, sub, &new, Some(old), context);
        strategy::prepare_update(resource, sub, &mut new, old, context);
        (ignored, strategy::validate_update(resource, sub, &new, old, context))
    });
    refuse(resource, name, &errors)?;
    warnings.extend(strategy::warnings(resource, sub, &new, Some(old)));
    warnings.extend(ignored);
    apply::keep_times(old, &mut new);
    if new == *old {
        return Ok(Some(Outcome::Stored(Arc::clone(stored))));
    }
    if writer.dry_run {
        return Ok(Some(Outcome::Shown(new)));
    }
    let gone = is_finished(resource, &new);
    let change = if gone { Change::Delete } else { Change::Put(content_of(resource, &new)) };
    let write = write_of(resource, key.in_storage(), Expect::Version(stored.version), change);
    match api.store.write(vec![write]).await {
        Ok(objects) => {
            reservation.into_iter().for_each(Reservation::commit);
            if gone {
                api.release(resource, &new);
                return Ok(Some(Outcome::Shown(new)));
            }
            let object = objects.into_iter().next().expect("one write gives one object");
            Ok(Some(Outcome::Stored(object)))
        }
        Err(WriteError::Conflict | WriteError::Gone) => Ok(None),
        Err(error) => Err(write_error(resource, name, error)),
    }
}

/// Whether a terminating object has no finalizer and no grace period left.
pub(crate) fn is_finished(resource: &Resource, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let list_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    metadata.get("deletionTimestamp").is_some()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && list_empty(&metadata["finalizers"])
        && (!resource.strategy.spec_finalizers || list_empty(&object["spec"]["finalizers"]))
}

fn check_version(
    resource: &Resource,
    name: &str,
    new: &Value,
    stored: &Stored,
) -> Result<(), ApiError> {
    match new["metadata"]["resourceVersion"].as_str() {
        None | Some("" | "0") if resource.strategy.unconditional_update => Ok(()),
        None | Some("" | "0") => {
            // Kubernetes has the resource here, not the kind.
            let errors = [missing_resource_version()];
            Err(ApiError::invalid_kind(&resource.group, &resource.plural, name, &errors))
        }
        Some(version) if version == stored.version.to_string() => Ok(()),
        Some(version) if version.parse::<u64>().is_err() => {
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            let error = FieldError::invalid("metadata.resourceVersion", &version.into(), &why);
            Err(ApiError::invalid(resource, name, &[error]))
        }
        Some(_) => Err(ApiError::conflict(resource, name)),
    }
}

/// Restores what no client can change.
fn carry_over(new: &mut Value, old: &Value) {
    for field in
        ["resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        match old["metadata"].get(field) {
            Some(value) => new["metadata"][field] = value.clone(),
            None => {
                new["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
            }
        }
    }
    let metadata = &mut new["metadata"];
    if metadata["uid"].as_str().is_none_or(str::is_empty) {
        metadata["uid"] = old["metadata"]["uid"].clone();
    }
    metadata.as_object_mut().map(|metadata| metadata.remove("selfLink"));
}
