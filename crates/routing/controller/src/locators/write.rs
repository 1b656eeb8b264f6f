//! Writes one PodLocator. The reply updates the world; after a conflict the controller waits until
//! the watch shows the new state.

use http::Method;
use nearhop_api::locator::{locator_to_create, locator_to_patch};
use nearhop_api::{Changed, Version, decode_object};
use nearhop_core::model::Locator;
use nearhop_core::{Kind, Name, ObjectRef, PodKey};
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender};

use super::Counted;
use crate::metrics::Operation;

/// What a write is based on: the object's UID and version.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub(crate) uid: Name,
    pub(crate) version: Version,
}

/// What to write.
#[derive(Debug)]
pub(crate) enum LocatorJob {
    /// The PodLocator does not exist.
    Create(Locator),
    /// The PodLocator exists and differs.
    Update { base: Base, before: Locator, after: Locator },
    /// Its Pod is gone.
    Delete(PodKey, Base),
}

/// The result of a write.
#[derive(Debug)]
pub(crate) enum LocatorStep {
    /// The controller wrote it; this is its new state.
    Wrote(Box<Changed>),
    /// The controller deleted it.
    Deleted(Name),
    /// It did not exist any more.
    Vanished(Name),
}

/// The result of a job.
#[derive(Debug)]
pub(crate) struct LocatorOutcome {
    pub(crate) key: PodKey,
    pub(crate) operation: Operation,
    pub(crate) result: Result<LocatorStep, ApiFailure>,
}

impl LocatorOutcome {
    /// The label of the metric.
    pub(crate) fn counted(&self) -> Counted {
        match &self.result {
            Ok(LocatorStep::Wrote(_) | LocatorStep::Deleted(_)) => Counted::Success,
            Ok(LocatorStep::Vanished(_)) => Counted::Gone,
            Err(ApiFailure::Conflict { .. }) => Counted::Conflict,
            Err(_) => Counted::Error,
        }
    }
}

impl LocatorJob {
    pub(crate) fn key(&self) -> &PodKey {
        match self {
            Self::Create(locator) | Self::Update { after: locator, .. } => &locator.key,
            Self::Delete(key, _) => key,
        }
    }

    pub(crate) fn operation(&self) -> Operation {
        match self {
            Self::Create(_) => Operation::Create,
            Self::Update { .. } => Operation::Update,
            Self::Delete(..) => Operation::Delete,
        }
    }

    /// The object, for messages.
    pub(crate) fn what(&self) -> String {
        format!("PodLocator {}", self.key())
    }
}

/// Runs a job.
pub(crate) async fn write(sender: &ApiSender, job: LocatorJob) -> LocatorOutcome {
    let (key, operation) = (job.key().clone(), job.operation());
    let result = match &job {
        LocatorJob::Create(_) => create(sender, &job).await,
        LocatorJob::Update { base, .. } | LocatorJob::Delete(_, base) => {
            match change(sender, &job).await {
                // The garbage collector may have deleted it already.
                Err(ApiFailure::NotFound { .. }) => Ok(LocatorStep::Vanished(base.uid.clone())),
                result => result,
            }
        }
    };
    LocatorOutcome { key, operation, result }
}

async fn create(sender: &ApiSender, job: &LocatorJob) -> Result<LocatorStep, ApiFailure> {
    let reply = sender.send(call(job)).await;
    let reply = reply.map_err(|failure| match failure {
        ApiFailure::NotFound { what } => ApiFailure::Rejected {
            what,
            code: 404,
            message: "the namespace is gone, or the CRD of PodLocators is missing: \
                      nearhop manifests | kubectl apply -f -"
                .to_owned(),
        },
        // Another client created it: the watch will show it.
        ApiFailure::AlreadyExists { what } => ApiFailure::Conflict { what },
        failure => failure,
    });
    Ok(LocatorStep::Wrote(Box::new(decode_object(Kind::Locator, &reply?))))
}

async fn change(sender: &ApiSender, job: &LocatorJob) -> Result<LocatorStep, ApiFailure> {
    let body = sender.send(call(job)).await?;
    Ok(match job {
        LocatorJob::Delete(_, base) => LocatorStep::Deleted(base.uid.clone()),
        _ => LocatorStep::Wrote(Box::new(decode_object(Kind::Locator, &body))),
    })
}

fn call(job: &LocatorJob) -> ApiCall {
    let path = || ObjectRef::Locator(job.key().clone()).path();
    match job {
        LocatorJob::Create(locator) => {
            let collection = Kind::Locator.path(Some(&job.key().namespace));
            ApiCall::create(collection, locator_to_create(locator), job.what())
        }
        LocatorJob::Update { base, before, after } => ApiCall::new(
            Method::PATCH,
            path(),
            "application/merge-patch+json",
            locator_to_patch(before, after, &base.version),
            job.what(),
        ),
        LocatorJob::Delete(_, base) => {
            let version = Some(base.version.as_str());
            ApiCall::delete(path(), &base.uid, version, job.what())
        }
    }
}
