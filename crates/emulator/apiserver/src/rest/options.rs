//! The parameters of a list and of a watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use nearhop_kinds::Resource;
use nearhop_kinds::strategy::{field_value, supports_field};
use nearhop_object::FieldError;
use nearhop_object::selector::{FieldSelector, LabelSelector, SelectorError};
use serde_json::Value;

use crate::http::Query;
use crate::status::ApiError;
use crate::store::Stored;

/// How fresh a list must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The newest state.
    Newest,
    /// Any state that is known.
    Any,
    /// At least this version.
    NotOlderThan(u64),
    /// Exactly this version.
    Exact(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    name: Option<String>,
    /// Set if a field selector names a field that is not kept beside the stored text: one of a
    /// custom resource's definition, or of a form other than the stored one.
    declared: Option<Arc<Resource>>,
}

impl Selection {
    pub(super) fn parse(
        resource: &Arc<Resource>,
        query: &Query,
        name: Option<&str>,
    ) -> Result<Self, ApiError> {
        let text = |key: &str| query.get(key).unwrap_or_default();
        let refuse = |error: SelectorError| ApiError::bad_request(error.to_string());
        let labels = LabelSelector::parse(text("labelSelector")).map_err(refuse)?;
        let fields = FieldSelector::parse(text("fieldSelector")).map_err(refuse)?;
        if let Some(field) = fields.fields().find(|field| !supports_field(resource, field)) {
            return Err(ApiError::bad_request(format!("field label not supported: {field}")));
        }
        let own = |field: &str| !matches!(field, "metadata.name" | "metadata.namespace");
        let read = resource.is_custom() || resource.strategy.stored_form.is_some();
        let declared = (read && fields.fields().any(own)).then(|| Arc::clone(resource));
        Ok(Self { labels, fields, name: name.map(str::to_owned), declared })
    }

    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything() && self.name.is_none()
    }

    pub(super) fn matches(&self, object: &Stored) -> bool {
        self.name.as_deref().is_none_or(|name| *object.name.name == *name)
            && (self.fields.is_everything() || self.matches_fields(object))
            && (self.labels.is_everything() || self.labels.matches(|key| object.content.label(key)))
    }

    fn matches_fields(&self, object: &Stored) -> bool {
        let Some(resource) = &self.declared else {
            return self.fields.matches(|field| field_of(object, field));
        };
        let value = object.to_value("");
        let read = |field: &str| (field.to_owned(), field_value(resource, &value, field));
        let found: BTreeMap<String, Option<String>> = self.fields.fields().map(read).collect();
        self.fields.matches(|field| found.get(field)?.as_deref())
    }
}

fn field_of<'a>(object: &'a Stored, field: &str) -> Option<&'a str> {
    match field {
        "metadata.name" => Some(&object.name.name),
        "metadata.namespace" => Some(&object.name.namespace),
        other => object.content.field(other),
    }
}

pub(super) struct ListOptions {
    pub(super) freshness: Freshness,
    pub(super) limit: Option<usize>,
    pub(super) resume: Option<String>,
}

impl ListOptions {
    pub(super) fn parse(query: &Query) -> Result<Self, ApiError> {
        let limit = query.number("limit")?;
        query.number("timeoutSeconds")?;
        let resume = query.get("continue").map(str::to_owned);
        let (asked, matched) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
        let mut errors = check_match(asked, matched, resume.as_deref());
        if query.flag("sendInitialEvents") {
            errors.push(FieldError::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        refuse(errors)?;
        if resume.is_some() && asked.is_some_and(|version| version != "0") {
            let why = "specifying resource version is not allowed when using continue";
            return Err(ApiError::bad_request(why));
        }
        let version = asked.map(parse_version).transpose()?;
        let limited = limit.is_some_and(|limit| limit > 0);
        let freshness = match (version, matched) {
            (None, _) => Freshness::Newest,
            (Some(0), _) => Freshness::Any,
            (Some(version), Some("Exact")) => Freshness::Exact(version),
            (Some(version), None) if limited => Freshness::Exact(version),
            (Some(version), _) => Freshness::NotOlderThan(version),
        };
        // A list from the cache is not paged.
        let limit = match freshness {
            Freshness::Any => None,
            _ => limit.filter(|limit| *limit > 0).and_then(|limit| usize::try_from(limit).ok()),
        };
        Ok(Self { freshness, limit, resume })
    }
}

pub(super) struct WatchOptions {
    /// `None`: begin with all existing objects.
    pub(super) after: Option<u64>,
    pub(super) bookmarks: bool,
    /// A bookmark marks the end of the initial objects.
    pub(super) mark_end: bool,
    pub(super) timeout_seconds: Option<u64>,
}

impl WatchOptions {
    pub(super) fn parse(query: &Query) -> Result<Self, ApiError> {
        let timeout = query.number("timeoutSeconds")?;
        let (asked, matched) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
        let initial = query.has("sendInitialEvents").then(|| query.flag("sendInitialEvents"));
        refuse(check_watch(query, initial, matched))?;
        // Kubernetes refuses a malformed version of a watch with a 500.
        let version = asked.map(version_of).transpose().map_err(ApiError::bare)?;
        let bookmarks = query.flag("allowWatchBookmarks");
        let after = match (initial, version) {
            (Some(true), _) | (None, None | Some(0)) => None,
            (Some(false), None | Some(0)) => Some(u64::MAX),
            (_, Some(version)) => Some(version),
        };
        Ok(Self {
            after,
            bookmarks,
            mark_end: initial == Some(true) && bookmarks,
            timeout_seconds: timeout.and_then(|t| u64::try_from(t).ok()).filter(|t| *t > 0),
        })
    }
}

const MATCH: &str = "resourceVersionMatch";
const WITH_CONTINUE: &str = "resourceVersionMatch is forbidden when continue is provided";

fn check_watch(query: &Query, initial: Option<bool>, matched: Option<&str>) -> Vec<FieldError> {
    let why = match (initial, matched) {
        _ if query.get("continue").is_some() => WITH_CONTINUE,
        (Some(_), Some("NotOlderThan")) | (None, None) => return Vec::new(),
        (Some(_), None) => {
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        }
        (Some(_), Some(other)) => {
            return vec![FieldError::not_supported(MATCH, &Value::from(other), &["NotOlderThan"])];
        }
        (None, Some(_)) => {
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        }
    };
    vec![FieldError::forbidden(MATCH, why)]
}

fn check_match(
    asked: Option<&str>,
    matched: Option<&str>,
    resume: Option<&str>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(matched) = matched else { return errors };
    if resume.is_some() {
        errors.push(FieldError::forbidden(MATCH, WITH_CONTINUE));
    }
    if !matches!(matched, "Exact" | "NotOlderThan") {
        let supported = &["Exact", "NotOlderThan", ""];
        errors.push(FieldError::not_supported(MATCH, &Value::from(matched), supported));
    } else if asked.is_none() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    } else if matched == "Exact" && asked == Some("0") {
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    errors
}

fn refuse(errors: Vec<FieldError>) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &errors))
}

/// A version that a client sent with a get or a list.
pub(super) fn parse_version(text: &str) -> Result<u64, ApiError> {
    version_of(text)
        .map_err(|why| ApiError::bad_request(format!("invalid resource version: {why}")))
}

fn version_of(text: &str) -> Result<u64, String> {
    let why = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        "value out of range"
    } else {
        "invalid syntax"
    };
    text.parse().map_err(|_| {
        format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {why}"
        )
    })
}
