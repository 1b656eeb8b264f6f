//! The options of writes: query parameters of create, update and patch, and the body or query of a
//! delete.

use nearhop_object::apply::Force;
use serde_json::Value;

use crate::errors::{Errors, Report as _};
use crate::json::{Path, at, int, text};
use crate::metadata::validate_manager;

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerb {
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH, other than apply.
    Patch,
    /// PATCH as server-side apply.
    Apply,
}

impl WriteVerb {
    /// The kind of the options in messages.
    fn options_kind(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch | Self::Apply => "PatchOptions",
        }
    }
}

/// How unknown fields are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped silently.
    Ignore,
    /// Dropped with a warning.
    #[default]
    Warn,
    /// Refused.
    Strict,
}

/// Whether a write is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// Yes.
    #[default]
    No,
    /// No: it is only validated and answered.
    All,
}

/// The options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The field manager; empty if the client names none.
    pub field_manager: String,
    /// How unknown fields are handled.
    pub field_validation: FieldValidation,
    /// Whether the write is stored.
    pub dry_run: DryRun,
    /// Whether apply takes fields from others.
    pub force: Force,
}

/// Why options are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionsError {
    /// 400 with this message.
    Malformed(String),
    /// 422 on this kind of the group `meta.k8s.io`, without a name.
    Invalid {
        /// `CreateOptions`.
        kind: &'static str,
        /// What is wrong.
        errors: Errors,
    },
}

/// Reads the options of a write from the decoded pairs of its query.
///
/// # Errors
/// As kube-apiserver refuses them.
pub fn parse_write_options<'a>(
    query: impl IntoIterator<Item = (&'a str, &'a str)>,
    verb: WriteVerb,
) -> Result<WriteOptions, OptionsError> {
    let (mut manager, mut validation, mut force) = (None, None, None);
    let mut dry_run = Vec::new();
    for (key, value) in query {
        match key {
            "fieldManager" if manager.is_none() => manager = Some(value),
            "fieldValidation" if validation.is_none() => validation = Some(value),
            "force" if force.is_none() => force = Some(value),
            "dryRun" => dry_run.push(value),
            _ => {}
        }
    }
    let manager = manager.unwrap_or_default();
    let mut errors = Vec::new();
    match verb {
        WriteVerb::Apply if manager.is_empty() => {
            errors.required("fieldManager", "is required for apply patch");
        }
        WriteVerb::Patch if force.is_some() => {
            errors.forbidden("force", "may not be specified for non-apply patch");
        }
        _ => {}
    }
    validate_manager(manager, &Path::root("fieldManager"), &mut errors);
    let dry_run = read_dry_run(&dry_run, &mut errors);
    let field_validation = read_validation(validation.unwrap_or_default(), &mut errors);
    if !errors.is_empty() {
        return Err(OptionsError::Invalid { kind: verb.options_kind(), errors });
    }
    let force = if force.is_some_and(is_yes) { Force::Yes } else { Force::No };
    Ok(WriteOptions { field_manager: manager.to_owned(), field_validation, dry_run, force })
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted first.
    Foreground,
    /// They are deleted afterwards.
    Background,
    /// They stay.
    Orphan,
}

/// The options of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The grace period of a pod; never below zero.
    pub grace_period_seconds: Option<i64>,
    /// What happens to dependents.
    pub propagation: Option<Propagation>,
    /// Whether the object is deleted.
    pub dry_run: DryRun,
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only the object in this version.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads them from a body (`null`: there was none), or else from the pairs of the query.
    ///
    /// # Errors
    /// As kube-apiserver refuses them.
    pub fn parse<'a>(
        body: &Value,
        query: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, OptionsError> {
        let raw = if body.is_null() { Raw::from_query(query)? } else { Raw::from_body(body)? };
        raw.check()
    }

    /// Why an object does not meet the preconditions: the reason of a 409.
    pub fn precondition_conflict(&self, object: &Value) -> Option<String> {
        let is = |key: &str| text(object, &["metadata", key]);
        let (uid, version) = (is("uid"), is("resourceVersion"));
        if let Some(wanted) = self.uid.as_deref().filter(|wanted| *wanted != uid) {
            return Some(format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). \
                 The object might have been deleted and then recreated"
            ));
        }
        let wanted = self.resource_version.as_deref().filter(|wanted| *wanted != version)?;
        Some(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the \
             ResourceVersion in record ({version}). The object might have been modified"
        ))
    }
}

