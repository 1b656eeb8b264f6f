//! Labels and label selectors as text.

use serde_json::Value;

use super::column::{list, text};

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: &Value) -> String {
    let pairs = pairs(map);
    if pairs.is_empty() {
        return "<none>".to_owned();
    }
    pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// A label selector, or `<none>` if it selects nothing or everything.
pub(super) fn selector(selector: &Value) -> String {
    match requirements(selector) {
        None => "<error>".to_owned(),
        Some(text) if text.is_empty() => "<none>".to_owned(),
        Some(text) => text,
    }
}

/// `a=b,c in (d,e),!f`, by key; `None` if it has an operator that does not exist.
pub(super) fn requirements(selector: &Value) -> Option<String> {
    let matched = selector.get("matchLabels").map(pairs).unwrap_or_default();
    let mut all: Vec<(&str, String)> =
        matched.into_iter().map(|(key, value)| (key, format!("{key}={value}"))).collect();
    for expression in list(selector, "matchExpressions") {
        let key = text(expression, "key");
        let mut values: Vec<&str> =
            list(expression, "values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let requirement = match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        };
        all.push((key, requirement));
    }
    all.sort_by_key(|(key, _)| *key);
    Some(all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(","))
}

fn pairs(map: &Value) -> Vec<(&str, &str)> {
    let map = map.as_object().into_iter().flatten();
    map.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_are_printed_as_text() {
        let expression = |key, operator, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let all = json!({"matchLabels": {"m": "1"}, "matchExpressions": [
            expression("z", "In", &["b", "a"]), expression("a", "NotIn", &["x"]),
            expression("e", "Exists", &[]), expression("n", "DoesNotExist", &[])]});
        assert_eq!(selector(&all), "a notin (x),e,m=1,!n,z in (a,b)");
        assert_eq!(selector(&json!(null)), "<none>");
        assert_eq!(selector(&json!({})), "<none>");
        assert_eq!(
            selector(&json!({"matchExpressions": [expression("a", "Like", &[])]})),
            "<error>"
        );
        assert_eq!(labels(&json!({"b": "2", "a": "1"})), "a=1,b=2");
        assert_eq!(labels(&json!({})), "<none>");
    }
}
