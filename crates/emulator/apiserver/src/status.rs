//! Errors as Kubernetes words them: an HTTP code and a `Status` body.

use nearhop_kinds::Resource;
use nearhop_object::FieldError;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) code: u16,
    pub(crate) message: String,
    /// `Status.reason`; a few errors of Kubernetes have none.
    pub(crate) reason: Option<Reason>,
    pub(crate) details: Option<Value>,
    /// `metadata.continue` of an expired list.
    pub(crate) resume: Option<String>,
    /// The body is this text instead of a `Status`.
    pub(crate) plain: bool,
}

/// `Status.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    AlreadyExists,
    Conflict,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    Timeout,
}

impl ApiError {
    fn new(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            reason: Some(reason),
            details: None,
            resume: None,
            plain: false,
        }
    }

    fn with(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, Reason::BadRequest, message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, Reason::Unauthorized, "Unauthorized")
    }

    /// `services "a" is forbidden: why`.
    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let plural = resource.qualified_plural();
        let subject = if name.is_empty() { plural } else { format!("{plural} \"{name}\"") };
        Self::new(403, Reason::Forbidden, format!("{subject} is forbidden: {why}"))
            .with(named(resource, name))
    }

    pub(crate) fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
        Self::new(403, Reason::Forbidden, message).with(json!({}))
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified_plural());
        Self::new(404, Reason::NotFound, message).with(named(resource, name))
    }

    /// A resource or subresource that a known group does not have.
    pub(crate) fn no_such_resource() -> Self {
        Self::new(404, Reason::NotFound, "the server could not find the requested resource")
            .with(json!({}))
    }

    pub(crate) fn no_such_path() -> Self {
        Self { plain: true, ..Self::new(404, Reason::NotFound, "404 page not found\n") }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, Reason::MethodNotAllowed, message).with(json!({}))
    }

    pub(crate) fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, Reason::NotAcceptable, message)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified_plural());
        Self::new(409, Reason::AlreadyExists, message).with(named(resource, name))
    }

    /// Another write came first.
    pub(crate) fn conflict(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict_on(resource, name, why)
    }

    pub(crate) fn conflict_on(resource: &Resource, name: &str, why: &str) -> Self {
        Self::conflict_because(&resource.qualified_plural(), named(resource, name), name, why)
    }

    pub(crate) fn conflict_because(subject: &str, details: Value, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {subject} \"{name}\": {why}");
        Self::new(409, Reason::Conflict, message).with(details)
    }

    pub(crate) fn apply_conflict(message: String, causes: Value) -> Self {
        Self::new(409, Reason::Conflict, message).with(json!({ "causes": causes }))
    }

    pub(crate) fn expired(message: impl Into<String>, resume: Option<String>) -> Self {
        Self { resume, ..Self::new(410, Reason::Expired, message) }
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, Reason::RequestEntityTooLarge, message)
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, Reason::UnsupportedMediaType, message)
    }

    pub(crate) fn unknown_patch_type() -> Self {
        Self::new(415, Reason::UnsupportedMediaType, "415: Unsupported Media Type").with(json!({}))
    }

    /// A valid request that cannot be done, without a field to name.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(422, Reason::Invalid, message).with(json!({}))
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_kind(&resource.group, &resource.kind, name, errors)
    }

    /// The same for things that are no resource: `CreateOptions` of `meta.k8s.io`. An empty kind is
    /// left out.
    pub(crate) fn invalid_kind(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let subject = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let shown = FieldError::aggregate(errors);
        let causes: Vec<Value> = errors
            .iter()
            .map(|e| json!({"reason": e.kind.reason(), "message": e.message, "field": e.field}))
            .collect();
        let mut details = without_empty([("name", name), ("group", group), ("kind", kind)]);
        if !causes.is_empty() {
            details["causes"] = causes.into();
        }
        let message = format!("{subject} \"{name}\" is invalid: {shown}");
        Self::new(422, Reason::Invalid, message).with(details)
    }

    pub(crate) fn too_many_requests() -> Self {
        let message = "Too many requests, please try again later.\n";
        Self { plain: true, ..Self::new(429, Reason::TooManyRequests, message) }
    }

    pub(crate) fn budget(needed: i64, healthy: i64, name: &str) -> Self {
        let cause = format!(
            "The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        );
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self::new(429, Reason::TooManyRequests, message)
            .with(json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}))
    }

    /// Kubernetes gives some refusals as a 500 without a reason.
    pub(crate) fn bare(message: impl Into<String>) -> Self {
        Self { reason: None, ..Self::new(500, Reason::InternalError, message) }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let shown = format!("Internal error occurred: {message}");
        Self::new(500, Reason::InternalError, shown).with(json!({"causes": [{"message": message}]}))
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, Reason::Timeout, message).with(json!({}))
    }

    pub(crate) fn version_too_large(asked: u64, newest: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {newest}");
        Self::new(504, Reason::Timeout, message).with(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1
        }))
    }

    pub(crate) fn injected(code: u16) -> Self {
        let reason = match code {
            403 => Reason::Forbidden,
            409 => Reason::Conflict,
            422 => Reason::Invalid,
            429 => return Self::too_many_requests(),
            _ => Reason::InternalError,
        };
        Self::new(code, reason, format!("injected fault: {code}"))
    }

    pub(crate) fn retry_after(&self) -> bool {
        self.code == 429 && self.plain
            || self.details.as_ref().is_some_and(|d| d.get("retryAfterSeconds").is_some())
    }

    pub(crate) fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code
        });
        if let Some(reason) = self.reason {
            status["reason"] = json!(reason);
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        if let Some(resume) = &self.resume {
            status["metadata"]["continue"] = resume.as_str().into();
        }
        status
    }
}

/// `{"name": …, "group": …, "kind": "services"}`, without what is empty.
pub(crate) fn named(resource: &Resource, name: &str) -> Value {
    without_empty([("name", name), ("group", &resource.group), ("kind", &resource.plural)])
}

pub(crate) fn without_empty(parts: [(&str, &str); 3]) -> Value {
    parts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}
