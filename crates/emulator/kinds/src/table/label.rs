//! Labels and label selectors as text.

use nearhop_object::selector::LabelSelector;
use serde_json::Value;

use super::rule::or;

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let pair =
        |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    or(&pairs.map(pair).collect::<Vec<_>>().join(","), "<none>")
}

/// A label selector, or `<none>` if it selects nothing or everything.
pub(super) fn selector(selector: &Value) -> String {
    match requirements(selector) {
        None => "<error>".to_owned(),
        Some(text) => or(&text, "<none>"),
    }
}

/// `a=b,c in (d,e),!f`, by key; `None` if the selector is invalid.
pub(super) fn requirements(selector: &Value) -> Option<String> {
    LabelSelector::from_json(selector).ok().map(|selector| selector.to_string())
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