/// The options as sent.
#[derive(Default)]
struct Raw {
    grace: Option<i64>,
    orphan: Option<bool>,
    propagation: Option<String>,
    dry_run: Vec<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Raw {
    fn from_body(body: &Value) -> Result<Self, OptionsError> {
        let kind = text(body, &["kind"]);
        if !matches!(kind, "" | "DeleteOptions") {
            let version = text(body, &["apiVersion"]);
            return Err(OptionsError::Malformed(format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \
                 \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
            )));
        }
        let string = |path: &[&str]| at(body, path).and_then(Value::as_str).map(str::to_owned);
        let dry_run = crate::json::list(body, &["dryRun"]).iter();
        Ok(Self {
            grace: int(body, &["gracePeriodSeconds"]),
            orphan: at(body, &["orphanDependents"]).and_then(Value::as_bool),
            propagation: string(&["propagationPolicy"]),
            dry_run: dry_run.map(|value| value.as_str().unwrap_or_default().to_owned()).collect(),
            uid: string(&["preconditions", "uid"]),
            resource_version: string(&["preconditions", "resourceVersion"]),
        })
    }

    fn from_query<'a>(
        query: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, OptionsError> {
        let mut raw = Self::default();
        for (key, value) in query {
            match key {
                "gracePeriodSeconds" if raw.grace.is_none() => {
                    let number = value.parse().map_err(|_| {
                        OptionsError::Malformed(format!(
                            "strconv.ParseInt: parsing {value:?}: invalid syntax"
                        ))
                    });
                    raw.grace = Some(number?);
                }
                "orphanDependents" if raw.orphan.is_none() => raw.orphan = Some(is_yes(value)),
                "propagationPolicy" if raw.propagation.is_none() => {
                    raw.propagation = Some(value.to_owned());
                }
                "dryRun" => raw.dry_run.push(value.to_owned()),
                _ => {}
            }
        }
        Ok(raw)
    }

    fn check(self) -> Result<DeleteOptions, OptionsError> {
        const FIELD: &str = "propagationPolicy";
        let mut errors = Vec::new();
        if let (Some(_), Some(policy)) = (self.orphan, &self.propagation) {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.invalid(FIELD, policy, detail);
        }
        let propagation = match (self.propagation.as_deref(), self.orphan) {
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.not_supported(FIELD, other, &supported);
                None
            }
        };
        let dry_run: Vec<&str> = self.dry_run.iter().map(String::as_str).collect();
        let dry_run = read_dry_run(&dry_run, &mut errors);
        if !errors.is_empty() {
            return Err(OptionsError::Invalid { kind: "DeleteOptions", errors });
        }
        Ok(DeleteOptions {
            // Below zero counts as one second.
            grace_period_seconds: self.grace.map(|grace| if grace < 0 { 1 } else { grace }),
            propagation,
            dry_run,
            uid: self.uid,
            resource_version: self.resource_version,
        })
    }
}

fn read_dry_run(values: &[&str], errors: &mut Errors) -> DryRun {
    if values.iter().any(|value| *value != "All") {
        errors.not_supported("dryRun", values, &["All"]);
    }
    if values.is_empty() { DryRun::No } else { DryRun::All }
}

fn read_validation(value: &str, errors: &mut Errors) -> FieldValidation {
    match value {
        "Ignore" => FieldValidation::Ignore,
        "" | "Warn" => FieldValidation::Warn,
        "Strict" => FieldValidation::Strict,
        _ => {
            errors.not_supported("fieldValidation", value, &["", "Ignore", "Strict", "Warn"]);
            FieldValidation::Warn
        }
    }
}

