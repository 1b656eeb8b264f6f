//! Taints and tolerations. Pure.

use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint, Toleration};

pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(crate) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
pub(crate) const NO_EXECUTE: &str = "NoExecute";

pub(crate) fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

pub(crate) fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
}

pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    let (value, taints) = (text(&toleration.value), text(&taint.value));
    match text(&toleration.operator).as_str() {
        "" | "Equal" => value == taints,
        "Exists" => true,
        "Lt" | "Gt" => {
            let numbers = value.parse::<i64>().ok().zip(taints.parse::<i64>().ok());
            let is_less = toleration.operator.as_deref() == Some("Lt");
            numbers
                .is_some_and(|(value, taint)| if is_less { taint < value } else { taint > value })
        }
        _ => false,
    }
}

pub(crate) fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

/// The first taint that the tolerations do not cover. A node that is not ready counts as tainted
/// even before the taint is written.
pub(crate) fn first_untolerated(node: &Node, tolerations: &[Toleration]) -> Option<Taint> {
    let hard = |taint: &&Taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE);
    let written = taints(node).iter().filter(hard).cloned();
    let mut all = written.chain(implied(node));
    all.find(|taint| !is_tolerated(taint, tolerations))
}

/// The taint of a node that is not ready.
fn implied(node: &Node) -> Option<Taint> {
    let ready = condition(node, "Ready").map(|ready| ready.status.as_str());
    let key = match ready {
        Some("True") => return None,
        Some("Unknown") => UNREACHABLE,
        _ => NOT_READY,
    };
    Some(taint(key, NO_SCHEDULE))
}

pub(crate) fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: some(key),
            operator: some(operator),
            value: some(value),
            effect: some(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn tolerations_match_by_key_value_and_effect() {
        let taint = Taint { value: Some("gpu".to_owned()), ..taint("dedicated", NO_SCHEDULE) };
        for (toleration, expected) in [
            (toleration("dedicated", "Equal", "gpu", NO_SCHEDULE), true),
            (toleration("dedicated", "", "gpu", ""), true),
            (toleration("dedicated", "Equal", "cpu", NO_SCHEDULE), false),
            (toleration("dedicated", "Exists", "", NO_SCHEDULE), true),
            (toleration("dedicated", "Exists", "", NO_EXECUTE), false),
            (toleration("other", "Exists", "", ""), false),
            (toleration("", "Exists", "", ""), true),
            (toleration("dedicated", "Bogus", "", ""), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
    }
}
