//! Validation of a CustomResourceDefinition.
//!
//! Kubernetes validates an internal form in which schema, subresources and columns that are equal in
//! all versions are fields beside `spec.versions`. So errors name `spec.validation.openAPIV3Schema…`
//! instead of the user's field; [`Hoisted`] reproduces that.

use nearhop_object::{FieldError, FieldErrorKind, structural};
use serde_json::Value;

use super::names::check_names;
use super::{conditions, flag, list, schema, text, versions};
use crate::errors::{Errors, Report as _};
use crate::names::{dns1035_label, dns1123_subdomain};

const APPROVAL: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// The allowed fields at the root of a schema with a status subresource, as Kubernetes prints them.
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum \
                       ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems \
                       MultipleOf Required Items Properties ExternalDocs Example \
                       XPreserveUnknownFields XValidations]";

/// Validates a new CustomResourceDefinition with its defaults, except its metadata.
pub fn validate_crd(crd: &Value) -> Errors {
    let mut errors = Vec::new();
    let name = text(crd, "/metadata/name");
    let (plural, group) = (text(crd, "/spec/names/plural"), text(crd, "/spec/group"));
    if name != format!("{plural}.{group}") {
        errors.invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group");
    }
    check_spec(crd, &mut errors);
    check_status(crd, &mut errors);
    check_approval(crd, None, &mut errors);
    check_preserve(crd, None, &mut errors);
    errors
}

/// Validates an update of a CustomResourceDefinition.
pub fn validate_crd_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    check_spec(new, &mut errors);
    let established = ["/spec/scope", "/spec/names/kind"];
    let always = ["/spec/group", "/spec/names/plural"];
    let established = established.iter().filter(|_| conditions::is_established(old));
    for pointer in established.chain(&always) {
        let value = text(new, pointer);
        if value != text(old, pointer) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            errors.invalid(field, value, "field is immutable");
        }
    }
    check_status(new, &mut errors);
    check_approval(new, Some(old), &mut errors);
    check_preserve(new, Some(old), &mut errors);
    errors
}

/// The parts that are equal in all versions.
struct Hoisted {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Hoisted {
    fn of(versions: &[Value]) -> Self {
        let same = |key: &str| {
            let part = |version: &Value| version.get(key).cloned().unwrap_or(Value::Null);
            let first = versions.first().map(part);
            !versions.is_empty() && versions.iter().all(|version| Some(part(version)) == first)
        };
        Self {
            schema: same("schema"),
            subresources: same("subresources"),
            columns: same("additionalPrinterColumns"),
            selectable: same("selectableFields"),
        }
    }

    /// The versions in the internal form, as Go prints them.
    fn show(&self, versions: &[Value]) -> String {
        let part = |version: &Value, key: &str, hoisted: bool| match version.get(key) {
            Some(value) if !hoisted => value.to_string(),
            _ => "null".to_owned(),
        };
        let show = |version: &Value| {
            format!(
                "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\
                 \"DeprecationWarning\":{},\"Schema\":{},\"Subresources\":{},\
                 \"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
                Value::from(text(version, "/name")),
                flag(version, "served"),
                flag(version, "storage"),
                flag(version, "deprecated"),
                part(version, "deprecationWarning", false),
                part(version, "schema", self.schema),
                part(version, "subresources", self.subresources),
                part(version, "additionalPrinterColumns", self.columns),
                part(version, "selectableFields", self.selectable),
            )
        };
        format!("[{}]", versions.iter().map(show).collect::<Vec<_>>().join(","))
    }
}

fn check_spec(crd: &Value, errors: &mut Errors) {
    let versions = versions(crd);
    let hoisted = Hoisted::of(versions);
    check_group_and_scope(crd, errors);
    for (at, _) in versions.iter().enumerate().filter(|(_, version)| schema(version).is_none()) {
        errors.required(format!("spec.versions[{at}].schema.openAPIV3Schema"), "");
    }
    for (at, version) in versions.iter().enumerate() {
        check_version(version, &hoisted, &format!("spec.versions[{at}]"), errors);
    }
    check_version_list(versions, &hoisted, errors);
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(crd, &format!("/spec/names/{key}")).is_empty() {
            errors.required(format!("spec.names.{key}"), "");
        }
    }
    if let Some(names) = crd.pointer("/spec/names") {
        errors.extend(check_names(names, "spec.names"));
    }
    if let Some(first) = versions.first() {
        let any_status = versions.iter().any(has_status);
        if hoisted.schema {
            check_version_schema(first, any_status, "spec.validation", errors);
        }
        if hoisted.subresources {
            check_subresources(first, "spec.subresources", errors);
        }
        if hoisted.columns {
            check_columns(first, "spec.additionalPrinterColumns", errors);
        }
        if hoisted.selectable {
            check_selectable(first, "spec.selectableFields", errors);
        }
    }
    check_conversion(crd, errors);
}

