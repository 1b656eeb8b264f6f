//! Reporting of validation errors.

use nearhop_object::FieldError;
use serde::Serialize;
use serde_json::json;

/// A list of validation errors that is being filled.
pub(crate) trait Report {
    /// A value that breaks a rule.
    fn invalid(&mut self, field: impl Into<String>, value: impl Serialize, detail: &str);

    /// A value that breaks several rules: one error each.
    fn invalid_each(
        &mut self,
        field: impl Into<String>,
        value: impl Serialize,
        details: Vec<String>,
    );

    /// A value that is missing.
    fn required(&mut self, field: impl Into<String>, detail: &str);

    /// A value that must not be set.
    fn forbidden(&mut self, field: impl Into<String>, detail: &str);

    /// A value that is not one of these.
    fn not_supported(&mut self, field: impl Into<String>, value: impl Serialize, known: &[&str]);
}

impl Report for Vec<FieldError> {
    fn invalid(&mut self, field: impl Into<String>, value: impl Serialize, detail: &str) {
        self.push(FieldError::invalid(field, &json!(value), detail));
    }

    fn invalid_each(
        &mut self,
        field: impl Into<String>,
        value: impl Serialize,
        details: Vec<String>,
    ) {
        if !details.is_empty() {
            let (field, value) = (field.into(), json!(value));
            self.extend(details.iter().map(|it| FieldError::invalid(field.clone(), &value, it)));
        }
    }

    fn required(&mut self, field: impl Into<String>, detail: &str) {
        self.push(FieldError::required(field, detail));
    }

    fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.push(FieldError::forbidden(field, detail));
    }

    fn not_supported(&mut self, field: impl Into<String>, value: impl Serialize, known: &[&str]) {
        self.push(FieldError::not_supported(field, &json!(value), known));
    }
}
