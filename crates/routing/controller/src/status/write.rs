//! Writes events, and conditions. It writes conditions by server-side apply with nearhop's own
//! field manager, so that the rest of the status stays unchanged.

use http::Method;
use nearhop_api::Meta;
use nearhop_api::write::conditions_to_apply;
use nearhop_core::hint::EventKind;
use nearhop_core::{Condition, ObjectRef, ServiceKey};
use nearhop_runtime::client::{
    ApiCall, ApiFailure, ApiSender, Event, EventType, EventWriter, ObjectReference,
};

use super::{ServiceEvent, StatusWrite};

/// The result of a status write.
#[derive(Debug)]
pub(crate) struct StatusOutcome {
    pub(crate) service: ServiceKey,
    /// The Service as the server has it after its conditions were written.
    pub(crate) meta: Option<Meta>,
    /// Events that could not be written.
    pub(crate) unsent: Vec<ServiceEvent>,
    /// The first failure.
    pub(crate) result: Result<(), ApiFailure>,
}

/// Writes the conditions and the events of one Service. Writes the events even if the server
/// rejects the conditions.
pub(crate) async fn write(
    sender: &ApiSender,
    events: &EventWriter,
    write: StatusWrite,
) -> StatusOutcome {
    let StatusWrite { service, uid, conditions, events: mut unsent } = write;
    let (mut meta, mut result) = (None, Ok(()));
    if let Some(conditions) = conditions {
        match sender.send(apply_conditions(&service, &uid, &conditions)).await {
            Ok(body) => meta = Meta::of_service_reply(&body),
            // The Service is gone, so its events are not needed.
            Err(ApiFailure::NotFound { .. }) => {
                return StatusOutcome { service, meta, unsent: Vec::new(), result };
            }
            Err(failure) => result = Err(failure),
        }
    }
    while let Some(event) = unsent.first() {
        match events.write(&event_about(&service, &uid, event)).await {
            Ok(()) | Err(ApiFailure::NamespaceTerminating { .. }) => {
                unsent.remove(0);
            }
            Err(failure) => {
                result = result.and(Err(failure));
                break;
            }
        }
    }
    StatusOutcome { service, meta, unsent, result }
}

/// An apply that sets these conditions, and removes nearhop's other conditions from the Service.
pub(crate) fn apply_conditions(
    service: &ServiceKey,
    uid: &str,
    conditions: &[Condition],
) -> ApiCall {
    let path = ObjectRef::Service(service.clone()).path();
    ApiCall::new(
        Method::PATCH,
        format!("{path}/status?force=true"),
        "application/apply-patch+yaml",
        conditions_to_apply(service, uid, conditions),
        format!("status of Service {service}"),
    )
}

fn event_about(service: &ServiceKey, uid: &str, event: &ServiceEvent) -> Event {
    let involved_object = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(service.namespace.to_string()),
        name: Some(service.name.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    let event_type = match event.kind {
        EventKind::Normal => EventType::Normal,
        EventKind::Warning => EventType::Warning,
    };
    Event::new(involved_object, event_type, event.reason, event.message.clone())
}
