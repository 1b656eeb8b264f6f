//! Node selectors and node affinity of Pods. Pure.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use crate::object;

pub(crate) fn allows(spec: &PodSpec, node: &Node) -> bool {
    let wanted = spec.node_selector.as_ref();
    let selected = wanted.is_none_or(|labels| object::has_labels(&node.metadata, labels));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|wish| wish.node_selector_terms.iter().any(|t| meets(t, node)))
}

/// The total weight of the preferred node affinity terms that match.
pub(crate) fn preference(spec: &PodSpec, node: &Node) -> i32 {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let wishes = affinity
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref())
        .into_iter()
        .flatten();
    let met = wishes.filter(|wish| meets(&wish.preference, node));
    object::sum(met.map(|wish| wish.weight))
}

/// A term without any requirement matches nothing.
fn meets(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let mut any = false;
    for wish in labels {
        any = true;
        if !holds(wish, object::label(&node.metadata, &wish.key)) {
            return false;
        }
    }
    for wish in fields {
        any = true;
        let value = (wish.key == "metadata.name").then(|| object::name(&node.metadata));
        if !holds(wish, value) {
            return false;
        }
    }
    any
}

fn holds(wish: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wish.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|v| v == value));
    let compare = |ordering: std::cmp::Ordering| {
        let number = value.and_then(|value| value.parse::<i64>().ok());
        let bound = values.first().and_then(|bound| bound.parse::<i64>().ok());
        number.zip(bound).is_some_and(|(number, bound)| number.cmp(&bound) == ordering)
    };
    match wish.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn node_affinity_operators_match_as_in_kubernetes() {
        let mut node = testing::node("n1", "a");
        node.metadata.labels.as_mut().unwrap().insert("cores".to_owned(), "8".to_owned());
        let spec = |part: &str, key: &str, operator: &str, values: &[&str]| -> PodSpec {
            serde_json::from_value(serde_json::json!({
                "containers": [],
                "affinity": { "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { part: [{ "key": key, "operator": operator, "values": values }] },
                    ] },
                } },
            }))
            .unwrap()
        };
        let zone = "topology.kubernetes.io/zone";
        for (key, operator, values, expected) in [
            (zone, "In", &["a", "b"][..], true),
            (zone, "In", &["b"], false),
            (zone, "NotIn", &["a"], false),
            ("none", "NotIn", &["a"], true),
            (zone, "Exists", &[], true),
            ("none", "Exists", &[], false),
            (zone, "DoesNotExist", &[], false),
            ("cores", "Gt", &["7"], true),
            ("cores", "Gt", &["8"], false),
            ("cores", "Lt", &["9"], true),
            (zone, "Lt", &["9"], false),
        ] {
            let spec = spec("matchExpressions", key, operator, values);
            assert_eq!(allows(&spec, &node), expected, "{key} {operator} {values:?}");
        }
        assert!(allows(&spec("matchFields", "metadata.name", "In", &["n1"]), &node));
        assert!(!allows(&spec("matchFields", "metadata.name", "In", &["n2"]), &node));
        let empty: PodSpec = serde_json::from_value(serde_json::json!({
            "containers": [],
            "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{}] },
            } },
        }))
        .unwrap();
        assert!(!allows(&empty, &node), "a term without requirements matches nothing");
    }
}
