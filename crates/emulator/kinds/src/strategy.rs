//! What is done with objects of each kind on their way into the store: the one place that the REST
//! layer asks. Each function hands over to the module of the kind.
//!
//! A write goes through: decoding, [`default`], (managed fields), [`prepare_create`] or
//! [`prepare_update`], [`validate_create`] or [`validate_update`], [`warnings`]. Objects come
//! type-checked and normalised; name, namespace, uid and creationTimestamp of a new object are
//! already set. Complaints may come twice: all of them are causes, the message shows each once.

use nearhop_object::FieldError;
use serde_json::{Value, json};

use crate::config::ClusterConfig;
use crate::initial_status::initial_status;
use crate::json::{at, carry, make, object};
use crate::metadata::{self, FinalizerRule, MetaRule, NameRule, bump_generation};
use crate::pod::NodeLabels;
use crate::resource::Resource;
use crate::workload::Workload;
use crate::{
    crd, endpoints, endpointslice, event, namespace, node, pod, service, simple, workload,
};

pub use crate::fields::{field_value, selectable, supports_field};
pub use crate::rules::{DeleteAnswers, Generation, Rules, reset_fields, rules};

/// What a kind may need to know of the world around its object.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The time, RFC 3339 in whole seconds.
    pub now: &'a str,
    /// The labels of a node, by its name.
    pub node_labels: NodeLabels<'a>,
    /// Ranges and feature gates.
    pub cluster: &'a ClusterConfig,
}

/// The kinds as far as they differ here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Custom,
    Definition,
    Service,
    EndpointSlice,
    Endpoints,
    Pod,
    Node,
    Namespace,
    ConfigMap,
    Secret,
    Lease,
    Event(event::View),
    Workload(Workload),
    Job,
    CronJob,
    PodTemplate,
    Other,
}

fn kind_of(resource: &Resource) -> Kind {
    if resource.is_custom() {
        return Kind::Custom;
    }
    match (&*resource.group, &*resource.kind) {
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Kind::Definition,
        ("", "Service") => Kind::Service,
        ("discovery.k8s.io", "EndpointSlice") => Kind::EndpointSlice,
        ("", "Endpoints") => Kind::Endpoints,
        ("", "Pod") => Kind::Pod,
        ("", "Node") => Kind::Node,
        ("", "Namespace") => Kind::Namespace,
        ("", "ConfigMap") => Kind::ConfigMap,
        ("", "Secret") => Kind::Secret,
        ("", "Event") => Kind::Event(event::View::Core),
        ("", "PodTemplate") => Kind::PodTemplate,
        ("", "ReplicationController") => Kind::Workload(Workload::ReplicationController),
        ("apps", "Deployment") => Kind::Workload(Workload::Deployment),
        ("apps", "ReplicaSet") => Kind::Workload(Workload::ReplicaSet),
        ("apps", "DaemonSet") => Kind::Workload(Workload::DaemonSet),
        ("apps", "StatefulSet") => Kind::Workload(Workload::StatefulSet),
        ("batch", "Job") => Kind::Job,
        ("batch", "CronJob") => Kind::CronJob,
        ("coordination.k8s.io", "Lease") => Kind::Lease,
        ("events.k8s.io", "Event") => Kind::Event(event::View::Events),
        _ => Kind::Other,
    }
}

/// Fills in what an object leaves out, as part of decoding it.
pub fn default(resource: &Resource, object: &mut Value) {
    match kind_of(resource) {
        Kind::Definition => crd::default_crd(object),
        Kind::Service => service::default(object),
        Kind::EndpointSlice => endpointslice::default(object),
        Kind::Endpoints => endpoints::default(object),
        Kind::Pod => pod::default(object),
        Kind::Node => node::default(object),
        Kind::Namespace => namespace::default(object),
        Kind::Workload(_) | Kind::Job | Kind::CronJob | Kind::PodTemplate => {
            workload::default(&resource.kind, object);
        }
        Kind::Secret | Kind::Other => simple::default(&resource.group, &resource.kind, object),
        Kind::Custom | Kind::ConfigMap | Kind::Lease | Kind::Event(_) => {}
    }
}

