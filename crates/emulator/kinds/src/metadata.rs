//! The rules for `metadata` of every kind: names, labels, annotations, owners, finalizers, and
//! immutable fields.

use nearhop_object::{FieldError, FieldErrorKind};
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{self, Path, carry, entries, is_true, list, text};
use crate::names;
use crate::resource::Resource;

/// The form of a kind's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS subdomain: most kinds.
    Subdomain,
    /// A DNS label: Service, Namespace, StatefulSet.
    Label,
    /// Any segment of a path: RBAC, Event.
    PathSegment,
}

/// Which finalizers without a `/` are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerRule {
    /// Those of Kubernetes: built-in kinds.
    Standard,
    /// Any: custom resources, Event.
    Any,
}

/// The rules of a kind's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRule {
    /// Its names.
    pub name: NameRule,
    /// Its finalizers.
    pub finalizers: FinalizerRule,
}

const ANNOTATIONS_MAX: usize = 256 * 1024;
const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// The error of an update without a resourceVersion, for kinds that require one.
pub fn missing_resource_version() -> FieldError {
    let detail = "must be specified for an update";
    FieldError::invalid("metadata.resourceVersion", &json!(0), detail)
}

/// Removes fields that a client cannot set on create.
pub fn prepare_create(object: &mut Value) {
    if let Some(Value::Object(meta)) = object.get_mut("metadata") {
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta.remove(key);
        }
    }
}

/// Restores fields that an update cannot change (generation, creationTimestamp, deletionTimestamp)
/// or may omit (uid, deletionGracePeriodSeconds).
pub fn prepare_update(new: &mut Value, old: &Value) {
    carry(new, old, &["metadata", "generation"]);
    carry(new, old, &["metadata", "creationTimestamp"]);
    if !text(old, &["metadata", "deletionTimestamp"]).is_empty() {
        carry(new, old, &["metadata", "deletionTimestamp"]);
    }
    if text(new, &["metadata", "uid"]).is_empty() {
        carry(new, old, &["metadata", "uid"]);
    }
    if json::at(new, &["metadata", "deletionGracePeriodSeconds"]).is_none() {
        carry(new, old, &["metadata", "deletionGracePeriodSeconds"]);
    }
    if let Some(Value::Object(meta)) = new.get_mut("metadata") {
        meta.remove("selfLink");
    }
}

/// Raises `metadata.generation` by one.
pub(crate) fn bump_generation(object: &mut Value) {
    let now = json::int(object, &["metadata", "generation"]).unwrap_or_default();
    *json::make(object, &["metadata", "generation"]) = json!(now.saturating_add(1));
}

/// Removes items from a list of an object, and the list when it becomes empty.
pub fn retain_items(
    object: &mut Value,
    [parent, list]: [&str; 2],
    keep: impl FnMut(&Value) -> bool,
) {
    let Some(Value::Object(members)) = object.get_mut(parent) else { return };
    if let Some(Value::Array(items)) = members.get_mut(list) {
        items.retain(keep);
        if items.is_empty() {
            members.remove(list);
        }
    }
}

/// Validates the metadata of an object.
pub fn validate(resource: &Resource, object: &Value, rule: MetaRule, errors: &mut Errors) {
    let meta = object.get("metadata").unwrap_or(&Value::Null);
    let path = Path::root("metadata");
    validate_names(meta, rule.name, &path, errors);
    validate_namespace(resource, meta, &path, errors);
    if let Some(generation) = json::int(meta, &["generation"]).filter(|value| *value < 0) {
        errors.invalid(path.child("generation"), generation, "must be greater than or equal to 0");
    }
    validate_common(meta, &path, errors);
    validate_finalizers(meta, &path, errors);
    validate_standard_finalizers(meta, rule.finalizers, &path, errors);
}

/// Validates the changes of an object's metadata.
pub fn validate_update(new: &Value, old: &Value, finalizers: FinalizerRule, errors: &mut Errors) {
    let meta = new.get("metadata").unwrap_or(&Value::Null);
    let before = old.get("metadata").unwrap_or(&Value::Null);
    let path = Path::root("metadata");
    if !text(before, &["deletionTimestamp"]).is_empty() {
        validate_no_new_finalizers(meta, before, &path, errors);
    }
    for key in ["name", "namespace", "uid"] {
        let (now, was) = (text(meta, &[key]), text(before, &[key]));
        if now != was {
            errors.invalid(path.child(key), now, "field is immutable");
        }
    }
    for key in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        errors.immutable(path.child(key), json::at(meta, &[key]), json::at(before, &[key]));
    }
    validate_common(meta, &path, errors);
    validate_standard_finalizers(meta, finalizers, &path, errors);
}

