//! Label selectors: matching, and their `metav1.LabelSelector` form. `parse` parses the query form.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

use super::SelectorError;
use crate::field_error::FieldError;
use crate::names::{label_value, qualified_name};

/// A set of requirements that must all hold. The default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requirement {
    key: Box<str>,
    operator: Operator,
    /// Sorted.
    values: Vec<Box<str>>,
}

/// How a label is compared with the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// `a`
    Exists,
    /// `!a`
    DoesNotExist,
    /// `a=b`, `a==b`
    Equals,
    /// `a!=b`; an object without the label matches.
    NotEquals,
    /// `a in (b,c)`
    In,
    /// `a notin (b,c)`; an object without the label matches.
    NotIn,
    /// `a>1`
    GreaterThan,
    /// `a<1`
    LessThan,
}

impl LabelSelector {
    /// Parses the query form: `a=b,c in (d,e),!f`. An empty text matches everything.
    ///
    /// # Errors
    /// The message is that of kube-apiserver.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let requirements = super::parse::requirements(text).map_err(SelectorError)?;
        Ok(Self::of(requirements))
    }

    /// Parses a `metav1.LabelSelector`. `null` matches nothing, `{}` matches everything.
    ///
    /// # Errors
    /// A key, a value or an operator is not allowed; the message is that of kube-apiserver.
    pub fn from_json(value: &Value) -> Result<Self, SelectorError> {
        if value.is_null() {
            return Ok(Self::nothing());
        }
        let mut requirements = Vec::new();
        for (key, value) in value["matchLabels"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.into()])?);
        }
        for expression in value["matchExpressions"].as_array().into_iter().flatten() {
            requirements.push(from_expression(expression)?);
        }
        Ok(Self::of(requirements))
    }

    /// A selector that matches nothing.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Whether it has no requirement, and so matches all labels.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether the labels that a lookup returns satisfy all requirements.
    pub fn matches<'l>(&self, labels: impl Fn(&str) -> Option<&'l str>) -> bool {
        !self.nothing && self.requirements.iter().all(|one| one.holds(labels(&one.key)))
    }

    /// Whether the labels of an object satisfy all requirements.
    pub fn matches_object(&self, object: &Value) -> bool {
        if self.is_everything() {
            return true;
        }
        let labels = object.get("metadata").and_then(|metadata| metadata.get("labels"));
        self.matches(|key| labels?.get(key)?.as_str())
    }

    fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let listed = || value.is_some_and(|value| self.values.iter().any(|one| **one == *value));
        let compared = || {
            let bound: i64 = self.values.first()?.parse().ok()?;
            Some(value?.parse::<i64>().ok()?.cmp(&bound))
        };
        match self.operator {
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Equals | Operator::In => listed(),
            Operator::NotEquals | Operator::NotIn => !listed(),
            Operator::GreaterThan => compared() == Some(Ordering::Greater),
            Operator::LessThan => compared() == Some(Ordering::Less),
        }
    }

    /// Checks the key, the number of values and the values, and reports all errors at once.
    pub(super) fn new(
        key: &str,
        operator: Operator,
        mut values: Vec<Box<str>>,
    ) -> Result<Self, SelectorError> {
        let mut problems = Vec::new();
        let key_problems = qualified_name(key);
        if !key_problems.is_empty() {
            problems.push(FieldError::invalid("key", &key.into(), &key_problems.join("; ")));
        }
        problems.extend(operator.misuse(&values));
        for (at, value) in values.iter().enumerate() {
            let wrong = label_value(value);
            if !wrong.is_empty() {
                let field = format!("values[{at}][{key}]");
                problems.push(FieldError::invalid(field, &(**value).into(), &wrong.join("; ")));
            }
        }
        if !problems.is_empty() {
            return Err(SelectorError(FieldError::aggregate(&problems)));
        }
        values.sort();
        Ok(Self { key: key.into(), operator, values })
    }
}

impl Operator {
    /// The error if the number of values is wrong, or if a bound is not a number.
    fn misuse(self, values: &[Box<str>]) -> Option<FieldError> {
        let all = || match values {
            [] => Value::Null,
            values => values.iter().map(|value| &**value).collect(),
        };
        let detail = match self {
            Self::In | Self::NotIn if values.is_empty() => {
                "for 'in', 'notin' operators, values set can't be empty"
            }
            Self::Equals | Self::NotEquals if values.len() != 1 => {
                "exact-match compatibility requires one single value"
            }
            Self::Exists | Self::DoesNotExist if !values.is_empty() => {
                "values set must be empty for exists and does not exist"
            }
            Self::GreaterThan | Self::LessThan => return bound_misuse(values),
            _ => return None,
        };
        Some(FieldError::invalid("values", &all(), detail))
    }
}

