//! A validation error of one field, with the messages of Kubernetes (`Status.details.causes`).

use std::fmt;

/// The kind of error, as in `causes[].reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// `FieldValueRequired`
    Required,
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueNotSupported`
    NotSupported,
    /// `FieldValueDuplicate`
    Duplicate,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueTooLong`
    TooLong,
    /// `FieldValueTooMany`
    TooMany,
    /// `FieldValueTypeInvalid`
    TypeInvalid,
    /// `FieldValueNotFound`
    NotFound,
    /// `InternalError`
    Internal,
}

impl FieldErrorKind {
    /// The value of `causes[].reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }
}

/// A validation error. `message` is complete: `Required value`, `Invalid value: 70000: must be …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The kind of error.
    pub kind: FieldErrorKind,
    /// The path of the field, for example `spec.ports[0].port`.
    pub field: String,
    /// The complete message, without the field.
    pub message: String,
}

impl FieldError {
    /// `Required value`, or `Required value: detail`.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(FieldErrorKind::Required, field, with_detail("Required value", detail))
    }

    /// `Invalid value: <json>: detail`.
    pub fn invalid(field: impl Into<String>, value: &serde_json::Value, detail: &str) -> Self {
        let head = format!("Invalid value: {value}");
        Self::new(FieldErrorKind::Invalid, field, with_detail(&head, detail))
    }

    /// `Unsupported value: "x": supported values: "a", "b"`; keeps the order of `supported`.
    pub fn not_supported(
        field: impl Into<String>,
        value: &serde_json::Value,
        supported: &[&str],
    ) -> Self {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", list.join(", "));
        Self::new(FieldErrorKind::NotSupported, field, message)
    }

    /// `Duplicate value: <json>`.
    pub fn duplicate(field: impl Into<String>, value: &serde_json::Value) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, format!("Duplicate value: {value}"))
    }

    /// `Forbidden: detail`.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(FieldErrorKind::Forbidden, field, with_detail("Forbidden", detail))
    }

    /// `Too long: may not be more than N bytes`.
    pub fn too_long(field: impl Into<String>, most: usize) -> Self {
        let message = format!("Too long: may not be more than {most} bytes");
        Self::new(FieldErrorKind::TooLong, field, message)
    }

    /// `Too many: N: must have at most M items`.
    pub fn too_many(field: impl Into<String>, actual: usize, most: usize) -> Self {
        let message = format!("Too many: {actual}: must have at most {most} items");
        Self::new(FieldErrorKind::TooMany, field, message)
    }

    /// Several errors as one text: one error alone, more in brackets, each text once.
    pub fn aggregate(errors: &[Self]) -> String {
        let mut distinct: Vec<String> = Vec::with_capacity(errors.len());
        for text in errors.iter().map(ToString::to_string) {
            if !distinct.contains(&text) {
                distinct.push(text);
            }
        }
        match distinct.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        }
    }

    /// An error with any other message.
    pub fn new(kind: FieldErrorKind, field: impl Into<String>, message: String) -> Self {
        Self { kind, field: field.into(), message }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn with_detail(head: &str, detail: &str) -> String {
    if detail.is_empty() { head.to_owned() } else { format!("{head}: {detail}") }
}
