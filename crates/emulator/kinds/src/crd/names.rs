//! The names of a resource in its CustomResourceDefinition.

use nearhop_object::FieldError;
use serde_json::Value;

use super::{list, text};
use crate::errors::{Errors, Report as _};
use crate::names::dns1035_label;

/// What is wrong with `spec.names` or `status.acceptedNames`.
pub(super) fn check_names(names: &Value, path: &str) -> Errors {
    let mut errors = Vec::new();
    let mut check = |field: String, name: &str, lowered: &str, prefix: &str| {
        let problem = dns1035_label(lowered).join(",");
        if !problem.is_empty() {
            let error = FieldError::invalid(field, &name.into(), &format!("{prefix}{problem}"));
            errors.push(error);
        }
    };
    for key in ["plural", "singular"] {
        let name = text(names, &format!("/{key}"));
        if !name.is_empty() {
            check(format!("{path}.{key}"), name, name, "");
        }
    }
    for key in ["kind", "listKind"] {
        let name = text(names, &format!("/{key}"));
        let prefix = "may have mixed case, but should otherwise match: ";
        if !name.is_empty() {
            check(format!("{path}.{key}"), name, &name.to_lowercase(), prefix);
        }
    }
    for key in ["shortNames", "categories"] {
        let all = list(names, &format!("/{key}")).iter().enumerate();
        for (at, name) in all.filter_map(|(at, name)| Some((at, name.as_str()?))) {
            check(format!("{path}.{key}[{at}]"), name, name, "");
        }
    }
    let (kind, list_kind) = (text(names, "/kind"), text(names, "/listKind"));
    if !kind.is_empty() && kind == list_kind {
        errors.invalid(format!("{path}.listKind"), kind, "kind and listKind may not be the same");
    }
    errors
}
