//! Resource requests of Pods, in thousandths. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nearhop_core::quantity::parse_milli;

/// Quantities by resource name, in thousandths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// Parses a resource list. A malformed quantity exceeds the capacity of any node.
pub(crate) fn amounts(listed: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let all = listed.into_iter().flatten();
    all.map(|(name, q)| (name.clone(), parse_milli(&q.0).unwrap_or(i128::MAX / 4))).collect()
}

/// The effective requests of a Pod: the sum of its containers or the highest init container, plus the
/// overhead.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |c: &Container| amounts(c.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let mut total = Amounts::new();
    spec.containers.iter().for_each(|container| add(&mut total, &of(container)));
    let mut beside = Amounts::new();
    let mut peak = Amounts::new();
    for step in spec.init_containers.iter().flatten() {
        let mut at_once = beside.clone();
        add(&mut at_once, &of(step));
        if step.restart_policy.as_deref() == Some("Always") {
            beside.clone_from(&at_once);
        }
        raise(&mut peak, &at_once);
    }
    add(&mut total, &beside);
    raise(&mut total, &peak);
    let whole = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    total.extend(amounts(whole));
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total
}

pub(crate) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let held = sum.entry(name.clone()).or_default();
        *held = held.saturating_add(*amount);
    }
}

fn raise(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let held = sum.entry(name.clone()).or_default();
        *held = (*held).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_requests_count_init_containers_and_overhead() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {
                "containers": [
                    { "name": "a", "resources": { "requests": { "cpu": "1", "memory": "1k" } } },
                    { "name": "b", "resources": { "requests": { "cpu": "500m" } } },
                ],
                "initContainers": [
                    { "name": "i", "resources": { "requests": { "cpu": "1", "memory": "9k" } } },
                    { "name": "s", "restartPolicy": "Always",
                      "resources": { "requests": { "cpu": "100m" } } },
                ],
                "overhead": { "cpu": "10m" },
            },
        }))
        .unwrap();
        let asked = requests(&pod);
        assert_eq!((asked["cpu"], asked["memory"]), (1610, 9_000_000));
    }

    #[test]
    fn requests_saturate() {
        let container = |name: &str| serde_json::json!({ "name": name, "resources": { "requests": { "memory": "1e40" } } });
        let names = ["a", "b", "c", "d", "e", "f"];
        let containers: Vec<_> = names.into_iter().map(container).collect();
        let pod = serde_json::json!({ "spec": { "containers": containers } });
        let asked = requests(&serde_json::from_value(pod).unwrap());
        assert_eq!(asked["memory"], i128::MAX);
    }
}
