//! create, in the order of Kubernetes: decode, namespace, defaults, managed fields, allocation,
//! preparation, validation, and last whether the name is free.

use std::sync::Arc;

use nearhop_kinds::Resource;
use nearhop_kinds::options::WriteVerb;
use nearhop_kinds::strategy;
use rand::Rng as _;
use serde_json::Value;

use super::write::{
    ObjectKey, Outcome, TRIES, Writer, content_of, name_of, refuse, set_namespace, write_error,
    write_of, write_options,
};
use super::{Request, body, review};
use crate::api::Api;
use crate::builtin::{DEFINITIONS, NAMESPACES};
use crate::http::Reply;
use crate::status::{ApiError, Reason};
use crate::store::{Change, Expect, Name, WriteError};

/// The number of attempts to generate a free name.
const GENERATE_TRIES: usize = 8;

pub(super) async fn create(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    if let Some(review) = request.resource.strategy.review {
        return review::answer(api, request, review);
    }
    let options = write_options(request, WriteVerb::Create)?;
    let decoded = body::decode(request, &request.resource.kind)?;
    let object = body::to_object(request, decoded, options.field_validation, warnings)?;
    let writer = Writer::of(request, &options);
    create_object(api, &request.key(), object, &writer, warnings).await?.reply(request, 201)
}

/// Creates an object that has the shape of its kind. The name of the key is not read: the object
/// has its own, or the server generates one.
pub(crate) async fn create_object(
    api: &Arc<Api>,
    key: &ObjectKey<'_>,
    mut object: Value,
    writer: &Writer,
    warnings: &mut Vec<String>,
) -> Result<Outcome, ApiError> {
    let ObjectKey { resource, namespace, .. } = *key;
    set_namespace(resource, namespace, &mut object)?;
    if object["metadata"].get("resourceVersion").is_some_and(|v| v.as_str() != Some("")) {
        return Err(ApiError::bare("resourceVersion should not be set on objects to be created"));
    }
    check_namespace(api, resource, namespace, name_of(&object))?;
    check_definition(api, resource)?;
    drop_server_fields(&mut object);
    strategy::default(resource, &mut object);
    writer.track(resource, None, &mut object);
    if !name_of(&object).is_empty() {
        return finish(api, key, object, writer, warnings).await;
    }
    let mut tries = 0;
    loop {
        let mut attempt = object.clone();
        generate_name(&mut attempt);
        let created = finish(api, key, attempt, writer, warnings).await;
        let taken = created.as_ref().is_err_and(|e| e.reason == Some(Reason::AlreadyExists));
        if !taken || tries == GENERATE_TRIES {
            return created;
        }
        tries += 1;
    }
}

async fn finish(
    api: &Arc<Api>,
    key: &ObjectKey<'_>,
    mut object: Value,
    writer: &Writer,
    warnings: &mut Vec<String>,
) -> Result<Outcome, ApiError> {
    let name = name_of(&object).to_owned();
    let key = ObjectKey { name: &name, ..*key };
    let resource = key.resource;
    object["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
    let reservation = api.allocate(resource, &mut object, None, writer.dry_run)?;
    let (ignored, errors) = api.with_context(|context| {
        object["metadata"]["creationTimestamp"] = context.now.into();
        let ignored = strategy::warn_ignored(resource, None, &object, None, context);
        strategy::prepare_create(resource, &mut object, context);
        (ignored, strategy::validate_create(resource, &object, context))
    });
    refuse(resource, &name, &errors)?;
    warnings.extend(strategy::warnings(resource, None, &object, None));
    warnings.extend(ignored);
    if writer.dry_run {
        return match key.read(api) {
            Some(_) => Err(exists(api, &key)),
            None => Ok(Outcome::Shown(object)),
        };
    }
    let content = content_of(resource, &object);
    for _ in 0..TRIES {
        let change = Change::Put(Arc::clone(&content));
        let write = write_of(resource, key.in_storage(), Expect::Absent, change);
        match api.store.write(vec![write]).await {
            Ok(stored) => {
                reservation.commit();
                let object = stored.into_iter().next().expect("one write gives one object");
                return Ok(Outcome::Stored(object));
            }
            // The Namespace changed since the check: a terminating one refuses the object.
            Err(WriteError::Namespace) => check_namespace(api, resource, key.namespace, &name)?,
            Err(WriteError::Exists) => return Err(exists(api, &key)),
            Err(error) => return Err(write_error(resource, &name, error)),
        }
    }
    Err(ApiError::conflict(resource, &name))
}

fn exists(api: &Api, key: &ObjectKey<'_>) -> ApiError {
    let mut error = ApiError::already_exists(key.resource, key.name);
    if key.read(api).is_some_and(|existing| existing.content.deleting) {
        error.message = format!("object is being deleted: {}", error.message);
    }
    error
}

/// The Namespace must exist and not be terminating.
fn check_namespace(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    if !resource.namespaced {
        return Ok(());
    }
    let Some(found) = api.store.get(&NAMESPACES.storage, &Name::new("", namespace)) else {
        return Err(ApiError::not_found(&NAMESPACES, namespace));
    };
    if found.content.field("status.phase") != Some("Terminating") {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut error = ApiError::forbidden(resource, name, &why);
    if let Some(details) = &mut error.details {
        details["causes"] = serde_json::json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace"
        }]);
    }
    Err(error)
}

/// A terminating definition takes no new objects.
fn check_definition(api: &Api, resource: &Resource) -> Result<(), ApiError> {
    if !resource.is_custom() {
        return Ok(());
    }
    let name = Name::new("", &resource.qualified_plural());
    let definition = api.store.get(&DEFINITIONS.storage, &name);
    if definition.is_some_and(|definition| definition.content.deleting) {
        return Err(ApiError::method_not_allowed());
    }
    Ok(())
}

fn drop_server_fields(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    let fields = "uid resourceVersion creationTimestamp deletionTimestamp \
        deletionGracePeriodSeconds selfLink";
    for field in fields.split_whitespace() {
        metadata.remove(field);
    }
}

/// Kubernetes' alphabet: no vowels, no ambiguous characters.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const RANDOM_LENGTH: usize = 5;
const MAX_PREFIX: usize = 63 - RANDOM_LENGTH;

fn generate_name(object: &mut Value) {
    let metadata = &mut object["metadata"];
    let Some(prefix) = metadata["generateName"].as_str().filter(|prefix| !prefix.is_empty()) else {
        return;
    };
    let mut random = rand::rng();
    let mut name: String = prefix.chars().take(MAX_PREFIX).collect();
    for _ in 0..RANDOM_LENGTH {
        name.push(char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    }
    metadata["name"] = name.into();
}