/// Validates the keys and values of labels.
pub(crate) fn validate_labels(holder: &Value, at: &[&str], path: &Path<'_>, errors: &mut Errors) {
    for (key, value) in entries(holder, at) {
        errors.invalid_each(path, key, names::qualified_name(key));
        errors.invalid_each(path, value, names::label_value(value.as_str().unwrap_or_default()));
    }
}

/// Validates the keys of annotations, and their total size.
pub(crate) fn validate_annotations(
    holder: &Value,
    at: &[&str],
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let mut size = 0;
    for (key, value) in entries(holder, at) {
        size += key.len() + value.as_str().unwrap_or_default().len();
        errors.invalid_each(path, key, names::qualified_name(&key.to_lowercase()));
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
}

/// The errors of a name under a rule.
pub(crate) fn name_complaints(name: &str, rule: NameRule) -> Vec<String> {
    match rule {
        NameRule::Subdomain => names::dns1123_subdomain(name),
        NameRule::Label => names::dns1123_label(name),
        NameRule::PathSegment => path_segment(name, &[".", ".."]),
    }
}

/// Validates the name of a field manager.
pub(crate) fn validate_manager(manager: &str, path: &Path<'_>, errors: &mut Errors) {
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError::too_long(path, MANAGER_MAX));
    }
    for (position, c) in manager.char_indices().filter(|(_, c)| !is_print(*c)) {
        let code = u32::from(c);
        let detail = format!("invalid character U+{code:04X} (at position {position})");
        errors.invalid(path, manager, &detail);
    }
}

/// Whether a finalizer without a `/` is not one of Kubernetes.
pub(crate) fn is_unknown_finalizer(name: &str) -> bool {
    !name.contains('/') && !STANDARD_FINALIZERS.contains(&name)
}

/// The error of such a finalizer.
pub(crate) const UNKNOWN_FINALIZER: &str =
    "name is neither a standard finalizer name nor is it fully qualified";

fn path_segment(name: &str, banned: &[&str]) -> Vec<String> {
    if banned.contains(&name) {
        return vec![format!("may not be '{name}'")];
    }
    let contained = ["/", "%"].into_iter().filter(|part| name.contains(part));
    contained.map(|part| format!("may not contain '{part}'")).collect()
}

fn validate_names(meta: &Value, rule: NameRule, path: &Path<'_>, errors: &mut Errors) {
    let prefix = text(meta, &["generateName"]);
    if !prefix.is_empty() {
        let complaints = match rule {
            NameRule::PathSegment => path_segment(prefix, &[]),
            _ => name_complaints(&names::mask_trailing_dash(prefix), rule),
        };
        errors.invalid_each(path.child("generateName"), prefix, complaints);
    }
    let name = text(meta, &["name"]);
    if name.is_empty() {
        errors.required(path.child("name"), "name or generateName is required");
        return;
    }
    errors.invalid_each(path.child("name"), name, name_complaints(name, rule));
}

fn validate_namespace(resource: &Resource, meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    let namespace = text(meta, &["namespace"]);
    let path = path.child("namespace");
    match (resource.namespaced, namespace.is_empty()) {
        (true, true) => errors.required(path, ""),
        (true, false) => {
            errors.invalid_each(path, namespace, names::dns1123_label(namespace));
        }
        (false, false) => errors.forbidden(path, "not allowed on this type"),
        (false, true) => {}
    }
}

/// The checks of create and update: labels, annotations, owners and managers.
fn validate_common(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    validate_labels(meta, &["labels"], &path.child("labels"), errors);
    validate_annotations(meta, &["annotations"], &path.child("annotations"), errors);
    validate_owners(meta, &path.child("ownerReferences"), errors);
    validate_managed_fields(meta, &path.child("managedFields"), errors);
}

fn validate_owners(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    let owners = list(meta, &["ownerReferences"]);
    let mut controller: Option<String> = None;
    for owner in owners {
        validate_owner(owner, path, errors);
        if !is_true(owner, &["controller"]) {
            continue;
        }
        let name = format!("{}/{}", text(owner, &["kind"]), text(owner, &["name"]));
        let Some(first) = &controller else {
            controller = Some(name);
            continue;
        };
        let all: Vec<String> = owners.iter().map(owner_text).collect();
        let message = format!(
            "Invalid value: [{}]: Only one reference can have Controller set to true. Found \
             \"true\" in references for {first} and {name}",
            all.join(",")
        );
        errors.push(FieldError::new(FieldErrorKind::Invalid, path, message));
    }
}

