//! patch: JSON patch, merge patch, strategic merge patch and server-side apply.

use std::sync::Arc;

use nearhop_kinds::options::{WriteOptions, WriteVerb};
use nearhop_object::Schema;
use nearhop_object::apply::{self, ApplyError, Conflict};
use nearhop_object::decode::{self, Parsed};
use nearhop_object::patch::{self, PatchError};
use serde_json::{Value, json};

use super::create::create_object;
use super::update::{check_name, update_object};
use super::write::{Writer, set_namespace, write_options};
use super::{Request, body};
use crate::api::Api;
use crate::http::Reply;
use crate::status::{ApiError, Reason};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    pub(super) fn of(request: &Request) -> Result<Self, ApiError> {
        match request.content_type() {
            Some("application/json-patch+json") => Ok(Self::Json),
            Some("application/merge-patch+json") => Ok(Self::Merge),
            Some("application/strategic-merge-patch+json") => Ok(Self::Strategic),
            Some("application/apply-patch+yaml") => Ok(Self::Apply),
            _ => Err(ApiError::unknown_patch_type()),
        }
    }

    /// Without a schema, a strategic merge patch is a merge patch.
    pub(super) fn apply(
        self,
        schema: Option<&Schema>,
        old: &Value,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let patched = match (self, schema) {
            (Self::Json, _) => patch::json_patch(old, patch),
            (Self::Strategic, Some(schema)) => {
                patch::strategic_merge_patch(schema.node(), old, patch)
            }
            _ => patch::merge_patch(old, patch),
        };
        patched.map_err(|error| match error {
            PatchError::BadRequest(message) => ApiError::bad_request(message),
            PatchError::Unprocessable(message) => ApiError::unprocessable(message),
            PatchError::Internal(message) => ApiError::bare(message),
            PatchError::TooLarge(message) => ApiError::too_large(message),
        })
    }
}

/// Patches an object, or a subresource.
pub(super) async fn patch(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let patch_type = PatchType::of(request)?;
    if patch_type == PatchType::Strategic && request.resource.is_custom() {
        let accepted = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
        return Err(ApiError::unsupported_media_type(accepted));
    }
    if patch_type == PatchType::Apply {
        return apply_patch(api, request, warnings).await;
    }
    let options = write_options(request, WriteVerb::Patch)?;
    let writer = Writer::of(request, &options);
    let (key, resource) = (request.key(), &request.resource);
    let parsed = parse_patch(&request.body)?;
    let outcome = update_object(api, &key, key.read(api), &writer, warnings, |old, warnings| {
        let patched = patch_type.apply(resource.schema.as_ref(), old, &parsed.value)?;
        let validation = options.field_validation;
        let mut new = body::to_patched(request, patched, &parsed, validation, warnings)?;
        check_name(&mut new, key.name)?;
        set_namespace(resource, key.namespace, &mut new)?;
        Ok(new)
    });
    outcome.await?.reply(request, 200)
}

pub(super) fn parse_patch(body: &[u8]) -> Result<Parsed, ApiError> {
    decode::parse_json(body)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
}

/// Server-side apply.
async fn apply_patch(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Apply)?;
    let writer = Writer::of(request, &options).keeping_managed_fields();
    let (key, resource) = (request.key(), &request.resource);
    let applied = decode_applied(request, key.name, &options)?;
    let merge = |live: Option<&Value>| {
        let Some(schema) = &resource.schema else {
            return Err(ApiError::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json",
            ));
        };
        let mut merged = writer
            .owning(resource, |owner| {
                apply::apply(schema.node(), live, &applied, owner, options.force)
            })
            .map_err(apply_error)?;
        body::shape(resource, &mut merged).map_err(ApiError::bad_request)?;
        set_namespace(resource, key.namespace, &mut merged)?;
        Ok(merged)
    };
    let mut stored = key.read(api);
    if stored.is_none() && writer.subresource.is_none() {
        if let Some(uid) = applied["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict_on(resource, key.name, &why));
        }
        let mut object = merge(None)?;
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        match create_object(api, &key, object, &writer, warnings).await {
            // Another client created it meanwhile: its object is changed instead.
            Err(error) if error.reason == Some(Reason::AlreadyExists) => stored = key.read(api),
            created => return created?.reply(request, 201),
        }
    }
    let outcome = update_object(api, &key, stored, &writer, warnings, |old, _| merge(Some(old)));
    outcome.await?.reply(request, 200)
}

fn decode_applied(
    request: &Request,
    name: &str,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    use nearhop_kinds::options::FieldValidation::Strict;
    let parsed = decode::parse_yaml(&request.body)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    if options.field_validation == Strict && !parsed.duplicates.is_empty() {
        let all: Vec<String> =
            parsed.duplicates.iter().map(|key| format!("key {key:?} already set in map")).collect();
        let message = format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
            all.join("\n  ")
        );
        return Err(ApiError::bad_request(message));
    }
    let mut applied = parsed.value;
    check_type(request, &applied)?;
    if !applied["metadata"].is_object() {
        applied["metadata"] = Value::Object(serde_json::Map::new());
    }
    check_name(&mut applied, name)?;
    Ok(applied)
}

/// An applied object needs kind and apiVersion.
fn check_type(request: &Request, applied: &Value) -> Result<(), ApiError> {
    let resource = &request.resource;
    let text = |key: &str| applied[key].as_str().unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if kind == &*resource.kind && version == resource.api_version() {
        return Ok(());
    }
    let slash = if version.contains('/') { "" } else { "/" };
    Err(ApiError::bad_request(format!("invalid object type: {slash}{version}, Kind={kind}")))
}

fn apply_error(error: ApplyError) -> ApiError {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let cause = |conflict: &Conflict| {
                let (message, field) = (conflict.cause_message(), &conflict.path);
                json!({"reason": "FieldManagerConflict", "message": message, "field": field})
            };
            let causes = conflicts.iter().map(cause).collect();
            ApiError::apply_conflict(apply::conflict_message(&conflicts), causes)
        }
        ApplyError::NamesOwners => ApiError::bad_request(ApplyError::NamesOwners.to_string()),
        ApplyError::Untyped(message) => ApiError::bare(message),
    }
}