fn bound_misuse(values: &[Box<str>]) -> Option<FieldError> {
    match values {
        [bound] if bound.parse::<i64>().is_ok() => None,
        [bound] => {
            let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
            Some(FieldError::invalid("values[0]", &(**bound).into(), detail))
        }
        values => {
            let all: Value = values.iter().map(|value| &**value).collect();
            let detail = "for 'Gt', 'Lt' operators, exactly one value is required";
            Some(FieldError::invalid("values", &all, detail))
        }
    }
}

fn from_expression(expression: &Value) -> Result<Requirement, SelectorError> {
    let operator = match expression["operator"].as_str().unwrap_or_default() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => {
            let text = format!("{other:?} is not a valid label selector operator");
            return Err(SelectorError(text));
        }
    };
    let values = expression["values"].as_array().into_iter().flatten();
    let values = values.map(|value| value.as_str().unwrap_or_default().into()).collect();
    Requirement::new(expression["key"].as_str().unwrap_or_default(), operator, values)
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, requirement) in self.requirements.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_operator_matches_as_in_kubernetes() {
        let object = json!({"metadata": {"labels": {"a": "b", "n": "5", "empty": ""}}});
        let matching = "a=b; a==b; a!=c; x!=b; a in (x,b); a notin (x); x notin (x); a; !x; n>4; n<6; \
             empty=; empty; empty in (); a=b,n=5";
        let other = "a=c; x=b; a!=b; a in (x); x in (x); a notin (b); x; !a; n>5; n<5; a>1; x<1; x=; \
             empty!=; x in (); a=b,n=6";
        let cases = |text: &'static str, expected| text.split("; ").map(move |s| (s, expected));
        for (text, expected) in cases(matching, true).chain(cases(other, false)).chain([("", true)])
        {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches_object(&object), expected, "{text}");
        }
    }

    #[test]
    fn objects_without_labels_match_negations() {
        for object in [json!({}), json!({"metadata": {}}), json!({"metadata": {"labels": null}})] {
            assert!(LabelSelector::parse("!a,b!=c").unwrap().matches_object(&object));
            assert!(!LabelSelector::parse("a").unwrap().matches_object(&object));
        }
    }

    #[test]
    fn metav1_label_selectors_are_parsed() {
        let read = |value: Value| LabelSelector::from_json(&value).map(|s| s.to_string());
        let selector = json!({"matchLabels": {"z": "1", "a": "2"}, "matchExpressions": [
            {"key": "m", "operator": "In", "values": ["y", "x"]},
            {"key": "b", "operator": "NotIn", "values": ["x"]},
            {"key": "c", "operator": "Exists"},
            {"key": "d", "operator": "DoesNotExist", "values": []},
        ]});
        assert_eq!(read(selector).unwrap(), "a=2,b notin (x),c,!d,m in (x,y),z=1");
        assert!(LabelSelector::from_json(&json!({})).unwrap().is_everything());
        let nothing = LabelSelector::from_json(&Value::Null).unwrap();
        assert!(!nothing.is_everything() && !nothing.matches(|_| Some("x")));
        for (expression, text) in [
            (
                json!({"key": "a", "operator": "Gt", "values": ["1"]}),
                "\"Gt\" is not a valid label selector operator",
            ),
            (
                json!({"key": "a", "operator": "In"}),
                "values: Invalid value: null: for 'in', 'notin' operators, values set can't be \
                 empty",
            ),
            (
                json!({"key": "a", "operator": "Exists", "values": ["x"]}),
                "values: Invalid value: [\"x\"]: values set must be empty for exists and does \
                 not exist",
            ),
        ] {
            let error = read(json!({"matchExpressions": [expression]})).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn several_errors_are_printed_in_brackets() {
        let selector = json!({"matchLabels": {"-": "-"}});
        let error = LabelSelector::from_json(&selector).unwrap_err().to_string();
        assert!(error.starts_with("[key: Invalid value: \"-\": name part must"), "{error}");
        assert!(error.contains(", values[0][-]: Invalid value: \"-\": a valid label"), "{error}");
    }
}
