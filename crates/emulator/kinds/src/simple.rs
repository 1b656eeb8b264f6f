//! Kinds with few rules.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nearhop_object::FieldError;
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::json::{
    Path, at, at_mut, entries, fill, int, is_true, list, list_mut, make, object, text,
};
use crate::names::SUBDOMAIN_MAX;

const DATA_MAX: usize = 1024 * 1024;

/// PersistentVolume.
pub(crate) fn default_volume(volume: &mut Value) {
    let spec = make(volume, &["spec"]);
    fill(spec, "persistentVolumeReclaimPolicy", "Retain");
    fill(spec, "volumeMode", "Filesystem");
}

pub(crate) fn default_ingress_class(class: &mut Value) {
    if let Some(parameters) = at_mut(class, &["spec", "parameters"]) {
        fill(parameters, "scope", "Cluster");
    }
}

pub(crate) fn default_storage_class(class: &mut Value) {
    fill(class, "reclaimPolicy", "Delete");
    fill(class, "volumeBindingMode", "Immediate");
}

/// Moves the write-only `stringData` into `data`.
pub(crate) fn default_secret(secret: &mut Value) {
    fill(secret, "type", "Opaque");
    let Some(Value::Object(plain)) = object(secret).remove("stringData") else { return };
    for (key, value) in plain {
        let bytes = STANDARD.encode(value.as_str().unwrap_or_default());
        *make(secret, &["data", &key]) = json!(bytes);
    }
}

pub(crate) fn default_network_policy(policy: &mut Value) {
    for direction in ["ingress", "egress"] {
        for rule in list_mut(policy, &["spec", direction]) {
            for port in list_mut(rule, &["ports"]) {
                fill(port, "protocol", "TCP");
            }
        }
    }
    if list(policy, &["spec", "policyTypes"]).is_empty() {
        let egress = !list(policy, &["spec", "egress"]).is_empty();
        let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        *make(policy, &["spec", "policyTypes"]) = types;
    }
}

/// RoleBinding and ClusterRoleBinding.
pub(crate) fn default_binding(binding: &mut Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    fill(make(binding, &["roleRef"]), "apiGroup", GROUP);
    for subject in list_mut(binding, &["subjects"]) {
        if matches!(text(subject, &["kind"]), "User" | "Group") {
            fill(subject, "apiGroup", GROUP);
        }
    }
}

pub(crate) fn default_mutating_webhooks(configuration: &mut Value) {
    default_webhooks(configuration);
    for webhook in list_mut(configuration, &["webhooks"]) {
        fill(webhook, "reinvocationPolicy", "Never");
    }
}

pub(crate) fn default_webhooks(configuration: &mut Value) {
    for webhook in list_mut(configuration, &["webhooks"]) {
        fill(webhook, "failurePolicy", "Fail");
        fill(webhook, "matchPolicy", "Equivalent");
        fill(webhook, "namespaceSelector", json!({}));
        fill(webhook, "objectSelector", json!({}));
        fill(webhook, "timeoutSeconds", 10);
        for rule in list_mut(webhook, &["rules"]) {
            fill(rule, "scope", "*");
        }
        if let Some(service) = at_mut(webhook, &["clientConfig", "service"]) {
            fill(service, "port", 443);
        }
    }
}

pub(crate) fn validate_config_map(map: &Value, old: Option<&Value>) -> Errors {
    let mut errors = old.map_or_else(Vec::new, |old| immutable(map, old, &["data", "binaryData"]));
    let mut size = 0;
    let data = Path::root("data");
    for (key, value) in entries(map, &["data"]) {
        validate_key(key, &data, &mut errors);
        if at(map, &["binaryData", key]).is_some() {
            errors.invalid(data.key(key), key, "duplicate of key present in binaryData");
        }
        size += value.as_str().unwrap_or_default().len();
    }
    let binary = Path::root("binaryData");
    for (key, value) in entries(map, &["binaryData"]) {
        validate_key(key, &binary, &mut errors);
        size += decoded_len(value);
    }
    if size > DATA_MAX {
        // The empty path is written like this.
        errors.push(FieldError::too_long("[]", DATA_MAX));
    }
    errors
}

pub(crate) fn validate_secret(secret: &Value, old: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    if let Some(old) = old {
        errors.immutable("type", at(secret, &["type"]), at(old, &["type"]));
        errors.extend(immutable(secret, old, &["data"]));
    }
    let data = Path::root("data");
    let mut size = 0;
    for (key, value) in entries(secret, &["data"]) {
        validate_key(key, &data, &mut errors);
        size += decoded_len(value);
    }
    if size > DATA_MAX {
        errors.push(FieldError::too_long(data, DATA_MAX));
    }
    validate_secret_type(secret, &data, &mut errors);
    errors
}

pub(crate) fn validate_lease(lease: &Value) -> Errors {
    let mut errors = Vec::new();
    if let Some(seconds) = int(lease, &["spec", "leaseDurationSeconds"]).filter(|it| *it <= 0) {
        errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
    }
    if let Some(count) = int(lease, &["spec", "leaseTransitions"]).filter(|it| *it < 0) {
        errors.invalid("spec.leaseTransitions", count, "must be greater than or equal to 0");
    }
    let preferred = text(lease, &["spec", "preferredHolder"]);
    if !preferred.is_empty() && text(lease, &["spec", "strategy"]).is_empty() {
        errors.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined");
    }
    errors
}

/// The keys that a type of Secret requires.
fn validate_secret_type(secret: &Value, data: &Path<'_>, errors: &mut Errors) {
    let has = |key: &str| secret.get("data").and_then(|data| data.get(key)).is_some();
    let needed: &[&str] = match text(secret, &["type"]) {
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/basic-auth" if has("username") || has("password") => &[],
        "kubernetes.io/basic-auth" => &["username", "password"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if text(secret, &["metadata", "annotations", NAME]).is_empty() {
                errors.required(format!("metadata.annotations[{NAME}]"), "");
            }
            &[]
        }
        _ => &[],
    };
    for key in needed.iter().filter(|key| !has(key)) {
        errors.required(data.key(key), "");
    }
}

fn immutable(new: &Value, old: &Value, parts: &[&str]) -> Errors {
    if !is_true(old, &["immutable"]) {
        return Vec::new();
    }
    let detail = "field is immutable when `immutable` is set";
    let changed = parts.iter().filter(|part| at(new, &[part]) != at(old, &[part]));
    let mut fields: Vec<&str> = changed.copied().collect();
    if !is_true(new, &["immutable"]) {
        fields.insert(0, "immutable");
    }
    fields.into_iter().map(|field| FieldError::forbidden(field, detail)).collect()
}

fn validate_key(key: &str, path: &Path<'_>, errors: &mut Errors) {
    errors.invalid_each(path.key(key), key, key_complaints(key));
}

fn key_complaints(key: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if key.len() > SUBDOMAIN_MAX {
        complaints.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    if key.is_empty() || !key.bytes().all(plain) {
        complaints.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
             'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
             '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match key {
        "." => complaints.push("must not be '.'".to_owned()),
        ".." => complaints.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => complaints.push("must not start with '..'".to_owned()),
        _ => {}
    }
    complaints
}

/// The number of bytes that Base64 text encodes.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.trim_end_matches('=').len() * 3 / 4
}
