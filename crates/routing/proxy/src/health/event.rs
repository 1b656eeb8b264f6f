//! Kubernetes Events that the proxy records: about Services whose health check port cannot be
//! opened, and about its own start.

use nearhop_core::Name;
use nearhop_runtime::client::{
    ApiSender, Client, Event, EventRecorder, EventType, EventWriter, ObjectReference,
};

use crate::health::services::ListenFailure;

/// `reportingComponent` of the Events.
const COMPONENT: &str = "nearhop-proxy";

/// Starts the task that writes the Events of the proxy on this node.
///
/// # Panics
/// Outside of a tokio runtime.
#[must_use]
pub fn start_recorder(client: Client, node: &str) -> EventRecorder {
    let sender = ApiSender::new(client, COMPONENT);
    let writer = EventWriter::new(sender, COMPONENT, format!("{COMPONENT}-{node}"));
    EventRecorder::start(writer.with_host(node))
}

/// The `healthCheckNodePort` of a Service cannot be opened on this node. `kubectl describe` finds
/// the Event by the Service's UID.
#[must_use]
pub fn listen_failed(node: &str, failure: &ListenFailure, uid: Option<Name>) -> Event {
    let service = ObjectReference {
        namespace: Some(failure.service.namespace.to_string()),
        uid: uid.map(|uid| uid.to_string()),
        ..reference("Service", &failure.service.name)
    };
    let message = format!("node {node}: {failure}");
    let reason = "FailedToStartServiceHealthcheck";
    Event { action: Some("Listen"), ..Event::new(service, EventType::Warning, reason, message) }
}

/// The proxy has started. By convention the UID in Events about a Node is the Node's name, and
/// kubectl searches for that.
#[must_use]
pub fn starting(node: &Name) -> Event {
    let object = ObjectReference { uid: Some(node.to_string()), ..reference("Node", node) };
    let event = Event::new(object, EventType::Normal, "Starting", "");
    Event { action: Some("StartKubeProxy"), ..event }
}

fn reference(kind: &str, name: &Name) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_string()),
        ..ObjectReference::default()
    }
}
