//! The rules that a write of an object follows. A [`Resource`] holds the [`Strategy`] of its kind;
//! the table of strategies is in `rows`, code that a kind needs is in the module of the kind.
//!
//! A write goes through decoding, [`default`], managed fields, [`warn_ignored`], [`prepare_create`] or
//! [`prepare_update`], [`validate_create`] or [`validate_update`], [`warnings`]. Objects are
//! type-checked and normalised before; name, namespace, uid and creationTimestamp of a new object
//! are set. Validation may report an error twice: each report becomes a cause, the message shows it
//! once.

mod rows;

use serde_json::{Value, json};

use crate::config::ClusterConfig;
use crate::errors::Errors;
use crate::fields::Fields;
use crate::json::{at, carry, make, object};
use crate::metadata::{self, FinalizerRule, MetaRule, NameRule, bump_generation};
use crate::namespace;
use crate::pod::NodeLabels;
use crate::resource::Resource;
use crate::verb::Subresource;

pub use crate::fields::{field_value, selectable, supports_field};
pub(crate) use rows::{CUSTOM, strategy_of};

/// The cluster state that the rules of a kind read besides the object.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The time, RFC 3339 in whole seconds.
    pub now: &'a str,
    /// The labels of a node, by its name.
    pub node_labels: NodeLabels<'a>,
    /// Ranges and feature gates.
    pub cluster: &'a ClusterConfig,
}

/// One write as the rules of a kind see it.
pub(crate) struct Write<'a> {
    resource: &'a Resource,
    subresource: Option<Subresource>,
    context: &'a Context<'a>,
}

