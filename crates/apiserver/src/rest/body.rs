//! Request bodies: read within limits, and turned into objects of the kind that a path expects.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use nearhop_kinds::Resource;
use nearhop_kinds::options::FieldValidation;
use nearhop_object::decode::{self, Parsed};
use nearhop_object::{FieldError, FieldErrorKind, builtin};
use serde_json::Value;

use super::Request;
use crate::status::ApiError;

/// Kubernetes' limit for a request body.
const MOST: usize = 3 * 1024 * 1024;
/// A client that takes longer to send its body is not served.
const PATIENCE: Duration = Duration::from_secs(30);

const OBJECT_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Reads a body.
pub(super) async fn read(incoming: Incoming) -> Result<Bytes, ApiError> {
    let collected = tokio::time::timeout(PATIENCE, Limited::new(incoming, MOST).collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(ApiError::too_large(format!("Request entity too large: limit is {MOST}")))
        }
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the body could not be read: {error}"))),
        Err(_) => Err(ApiError::timeout("Timeout: the body did not arrive in time")),
    }
}

/// `timeout=32s` is accepted and has no meaning here; nonsense is refused.
pub(super) fn check_duration(text: &str) -> Result<(), ApiError> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let fine = number != text && number.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    if fine || text == "0" {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "invalid timeout specified in the request URL: {text}"
    )))
}

/// What a body holds, and what was odd about it.
pub(super) struct Decoded {
    pub(super) object: Value,
    /// `duplicate field "spec.type"`, in the order of the body.
    pub(super) oddities: Vec<String>,
}

/// Reads a body in any form that Kubernetes takes for an object of a kind.
pub(super) fn decode(request: &Request, kind: &str) -> Result<Decoded, ApiError> {
    let body = &request.body;
    let unrecognized = |format: &str, error: String| {
        let shown = shown_body(body);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; {format} parse error: {error} ({shown})"
        ))
    };
    match request.content_type().unwrap_or("application/json") {
        "application/json" | "*/*" => {
            let parsed = decode::parse_json(body).map_err(|e| unrecognized("json", e.to_string()))?;
            Ok(Decoded::new(parsed))
        }
        "application/yaml" => {
            let parsed = decode::parse_yaml(body).map_err(|e| unrecognized("yaml", e.to_string()))?;
            Ok(Decoded::new(parsed))
        }
        "application/vnd.kubernetes.protobuf" => {
            let (api_version, kind, mut object) = decode::decode_protobuf(body)
                .map_err(|error| ApiError::bad_request(format!("the protobuf body could not be read: {error}")))?;
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            Ok(Decoded { object, oddities: Vec::new() })
        }
        _ => Err(ApiError::unsupported_media_type(OBJECT_TYPES)),
    }
}

impl Decoded {
    fn new(parsed: Parsed) -> Self {
        let oddities = parsed.duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
        Self { object: parsed.value, oddities }
    }
}

/// Kubernetes quotes what it could not read, as far as it is short.
fn shown_body(body: &[u8]) -> String {
    if body.is_empty() {
        return "<empty>".to_owned();
    }
    let text = String::from_utf8_lossy(body);
    if text.chars().count() <= 1024 { text.into_owned() } else { text.chars().take(1024).collect() }
}

/// Checks that a body is of the resource's kind, shapes it, and complains about what is unknown.
pub(super) fn to_object(
    resource: &Resource,
    decoded: Decoded,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let Decoded { mut object, mut oddities } = decoded;
    check_kind(resource, &mut object)?;
    let (kind, version) = (&resource.kind, &resource.version);
    let refuse = |why: String| {
        ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    };
    let unknown = shape(resource, &mut object).map_err(refuse)?;
    oddities.splice(0..0, unknown);
    match validation {
        FieldValidation::Strict if !oddities.is_empty() => {
            Err(refuse(format!("strict decoding error: {}", oddities.join(", "))))
        }
        FieldValidation::Warn => {
            warnings.append(&mut oddities);
            Ok(object)
        }
        _ => Ok(object),
    }
}