/// Makes a new object what it is to be whatever its creator says: status, generation, and what
/// admission adds.
pub fn prepare_create(resource: &Resource, new: &mut Value, cx: &Context<'_>) {
    metadata::prepare_create(new);
    if rules(resource).generation != Generation::None {
        *make(new, &["metadata", "generation"]) = json!(1);
    }
    match kind_of(resource) {
        Kind::Custom => return crd::prepare_create(resource, new),
        Kind::Definition => crd::prepare_crd_create(new),
        Kind::Service => service::prepare_create(new, cx.cluster),
        Kind::EndpointSlice => endpointslice::prepare_create(new, cx.cluster),
        Kind::Pod => pod::prepare_create(new, cx.now, cx.node_labels),
        Kind::Node => node::prepare_create(new),
        Kind::Namespace => namespace::prepare_create(new),
        Kind::Workload(Workload::DaemonSet) => workload::prepare_daemon_set(new),
        Kind::Job => workload::prepare_job(new),
        _ => {}
    }
    if let Some(status) = initial_status(resource) {
        object(new).insert("status".to_owned(), status);
    }
}

/// Restores what an update (of the object, or of a subresource) may not change, adds what admission
/// adds, and moves the generation.
pub fn prepare_update(
    resource: &Resource,
    subresource: Option<&str>,
    new: &mut Value,
    old: &Value,
    cx: &Context<'_>,
) {
    for path in reset_fields(resource, subresource) {
        restore(new, old, path);
    }
    metadata::prepare_update(new, old);
    let kind = kind_of(resource);
    if subresource == Some("status") {
        match kind {
            Kind::Pod => pod::prepare_status_update(new, old),
            Kind::Custom => crd::prepare_update(resource, subresource, new, old),
            Kind::Definition => crd::prepare_crd_status_update(new, old),
            _ => {}
        }
        return;
    }
    match kind {
        // These count their generation themselves.
        Kind::Custom => return crd::prepare_update(resource, subresource, new, old),
        Kind::Definition => return crd::prepare_crd_update(new, old),
        Kind::EndpointSlice => return endpointslice::prepare_update(new, old, cx.cluster),
        Kind::Service => service::prepare_update(new, old, cx.cluster),
        Kind::Pod if subresource.is_none() => pod::prepare_update(new, old, cx.node_labels),
        Kind::Namespace if subresource.is_none() => namespace::prepare_update(new, old),
        Kind::Workload(Workload::DaemonSet) => workload::update_daemon_set(new, old),
        _ => {}
    }
    // Being bound is not a change of what was asked for.
    if subresource != Some("binding") && moves_generation(resource, new, old) {
        bump_generation(new);
    }
}

/// Checks a new object.
pub fn validate_create(resource: &Resource, new: &Value, cx: &Context<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = kind_of(resource);
    if let Kind::Event(view) = kind {
        errors = event::validate_create(&event::to_core(new), view);
        if errors.is_empty() {
            metadata::validate(resource, new, rules(resource).meta, &mut errors);
        }
        return errors;
    }
    metadata::validate(resource, new, rules(resource).meta, &mut errors);
    errors.extend(match kind {
        Kind::Custom => crd::validate_create(resource, new),
        Kind::Definition => crd::validate_crd(new),
        Kind::Service => service::validate_create(new, cx.cluster),
        Kind::EndpointSlice => endpointslice::validate_create(new),
        Kind::Endpoints => endpoints::validate(new, None),
        Kind::Pod => pod::validate_create(new),
        Kind::Node => node::validate(new),
        Kind::Namespace => namespace::validate(new),
        Kind::ConfigMap => simple::validate_config_map(new),
        Kind::Secret => simple::validate_secret(new),
        Kind::Lease => simple::validate_lease(new),
        Kind::Workload(workload) => workload::validate(new, workload),
        Kind::Job => workload::validate_job(new, None),
        Kind::CronJob => workload::validate_cron_job(new),
        Kind::Event(_) | Kind::PodTemplate | Kind::Other => Vec::new(),
    });
    errors
}

/// Checks an update of an object or of a subresource.
pub fn validate_update(
    resource: &Resource,
    subresource: Option<&str>,
    new: &Value,
    old: &Value,
    cx: &Context<'_>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_update_metadata(resource, subresource, new, old, &mut errors);
    let kind = kind_of(resource);
    errors.extend(match subresource {
        _ if kind == Kind::Custom => crd::validate_update(resource, subresource, new, old),
        Some("status") => validate_status(kind, new, old),
        Some("finalize") => namespace::validate_finalize(new),
        None | Some("scale") => validate_main_update(kind, new, old, cx),
        Some(_) => Vec::new(),
    });
    errors
}

