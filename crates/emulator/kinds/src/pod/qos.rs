//! The quality-of-service class of a pod, from the cpu and memory its containers ask for.

use std::collections::BTreeMap;

use nearhop_core::quantity::parse_milli;
use serde_json::Value;

use crate::json::{at, entries, list};

const COUNTED: [&str; 2] = ["cpu", "memory"];

/// Guaranteed, Burstable or BestEffort.
pub(crate) fn qos_class(pod: &Value) -> &'static str {
    let mut requests = BTreeMap::new();
    let mut limits = BTreeMap::new();
    let mut guaranteed = true;
    if let Some(resources) = at(pod, &["spec", "resources"]) {
        add(&mut requests, resources, "requests");
        add(&mut limits, resources, "limits");
        guaranteed = limits.len() == COUNTED.len();
    } else {
        for part in ["containers", "initContainers"] {
            for container in list(pod, &["spec", part]) {
                let resources = container.get("resources").unwrap_or(&Value::Null);
                add(&mut requests, resources, "requests");
                guaranteed &= add(&mut limits, resources, "limits") == COUNTED.len();
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Adds one part of a container's resources to a sum; gives how many were above zero.
fn add(sum: &mut BTreeMap<&'static str, i128>, resources: &Value, part: &str) -> usize {
    let mut found = 0;
    for (name, value) in entries(resources, &[part]) {
        let Some(name) = COUNTED.into_iter().find(|known| *known == name) else { continue };
        let amount = milli(value).unwrap_or_default();
        if amount > 0 {
            found += 1;
            let total = sum.entry(name).or_default();
            *total = total.saturating_add(amount);
        }
    }
    found
}

/// A quantity, of cores or of bytes, in thousandths.
pub(super) fn milli(quantity: &Value) -> Option<i128> {
    match quantity {
        Value::Number(number) => number.as_i64().map(|number| i128::from(number) * 1000),
        Value::String(text) => parse_milli(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(resources: &[Value]) -> Value {
        let containers: Vec<Value> = resources.iter().map(|r| json!({"resources": r})).collect();
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn large_memory_values_are_accepted() {
        for memory in ["17Pi", "7Ei", "9223372036854775807"] {
            let full = json!({"cpu": "1", "memory": memory});
            let pod = |resources: Value| qos_class(&pod(&[resources]));
            assert_eq!(pod(json!({"limits": full, "requests": full})), "Guaranteed", "{memory}");
            assert_eq!(pod(json!({"limits": {"memory": memory}})), "Burstable", "{memory}");
        }
    }

    #[test]
    fn each_qos_class_is_computed() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let same = json!({"cpu": "1000m", "memory": "1024Mi"});
        let all = json!({"limits": full, "requests": same});
        assert_eq!(qos_class(&pod(&[json!({})])), "BestEffort");
        assert_eq!(qos_class(&pod(std::slice::from_ref(&all))), "Guaranteed");
        assert_eq!(qos_class(&pod(&[all, json!({})])), "Burstable");
        assert_eq!(qos_class(&pod(&[json!({"requests": {"cpu": "1"}})])), "Burstable");
        assert_eq!(qos_class(&pod(&[json!({"requests": {"cpu": "0"}})])), "BestEffort");
    }
}
