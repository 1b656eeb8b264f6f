//! Request bodies: reading within limits, and decoding to objects of the path's kind.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use nearhop_kinds::options::FieldValidation;
use nearhop_kinds::{Resource, crd};
use nearhop_object::decode::{self, DecodeError, Parsed};
use nearhop_object::patch::{GoValue, json_type};
use nearhop_object::{FieldError, FieldErrorKind, builtin};
use serde_json::Value;

use super::Request;
use crate::http::{OBJECT_TYPES, PROTOBUF};
use crate::status::ApiError;

/// Kubernetes' limit for a request body.
const MAX_BODY: usize = 3 * 1024 * 1024;
/// The limit of a body that is read and discarded.
const MAX_DISCARDED: usize = 64 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn read(incoming: Incoming) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIMEOUT, collect(incoming)).await {
        Ok(body) => body,
        Err(_) => Err(ApiError::timeout("Timeout: the body did not arrive in time")),
    }
}

/// A body that is too long is read and discarded up to a limit: a client that still sends would see
/// a broken connection instead of the error.
async fn collect(mut incoming: Incoming) -> Result<Bytes, ApiError> {
    let (mut body, mut length) = (BytesMut::new(), 0);
    while let Some(frame) = incoming.frame().await {
        let frame = frame
            .map_err(|error| ApiError::bad_request(format!("cannot read the body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length <= MAX_BODY {
            body.extend_from_slice(&data);
        } else if length > MAX_DISCARDED {
            break;
        }
    }
    if length > MAX_BODY {
        return Err(ApiError::too_large(format!("Request entity too large: limit is {MAX_BODY}")));
    }
    Ok(body.freeze())
}

/// `timeout=32s` is accepted and ignored; a malformed value is refused.
pub(super) fn check_duration(text: &str) -> Result<(), ApiError> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let fine = number != text
        && number.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && number.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    if fine || text == "0" {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "invalid timeout specified in the request URL - time: invalid duration {text:?}"
    )))
}

/// Decodes a body: JSON, YAML or protobuf.
pub(super) fn decode(request: &Request, kind: &str) -> Result<Parsed, ApiError> {
    let body = &request.body;
    let unrecognized = |format: &str, parsed: Result<Parsed, DecodeError>| {
        parsed.map_err(|error| {
            let shown = shown_body(body);
            ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; {format} parse error: {error} ({shown})"
            ))
        })
    };
    match request.content_type().unwrap_or("application/json") {
        "application/json" | "*/*" => unrecognized("json", decode::parse_json(body)),
        "application/yaml" => unrecognized("yaml", decode::parse_yaml(body)),
        PROTOBUF => {
            let (_, _, value) = decode::decode_protobuf(body).map_err(|error| {
                ApiError::bad_request(format!("cannot decode the protobuf body: {error}"))
            })?;
            Ok(Parsed { value, duplicates: Vec::new() })
        }
        _ => Err(ApiError::unsupported_media_type(OBJECT_TYPES)),
    }
}

/// The beginning of a body, as Kubernetes quotes it in errors.
fn shown_body(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    if body.is_empty() {
        return "<empty>".to_owned();
    }
    let text = String::from_utf8_lossy(body);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.into_owned(),
    }
}

/// Checks the kind of a body, shapes it, and reports unknown fields.
pub(super) fn to_object(
    request: &Request,
    decoded: Parsed,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let Parsed { value: mut object, duplicates } = decoded;
    let resource = &request.resource;
    check_kind(request, &mut object)?;
    let (kind, version) = (&resource.kind, &resource.version);
    let refuse = |why: String| {
        ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    };
    let unknown = shape(resource, &mut object).map_err(refuse)?;
    let problems = decode::strict_errors(&request.body, &unknown, &duplicates);
    apply_validation(problems, validation, warnings, |all| {
        refuse(format!("strict decoding error: {all}"))
    })?;
    Ok(object)
}

