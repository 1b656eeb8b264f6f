//! Checks a value against `anyOf`, `oneOf`, `allOf` and `not`.
//!
//! If all alternatives fail, the errors are those of the one with the most passed checks.

use serde_json::Value;

use super::keywords::Keywords;
use super::validate::Check;
use crate::FieldError;

impl Check<'_> {
    /// Checks `anyOf`, `oneOf`, `allOf` and `not`. Returns how many checks passed.
    pub(super) fn alternatives(
        &mut self,
        keywords: &Keywords<'_>,
        value: &Value,
        old: Option<&Value>,
    ) -> usize {
        let mut passed = 1;
        if !keywords.any_of.is_empty() {
            passed += self.any_of(keywords.any_of, value, old);
        }
        if !keywords.one_of.is_empty() {
            passed += self.one_of(keywords.one_of, value, old);
        }
        if !keywords.all_of.is_empty() {
            passed += self.all_of(keywords.all_of, value, old);
        }
        if let Some(not) = keywords.not {
            let (failures, _) = self.attempt(not, value, old);
            if failures.is_empty() {
                self.composite(&format!("{:?} must not validate the schema (not)", self.path));
            }
        }
        passed
    }

    fn any_of(&mut self, schemas: &[Value], value: &Value, old: Option<&Value>) -> usize {
        let mut best: Option<(Vec<FieldError>, usize)> = None;
        for schema in schemas {
            let (failures, passed) = self.attempt(schema, value, old);
            if failures.is_empty() {
                return passed;
            }
            if best.as_ref().is_none_or(|(_, most)| passed > *most) {
                best = Some((failures, passed));
            }
        }
        self.composite(&format!("{:?} must validate at least one schema (anyOf)", self.path));
        let (failures, passed) = best.unwrap_or_default();
        self.extend(failures);
        passed
    }

    fn one_of(&mut self, schemas: &[Value], value: &Value, old: Option<&Value>) -> usize {
        let mut best: Option<(Vec<FieldError>, usize)> = None;
        let (mut valid, mut passed_by_valid) = (0, 0);
        for schema in schemas {
            let (failures, passed) = self.attempt(schema, value, old);
            if failures.is_empty() {
                valid += 1;
                passed_by_valid = passed;
            } else if best.as_ref().is_none_or(|(_, most)| passed > *most) {
                best = Some((failures, passed));
            }
        }
        if valid == 1 {
            return passed_by_valid;
        }
        let found = match valid {
            0 => "Found none valid".to_owned(),
            several => format!("Found {several} valid alternatives"),
        };
        let text =
            format!("{:?} must validate one and only one schema (oneOf). {found}", self.path);
        self.composite(&text);
        let (failures, passed) = best.filter(|_| valid == 0).unwrap_or_default();
        self.extend(failures);
        passed
    }

    fn all_of(&mut self, schemas: &[Value], value: &Value, old: Option<&Value>) -> usize {
        let (mut valid, mut total) = (0, 0);
        for schema in schemas {
            let (failures, passed) = self.attempt(schema, value, old);
            valid += usize::from(failures.is_empty());
            total += passed;
            self.extend(failures);
        }
        if valid != schemas.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            let text = format!("{:?} must validate all the schemas (allOf){none}", self.path);
            self.composite(&text);
        }
        total
    }

    /// Checks one alternative, and returns its errors separately.
    fn attempt(
        &mut self,
        schema: &Value,
        value: &Value,
        old: Option<&Value>,
    ) -> (Vec<FieldError>, usize) {
        let mark = self.errors.len();
        let passed = self.deeper(schema, value, old);
        (self.errors.split_off(mark), passed)
    }

    /// Adds the errors of an alternative, without duplicates.
    fn extend(&mut self, failures: Vec<FieldError>) {
        for failure in failures {
            if !self.errors.contains(&failure) {
                self.errors.push(failure);
            }
        }
    }
}