fn validate_owner(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    let version = text(owner, &["apiVersion"]);
    if version.rsplit('/').next().unwrap_or_default().is_empty() {
        errors.invalid(path.child("apiVersion"), version, "version must not be empty");
    }
    for key in ["kind", "name", "uid"] {
        if text(owner, &[key]).is_empty() {
            errors.invalid(path.child(key), "", "must not be empty");
        }
    }
    if version == "v1" && text(owner, &["kind"]) == "Event" {
        let message = format!(
            "Invalid value: {}: /v1, Kind=Event is disallowed from being an owner",
            owner_text(owner)
        );
        errors.push(FieldError::new(FieldErrorKind::Invalid, path, message));
    }
}

/// An owner with its fields in the order of Kubernetes.
fn owner_text(owner: &Value) -> String {
    let order = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    ordered(owner, &order)
}

/// An object as JSON with these keys in this order.
pub(crate) fn ordered(object: &Value, order: &[&str]) -> String {
    let present = order.iter().filter_map(|key| Some((key, object.get(key)?)));
    let parts: Vec<String> = present.map(|(key, value)| format!("{key:?}:{value}")).collect();
    format!("{{{}}}", parts.join(","))
}

fn validate_finalizers(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("finalizers");
    let finalizers = list(meta, &["finalizers"]);
    for finalizer in finalizers {
        let name = finalizer.as_str().unwrap_or_default();
        errors.invalid_each(path, finalizer, names::qualified_name(name));
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        let value = Value::Array(finalizers.to_vec());
        errors.invalid(path, &value, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

fn validate_standard_finalizers(
    meta: &Value,
    rule: FinalizerRule,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if rule == FinalizerRule::Any {
        return;
    }
    let path = path.child("finalizers");
    for (index, finalizer) in list(meta, &["finalizers"]).iter().enumerate() {
        if is_unknown_finalizer(finalizer.as_str().unwrap_or_default()) {
            errors.invalid(path.index(index), finalizer, UNKNOWN_FINALIZER);
        }
    }
}

fn validate_no_new_finalizers(meta: &Value, before: &Value, path: &Path<'_>, errors: &mut Errors) {
    let known = list(before, &["finalizers"]);
    let mut added: Vec<&str> = list(meta, &["finalizers"])
        .iter()
        .filter(|finalizer| !known.contains(finalizer))
        .filter_map(Value::as_str)
        .collect();
    if added.is_empty() {
        return;
    }
    added.sort_unstable();
    added.dedup();
    let quoted: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers \
         []string{{{}}}",
        quoted.join(", ")
    );
    errors.forbidden(path.child("finalizers"), &detail);
}

fn validate_managed_fields(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, entry) in list(meta, &["managedFields"]).iter().enumerate() {
        let path = path.index(index);
        let operation = text(entry, &["operation"]);
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(path.child("operation"), operation, "must be `Apply` or `Update`");
        }
        let kind = text(entry, &["fieldsType"]);
        if !matches!(kind, "" | "FieldsV1") {
            errors.invalid(path.child("fieldsType"), kind, "must be `FieldsV1`");
        }
        validate_manager(text(entry, &["manager"]), &path.child("manager"), errors);
        if text(entry, &["subresource"]).len() > SUBRESOURCE_MAX {
            errors.push(FieldError::too_long(path.child("subresource"), SUBRESOURCE_MAX));
        }
    }
}

/// Roughly Go's `unicode.IsPrint`: no control characters, and no space but the plain one.
fn is_print(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_field_managers_are_rejected() {
        let mut errors = Vec::new();
        validate_manager("a\u{7}b", &Path::root("manager"), &mut errors);
        let detail =
            "manager: Invalid value: \"a\\u0007b\": invalid character U+0007 (at position 1)";
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [detail]);
    }

    #[test]
    fn the_total_size_of_annotations_is_limited() {
        let long = "x".repeat(ANNOTATIONS_MAX);
        let holder = json!({"annotations": {"a": long}});
        let mut errors = Vec::new();
        validate_annotations(&holder, &["annotations"], &Path::root("annotations"), &mut errors);
        assert_eq!(errors, [FieldError::too_long("annotations", ANNOTATIONS_MAX)]);
    }
}