fn check_group_and_scope(crd: &Value, errors: &mut Errors) {
    let group = text(crd, "/spec/group");
    let problem = dns1123_subdomain(group).join(",");
    if group.is_empty() {
        errors.required("spec.group", "");
    } else if !problem.is_empty() {
        errors.invalid("spec.group", group, &problem);
    } else if !group.contains('.') {
        errors.invalid("spec.group", group, "should be a domain with at least one dot");
    }
    errors.one_of("spec.scope", text(crd, "/spec/scope"), &["Cluster", "Namespaced"]);
}

fn check_version(version: &Value, hoisted: &Hoisted, path: &str, errors: &mut Errors) {
    let name = text(version, "/name");
    let problem = dns1035_label(name).join(",");
    if !problem.is_empty() {
        errors.invalid(format!("{path}.name"), name, &problem);
    }
    if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
        let said = match warning {
            _ if !flag(version, "deprecated") => "can only be set for deprecated versions",
            "" => "must not be an empty string",
            long if long.len() > 256 => "must be <= 256 characters long",
            _ => "",
        };
        if !said.is_empty() {
            errors.invalid(format!("{path}.deprecationWarning"), warning, said);
        }
    }
    if !hoisted.schema {
        check_version_schema(version, has_status(version), &format!("{path}.schema"), errors);
    }
    if !hoisted.subresources {
        check_subresources(version, &format!("{path}.subresources"), errors);
    }
    if !hoisted.columns {
        check_columns(version, &format!("{path}.additionalPrinterColumns"), errors);
    }
    if !hoisted.selectable {
        check_selectable(version, &format!("{path}.selectableFields"), errors);
    }
}

fn check_version_list(versions: &[Value], hoisted: &Hoisted, errors: &mut Errors) {
    let mut names: Vec<&str> = versions.iter().map(|version| text(version, "/name")).collect();
    names.sort_unstable();
    let twice = names.windows(2).any(|pair| matches!(pair, [a, b] if a == b));
    let stored = versions.iter().filter(|version| flag(version, "storage")).count();
    for (wrong, said) in [
        (twice, "must contain unique version names"),
        (stored != 1, "must have exactly one version marked as storage version"),
    ] {
        if wrong {
            let message = format!("Invalid value: {}: {said}", hoisted.show(versions));
            errors.push(FieldError::new(FieldErrorKind::Invalid, "spec.versions", message));
        }
    }
}

fn has_status(version: &Value) -> bool {
    version.pointer("/subresources/status").is_some_and(Value::is_object)
}

fn check_version_schema(version: &Value, has_status: bool, path: &str, errors: &mut Errors) {
    let Some(schema) = schema(version) else { return };
    let path = format!("{path}.openAPIV3Schema");
    // Constraints of the root would not apply to the schema of the status.
    let lost = [
        "additionalProperties",
        "allOf",
        "anyOf",
        "default",
        "enum",
        "maxProperties",
        "minProperties",
        "not",
        "nullable",
        "oneOf",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
    ];
    let is_set = |key: &str| schema.get(key).is_some_and(|v| !v.is_null() && *v != false);
    if has_status && lost.iter().any(|key| is_set(key)) {
        let said = format!(
            "only {AT_ROOT} fields are allowed at the root of the schema if the status \
             subresource is enabled"
        );
        errors.invalid(path.clone(), schema, &said);
    }
    errors.extend(structural::check_schema(schema, &path));
}

