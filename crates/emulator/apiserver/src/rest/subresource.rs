//! Parts of objects: status, scale, binding, eviction, finalize, token; and log, exec and the like, which
//! the node that runs a Pod answers.

use std::sync::Arc;

use http::Method;
use hyper::body::Incoming;
use nearhop_kinds::options::{FieldValidation, WriteVerb};
use nearhop_kinds::pod::{self, BindError};
use nearhop_kinds::{Resource, namespace, scale};
use serde_json::{Value, json};

use super::patch::patch;
use super::update::{Place, put, update_object};
use super::write::{Ownership, Writer, write_options};
use super::{Request, body, evict, read, token, view};
use crate::api::Api;
use crate::http::{Reply, Target};
use crate::kubelet;
use crate::status::ApiError;

/// Whether the node that runs a Pod answers this.
pub(super) fn is_passed_on(resource: &Resource, subresource: Option<&str>) -> bool {
    resource.group.is_empty()
        && &*resource.kind == "Pod"
        && matches!(subresource, Some("log" | "exec" | "attach" | "portforward"))
}

/// Whether it lets a client do something inside a Pod.
pub(super) fn runs_something(resource: &Resource, target: &Target) -> bool {
    let sub = target.subresource.as_deref();
    is_passed_on(resource, sub) && sub != Some("log")
}

/// Asks the node.
pub(super) async fn pass_on(
    api: &Arc<Api>,
    request: http::Request<Incoming>,
    resource: &Arc<Resource>,
    target: &Target,
) -> Result<Reply, ApiError> {
    let namespace = target.namespace.as_deref().unwrap_or_default();
    let name = target.name.as_deref().unwrap_or_default();
    let key = crate::store::Name::new(namespace, name);
    let stored = api.store.get(&resource.storage, &key);
    let pod = stored.ok_or_else(|| ApiError::not_found(resource, name))?;
    let pod = view::to_value(resource, &pod);
    let part = target.subresource.as_deref().unwrap_or_default();
    kubelet::pass_on(api, request, &pod, part).await
}

/// Answers a request for a part of an object.
pub(super) async fn answer(
    api: &Arc<Api>,
    request: &Request,
    name: &str,
    sub: &str,
    verb: &str,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let known = request.resource.subresource(sub).ok_or_else(ApiError::no_such_resource)?;
    if request.method == Method::HEAD || !known.verbs.iter().any(|v| **v == *verb) {
        return Err(ApiError::method_not_allowed());
    }
    match (sub, verb) {
        ("scale", "get") => get_scale(api, request, name),
        ("scale", _) => set_scale(api, request, name, verb, warnings).await,
        ("binding", "create") => bind(api, request, name, warnings).await,
        ("eviction", "create") => evict::evict(api, request, name).await,
        ("token", "create") => token::create(api, request, name),
        ("finalize", "update") => finalize(api, request, name, warnings).await,
        ("status" | "approval" | "resize" | "ephemeralcontainers", "get") => {
            read::get(api, request, name).await
        }
        ("status" | "approval", "update") => put(api, request, name, Some(sub), warnings).await,
        ("status" | "approval", "patch") => patch(api, request, name, Some(sub), warnings).await,
        // Nobody here proxies or resizes.
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn get_scale(api: &Api, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let stored = read::find(api, request, name)?;
    let object = view::to_value(&request.resource, &stored);
    let scale =
        scale::scale_of(&request.resource, &object).ok_or_else(ApiError::no_such_resource)?;
    view::reply_value(&request.resource, &scale, 200, request.form()?, &request.query)
}

/// A Scale is a small view of an object: it is changed as a Scale and put back.
async fn set_scale(
    api: &Arc<Api>,
    request: &Request,
    name: &str,
    verb: &str,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options =
        write_options(request, if verb == "patch" { WriteVerb::Patch } else { WriteVerb::Update })?;
    let writer = Writer::of(request, &options, Some("scale"));
    let resource = &request.resource;
    let given = if verb == "update" { Some(body::decode(request, "Scale")?.object) } else { None };
    let place = Place::of(request, name);
    let outcome = update_object(api, &place, &writer, Ownership::Track, warnings, |old, _| {
        let scale = scale::scale_of(resource, old).ok_or_else(ApiError::no_such_resource)?;
        let wanted = match &given {
            Some(given) => given.clone(),
            None => patched_scale(request, &scale)?,
        };
        let mut new = old.clone();
        if let Some(version) =
            wanted["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty())
        {
            new["metadata"]["resourceVersion"] = version.into();
        }
        scale::set_scale(resource, &mut new, &wanted)
            .map_err(|error| ApiError::invalid_kind("autoscaling", "Scale", name, &[error]))?;
        Ok(new)
    });
    let object = match outcome.await? {
        super::write::Outcome::Stored(object) => view::to_value(resource, &object),
        super::write::Outcome::Shown(object) => object,
    };
    let scale = scale::scale_of(resource, &object).ok_or_else(ApiError::no_such_resource)?;
    view::reply_value(resource, &scale, 200, request.form()?, &request.query)
}

fn patched_scale(request: &Request, scale: &Value) -> Result<Value, ApiError> {
    use nearhop_object::patch::{json_patch, merge_patch};
    let decode = || {
        nearhop_object::decode::parse_json(&request.body)
            .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))
    };
    let patched = match request.content_type() {
        Some("application/json-patch+json") => json_patch(scale, &decode()?.value),
        Some("application/merge-patch+json" | "application/strategic-merge-patch+json") => {
            merge_patch(scale, &decode()?.value)
        }
        _ => return Err(ApiError::unknown_patch_type()),
    };
    patched.map_err(super::patch::patch_error)
}

async fn bind(
    api: &Arc<Api>,
    request: &Request,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Create)?;
    let binding = body::decode(request, "Binding")?.object;
    let writer =
        Writer { subresource: Some("binding".to_owned()), ..Writer::of(request, &options, None) };
    let place = Place::of(request, name);
    let outcome = update_object(api, &place, &writer, Ownership::Given, warnings, |old, _| {
        let mut new = old.clone();
        let bound = api.with_context(|cx| pod::bind(&mut new, &binding, cx.now, cx.node_labels));
        bound.map_err(|error| match error {
            BindError::Conflict(why) => {
                let details = json!({"name": name, "kind": "pods/binding"});
                ApiError::conflict_because("pods/binding", details, name, &why)
            }
            BindError::Invalid(errors) => ApiError::invalid_kind("", "Binding", name, &errors),
        })?;
        Ok(new)
    });
    outcome.await?;
    Ok(Reply::json(201, &plain_success()))
}

/// The only way to change a Namespace's finalizers.
async fn finalize(
    api: &Arc<Api>,
    request: &Request,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Update)?;
    let decoded = body::decode(request, "Namespace")?;
    let object = body::to_object(request, decoded, FieldValidation::Ignore, warnings)?;
    let writer = Writer::of(request, &options, Some("finalize"));
    let place = Place::of(request, name);
    let outcome = update_object(api, &place, &writer, Ownership::Given, warnings, |old, _| {
        Ok(namespace::namespace_finalize(old, &object))
    });
    outcome.await?.reply(request, 200)
}

pub(super) fn plain_success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