/// The same for the result of a patch, whose errors are a 422.
pub(super) fn to_patched(
    request: &Request,
    mut object: Value,
    patch: &Parsed,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let refuse = |shown: String, why: &str| {
        let message = format!("Invalid value: {}: {why}", Value::from(shown));
        let error = FieldError::new(FieldErrorKind::Invalid, "patch", message);
        ApiError::invalid_kind("", "", "", &[error])
    };
    let patched = object.to_string();
    let resource = &request.resource;
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    if (text("kind"), text("apiVersion")) != (&*resource.kind, &resource.api_version()) {
        let why = conversion_problem(resource, text("kind"), text("apiVersion"));
        return Err(refuse(patched, &why));
    }
    let shaped = shape(&request.resource, &mut object);
    let unknown = shaped.map_err(|why| refuse(patched.clone(), &why))?;
    let problems = decode::strict_errors(&request.body, &unknown, &patch.duplicates);
    apply_validation(problems, validation, warnings, |all| {
        // A strategic merge patch is shown as it came, the others by what they made.
        let shown = match request.content_type() {
            Some("application/strategic-merge-patch+json") => GoValue(&patch.value).to_string(),
            _ => patched,
        };
        refuse(shown, &format!("strict decoding error: {all}"))
    })?;
    Ok(object)
}

/// Refuses, warns about or ignores strict-decoding errors.
fn apply_validation(
    problems: Vec<String>,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
    refuse: impl FnOnce(String) -> ApiError,
) -> Result<(), ApiError> {
    match validation {
        FieldValidation::Strict if !problems.is_empty() => Err(refuse(problems.join(", "))),
        FieldValidation::Warn => {
            warnings.extend(problems);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Checks the types of an object and drops unknown fields; returns their paths.
pub(crate) fn shape(resource: &Resource, object: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown: Vec<String> = Vec::new();
    if resource.is_custom() {
        let meta = builtin::object_meta();
        if let Some(metadata) = object.get_mut("metadata") {
            let fields = decode::conform(meta.node(), metadata).map_err(|e| e.to_string())?;
            unknown.extend(fields.into_iter().map(|path| format!("metadata.{path}")));
        }
        unknown.extend(crd::conform(resource, object));
    } else if let Some(schema) = &resource.schema {
        unknown = decode::conform(schema.node(), object).map_err(|e| e.to_string())?;
    }
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(serde_json::Map::new());
    }
    Ok(unknown)
}

/// Sets a missing kind or version for built-in kinds; refuses another one.
fn check_kind(request: &Request, object: &mut Value) -> Result<(), ApiError> {
    let resource = &request.resource;
    let (expected_version, kind, version) =
        (resource.api_version(), &*resource.kind, &resource.version);
    let found = json_type(object);
    let Some(members) = object.as_object_mut() else {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: json: cannot unmarshal {found} into Go value of type {version}.{kind}"
        )));
    };
    for (key, label, expected) in
        [("kind", "Kind", kind), ("apiVersion", "apiVersion", expected_version.as_str())]
    {
        if members.get(key).and_then(Value::as_str).is_some_and(|given| !given.is_empty()) {
            continue;
        }
        if resource.is_custom() {
            let (body, shown) = (String::from_utf8_lossy(&request.body), shown_body(&request.body));
            return Err(ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): Object '{label}' is missing in '{body}' ({shown})"
            )));
        }
        members.insert(key.to_owned(), expected.into());
    }
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (given_kind, given_version) = (text("kind"), text("apiVersion"));
    if given_version == expected_version && given_kind == kind {
        return Ok(());
    }
    Err(wrong_kind(resource, object, given_kind, given_version))
}

fn wrong_kind(resource: &Resource, object: &Value, kind: &str, api_version: &str) -> ApiError {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    if resource.is_custom() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let checks = [
            ("kind", kind, resource.kind.to_string()),
            ("apiVersion", api_version, resource.api_version()),
        ];
        let errors: Vec<FieldError> = checks
            .into_iter()
            .filter(|(_, given, expected)| given != expected)
            .map(|(field, given, expected)| {
                FieldError::invalid(field, &Value::from(given), &format!("must be {expected}"))
            })
            .collect();
        return ApiError::invalid_kind(group, kind, name, &errors);
    }
    let why = conversion_problem(resource, kind, api_version);
    ApiError::bad_request(format!(
        "{kind} in version \"{version}\" cannot be handled as a {}: {why}",
        resource.kind
    ))
}

fn conversion_problem(resource: &Resource, kind: &str, api_version: &str) -> String {
    if api_version != resource.api_version() {
        return format!("no kind {kind:?} is registered for version {api_version:?}");
    }
    let (package, version) = (super::view::go_package(resource), &resource.version);
    format!("converting ({version}.{kind}) to ({package}.{}): unknown conversion", resource.kind)
}
