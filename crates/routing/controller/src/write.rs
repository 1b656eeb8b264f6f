//! Writes one plan: creates, then updates, then deletes, so that an endpoint that moves between
//! slices is in two slices for a moment and never in none.
//!
//! The reply to each write contains the new state of the slice, which updates the world. The first
//! failure ends the plan; the controller makes the next plan from the state that it then knows.

use std::sync::Arc;

use http::Method;
use nearhop_api::write::{slice_to_create, slice_to_patch};
use nearhop_api::{Changed, Meta, Version, decode_object};
use nearhop_core::labels::well_known;
use nearhop_core::model::Slice;
use nearhop_core::{Change, Kind, Name, Object, ServiceKey};
use serde_json::{Value, json};

use crate::call::{Call, Caller, FIELD_MANAGER, Failure};
use crate::metrics::Operation;
use crate::mode::{Mode, SERVICE_PROXY};
use crate::sight::SliceName;
use crate::tell::apply_conditions;

/// A slice, with the UID and version that a write of it is based on.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) slice: Arc<Slice>,
    pub(crate) uid: Name,
    pub(crate) version: Version,
}

/// What to write for one Service.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) service: ServiceKey,
    pub(crate) create: Vec<Slice>,
    pub(crate) update: Vec<(Known, Slice)>,
    pub(crate) delete: Vec<Known>,
    pub(crate) why: Why,
}

/// Why slices are written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A plan contains them.
    Planned,
    /// nearhop does not manage their Service (any more). The watch of Services may be late, so the
    /// controller first reads the Service from the server.
    Orphaned(Mode),
}

/// The result of one write.
#[derive(Debug)]
pub(crate) enum Step {
    /// The controller wrote the slice; this is its new state.
    Wrote(Operation, Box<Changed>),
    /// The controller deleted it.
    Deleted(SliceName, Name),
    /// The state of the slice after a conflict of a write based on this version.
    Found(Version, Box<Changed>),
    /// It did not exist any more.
    Vanished(SliceName, Name),
}

/// The result of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) service: ServiceKey,
    pub(crate) steps: Vec<Step>,
    pub(crate) result: Result<(), Failure>,
}

/// Runs a job.
pub(crate) async fn write(caller: &Caller, job: Job) -> Outcome {
    let service = job.service.clone();
    let mut steps = Vec::new();
    let result = match write_all(caller, job, &mut steps).await {
        // The namespace controller deletes all objects in the namespace.
        Err(Failure::NamespaceTerminating { .. }) => Ok(()),
        result => result,
    };
    Outcome { service, steps, result }
}

async fn write_all(caller: &Caller, job: Job, steps: &mut Vec<Step>) -> Result<(), Failure> {
    if let Why::Orphaned(mode) = job.why {
        match ask_for_claim(caller, &job, mode).await? {
            Claim::Ours => return Ok(()),
            Claim::Nobodys => {}
            Claim::Released(uid) => take_back_conditions(caller, &job.service, &uid).await?,
        }
    }
    for slice in &job.create {
        steps.push(create(caller, slice, &job.service).await?);
    }
    for (known, slice) in &job.update {
        match update(caller, known, slice).await {
            Ok(step) => steps.push(step),
            Err(failure) => return Err(look_again(caller, known, failure, steps).await),
        }
    }
    for known in &job.delete {
        match delete(caller, known).await {
            Ok(step) => steps.push(step),
            Err(Failure::NotFound { .. }) => steps.push(vanished(known)),
            Err(failure) => return Err(look_again(caller, known, failure, steps).await),
        }
    }
    Ok(())
}

/// The owner of a job's slices, according to the server.
enum Claim {
    /// Their Service exists, and nearhop manages it.
    Ours,
    /// Their Service is gone, or another Service has its name.
    Nobodys,
    /// Their Service (with this UID) has conditions but lost its label.
    Released(String),
}

