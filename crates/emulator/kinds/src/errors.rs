//! Reporting of validation errors.

use nearhop_object::FieldError;
use serde::Serialize;
use serde_json::{Value, json};

use crate::names;

/// The errors that validation has found.
pub(crate) type Errors = Vec<FieldError>;

/// Adds validation errors to a list.
pub(crate) trait Report: Extend<FieldError> {
    /// A value that breaks a rule.
    fn invalid(&mut self, field: impl Into<String>, value: impl Serialize, detail: &str) {
        self.extend([FieldError::invalid(field, &json!(value), detail)]);
    }

    /// A value that breaks several rules: one error each. The field is formatted only for an error.
    fn invalid_each(&mut self, field: impl Into<String>, value: impl Serialize, why: Vec<String>) {
        if !why.is_empty() {
            let (field, value) = (field.into(), json!(value));
            self.extend(why.iter().map(|it| FieldError::invalid(field.clone(), &value, it)));
        }
    }

    /// A value that is missing.
    fn required(&mut self, field: impl Into<String>, detail: &str) {
        self.extend([FieldError::required(field, detail)]);
    }

    /// A value that must not be set.
    fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.extend([FieldError::forbidden(field, detail)]);
    }

    /// A value that is not one of these.
    fn not_supported(&mut self, field: impl Into<String>, value: impl Serialize, known: &[&str]) {
        self.extend([FieldError::not_supported(field, &json!(value), known)]);
    }

    /// A required value that must be one of these.
    fn one_of(&mut self, field: impl Into<String>, value: &str, known: &[&str]) {
        if value.is_empty() {
            self.required(field, "");
        } else {
            self.supported(field, value, known);
        }
    }

    /// A value that must be one of these.
    fn supported(&mut self, field: impl Into<String>, value: &str, known: &[&str]) {
        if !known.contains(&value) {
            self.not_supported(field, value, known);
        }
    }

    /// A value that an update cannot change.
    fn immutable(&mut self, field: impl Into<String>, now: Option<&Value>, was: Option<&Value>) {
        if now != was {
            self.invalid(field, now, "field is immutable");
        }
    }

    /// A port by name or number; an absent one is 0.
    fn port(&mut self, field: impl Into<String>, port: Option<&Value>) {
        match port {
            Some(Value::String(name)) => self.invalid_each(field, name, names::port_name(name)),
            other => {
                let number = other.and_then(Value::as_i64).unwrap_or_default();
                self.invalid_each(field, number, names::port_number(number));
            }
        }
    }

    /// A value that an earlier entry has, too.
    fn duplicate(&mut self, field: impl Into<String>, value: impl Serialize) {
        self.extend([FieldError::duplicate(field, &json!(value))]);
    }
}

impl Report for Errors {}
