//! Which labels a selector matches. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::object::Labels;

/// Whether the selector matches. One without requirements matches everything.
pub(crate) fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let equal = selector.match_labels.iter().flatten();
    equal.into_iter().all(|(key, value)| get(labels, key) == Some(value))
        && selector.match_expressions.iter().flatten().all(|wish| meets(wish, labels))
}

/// Whether it asks for anything at all: workloads must not take every pod there is.
pub(crate) fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn get<'a>(labels: Option<&'a Labels>, key: &str) -> Option<&'a String> {
    labels?.get(key)
}

fn meets(wish: &LabelSelectorRequirement, labels: Option<&Labels>) -> bool {
    let value = get(labels, &wish.key);
    let listed = value.is_some_and(|value| wish.values.iter().flatten().any(|v| v == value));
    match wish.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        let wish = LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values),
        };
        LabelSelector { match_expressions: Some(vec![wish]), ..Default::default() }
    }

    #[test]
    fn every_operator_does_what_it_says() {
        let labels: Labels = [("app".to_owned(), "web".to_owned())].into();
        let labels = Some(&labels);
        for (selector, expected) in [
            (wish("app", "In", &["web", "db"]), true),
            (wish("app", "In", &["db"]), false),
            (wish("tier", "In", &["web"]), false),
            (wish("app", "NotIn", &["web"]), false),
            (wish("tier", "NotIn", &["web"]), true),
            (wish("app", "Exists", &[]), true),
            (wish("tier", "Exists", &[]), false),
            (wish("app", "DoesNotExist", &[]), false),
            (wish("tier", "DoesNotExist", &[]), true),
            (wish("app", "Bogus", &[]), false),
        ] {
            assert_eq!(matches(&selector, labels), expected, "{selector:?}");
            assert!(!is_empty(&selector));
        }
        assert!(is_empty(&LabelSelector::default()) && matches(&LabelSelector::default(), None));
    }
}
