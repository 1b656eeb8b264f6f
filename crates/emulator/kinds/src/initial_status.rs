//! The status that an object has when it is created, whatever its creator sent.

use serde_json::{Value, json};

use crate::resource::Resource;

/// The first status of an object of a built-in kind; `None` if the kind has no status, or its own
/// module sets it.
pub(crate) fn initial_status(resource: &Resource) -> Option<Value> {
    let status = match (&*resource.group, &*resource.kind) {
        ("", "ReplicationController") | ("apps", "ReplicaSet") => json!({"replicas": 0}),
        ("", "PersistentVolume" | "PersistentVolumeClaim") => json!({"phase": "Pending"}),
        ("apps", "StatefulSet") => json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "DaemonSet") => json!({
            "currentNumberScheduled": 0, "numberMisscheduled": 0,
            "desiredNumberScheduled": 0, "numberReady": 0,
        }),
        ("autoscaling", "HorizontalPodAutoscaler") if &*resource.version == "v1" => {
            json!({"currentReplicas": 0, "desiredReplicas": 0})
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            json!({"currentMetrics": null, "desiredReplicas": 0})
        }
        ("networking.k8s.io", "Ingress") => json!({"loadBalancer": {}}),
        ("policy", "PodDisruptionBudget") => json!({
            "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
        }),
        ("storage.k8s.io", "VolumeAttachment") => json!({"attached": false}),
        ("", "Pod" | "Service" | "Node" | "Namespace") => return None,
        ("apiextensions.k8s.io", _) => return None,
        _ if resource.subresource("status").is_some() => json!({}),
        _ => return None,
    };
    Some(status)
}