fn check_subresources(version: &Value, path: &str, errors: &mut Errors) {
    let Some(scale) = version.pointer("/subresources/scale").filter(|s| s.is_object()) else {
        return;
    };
    for (key, below) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        let given = text(scale, &format!("/{key}"));
        let field = format!("{path}.scale.{key}");
        if given.is_empty() {
            errors.required(field, "");
        } else if !given.starts_with('.') {
            errors.invalid(field, given, "must be a simple json path starting with .");
        } else if !given.starts_with(&format!("{below}.")) {
            errors.invalid(field, given, &format!("should be a json path under {below}"));
        }
    }
    let selector = text(scale, "/labelSelectorPath");
    let fits = selector.starts_with(".spec.") || selector.starts_with(".status.");
    if !selector.is_empty() && !fits {
        let said = if selector.starts_with('.') {
            "should be a json path under either .spec or .status"
        } else {
            "must be a simple json path starting with ."
        };
        errors.invalid(format!("{path}.scale.labelSelectorPath"), selector, said);
    }
}

fn check_columns(version: &Value, path: &str, errors: &mut Errors) {
    for (at, column) in list(version, "/additionalPrinterColumns").iter().enumerate() {
        let field = |key: &str| format!("{path}[{at}].{key}");
        if text(column, "/name").is_empty() {
            errors.required(field("name"), "");
        }
        let type_ = text(column, "/type");
        let said = format!("must be one of {}", COLUMN_TYPES.join(","));
        if type_.is_empty() {
            errors.required(field("type"), &said);
        } else if !COLUMN_TYPES.contains(&type_) {
            errors.invalid(field("type"), type_, &said);
        }
        let format = text(column, "/format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let said = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.invalid(field("format"), format, &said);
        }
        let json_path = text(column, "/jsonPath");
        if json_path.is_empty() {
            errors.required(field("JSONPath"), "");
        } else if !json_path.starts_with('.') {
            let said = "must be a simple json path starting with .";
            errors.invalid(field("JSONPath"), json_path, said);
        }
    }
}

fn check_selectable(version: &Value, path: &str, errors: &mut Errors) {
    let fields = list(version, "/selectableFields");
    let mut seen: Vec<&str> = Vec::new();
    for (at, selectable) in fields.iter().enumerate() {
        let field = format!("{path}[{at}].jsonPath");
        let json_path = text(selectable, "/jsonPath");
        if json_path.is_empty() {
            errors.required(field, "");
        } else if json_path.starts_with(".metadata") {
            errors.invalid(field, json_path, "must not point to fields in metadata");
        } else if seen.contains(&json_path) {
            errors.duplicate(field, json_path);
        } else {
            seen.push(json_path);
        }
    }
    if seen.len() > 8 {
        errors.push(FieldError::too_many(path, seen.len(), 8));
    }
}

