//! Writes conditions and events, both by server-side apply under a field manager of their own, so
//! that nobody else's part of a status is touched.

use http::Method;
use jiff::Timestamp;
use nearhop_api::Meta;
use nearhop_api::wire;
use nearhop_api::write::conditions_to_apply;
use nearhop_core::{Condition, ServiceKey};
use serde_json::json;

use crate::call::{Call, Caller, FIELD_MANAGER, Failure};
use crate::status::{Note, Tell};

const APPLY: &str = "application/apply-patch+yaml";

/// How telling ended.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) service: ServiceKey,
    /// The Service as the server has it after its conditions were written.
    pub(crate) meta: Option<Meta>,
    /// Events that could not be raised.
    pub(crate) left: Vec<Note>,
    /// What became of the conditions.
    pub(crate) conditions: Result<(), Failure>,
    /// What became of the events.
    pub(crate) events: Result<(), Failure>,
}

impl Told {
    /// Nothing was told.
    pub(crate) fn failed(service: ServiceKey, failure: Failure) -> Self {
        let (conditions, events) = (Err(failure), Ok(()));
        Self { service, meta: None, left: Vec::new(), conditions, events }
    }
}

/// Tells one Service's story. Events are raised even where conditions are refused.
pub(crate) async fn tell(caller: &Caller, instance: &str, tell: Tell) -> Told {
    let Tell { service, uid, conditions, notes } = tell;
    let mut told = Told {
        service: service.clone(),
        meta: None,
        left: Vec::new(),
        conditions: Ok(()),
        events: Ok(()),
    };
    if let Some(conditions) = conditions {
        match caller.send(apply_conditions(&service, &uid, &conditions)).await {
            Ok(body) => {
                let answer: Result<wire::Service, _> = serde_json::from_slice(&body);
                told.meta = answer.ok().map(|service| Meta::of_service(&service));
            }
            // It is gone; there is nobody to tell.
            Err(Failure::NotFound { .. }) => return told,
            Err(failure) => told.conditions = Err(failure),
        }
    }
    for (i, note) in notes.iter().enumerate() {
        let now = Timestamp::now();
        match caller.send(event(&service, &uid, note, instance, now)).await {
            Ok(_) | Err(Failure::NamespaceTerminating { .. }) => {}
            Err(failure) => {
                told.events = Err(failure);
                told.left = notes[i..].to_vec();
                break;
            }
        }
    }
    told
}

/// The apply after which a Service has these conditions of ours, and no others of ours.
pub(crate) fn apply_conditions(service: &ServiceKey, uid: &str, conditions: &[Condition]) -> Call {
    let ServiceKey { namespace, name } = service;
    Call {
        method: Method::PATCH,
        path: format!(
            "/api/v1/namespaces/{namespace}/services/{name}/status\
             ?fieldManager={FIELD_MANAGER}&force=true"
        ),
        content_type: APPLY,
        body: conditions_to_apply(service, uid, conditions),
        what: format!("status of Service {service}"),
    }
}

/// The apply that makes an event. Its name is the moment, as client libraries name events.
fn event(service: &ServiceKey, uid: &str, note: &Note, instance: &str, now: Timestamp) -> Call {
    let ServiceKey { namespace, name } = service;
    // 253 characters at most, with the dot and 16 digits.
    let stem: String = name.chars().take(230).collect();
    let event = format!("{stem}.{:016x}", now.as_nanosecond());
    let seconds = Timestamp::from_second(now.as_second()).expect("it was a timestamp").to_string();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event, "namespace": namespace.as_str()},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Service", "namespace": namespace.as_str(),
            "name": name.as_str(), "uid": uid,
        },
        "type": note.kind.as_str(),
        "reason": note.reason,
        // The server takes 1 kB.
        "message": note.message.chars().take(1000).collect::<String>(),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": instance,
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
    });
    Call {
        method: Method::PATCH,
        path: format!(
            "/api/v1/namespaces/{namespace}/events/{event}?fieldManager={FIELD_MANAGER}&force=true"
        ),
        content_type: APPLY,
        body: body.to_string().into_bytes(),
        what: format!("event {} of Service {service}", note.reason),
    }
}
