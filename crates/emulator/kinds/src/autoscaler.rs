//! HorizontalPodAutoscalers in `autoscaling/v1` and `autoscaling/v2`.
//!
//! The stored form is v2. Annotations of a v1 object hold the fields that v1 does not have, so a v1
//! client that writes an object back loses nothing.

use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// A v1 object as v2.
pub(crate) fn to_v2(v1: &Value) -> Value {
    let mut object = v1.clone();
    object["apiVersion"] = "autoscaling/v2".into();
    let (metrics, behavior) =
        (take_annotation(&mut object, METRICS), take_annotation(&mut object, BEHAVIOR));
    let mut all: Vec<Value> = Vec::new();
    if let Some(spec) = object["spec"].as_object_mut() {
        if let Some(percent) = spec.remove("targetCPUUtilizationPercentage") {
            all.push(json!({"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}));
        }
        all.extend(metrics.and_then(|metrics| metrics.as_array().cloned()).unwrap_or_default());
        if !all.is_empty() {
            spec.insert("metrics".to_owned(), all.into());
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(status) = object["status"].as_object_mut()
        && let Some(percent) = status.remove("currentCPUUtilizationPercentage")
    {
        status.insert(
            "currentMetrics".to_owned(),
            json!([{"type": "Resource", "resource": {
            "name": "cpu", "current": {"averageUtilization": percent}}}]),
        );
    }
    object
}

/// A v2 object as v1.
pub(crate) fn to_v1(v2: &Value) -> Value {
    let mut object = v2.clone();
    object["apiVersion"] = "autoscaling/v1".into();
    let (mut others, mut behavior) = (Vec::new(), None);
    if let Some(spec) = object["spec"].as_object_mut() {
        let metrics = spec.remove("metrics");
        for metric in metrics.iter().filter_map(Value::as_array).flatten() {
            match cpu_percent(metric, "target") {
                Some(percent) if !spec.contains_key("targetCPUUtilizationPercentage") => {
                    spec.insert("targetCPUUtilizationPercentage".to_owned(), percent);
                }
                _ => others.push(metric.clone()),
            }
        }
        behavior = spec.remove("behavior");
    }
    if let Some(status) = object["status"].as_object_mut() {
        status.remove("conditions");
        let current = status.remove("currentMetrics");
        let mut metrics = current.iter().filter_map(Value::as_array).flatten();
        if let Some(percent) = metrics.find_map(|metric| cpu_percent(metric, "current")) {
            status.insert("currentCPUUtilizationPercentage".to_owned(), percent);
        }
    }
    if !others.is_empty() {
        put_annotation(&mut object, METRICS, &others.into());
    }
    if let Some(behavior) = behavior {
        put_annotation(&mut object, BEHAVIOR, &behavior);
    }
    object
}

fn cpu_percent(metric: &Value, part: &str) -> Option<Value> {
    let resource = &metric["resource"];
    let cpu = metric["type"] == "Resource" && resource["name"] == "cpu";
    cpu.then(|| resource[part].get("averageUtilization").cloned()).flatten()
}

/// Removes an annotation, unless it is not JSON and so the user's own.
fn take_annotation(object: &mut Value, key: &str) -> Option<Value> {
    let annotations = object["metadata"]["annotations"].as_object_mut()?;
    let value = serde_json::from_str(annotations.get(key)?.as_str()?).ok()?;
    annotations.remove(key);
    if annotations.is_empty() {
        object["metadata"].as_object_mut()?.remove("annotations");
    }
    Some(value)
}

fn put_annotation(object: &mut Value, key: &str, value: &Value) {
    let metadata = &mut object["metadata"];
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = Map::new().into();
    }
    metadata["annotations"][key] = value.to_string().into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_to_v1_and_back_keeps_all_fields() {
        let stored = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a", "annotations": {"mine": "1"}},
            "spec": {"maxReplicas": 3, "behavior": {"scaleUp": {"stabilizationWindowSeconds": 5}},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 80}}},
                    {"type": "Resource", "resource": {"name": "memory",
                        "target": {"type": "Utilization", "averageUtilization": 50}}}]},
            "status": {"desiredReplicas": 1}
        });
        let shown = to_v1(&stored);
        assert_eq!(shown["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}));
        assert_eq!(to_v2(&shown), stored);
    }
}
