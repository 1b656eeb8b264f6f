//! Subresources: status, scale, binding, eviction, finalize, token. The kubelet of a Pod's node
//! answers log, exec, attach and portforward.

use std::sync::Arc;

use hyper::body::Incoming;
use nearhop_kinds::options::{FieldValidation, WriteVerb};
use nearhop_kinds::pod::{self, BindError};
use nearhop_kinds::{Subresource, Verb, namespace, scale};
use serde_json::{Value, json};

use super::patch::{PatchType, parse_patch, patch};
use super::update::{put, update_object};
use super::write::{Outcome, Writer, write_options};
use super::{Request, body, evict, read, token, view};
use crate::api::Api;
use crate::http::Reply;
use crate::kubelet;
use crate::status::ApiError;

/// Forwards a request to the kubelet of the node that runs the Pod.
pub(super) async fn forward_to_kubelet(
    api: &Arc<Api>,
    request: Request,
    incoming: Incoming,
) -> Result<Reply, ApiError> {
    let pod = view::to_value(&request.resource, &*read::find(api, &request)?);
    let subresource = request.subresource.ok_or_else(ApiError::no_such_resource)?;
    let request = http::Request::from_parts(request.parts, incoming);
    kubelet::forward(api, request, &pod, subresource).await
}

pub(super) async fn answer(
    api: &Arc<Api>,
    request: &Request,
    subresource: Subresource,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    use Subresource::{
        Approval, Binding, EphemeralContainers, Eviction, Finalize, Resize, Scale, Status, Token,
    };
    match (subresource, request.verb) {
        (Scale, Verb::Get) => get_scale(api, request),
        (Scale, _) => set_scale(api, request, warnings).await,
        (Binding, Verb::Create) => bind(api, request, warnings).await,
        (Eviction, Verb::Create) => evict::evict(api, request).await,
        (Token, Verb::Create) => token::create(api, request),
        (Finalize, Verb::Update) => finalize(api, request, warnings).await,
        (Status | Approval | Resize | EphemeralContainers, Verb::Get) => {
            read::get(api, request).await
        }
        (Status | Approval, Verb::Update) => put(api, request, warnings).await,
        (Status | Approval, Verb::Patch) => patch(api, request, warnings).await,
        // This server has no proxy and resizes nothing.
        _ => Err(ApiError::method_not_allowed()),
    }
}

fn get_scale(api: &Api, request: &Request) -> Result<Reply, ApiError> {
    let object = view::to_value(&request.resource, &*read::find(api, request)?);
    reply_scale(request, &object)
}

fn reply_scale(request: &Request, object: &Value) -> Result<Reply, ApiError> {
    let resource = &request.resource;
    let scale = scale::scale_of(resource, object).ok_or_else(ApiError::no_such_resource)?;
    view::reply_value(resource, &scale, 200, request.form()?, &request.query)
}

/// Changes the Scale of an object, and the object by it.
async fn set_scale(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let (verb, given) = match request.verb {
        Verb::Update => (WriteVerb::Update, Some(body::decode(request, "Scale")?.value)),
        _ => (WriteVerb::Patch, None),
    };
    let writer = Writer::of(request, &write_options(request, verb)?);
    let (key, resource) = (request.key(), &request.resource);
    let outcome = update_object(api, &key, key.read(api), &writer, warnings, |old, _| {
        let scale = scale::scale_of(resource, old).ok_or_else(ApiError::no_such_resource)?;
        let wanted = match &given {
            Some(given) => given.clone(),
            None => patched_scale(request, &scale)?,
        };
        let mut new = old.clone();
        scale::set_scale(resource, &mut new, &wanted)
            .map_err(|error| ApiError::invalid_kind("autoscaling", "Scale", key.name, &[error]))?;
        Ok(new)
    });
    let object = match outcome.await? {
        Outcome::Stored(object) => view::to_value(resource, &object),
        Outcome::Shown(object) => object,
    };
    reply_scale(request, &object)
}

fn patched_scale(request: &Request, scale: &Value) -> Result<Value, ApiError> {
    match PatchType::of(request)? {
        PatchType::Apply => Err(ApiError::unknown_patch_type()),
        patch_type => patch_type.apply(None, scale, &parse_patch(&request.body)?.value),
    }
}

async fn bind(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Create)?;
    let binding = body::decode(request, "Binding")?.value;
    let writer = Writer::of(request, &options).keeping_managed_fields();
    let key = request.key();
    let outcome = update_object(api, &key, key.read(api), &writer, warnings, |old, _| {
        let mut new = old.clone();
        let bound = api.with_context(|cx| pod::bind(&mut new, &binding, cx.now, cx.node_labels));
        bound.map_err(|error| match error {
            BindError::Conflict(why) => {
                let details = json!({"name": key.name, "kind": "pods/binding"});
                ApiError::conflict_because("pods/binding", details, key.name, &why)
            }
            BindError::Invalid(errors) => ApiError::invalid_kind("", "Binding", key.name, &errors),
        })?;
        Ok(new)
    });
    outcome.await?;
    Ok(Reply::json(201, &plain_success()))
}

/// Changes `spec.finalizers` of a Namespace.
async fn finalize(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let options = write_options(request, WriteVerb::Update)?;
    let decoded = body::decode(request, "Namespace")?;
    let object = body::to_object(request, decoded, FieldValidation::Ignore, warnings)?;
    let writer = Writer::of(request, &options).keeping_managed_fields();
    let key = request.key();
    let outcome = update_object(api, &key, key.read(api), &writer, warnings, |old, _| {
        Ok(namespace::namespace_finalize(old, &object))
    });
    outcome.await?.reply(request, 200)
}

pub(super) fn plain_success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
