//! Compares the expectation of a case with the result of nearhop, and lists the differences.

use nearhop_core::quantity::parse_cpu;
use serde_json::Value;

use crate::report::What;

/// How two values are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// All values are equal.
    Exact,
    /// All values are equal; a missing key equals false, empty or unset.
    Sparse,
    /// Lists with the same items in any order, the items compared by a rule (`Exact`, `Bag`;
    /// `Sparse` for items whose null, false and empty mean the same).
    Bag(&'static Self),
    /// Only the keys that are expected, in an object or in each of a list. A key `x_prefix` is
    /// compared with the beginning of `x`.
    Subset,
    /// Texts are CPU quantities, compared by value: `5` equals `5000m`.
    Cpu,
    /// The case describes a property as text; the value is whether the property holds.
    Holds,
}

/// Adds the differences with their paths.
pub(crate) fn diff(
    rule: Rule,
    path: &str,
    expected: &Value,
    actual: &Value,
    found: &mut Vec<(String, What)>,
) {
    match (rule, expected, actual) {
        (Rule::Holds, _, _) => {
            let wanted = !is_default(expected);
            if *actual != Value::Bool(wanted) {
                push(path, expected, actual, found);
            }
        }
        (Rule::Bag(_), Value::Array(_), Value::Array(_)) => {
            let (expected, actual) = (normal(rule, expected), normal(rule, actual));
            if expected != actual {
                push(path, &expected, &actual, found);
            }
        }
        (Rule::Subset, Value::Object(keys), Value::Object(values)) => {
            for (key, value) in keys.iter().filter(|(key, value)| !is_prefix(key, value, actual)) {
                let other = values.get(key).unwrap_or(&Value::Null);
                diff(Rule::Exact, &format!("{path}.{key}"), value, other, found);
            }
        }
        (_, Value::Object(_), Value::Object(_)) => {
            diff_objects(rule, path, expected, actual, found);
        }
        (_, Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            for (at, (item, other)) in items.iter().zip(others).enumerate() {
                diff(rule, &format!("{path}[{at}]"), item, other, found);
            }
        }
        _ if same(expected, actual) => {}
        (Rule::Cpu, Value::String(a), Value::String(b)) if is_same_cpu(a, b) => {}
        _ => push(path, expected, actual, found),
    }
}

fn push(path: &str, expected: &Value, actual: &Value, found: &mut Vec<(String, What)>) {
    let what = What::Differs { expected: expected.clone(), actual: actual.clone() };
    found.push((path.to_owned(), what));
}

fn diff_objects(
    rule: Rule,
    path: &str,
    expected: &Value,
    actual: &Value,
    found: &mut Vec<(String, What)>,
) {
    let (Value::Object(keys), Value::Object(values)) = (expected, actual) else { return };
    let sparse = matches!(rule, Rule::Sparse);
    for (key, value) in keys {
        let path = format!("{path}.{key}");
        match values.get(key) {
            Some(other) => diff(rule, &path, value, other, found),
            None if sparse && is_default(value) => {}
            None => push(&path, value, &Value::Null, found),
        }
    }
    for (key, other) in values.iter().filter(|(key, _)| !keys.contains_key(*key)) {
        if !(sparse && is_default(other)) {
            push(&format!("{path}.{key}"), &Value::Null, other, found);
        }
    }
}

/// Whether a key `x_prefix` begins the value of `x`.
fn is_prefix(key: &str, prefix: &Value, actual: &Value) -> bool {
    let whole = key.strip_suffix("_prefix").and_then(|key| actual.get(key)).and_then(Value::as_str);
    whole.zip(prefix.as_str()).is_some_and(|(whole, prefix)| whole.starts_with(prefix))
}

/// The default value of an absent key.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn is_same_cpu(a: &str, b: &str) -> bool {
    parse_cpu(a).is_some() && parse_cpu(a) == parse_cpu(b)
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || (a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64()
        }
        _ => a == b,
    }
}