async fn ask_for_claim(caller: &Caller, job: &Job, mode: Mode) -> Result<Claim, Failure> {
    let ServiceKey { namespace, name } = &job.service;
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let body = match caller.send(Call::get(path, format!("Service {}", job.service))).await {
        Err(Failure::NotFound { .. }) => return Ok(Claim::Nobodys),
        answer => answer?,
    };
    let service: Value = serde_json::from_slice(&body).unwrap_or_default();
    let metadata = &service["metadata"];
    let kept = match mode {
        Mode::Labelled => metadata["labels"][well_known::SERVICE_PROXY_NAME] == SERVICE_PROXY,
        Mode::Replace => true,
    };
    let uid = metadata["uid"].as_str().unwrap_or_default();
    let owned = |known: &Known| known.slice.owners.iter().any(|owner| *owner == *uid);
    Ok(match kept {
        true if job.delete.iter().any(owned) => Claim::Ours,
        false if service["status"]["conditions"].is_array() => Claim::Released(uid.to_owned()),
        _ => Claim::Nobodys,
    })
}

/// nearhop does not update the conditions of a Service that it no longer manages, so it removes
/// them. If that is not allowed, they stay, and the slices are deleted nevertheless.
async fn take_back_conditions(
    caller: &Caller,
    service: &ServiceKey,
    uid: &str,
) -> Result<(), Failure> {
    match caller.send(apply_conditions(service, uid, &[])).await {
        Ok(_) | Err(Failure::Forbidden { .. } | Failure::NotFound { .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
}

fn collection(namespace: &Name) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

fn object(slice: &Slice) -> String {
    format!("{}/{}", collection(&slice.namespace), slice.name)
}

fn name_of(slice: &Slice) -> SliceName {
    (slice.namespace.clone(), slice.name.clone())
}

fn what(slice: &Slice) -> String {
    format!("EndpointSlice {}/{}", slice.namespace, slice.name)
}

fn vanished(known: &Known) -> Step {
    Step::Vanished(name_of(&known.slice), known.uid.clone())
}

async fn create(caller: &Caller, slice: &Slice, service: &ServiceKey) -> Result<Step, Failure> {
    let path = collection(&slice.namespace);
    let call = Call {
        method: Method::POST,
        path: format!("{path}?fieldManager={FIELD_MANAGER}"),
        content_type: "application/json",
        body: slice_to_create(slice, service),
        what: format!("a new EndpointSlice of Service {service}"),
    };
    let body = caller.send(call).await?;
    Ok(Step::Wrote(Operation::Create, Box::new(decode_object(Kind::Slice, &body))))
}

async fn update(caller: &Caller, known: &Known, slice: &Slice) -> Result<Step, Failure> {
    let call = Call {
        method: Method::PATCH,
        path: format!("{}?fieldManager={FIELD_MANAGER}", object(&known.slice)),
        content_type: "application/merge-patch+json",
        body: slice_to_patch(&known.slice, slice, &known.version),
        what: what(&known.slice),
    };
    let body = caller.send(call).await?;
    Ok(Step::Wrote(Operation::Update, Box::new(decode_object(Kind::Slice, &body))))
}

async fn delete(caller: &Caller, known: &Known) -> Result<Step, Failure> {
    let preconditions =
        json!({"uid": known.uid.as_str(), "resourceVersion": known.version.as_str()});
    let call = Call {
        method: Method::DELETE,
        path: object(&known.slice),
        content_type: "application/json",
        body: json!({"preconditions": preconditions}).to_string().into_bytes(),
        what: what(&known.slice),
    };
    caller.send(call).await?;
    Ok(Step::Deleted(name_of(&known.slice), known.uid.clone()))
}

/// After a conflict, reads the slice again: the next plan must not wait for the watch.
async fn look_again(
    caller: &Caller,
    known: &Known,
    failure: Failure,
    steps: &mut Vec<Step>,
) -> Failure {
    let call = match failure {
        Failure::NotFound { .. } => {
            steps.push(vanished(known));
            return failure;
        }
        Failure::Conflict { .. } => Call::get(object(&known.slice), what(&known.slice)),
        failure => return failure,
    };
    match caller.send(call).await {
        Ok(body) => {
            let found = Box::new(decode_object(Kind::Slice, &body));
            steps.push(Step::Found(known.version.clone(), found));
        }
        Err(Failure::NotFound { .. }) => steps.push(vanished(known)),
        Err(later) => return later,
    }
    failure
}

/// Namespace, name and metadata of a slice in a reply.
pub(crate) fn answered(changed: &Changed) -> Option<(SliceName, &Meta)> {
    match changed.change.as_ref()? {
        Change::Put(Object::Slice(slice)) => Some((name_of(slice), &changed.meta)),
        _ => None,
    }
}
