//! Writes one PodLocator. What the server answers goes back into the world; a write that came too
//! late waits for the watch to show what is there now.

use http::Method;
use nearhop_api::locator::{API_VERSION, RESOURCE, locator_to_create, locator_to_patch};
use nearhop_api::{Changed, Version, decode_object};
use nearhop_core::model::Locator;
use nearhop_core::{Kind, Name, PodKey};
use serde_json::json;

use super::Counted;
use crate::call::{Call, Caller, FIELD_MANAGER, Failure};
use crate::metrics::Operation;

/// What a write is based on: which life of the object, and which version of it.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub(crate) uid: Name,
    pub(crate) version: Version,
}

/// What is to be written.
#[derive(Debug)]
pub(crate) enum LocatorJob {
    /// It is not there.
    Create(Locator),
    /// It is there, and differs.
    Update { base: Base, before: Locator, after: Locator },
    /// Its Pod is gone.
    Delete(PodKey, Base),
}

/// What became of a PodLocator.
#[derive(Debug)]
pub(crate) enum LocatorStep {
    /// It is like this now.
    Wrote(Box<Changed>),
    /// We deleted it.
    Deleted(Name),
    /// It was gone before.
    Vanished(Name),
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct LocatorOutcome {
    pub(crate) key: PodKey,
    pub(crate) operation: Operation,
    pub(crate) result: Result<LocatorStep, Failure>,
}

impl LocatorOutcome {
    /// As it is counted.
    pub(crate) fn counted(&self) -> Counted {
        match &self.result {
            Ok(LocatorStep::Wrote(_) | LocatorStep::Deleted(_)) => Counted::Success,
            Ok(LocatorStep::Vanished(_)) => Counted::Gone,
            Err(Failure::Conflict { .. }) => Counted::Conflict,
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

/// Does a job.
pub(crate) async fn write(caller: &Caller, job: LocatorJob) -> LocatorOutcome {
    let (key, operation) = (job.key().clone(), job.operation());
    let result = match &job {
        LocatorJob::Create(_) => create(caller, &job).await,
        LocatorJob::Update { base, .. } | LocatorJob::Delete(_, base) => {
            match change(caller, &job).await {
                // The garbage collector may have been faster.
                Err(Failure::NotFound { .. }) => Ok(LocatorStep::Vanished(base.uid.clone())),
                result => result,
            }
        }
    };
    LocatorOutcome { key, operation, result }
}

async fn create(caller: &Caller, job: &LocatorJob) -> Result<LocatorStep, Failure> {
    let answer = caller.send(call(job)).await;
    let answer = answer.map_err(|failure| match failure {
        Failure::NotFound { what } => Failure::Refused {
            what,
            code: 404,
            message: "its namespace is gone, or PodLocators are not defined: \
                      nearhop manifests | kubectl apply -f -"
                .to_owned(),
        },
        // Somebody else made it: the watch will show it.
        Failure::Trouble { what, code: 409, .. } => Failure::Conflict { what },
        failure => failure,
    });
    Ok(LocatorStep::Wrote(Box::new(decode_object(Kind::Locator, &answer?))))
}

async fn change(caller: &Caller, job: &LocatorJob) -> Result<LocatorStep, Failure> {
    let body = caller.send(call(job)).await?;
    Ok(match job {
        LocatorJob::Delete(_, base) => LocatorStep::Deleted(base.uid.clone()),
        _ => LocatorStep::Wrote(Box::new(decode_object(Kind::Locator, &body))),
    })
}

fn call(job: &LocatorJob) -> Call {
    let PodKey { namespace, name } = job.key();
    let collection = format!("/apis/{API_VERSION}/namespaces/{namespace}/{RESOURCE}");
    let (method, path, content_type, body) = match job {
        LocatorJob::Create(locator) => (
            Method::POST,
            format!("{collection}?fieldManager={FIELD_MANAGER}"),
            "application/json",
            locator_to_create(locator),
        ),
        LocatorJob::Update { base, before, after } => (
            Method::PATCH,
            format!("{collection}/{name}?fieldManager={FIELD_MANAGER}"),
            "application/merge-patch+json",
            locator_to_patch(before, after, &base.version),
        ),
        LocatorJob::Delete(_, base) => {
            let preconditions =
                json!({"uid": base.uid.as_str(), "resourceVersion": base.version.as_str()});
            let body = json!({"preconditions": preconditions}).to_string().into_bytes();
            (Method::DELETE, format!("{collection}/{name}"), "application/json", body)
        }
    };
    Call { method, path, content_type, body, what: job.what() }
}
