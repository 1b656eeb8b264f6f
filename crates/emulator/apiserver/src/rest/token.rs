//! `serviceaccounts/NAME/token`: a token for a ServiceAccount, as `kubectl create token` asks for it.

use std::sync::Arc;

use jiff::Timestamp;
use nearhop_object::FieldError;
use serde_json::{Value, json};

use super::write::time_text;
use super::{ObjectKey, Request, body, name_of, now_text, read, view};
use crate::api::Api;
use crate::builtin::PODS;
use crate::http::Reply;
use crate::service_account::{BOUND, ISSUER, new_claims};
use crate::status::ApiError;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

pub(super) fn create(api: &Api, request: &Request) -> Result<Reply, ApiError> {
    let ObjectKey { name, namespace, .. } = request.key();
    let account = view::to_value(&request.resource, &*read::find(api, request)?);
    let asked = body::decode(request, KIND)?.value;
    check_kind(&asked)?;
    let spec = &asked["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    check_seconds(seconds, name)?;
    let audiences = match spec["audiences"].as_array() {
        Some(given) if !given.is_empty() => json!(given),
        _ => json!([ISSUER]),
    };
    let bound = find_bound(api, request, &account, &spec["boundObjectRef"])?;
    let uid = account["metadata"]["uid"].as_str().unwrap_or_default();
    let now = Timestamp::now();
    let account = (namespace, name_of(&account), uid);
    let claims = new_claims(account, &audiences, seconds, bound, now.as_second());
    let expires = Timestamp::from_second(now.as_second().saturating_add(seconds)).unwrap_or(now);
    let answer = json!({
        "kind": KIND, "apiVersion": format!("{GROUP}/v1"),
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": now_text()},
        "spec": {
            "audiences": audiences, "expirationSeconds": seconds,
            "boundObjectRef": spec["boundObjectRef"]
        },
        "status": {
            "token": api.token_key.sign(&claims),
            "expirationTimestamp": time_text(expires)
        }
    });
    Ok(Reply::json(201, &answer))
}

/// The kind in a body is optional.
fn check_kind(asked: &Value) -> Result<(), ApiError> {
    match asked["kind"].as_str() {
        None | Some("" | KIND) if asked.is_object() => Ok(()),
        _ => Err(ApiError::bad_request(format!("the body of the request must be a {KIND}"))),
    }
}

fn check_seconds(seconds: i64, name: &str) -> Result<(), ApiError> {
    let why = match seconds {
        ..MIN_SECONDS => "may not specify a duration less than 10 minutes",
        MIN_SECONDS..=MAX_SECONDS => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let error = FieldError::invalid("spec.expirationSeconds", &seconds.into(), why);
    Err(ApiError::invalid_kind(GROUP, KIND, name, &[error]))
}

/// The claim of the bound object.
fn find_bound(
    api: &Api,
    request: &Request,
    account: &Value,
    reference: &Value,
) -> Result<Option<(&'static str, Value)>, ApiError> {
    let Some(kind) = reference["kind"].as_str().filter(|kind| !kind.is_empty()) else {
        return Ok(None);
    };
    let known = BOUND.into_iter().find(|known| &*known.kind == kind);
    let Some(resource) = known.filter(|_| reference["apiVersion"] == "v1") else {
        return Err(ApiError::bad_request(format!(
            "cannot bind token to object of type {}, Kind={kind}; only Pod, Secret and Node of v1 can be bound to",
            reference["apiVersion"].as_str().unwrap_or_default()
        )));
    };
    let name = reference["name"].as_str().unwrap_or_default();
    let namespace = if resource.namespaced { request.key().namespace } else { "" };
    let found = ObjectKey { resource, namespace, name }.read(api);
    let found = found.ok_or_else(|| ApiError::not_found(resource, name))?;
    let uid = &*found.content.uid;
    let conflict = |why: String| {
        let account = name_of(account);
        let details = crate::status::named(&request.resource, account);
        ApiError::conflict_because("serviceaccounts/token", details, account, &why)
    };
    if let Some(asked) =
        reference["uid"].as_str().filter(|asked| !asked.is_empty() && *asked != uid)
    {
        return Err(conflict(format!(
            "the UID in the bound object reference ({asked}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )));
    }
    let user = found.to_value("")["spec"]["serviceAccountName"].as_str().map(str::to_owned);
    if Arc::ptr_eq(resource, &PODS) && user.as_deref().unwrap_or("default") != name_of(account) {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name",
            name_of(account)
        )));
    }
    Ok(Some((&resource.singular, json!({"name": name, "uid": uid}))))
}
