//! Writes one plan: creates, then updates, then deletes, so that an endpoint that moves between
//! slices is in two slices for a moment and never in none.
//!
//! The reply to each write contains the new state of the slice, which updates the world. The first
//! failure ends the plan; the controller makes the next plan from the state that it then knows.

use std::sync::Arc;

use http::Method;
use nearhop_api::write::{slice_to_create, slice_to_patch};
use nearhop_api::{Changed, Version, decode_object};
use nearhop_core::labels::well_known;
use nearhop_core::model::Slice;
use nearhop_core::{Kind, Name, ObjectRef, ServiceKey};
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender};
use serde_json::Value;

use crate::metrics::Operation;
use crate::mode::{Mode, SERVICE_PROXY};
use crate::status::write::apply_conditions;

/// A slice, with the UID and version that a write of it is based on.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) slice: Arc<Slice>,
    pub(crate) uid: Name,
    pub(crate) version: Version,
}

/// What to write for one Service.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) service: ServiceKey,
    pub(crate) create: Vec<Slice>,
    pub(crate) update: Vec<(Base, Slice)>,
    pub(crate) delete: Vec<Base>,
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
    Deleted(ObjectRef, Name),
    /// The state of the slice after a conflict of a write based on this version.
    Found(Version, Box<Changed>),
    /// It did not exist any more.
    Vanished(ObjectRef, Name),
}

/// The result of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) service: ServiceKey,
    pub(crate) steps: Vec<Step>,
    pub(crate) result: Result<(), ApiFailure>,
}

/// Runs a job.
pub(crate) async fn write(sender: &ApiSender, job: Job) -> Outcome {
    let service = job.service.clone();
    let mut steps = Vec::new();
    let result = match write_all(sender, job, &mut steps).await {
        // The namespace controller deletes all objects in the namespace.
        Err(ApiFailure::NamespaceTerminating { .. }) => Ok(()),
        result => result,
    };
    Outcome { service, steps, result }
}

async fn write_all(sender: &ApiSender, job: Job, steps: &mut Vec<Step>) -> Result<(), ApiFailure> {
    if let Why::Orphaned(mode) = job.why {
        match read_claim(sender, &job, mode).await? {
            Claim::Ours => return Ok(()),
            Claim::Orphaned => {}
            Claim::Released(uid) => remove_conditions(sender, &job.service, &uid).await?,
        }
    }
    for slice in &job.create {
        steps.push(create(sender, slice, &job.service).await?);
    }
    for (base, slice) in &job.update {
        match update(sender, base, slice).await {
            Ok(step) => steps.push(step),
            Err(failure) => return Err(read_again(sender, base, failure, steps).await),
        }
    }
    for base in &job.delete {
        match delete(sender, base).await {
            Ok(step) => steps.push(step),
            Err(ApiFailure::NotFound { .. }) => steps.push(vanished(base)),
            Err(failure) => return Err(read_again(sender, base, failure, steps).await),
        }
    }
    Ok(())
}

/// The owner of a job's slices, according to the server.
enum Claim {
    /// Their Service exists, and nearhop manages it.
    Ours,
    /// Their Service is gone, or another Service has its name.
    Orphaned,
    /// Their Service (with this UID) has conditions but lost its label.
    Released(String),
}

async fn read_claim(sender: &ApiSender, job: &Job, mode: Mode) -> Result<Claim, ApiFailure> {
    let service = ObjectRef::Service(job.service.clone());
    let body = match sender.send(ApiCall::get(service.path(), service.to_string())).await {
        Err(ApiFailure::NotFound { .. }) => return Ok(Claim::Orphaned),
        reply => reply?,
    };
    let service: Value = serde_json::from_slice(&body).unwrap_or_default();
    let metadata = &service["metadata"];
    let kept = match mode {
        Mode::Labelled => metadata["labels"][well_known::SERVICE_PROXY_NAME] == SERVICE_PROXY,
        Mode::Replace => true,
    };
    let uid = metadata["uid"].as_str().unwrap_or_default();
    let owned = |base: &Base| base.slice.owners.iter().any(|owner| *owner == *uid);
    Ok(match kept {
        true if job.delete.iter().any(owned) => Claim::Ours,
        false if service["status"]["conditions"].is_array() => Claim::Released(uid.to_owned()),
        _ => Claim::Orphaned,
    })
}

/// nearhop does not update the conditions of a Service that it no longer manages, so it removes
/// them. If that is not allowed, they stay, and the slices are deleted nevertheless.
async fn remove_conditions(
    sender: &ApiSender,
    service: &ServiceKey,
    uid: &str,
) -> Result<(), ApiFailure> {
    match sender.send(apply_conditions(service, uid, &[])).await {
        Ok(_) | Err(ApiFailure::Forbidden { .. } | ApiFailure::NotFound { .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
}

fn vanished(base: &Base) -> Step {
    Step::Vanished(base.slice.reference(), base.uid.clone())
}

async fn create(
    sender: &ApiSender,
    slice: &Slice,
    service: &ServiceKey,
) -> Result<Step, ApiFailure> {
    let what = format!("a new EndpointSlice of Service {service}");
    let (path, body) = (Kind::Slice.path(Some(&slice.namespace)), slice_to_create(slice, service));
    let reply = sender.send(ApiCall::create(path, body, what)).await?;
    Ok(Step::Wrote(Operation::Create, Box::new(decode_object(Kind::Slice, &reply))))
}

async fn update(sender: &ApiSender, base: &Base, slice: &Slice) -> Result<Step, ApiFailure> {
    let name = base.slice.reference();
    let call = ApiCall::new(
        Method::PATCH,
        name.path(),
        "application/merge-patch+json",
        slice_to_patch(&base.slice, slice, &base.version),
        name.to_string(),
    );
    let reply = sender.send(call).await?;
    Ok(Step::Wrote(Operation::Update, Box::new(decode_object(Kind::Slice, &reply))))
}

async fn delete(sender: &ApiSender, base: &Base) -> Result<Step, ApiFailure> {
    let (name, version) = (base.slice.reference(), Some(base.version.as_str()));
    sender.send(ApiCall::delete(name.path(), &base.uid, version, name.to_string())).await?;
    Ok(Step::Deleted(name, base.uid.clone()))
}

/// After a conflict, reads the slice again: the next plan must not wait for the watch.
async fn read_again(
    sender: &ApiSender,
    base: &Base,
    failure: ApiFailure,
    steps: &mut Vec<Step>,
) -> ApiFailure {
    let call = match failure {
        ApiFailure::NotFound { .. } => {
            steps.push(vanished(base));
            return failure;
        }
        ApiFailure::Conflict { .. } => {
            let name = base.slice.reference();
            ApiCall::get(name.path(), name.to_string())
        }
        failure => return failure,
    };
    match sender.send(call).await {
        Ok(body) => {
            let found = Box::new(decode_object(Kind::Slice, &body));
            steps.push(Step::Found(base.version.clone(), found));
        }
        Err(ApiFailure::NotFound { .. }) => steps.push(vanished(base)),
        Err(later) => return later,
    }
    failure
}