/// Any value but these two means yes, the empty one too.
fn is_yes(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused<T>(result: Result<T, OptionsError>) -> String {
        match result {
            Err(OptionsError::Invalid { kind, errors }) => {
                let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
                format!("{kind}: {}", texts.join(", "))
            }
            Err(OptionsError::Malformed(text)) => text,
            Ok(_) => "fine".to_owned(),
        }
    }

    #[test]
    fn invalid_write_options_are_rejected_like_kubernetes() {
        let long = "x".repeat(129);
        let cases = [
            (
                vec![("fieldValidation", "Maybe")],
                WriteVerb::Create,
                "CreateOptions: fieldValidation: Unsupported value: \"Maybe\": supported values: \
                 \"\", \"Ignore\", \"Strict\", \"Warn\"",
            ),
            (
                vec![("dryRun", "true")],
                WriteVerb::Create,
                "CreateOptions: dryRun: Unsupported value: [\"true\"]: supported values: \"All\"",
            ),
            (
                vec![],
                WriteVerb::Apply,
                "PatchOptions: fieldManager: Required value: is required for apply patch",
            ),
            (
                vec![("force", "true")],
                WriteVerb::Patch,
                "PatchOptions: force: Forbidden: may not be specified for non-apply patch",
            ),
            (
                vec![("fieldManager", long.as_str())],
                WriteVerb::Create,
                "CreateOptions: fieldManager: Too long: may not be more than 128 bytes",
            ),
            (vec![("force", "true"), ("fieldManager", "m")], WriteVerb::Apply, "fine"),
        ];
        for (query, verb, expected) in cases {
            assert_eq!(refused(parse_write_options(query, verb)), expected);
        }
    }

    #[test]
    fn write_options_are_parsed() {
        let query = [("fieldManager", "m"), ("dryRun", "All"), ("force", "false"), ("x", "y")];
        let options = parse_write_options(query, WriteVerb::Apply).unwrap();
        assert_eq!(options.field_manager, "m");
        assert_eq!((options.dry_run, options.force), (DryRun::All, Force::No));
        assert_eq!(options.field_validation, FieldValidation::Warn);
    }

    #[test]
    fn invalid_delete_options_are_rejected_like_kubernetes() {
        let body = |text: &str| DeleteOptions::parse(&serde_json::from_str(text).unwrap(), []);
        assert_eq!(
            refused(body(r#"{"propagationPolicy": "Sometimes"}"#)),
            "DeleteOptions: propagationPolicy: Unsupported value: \"Sometimes\": supported \
             values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
        );
        assert_eq!(
            refused(body(r#"{"propagationPolicy": "Foreground", "orphanDependents": true}"#)),
            "DeleteOptions: propagationPolicy: Invalid value: \"Foreground\": orphanDependents \
             and deletionPropagation cannot be both set"
        );
        assert_eq!(
            refused(body(r#"{"kind": "Pod", "apiVersion": "v1"}"#)),
            "no kind \"Pod\" is registered for version \"v1\" in scheme \
             \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
        );
    }

    #[test]
    fn delete_options_are_parsed() {
        let query = [("gracePeriodSeconds", "-5"), ("propagationPolicy", "Orphan")];
        let options = DeleteOptions::parse(&Value::Null, query).unwrap();
        assert_eq!(options.grace_period_seconds, Some(1));
        assert_eq!(options.propagation, Some(Propagation::Orphan));
        let body = json!({"preconditions": {"resourceVersion": "1"}, "orphanDependents": true});
        let options = DeleteOptions::parse(&body, []).unwrap();
        assert_eq!(options.propagation, Some(Propagation::Orphan));
        let object = json!({"metadata": {"uid": "u", "resourceVersion": "347"}});
        assert_eq!(
            options.precondition_conflict(&object).unwrap(),
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in \
             record (347). The object might have been modified"
        );
    }
}