/// The same for the result of a patch, where Kubernetes refuses with 422.
pub(super) fn to_patched(
    resource: &Resource,
    mut object: Value,
    oddities: Vec<String>,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let shown = object.clone();
    let refuse = |why: &str, value: &Value| {
        let text = Value::from(value.to_string());
        let error = FieldError::new(FieldErrorKind::Invalid, "patch", format!("Invalid value: {text}: {why}"));
        ApiError::invalid_kind("", "", "", &[error])
    };
    let mut all = oddities;
    let unknown = shape(resource, &mut object).map_err(|why| refuse(&why, &shown))?;
    all.splice(0..0, unknown);
    match validation {
        FieldValidation::Strict if !all.is_empty() => {
            Err(refuse(&format!("strict decoding error: {}", all.join(", ")), &shown))
        }
        FieldValidation::Warn => {
            warnings.append(&mut all);
            Ok(object)
        }
        _ => Ok(object),
    }
}

/// Brings an object into the shape of its kind: types checked, unknown fields dropped and named.
pub(crate) fn shape(resource: &Resource, object: &mut Value) -> Result<Vec<String>, String> {
    let unknown_field = |path: String| format!("unknown field {path:?}");
    let mut unknown: Vec<String> = Vec::new();
    if resource.is_custom() {
        let meta = builtin::object_meta();
        if let Some(metadata) = object.get_mut("metadata") {
            let fields = decode::conform(meta.node(), metadata).map_err(|error| error.to_string())?;
            unknown.extend(fields.into_iter().map(|path| unknown_field(format!("metadata.{path}"))));
        }
        if let Some(schema) = &resource.schema {
            let fields = nearhop_object::structural::prune(schema.node(), object);
            unknown.extend(fields.into_iter().map(unknown_field));
        }
    } else if let Some(schema) = &resource.schema {
        let fields = decode::conform(schema.node(), object).map_err(|error| error.to_string())?;
        unknown.extend(fields.into_iter().map(unknown_field));
    }
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(serde_json::Map::new());
    }
    Ok(unknown)
}

/// A missing kind or version is filled in for built-in kinds; another one is refused.
fn check_kind(resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    let (expected_version, kind) = (resource.api_version(), &*resource.kind);
    let Some(members) = object.as_object_mut() else {
        let message = format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: json: cannot unmarshal {} into Go value of type {}.{kind}",
            resource.version, json_type(object), resource.version
        );
        return Err(ApiError::bad_request(message));
    };
    for (key, expected) in [("kind", kind), ("apiVersion", expected_version.as_str())] {
        let given = members.get(key).and_then(Value::as_str).unwrap_or_default();
        if given.is_empty() {
            if resource.is_custom() {
                let label = if key == "kind" { "Kind" } else { "apiVersion" };
                let shown = serde_json::to_string(&members).unwrap_or_default();
                return Err(ApiError::bad_request(format!("Object '{label}' is missing in '{shown}'")));
            }
            members.insert(key.to_owned(), expected.into());
        }
    }
    let given_kind = members.get("kind").and_then(Value::as_str).unwrap_or_default();
    let given_version = members.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if given_version != expected_version {
        let message = if resource.is_custom() {
            format!("the API version in the data ({given_version}) does not match the expected API version ({expected_version})")
        } else {
            format!(
                "{given_kind} in version \"{}\" cannot be handled as a {kind}: no kind \"{given_kind}\" is registered for version \"{given_version}\"",
                given_version.rsplit('/').next().unwrap_or_default()
            )
        };
        return Err(ApiError::bad_request(message));
    }
    if given_kind != kind {
        let message = if resource.is_custom() {
            format!("the kind in the data ({given_kind}) does not match the expected kind ({kind})")
        } else {
            format!(
                "{given_kind} in version \"{}\" cannot be handled as a {kind}: converting (v1.{given_kind}) to (core.{kind}): unknown conversion",
                resource.version
            )
        };
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
