//! The expectation of a case, and its comparison with the result.
//!
//! A row has the result of upstream Kubernetes in `expect`. If nearhop differs on purpose, the row
//! also has `nearhop`, which overrides `expect` key by key, and the reason in `why`.

use serde_json::Value;

use crate::diff::{Rule, diff};
use crate::read::{CaseError, Field};
use crate::report::What;

/// Collects the failures of one case.
#[derive(Debug)]
pub(crate) struct Check<'a> {
    case: Field<'a>,
    compared: usize,
    found: Vec<(String, What)>,
}

impl<'a> Check<'a> {
    pub(crate) fn new(case: &Field<'a>) -> Self {
        Self { case: case.clone(), compared: 0, found: Vec::new() }
    }

    /// Compares the expectation of a case or step as a whole.
    pub(crate) fn value(
        &mut self,
        holder: &Field<'_>,
        rule: Rule,
        actual: Value,
    ) -> Result<(), CaseError> {
        let (at, expected) = self.expected(holder)?;
        self.compared += 1;
        diff(rule, &at, &expected, &actual, &mut self.found);
        Ok(())
    }

    /// Compares each key of the expectation of a case or step with the value from `actual`.
    pub(crate) fn fields(
        &mut self,
        holder: &Field<'_>,
        actual: impl Fn(&str) -> Option<(Rule, Value)>,
    ) -> Result<(), CaseError> {
        let (at, expected) = self.expected(holder)?;
        let Value::Object(keys) = &expected else {
            return Err(CaseError { path: at, message: "expected an object".to_owned() });
        };
        // Notes explain other keys.
        for (key, value) in keys.iter().filter(|(key, _)| !key.ends_with("note")) {
            self.compared += 1;
            let path = format!("{at}.{key}");
            match actual(key) {
                Some((rule, actual)) => diff(rule, &path, value, &actual, &mut self.found),
                None => self.error(path, format!("cannot check `{key}` in this group")),
            }
        }
        Ok(())
    }

    /// Compares a value that the note of the file expects for every row.
    pub(crate) fn implied(&mut self, path: &str, expected: &Value, actual: &Value) {
        diff(Rule::Exact, path, expected, actual, &mut self.found);
    }

    fn error(&mut self, path: String, error: String) {
        self.found.push((path, What::Error { error }));
    }

    /// The expected result of nearhop, and the path of the upstream expectation.
    pub(crate) fn expected(&self, holder: &Field<'_>) -> Result<(String, Value), CaseError> {
        let expect = holder.get("expect")?;
        if !holder.has("expect") {
            return Err(expect.error("is missing"));
        }
        let path = expect.path().to_owned();
        let Some(nearhop) = holder.get("nearhop")?.optional() else {
            return Ok((path, expect.value().clone()));
        };
        require_reason(&nearhop, &[holder, &self.case])?;
        let over = match nearhop.value() {
            Value::Object(map) => match map.get("expect") {
                Some(expect) => expect.clone(),
                None => {
                    let mut map = map.clone();
                    map.remove("why");
                    Value::Object(map)
                }
            },
            other => other.clone(),
        };
        Ok((path, laid_over(expect.value(), over)))
    }

    /// All failures. A case without comparisons is a failure.
    pub(crate) fn finish(mut self) -> Vec<(String, What)> {
        if self.compared == 0 && self.found.is_empty() {
            self.error("expect".to_owned(), "the case expects nothing".to_owned());
        }
        self.found
    }

    /// All failures before the error that stopped the case.
    pub(crate) fn finish_early(self) -> Vec<(String, What)> {
        self.found
    }
}

/// A row that is its own expectation, for example a flow; `nearhop` overrides it.
pub(crate) fn laid_over_row(row: &Field<'_>, case: &Field<'_>) -> Result<Value, CaseError> {
    let Some(nearhop) = row.get("nearhop")?.optional() else { return Ok(row.value().clone()) };
    require_reason(&nearhop, &[row, case])?;
    Ok(laid_over(row.value(), nearhop.value().clone()))
}

/// A deviation needs a reason: in itself, or in an object that contains it.
fn require_reason(nearhop: &Field<'_>, around: &[&Field<'_>]) -> Result<(), CaseError> {
    let gives = |field: &Field<'_>| {
        let why = field.value().get("why").and_then(Value::as_str);
        why.is_some_and(|why| !why.trim().is_empty())
    };
    if gives(nearhop) || around.iter().any(|field| gives(field)) {
        return Ok(());
    }
    Err(nearhop.error("differs from upstream without a reason: give a `why`"))
}

fn laid_over(expect: &Value, over: Value) -> Value {
    match (expect, over) {
        (Value::Object(below), Value::Object(over)) => {
            let mut merged = below.clone();
            merged.extend(over);
            Value::Object(merged)
        }
        (_, over) => over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expected(row: &Value) -> Result<Value, String> {
        let field = Field::root(row);
        let found = Check::new(&field).expected(&field);
        found.map(|(_, value)| value).map_err(|error| error.to_string())
    }

    #[test]
    fn nearhop_overrides_the_expectation() {
        let row = json!({"expect": {"a": 1, "b": {"c": 2}}, "nearhop": {"b": 3, "why": "so"}});
        assert_eq!(expected(&row), Ok(json!({"a": 1, "b": 3})));
        let row = json!({"expect": {"a": 1}, "nearhop": {"expect": {"a": 2}}, "why": "so"});
        assert_eq!(expected(&row), Ok(json!({"a": 2})));
        let row = json!({"expect": 4, "nearhop": {"expect": null, "why": "so"}});
        assert_eq!(expected(&row), Ok(Value::Null));
        let row = json!({"expect": [1], "nearhop": [2], "why": "so"});
        assert_eq!(expected(&row), Ok(json!([2])));
    }

    #[test]
    fn nearhop_without_a_reason_is_refused() {
        for why in [json!({}), json!({"why": " "}), json!({"why": 3})] {
            let mut row = json!({"expect": {"a": 1}, "nearhop": {"a": 2}});
            row.as_object_mut().unwrap().extend(why.as_object().unwrap().clone());
            assert!(expected(&row).unwrap_err().contains("give a `why`"), "{row}");
        }
    }
}