/// What is worth saying about an object that is created (`old` is `None`) or updated.
pub fn warnings(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<String> {
    match (kind_of(resource), old) {
        (Kind::Definition, _) => crd::warnings(new),
        (Kind::Service, _) => service::warnings(new),
        (Kind::EndpointSlice, None) => endpointslice::warnings_on_create(new),
        (Kind::EndpointSlice, Some(_)) => endpointslice::warnings_on_update(new),
        (Kind::Endpoints, _) => endpoints::warnings(new),
        // Pods change too often for more than one word about them.
        (Kind::Pod, None) => pod::warnings(new),
        (Kind::Workload(workload), _) => {
            let mut warnings = match old {
                None => workload::name_warnings(new, workload),
                Some(_) => Vec::new(),
            };
            warnings.extend(workload::template_warnings(new, old, &["spec", "template"]));
            warnings
        }
        (Kind::Job, _) => workload::template_warnings(new, old, &["spec", "template"]),
        (Kind::CronJob, _) => {
            let place = ["spec", "jobTemplate", "spec", "template"];
            workload::template_warnings(new, old, &place)
        }
        (Kind::PodTemplate, _) => workload::template_warnings(new, old, &["template"]),
        (Kind::Node, _) => node::warnings(new),
        _ => Vec::new(),
    }
}

/// What is worth saying about a status that is written.
pub fn status_warnings(resource: &Resource, new: &Value) -> Vec<String> {
    match kind_of(resource) {
        Kind::Service => service::status_warnings(new),
        _ => Vec::new(),
    }
}

/// What is said on every request for a resource.
pub fn resource_warning(resource: &Resource) -> Option<&'static str> {
    match (&*resource.group, &*resource.kind) {
        ("", "Endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        ("", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        _ => None,
    }
}

/// What holds for all kinds, and then what the kind itself looks at again.
fn validate_update_metadata(
    resource: &Resource,
    subresource: Option<&str>,
    new: &Value,
    old: &Value,
    errors: &mut Vec<FieldError>,
) {
    use crate::rules::Repeat;

    let common = MetaRule { name: NameRule::PathSegment, finalizers: FinalizerRule::Any };
    metadata::validate(resource, new, common, errors);
    metadata::validate_update(new, old, FinalizerRule::Any, errors);
    let rules = rules(resource);
    let repeat = match (subresource, rules.repeat) {
        (Some("status" | "finalize"), Repeat::Both) => Repeat::Update,
        (_, repeat) => repeat,
    };
    if matches!(repeat, Repeat::Update | Repeat::Both) {
        metadata::validate_update(new, old, rules.meta.finalizers, errors);
    }
    if matches!(repeat, Repeat::Form | Repeat::Both) {
        metadata::validate(resource, new, rules.meta, errors);
    }
}

fn validate_main_update(kind: Kind, new: &Value, old: &Value, cx: &Context<'_>) -> Vec<FieldError> {
    match kind {
        Kind::Definition => crd::validate_crd_update(new, old),
        Kind::Service => service::validate_update(new, old, cx.cluster),
        Kind::EndpointSlice => endpointslice::validate_update(new, old),
        Kind::Endpoints => endpoints::validate(new, Some(old)),
        Kind::Pod => pod::validate_update(new, old),
        Kind::Node => {
            let mut errors = node::validate(new);
            errors.extend(node::validate_update(new, old));
            errors
        }
        Kind::Namespace => namespace::validate(new),
        Kind::ConfigMap => simple::validate_config_map_update(new, old),
        Kind::Secret => simple::validate_secret_update(new, old),
        Kind::Lease => simple::validate_lease(new),
        Kind::Event(view) => {
            event::validate_update(&event::to_core(new), &event::to_core(old), view)
        }
        Kind::Workload(workload) => workload::validate_update(new, old, workload),
        Kind::Job => workload::validate_job(new, Some(old)),
        Kind::CronJob => workload::validate_cron_job(new),
        Kind::Custom | Kind::PodTemplate | Kind::Other => Vec::new(),
    }
}

fn validate_status(kind: Kind, new: &Value, old: &Value) -> Vec<FieldError> {
    match kind {
        Kind::Service => service::validate_status_update(new, old),
        Kind::Pod => pod::validate_status_update(new, old),
        Kind::Node => node::validate_update(new, old),
        Kind::Namespace => namespace::validate_status(new),
        Kind::Workload(_) => workload::validate_status(new),
        _ => Vec::new(),
    }
}

/// A path `metadata` alone stands for the parts of it that a client writes.
fn restore(new: &mut Value, old: &Value, path: &[&str]) {
    if path == ["metadata"] {
        for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
            carry(new, old, &["metadata", key]);
        }
    } else {
        carry(new, old, path);
    }
}

fn moves_generation(resource: &Resource, new: &Value, old: &Value) -> bool {
    let differs = |path: &[&str]| at(new, path) != at(old, path);
    match rules(resource).generation {
        Generation::Part(part) => differs(&[part]),
        Generation::SpecAndAnnotations => {
            differs(&["spec"]) || differs(&["metadata", "annotations"])
        }
        Generation::None | Generation::Content | Generation::ContentAndLabels => false,
    }
}