/// A value in a form in which equal bags are equal values.
fn normal(rule: Rule, value: &Value) -> Value {
    match (rule, value) {
        (Rule::Bag(inner), Value::Array(items)) => {
            let mut items: Vec<Value> = items.iter().map(|item| normal(*inner, item)).collect();
            items.sort_by_cached_key(Value::to_string);
            Value::Array(items)
        }
        (Rule::Sparse, Value::Object(map)) => {
            let set = map.iter().filter(|(_, value)| !is_default(value));
            Value::Object(set.map(|(key, value)| (key.clone(), normal(rule, value))).collect())
        }
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(rule: Rule, expected: Value, actual: Value) -> Vec<String> {
        let mut found = Vec::new();
        diff(rule, "x", &expected, &actual, &mut found);
        found.into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn exact_compares_all_values_and_names_the_path() {
        assert!(paths(Rule::Exact, json!({"a": [1, 2.0]}), json!({"a": [1.0, 2]})).is_empty());
        assert_eq!(paths(Rule::Exact, json!({"a": [1, 2]}), json!({"a": [1, 3]})), ["x.a[1]"]);
        assert_eq!(paths(Rule::Exact, json!({}), json!({"headless": ""})), ["x.headless"]);
        assert_eq!(paths(Rule::Exact, json!([1]), json!([1, 2])), ["x"]);
    }

    #[test]
    fn sparse_treats_missing_values_as_defaults() {
        assert!(paths(Rule::Sparse, json!([{}]), json!([{"a": [], "b": null}])).is_empty());
        assert!(paths(Rule::Sparse, json!({"a": false, "b": ""}), json!({})).is_empty());
        assert_eq!(paths(Rule::Sparse, json!({"r": null}), json!({"r": false})), ["x.r"]);
        assert_eq!(paths(Rule::Sparse, json!({}), json!({"r": true})), ["x.r"]);
    }

    #[test]
    fn bags_ignore_the_order_and_count_duplicates() {
        const PORTS: Rule = Rule::Bag(&Rule::Bag(&Rule::Sparse));
        assert!(paths(Rule::Bag(&Rule::Exact), json!([2, 1, 1]), json!([1, 2, 1])).is_empty());
        assert_eq!(paths(Rule::Bag(&Rule::Exact), json!([1, 2, 2]), json!([1, 1, 2])), ["x"]);
        let ports = json!([[{"port": 2}, {"port": 1, "app": null}], []]);
        assert!(paths(PORTS, ports, json!([[], [{"port": 1}, {"port": 2, "app": ""}]])).is_empty());
    }

    #[test]
    fn equal_cpu_quantities_are_equal() {
        let compared = |a: &str, b: &str| paths(Rule::Cpu, json!({"z": a}), json!({"z": b}));
        assert!(compared("5000m", "5").is_empty() && compared("0.5", "500m").is_empty());
        assert_eq!(compared("5000m", "6"), ["x.z"]);
        assert_eq!(compared("lots", "more"), ["x.z"], "invalid quantities are compared as text");
        assert_eq!(paths(Rule::Exact, json!("5000m"), json!("5")), ["x"]);
    }

    #[test]
    fn subset_ignores_extra_keys_and_holds_checks_a_property() {
        assert!(paths(Rule::Subset, json!({"a": 1}), json!({"a": 1, "b": 2})).is_empty());
        assert_eq!(paths(Rule::Subset, json!({"c": 1}), json!({"a": 1})), ["x.c"]);
        let message = json!([{"message": "abc"}]);
        let prefix = json!([{"message_prefix": "ab"}]);
        assert!(paths(Rule::Subset, prefix, message.clone()).is_empty());
        let wrong = json!([{"message_prefix": "x", "message": "abc"}]);
        assert_eq!(paths(Rule::Subset, wrong, message), ["x[0].message_prefix"]);
        assert!(paths(Rule::Holds, json!("in words"), json!(true)).is_empty());
        assert_eq!(paths(Rule::Holds, json!("in words"), json!(false)), ["x"]);
    }
}