/// How the objects of a kind are written. Each row of the table names the differences from a plain
/// kind.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// A PUT to a name that does not exist creates the object.
    pub create_on_update: bool,
    /// A PUT without a resourceVersion overwrites the stored object.
    pub unconditional_update: bool,
    /// The body of the response to a DELETE that removes the object.
    pub delete_answers: DeleteAnswers,
    /// A DELETE keeps the object for a grace period (Pod).
    pub graceful: bool,
    /// Names of objects that cannot be deleted.
    pub protected: &'static [&'static str],
    /// How a DELETE marks an object, if not by deletionTimestamp and grace period alone.
    pub terminate: Option<fn(&mut Value, &str)>,
    /// `spec.finalizers` keep an object as `metadata.finalizers` do (Namespace).
    pub spec_finalizers: bool,
    /// Objects get cluster IPs and node ports (Service).
    pub allocates: bool,
    /// The API server answers a create and stores nothing.
    pub review: Option<Review>,
    /// The warning on every request for the resource.
    pub deprecation: Option<&'static str>,
    /// Objects are stored in the form of another resource.
    pub stored_form: Option<StoredForm>,
    /// The version in which Kubernetes stores objects, if it is not the resource's own.
    pub(crate) storage_version: Option<&'static str>,
    generation: Generation,
    meta: MetaRule,
    /// A create checks the metadata only if the kind's own checks pass (Event).
    metadata_last: bool,
    repeat: Repeat,
    /// What a `/status` write does not change.
    kept_by_status: &'static [&'static str],
    initial_status: InitialStatus,
    default: fn(&mut Value),
    prepare_create: fn(&mut Value, &Write<'_>),
    prepare_update: fn(&mut Value, &Value, &Write<'_>),
    prepare_status: fn(&mut Value, &Value, &Write<'_>),
    validate: fn(&Value, Option<&Value>, &Write<'_>) -> Errors,
    validate_status: fn(&Value, &Value, &Write<'_>) -> Errors,
    /// Warnings about what the client sent, before `prepare_create` or `prepare_update`.
    ignored: fn(&Value, Option<&Value>, &Write<'_>) -> Vec<String>,
    warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    status_warnings: fn(&Value) -> Vec<String>,
    /// The fields that field selectors know.
    pub(crate) fields: Fields,
    /// `metadata.namespace` is a field that field selectors know.
    pub(crate) namespace_field: bool,
    /// The conditions of an object's row in a Table.
    pub(crate) row_conditions: fn(&Value) -> Option<Value>,
}

/// The body of the response to a DELETE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteAnswers {
    /// The last state of the object.
    Object,
    /// `Status` with the object's uid.
    Status,
}

/// A resource whose objects are questions about identity and access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// SelfSubjectReview.
    SelfSubject,
    /// SelfSubjectAccessReview.
    SelfSubjectAccess,
    /// SelfSubjectRulesReview.
    SelfSubjectRules,
    /// SubjectAccessReview and LocalSubjectAccessReview.
    SubjectAccess,
    /// TokenReview.
    Token,
}

impl Review {
    /// Whether the question is about the client that asks.
    pub fn is_about_self(self) -> bool {
        matches!(self, Self::SelfSubject | Self::SelfSubjectAccess | Self::SelfSubjectRules)
    }
}

/// The form in which objects of a resource are stored, if another resource shares them.
#[derive(Clone, Copy, Debug)]
pub struct StoredForm {
    /// The strategy of the resource whose form it is.
    pub strategy: &'static Strategy,
    /// Converts an object to the stored form.
    pub to_stored: fn(&Value) -> Value,
    /// Converts a stored object to the resource's form.
    pub from_stored: fn(&Value) -> Value,
    pub(crate) storage: &'static str,
}

/// When `metadata.generation` moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generation {
    /// The kind has none.
    None,
    /// When this field changes.
    Field(&'static str),
    /// When the spec or the annotations change.
    SpecAndAnnotations,
    /// The module of the kind counts.
    Own,
}

/// Which checks of the metadata a kind repeats on an update. Clients see every error found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Nothing,
    Update,
    Form,
    Both,
}

/// The status of a new object, whatever the client sent.
#[derive(Clone, Copy, Debug)]
enum InitialStatus {
    /// Empty, if the kind has a status.
    Empty,
    /// The module of the kind sets it.
    Own,
    Given(fn() -> Value),
}

/// Sets the defaults of an object, as part of decoding it.
pub fn default(resource: &Resource, object: &mut Value) {
    (resource.strategy.default)(object);
}

/// Sets what a client cannot choose in a new object: status, generation, and what admission adds.
pub fn prepare_create(resource: &Resource, new: &mut Value, context: &Context<'_>) {
    let strategy = resource.strategy;
    metadata::prepare_create(new);
    if strategy.generation != Generation::None {
        *make(new, &["metadata", "generation"]) = json!(1);
    }
    (strategy.prepare_create)(new, &Write { resource, subresource: None, context });
    let status = match strategy.initial_status {
        InitialStatus::Given(status) => status(),
        InitialStatus::Empty if resource.has(Subresource::Status) => json!({}),
        InitialStatus::Empty | InitialStatus::Own => return,
    };
    object(new).insert("status".to_owned(), status);
}

/// Restores what an update (of the object or of a subresource) cannot change, adds what admission
/// adds, and moves the generation.
pub fn prepare_update(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &mut Value,
    old: &Value,
    context: &Context<'_>,
) {
    let strategy = resource.strategy;
    let write = Write { resource, subresource, context };
    for path in reset_fields(resource, subresource) {
        restore(new, old, path);
    }
    metadata::prepare_update(new, old);
    if subresource == Some(Subresource::Status) {
        return (strategy.prepare_status)(new, old, &write);
    }
    (strategy.prepare_update)(new, old, &write);
    // Binding a Pod is not a change of its spec.
    if subresource != Some(Subresource::Binding) && moves_generation(strategy, new, old) {
        bump_generation(new);
    }
}

/// Validates a new object.
pub fn validate_create(resource: &Resource, new: &Value, context: &Context<'_>) -> Errors {
    let strategy = resource.strategy;
    let mut own = (strategy.validate)(new, None, &Write { resource, subresource: None, context });
    if strategy.metadata_last && !own.is_empty() {
        return own;
    }
    let mut errors = Vec::new();
    metadata::validate(resource, new, strategy.meta, &mut errors);
    errors.append(&mut own);
    errors
}

/// Validates an update of an object or of a subresource.
pub fn validate_update(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &Value,
    old: &Value,
    context: &Context<'_>,
) -> Errors {
    let strategy = resource.strategy;
    let write = Write { resource, subresource, context };
    let mut errors = Vec::new();
    validate_update_metadata(resource, subresource, new, old, &mut errors);
    errors.extend(match subresource {
        None | Some(Subresource::Scale) => (strategy.validate)(new, Some(old), &write),
        Some(Subresource::Status) => (strategy.validate_status)(new, old, &write),
        Some(Subresource::Finalize) => namespace::validate_finalize(new),
        Some(_) => Vec::new(),
    });
    errors
}

/// The warnings about requests that the server does not store, or that have no effect with its
/// feature gates. `new` is the object as the client sent it, before [`prepare_create`] (`old` is
/// `None`) or [`prepare_update`].
pub fn warn_ignored(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &Value,
    old: Option<&Value>,
    context: &Context<'_>,
) -> Vec<String> {
    match subresource {
        None => (resource.strategy.ignored)(new, old, &Write { resource, subresource, context }),
        Some(_) => Vec::new(),
    }
}

/// The warnings about an object that is created (`old` is `None`) or updated.
pub fn warnings(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &Value,
    old: Option<&Value>,
) -> Vec<String> {
    match subresource {
        Some(Subresource::Status) => (resource.strategy.status_warnings)(new),
        _ => (resource.strategy.warnings)(new, old),
    }
}

/// The fields that a writer of a resource (or of a subresource) does not change and never owns. A
/// path `metadata` alone means labels, annotations, owners and finalizers.
pub fn reset_fields(
    resource: &Resource,
    subresource: Option<Subresource>,
) -> &'static [&'static str] {
    match subresource {
        None if resource.has(Subresource::Status) => &["status"],
        Some(Subresource::Finalize) => &["status"],
        Some(Subresource::Status) => resource.strategy.kept_by_status,
        _ => &[],
    }
}

/// The checks of all kinds, then those that the kind repeats.
fn validate_update_metadata(
    resource: &Resource,
    subresource: Option<Subresource>,
    new: &Value,
    old: &Value,
    errors: &mut Errors,
) {
    let common = MetaRule { name: NameRule::PathSegment, finalizers: FinalizerRule::Any };
    metadata::validate(resource, new, common, errors);
    metadata::validate_update(new, old, FinalizerRule::Any, errors);
    let Strategy { meta, repeat, .. } = *resource.strategy;
    let repeat = match (subresource, repeat) {
        (Some(Subresource::Status | Subresource::Finalize), Repeat::Both) => Repeat::Update,
        (_, repeat) => repeat,
    };
    if matches!(repeat, Repeat::Update | Repeat::Both) {
        metadata::validate_update(new, old, meta.finalizers, errors);
    }
    if matches!(repeat, Repeat::Form | Repeat::Both) {
        metadata::validate(resource, new, meta, errors);
    }
}

fn restore(new: &mut Value, old: &Value, path: &str) {
    if path == "metadata" {
        for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
            carry(new, old, &["metadata", key]);
        }
    } else {
        carry(new, old, &path.split('.').collect::<Vec<_>>());
    }
}

fn moves_generation(strategy: &Strategy, new: &Value, old: &Value) -> bool {
    let differs = |path: &[&str]| at(new, path) != at(old, path);
    match strategy.generation {
        Generation::Field(field) => differs(&[field]),
        Generation::SpecAndAnnotations => {
            differs(&["spec"]) || differs(&["metadata", "annotations"])
        }
        Generation::None | Generation::Own => false,
    }
}