fn check_conversion(crd: &Value, errors: &mut Errors) {
    let Some(conversion) = crd.pointer("/spec/conversion").filter(|c| c.is_object()) else {
        return;
    };
    let webhook = conversion.get("webhook").filter(|webhook| webhook.is_object());
    let config = webhook.and_then(|w| w.get("clientConfig")).filter(|config| config.is_object());
    let reviews = webhook.map(|w| list(w, "/conversionReviewVersions")).unwrap_or_default();
    let (config_field, reviews_field) =
        ("spec.conversion.webhookClientConfig", "spec.conversion.conversionReviewVersions");
    let strategy = text(conversion, "/strategy");
    errors.one_of("spec.conversion.strategy", strategy, &["None", "Webhook"]);
    if strategy != "Webhook" {
        let said = "should not be set when strategy is not set to Webhook";
        if config.is_some() {
            errors.forbidden(config_field, said);
        }
        if !reviews.is_empty() {
            errors.forbidden(reviews_field, said);
        }
        return;
    }
    match config {
        None => errors.required(config_field, "required when strategy is set to Webhook"),
        Some(config) if config.get("url").is_some() == config.get("service").is_some() => {
            errors.required(config_field, "exactly one of url or service is required");
        }
        Some(_) => {}
    }
    if reviews.is_empty() {
        errors.required(reviews_field, "");
    } else if !reviews.iter().any(|review| review == "v1" || review == "v1beta1") {
        errors.invalid(reviews_field, reviews.to_vec(), "must include at least one of v1, v1beta1");
    }
}

fn check_status(crd: &Value, errors: &mut Errors) {
    if let Some(names) = crd.pointer("/status/acceptedNames") {
        errors.extend(check_names(names, "status.acceptedNames"));
    }
    let field = "status.storedVersions";
    let stored = list(crd, "/status/storedVersions");
    if stored.is_empty() {
        errors.invalid(field, &Value::Null, "must have at least one stored version");
        return;
    }
    let versions = versions(crd);
    for version in versions.iter().filter(|version| flag(version, "storage")) {
        let name = text(version, "/name");
        if !stored.iter().any(|stored| stored == name) {
            let said = format!("must have the storage version {name}");
            errors.invalid(field, stored.to_vec(), &said);
        }
    }
    for (at, stored) in stored.iter().enumerate() {
        let name = stored.as_str().unwrap_or_default();
        if !versions.iter().any(|version| text(version, "/name") == name) {
            let said = format!(
                "missing from spec.versions; {name} was previously a storage version, and must \
                 remain in spec.versions until a storage migration ensures no data remains \
                 persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.invalid(format!("{field}[{at}]"), stored, &said);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Approval {
    Given,
    Bypassed,
    Missing,
    Invalid,
}

fn approval(text: &str) -> Approval {
    let url = || {
        text.split_once("://").is_some_and(|(scheme, rest)| {
            let host = rest.split(['/', '?']).next().unwrap_or_default();
            !scheme.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace)
        })
    };
    match text {
        "" => Approval::Missing,
        _ if text.starts_with("unapproved") => Approval::Bypassed,
        _ if url() => Approval::Given,
        _ => Approval::Invalid,
    }
}

/// Groups of Kubernetes need the approval annotation.
fn check_approval(crd: &Value, old: Option<&Value>, errors: &mut Errors) {
    let group = text(crd, "/spec/group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|suffix| group.strip_suffix(suffix).is_some_and(|p| p.is_empty() || p.ends_with('.')));
    let given = |crd| crate::json::text(crd, &["metadata", "annotations", APPROVAL]);
    let state = approval(given(crd));
    if !protected || old.is_some_and(|old| approval(given(old)) == state) {
        return;
    }
    let field = format!("metadata.annotations[{APPROVAL}]");
    let said = format!("protected groups must have approval annotation {APPROVAL:?}");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state {
        Approval::Given | Approval::Bypassed => {}
        Approval::Missing => errors.required(field, &format!("{said}, {see}")),
        Approval::Invalid => {
            let how = "with either a URL or a reason starting with \"unapproved\"";
            errors.invalid(field, given(crd), &format!("{said} {how}, {see}"));
        }
    }
}

fn check_preserve(crd: &Value, old: Option<&Value>, errors: &mut Errors) {
    let preserves = |crd: &Value| crd.get("spec").is_some_and(|s| flag(s, "preserveUnknownFields"));
    if preserves(crd) && !old.is_some_and(preserves) {
        let said = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                    spec.versions[*].schema instead";
        errors.invalid("spec.preserveUnknownFields", true, said);
    }
}
