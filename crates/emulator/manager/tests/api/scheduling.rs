//! Scheduling, and the messages for unschedulable Pods.

use serde_json::{Value, json};

use crate::cluster::{Cluster, SIX, check, node_of, wait_for};

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "c", "image": "v1" }] },
    });
    for (key, value) in spec.as_object().expect("an object") {
        pod["spec"][key] = value.clone();
    }
    pod
}

async fn bound(cluster: &Cluster, name: &str) -> String {
    wait_for(name, || async {
        let pod = cluster.pods().get(name).await.expect("the Pod exists");
        let node = node_of(&pod);
        check(!node.is_empty(), &pod.status).map(|()| node)
    })
    .await
}

/// Waits for this message in the condition and in an event.
async fn unschedulable(cluster: &Cluster, name: &str, message: &str) {
    wait_for(name, || async {
        let pod = cluster.pods().get(name).await.expect("the Pod exists");
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let good = conditions.iter().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
                && condition.message.as_deref() == Some(message)
        });
        check(good, conditions)
    })
    .await;
    wait_for("an event", || async {
        let events = cluster.events(name).await;
        let reported =
            |(reason, text): &(String, String)| reason == "FailedScheduling" && text == message;
        check(events.iter().any(reported), events)
    })
    .await;
}

#[tokio::test]
async fn pods_are_bound_or_report_why_they_are_unschedulable() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let spec = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "b" } });
    cluster.create(&cluster.pods(), pod("selected", spec)).await;
    assert_eq!(bound(&cluster, "selected").await, "n3");
    let taints = json!({ "spec": { "taints": [
        { "key": "dedicated", "value": "db", "effect": "NoSchedule" },
    ] } });
    cluster.patch(&cluster.nodes(), "n1", taints).await;
    cluster.patch(&cluster.nodes(), "n2", json!({ "spec": { "unschedulable": true } })).await;
    let spec = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "a" } });
    cluster.create(&cluster.pods(), pod("waits", spec.clone())).await;
    unschedulable(
        &cluster,
        "waits",
        "0/6 nodes are available: 1 node(s) had untolerated taint {dedicated: db}, 1 node(s) were \
         unschedulable, 4 node(s) didn't match Pod's node affinity/selector.",
    )
    .await;
    let mut tolerant = pod("tolerant", spec);
    tolerant["spec"]["tolerations"] = json!([{ "key": "dedicated", "operator": "Exists" }]);
    cluster.create(&cluster.pods(), tolerant).await;
    assert_eq!(bound(&cluster, "tolerant").await, "n1");
    cluster.patch(&cluster.nodes(), "n2", json!({ "spec": { "unschedulable": null } })).await;
    assert_eq!(bound(&cluster, "waits").await, "n2", "a node change triggers a retry");
    let events = cluster.events("waits").await;
    assert!(events.iter().any(|(reason, _)| reason == "Scheduled"), "{events:?}");
}

#[tokio::test]
async fn resources_are_counted_and_reused() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX[..1]).await;
    let hungry = |cpu: &str| {
        json!({ "containers": [{ "name": "c", "image": "v1",
            "resources": { "requests": { "cpu": cpu } } }] })
    };
    cluster.create(&cluster.pods(), pod("first", hungry("3"))).await;
    bound(&cluster, "first").await;
    cluster.create(&cluster.pods(), pod("second", hungry("2"))).await;
    unschedulable(&cluster, "second", "0/1 nodes are available: 1 Insufficient cpu.").await;
    cluster.delete(&cluster.pods(), "first").await;
    assert_eq!(bound(&cluster, "second").await, "n1");
}

#[tokio::test]
async fn a_pod_waits_for_its_affinity() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let wanted = json!({ "affinity": { "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchLabels": { "app": "friend" } },
        }],
    } } });
    cluster.create(&cluster.pods(), pod("lonely", wanted)).await;
    let why = "0/6 nodes are available: 6 node(s) didn't match pod affinity rules.";
    unschedulable(&cluster, "lonely", why).await;
    cluster.create(&cluster.pods(), pod("friend", json!({}))).await;
    assert_eq!(bound(&cluster, "lonely").await, bound(&cluster, "friend").await);
}

#[tokio::test]
async fn a_taint_without_time_added_evicts_after_toleration_seconds() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX[..1]).await;
    let patient = json!({ "tolerations": [{
        "key": "out", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1,
    }] });
    cluster.create(&cluster.pods(), pod("patient", patient)).await;
    bound(&cluster, "patient").await;
    let taints = json!({ "spec": { "taints": [{ "key": "out", "effect": "NoExecute" }] } });
    cluster.patch(&cluster.nodes(), "n1", taints).await;
    wait_for("the eviction", || async {
        let events = cluster.events("patient").await;
        check(events.iter().any(|(reason, _)| reason == "TaintManagerEviction"), events)
    })
    .await;
}

#[tokio::test]
async fn unsupported_fields_are_named() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX[..1]).await;
    let spec = json!({ "volumes": [
        { "name": "v", "persistentVolumeClaim": { "claimName": "data" } },
    ] });
    cluster.create(&cluster.pods(), pod("claims", spec)).await;
    wait_for("a reason", || async {
        let events = cluster.events("claims").await;
        let named = events.iter().any(|(_, text)| text.contains("spec.volumes[0]"));
        check(named, events)
    })
    .await;
    let other = json!({ "schedulerName": "other" });
    cluster.create(&cluster.pods(), pod("others", other)).await;
    cluster.create(&cluster.pods(), pod("mine", json!({}))).await;
    bound(&cluster, "mine").await;
    assert_eq!(node_of(&cluster.pods().get("others").await.unwrap()), "");
}
