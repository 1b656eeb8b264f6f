//! Deployments, ReplicaSets and DaemonSets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::cluster::{Cluster, SIX, check, deployment, image, list, node_of, template, wait_for};
use crate::faults::set_faults;

#[tokio::test]
async fn a_deployment_spreads_over_zones_and_nodes() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 9, "v1")).await;
    let found = cluster.rolled_out("web").await;
    let pods = cluster.active_pods().await;
    assert_eq!(pods.len(), 9, "no surplus Pod");
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    pods.iter().for_each(|pod| *on.entry(node_of(pod)).or_default() += 1);
    for nodes in [["n1", "n2"], ["n3", "n4"], ["n5", "n6"]] {
        let mut counts = nodes.map(|node| on.get(node).copied().unwrap_or(0));
        counts.sort_unstable();
        assert_eq!(counts, [1, 2], "{on:?}");
    }
    let conditions = found.status.unwrap().conditions.unwrap();
    let reason = |kind: &str| {
        let found = conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        (found.status.clone(), found.reason.clone().unwrap())
    };
    assert_eq!(reason("Available"), ("True".to_owned(), "MinimumReplicasAvailable".to_owned()));
    let events = cluster.events("web").await;
    assert!(events.iter().any(|(reason, _)| reason == "ScalingReplicaSet"), "{events:?}");
}

#[tokio::test]
async fn scaling_creates_and_deletes_the_difference() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 3, "v1")).await;
    cluster.rolled_out("web").await;
    let before = names(&cluster.active_pods().await);
    for replicas in [7, 2, 0, 4] {
        let patch = json!({ "spec": { "replicas": replicas } });
        cluster.patch(&cluster.deployments(), "web", patch).await;
        cluster.rolled_out("web").await;
        assert_eq!(cluster.active_pods().await.len(), replicas);
        if replicas == 7 {
            let now = names(&cluster.active_pods().await);
            assert!(before.iter().all(|name| now.contains(name)), "old Pods stay");
        }
    }
    assert_eq!(list(&cluster.replica_sets()).await.len(), 1, "scaling creates no ReplicaSet");
}

fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(|pod| pod.metadata.name.clone().unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_rollout_replaces_all_pods_and_keeps_its_history() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let mut web = deployment("web", 4, "v1");
    web["spec"]["revisionHistoryLimit"] = 2.into();
    cluster.create(&cluster.deployments(), web).await;
    cluster.rolled_out("web").await;
    for version in 2..=5 {
        let template = template("web", &format!("v{version}"));
        let patch = json!({ "spec": { "template": template } });
        cluster.patch(&cluster.deployments(), "web", patch).await;
        let found = cluster.rolled_out("web").await;
        let revision = &found.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"];
        assert_eq!(*revision, version.to_string());
    }
    let pods = cluster.active_pods().await;
    assert_eq!(pods.iter().map(image).collect::<Vec<_>>(), ["v5"; 4]);
    wait_for("the history", || async {
        let sets = list(&cluster.replica_sets()).await;
        check(sets.len() == 3, sets.len())
    })
    .await;
}

#[tokio::test]
async fn a_broken_image_stops_the_rollout_within_its_bounds() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let mut web = deployment("web", 4, "v1");
    web["spec"]["strategy"] = json!({
        "type": "RollingUpdate",
        "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 },
    });
    web["spec"]["progressDeadlineSeconds"] = 2.into();
    cluster.create(&cluster.deployments(), web).await;
    cluster.rolled_out("web").await;
    let patch = json!({ "spec": { "template": template("web", "broken") } });
    cluster.patch(&cluster.deployments(), "web", patch).await;
    wait_for("a deadline that passes", || async {
        let found = cluster.deployments().get("web").await.unwrap();
        let conditions = found.status.unwrap().conditions.unwrap_or_default();
        let late = conditions
            .iter()
            .any(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"));
        check(late, conditions)
    })
    .await;
    let pods = cluster.active_pods().await;
    let count = |version: &str| pods.iter().filter(|pod| image(pod) == version).count();
    assert_eq!((count("v1"), count("broken")), (3, 2));
    let patch = json!({ "spec": { "template": template("web", "v1") } });
    cluster.patch(&cluster.deployments(), "web", patch).await;
    cluster.rolled_out("web").await;
    assert!(cluster.active_pods().await.iter().all(|pod| image(pod) == "v1"));
}

#[tokio::test]
async fn a_paused_deployment_scales_and_rolls_out_only_when_resumed() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 2, "v1")).await;
    cluster.rolled_out("web").await;
    let patch = json!({ "spec": {
        "paused": true, "replicas": 3, "template": template("web", "v2"),
    } });
    cluster.patch(&cluster.deployments(), "web", patch).await;
    wait_for("scaling", || async {
        let pods = cluster.active_pods().await;
        check(pods.len() == 3 && pods.iter().all(|pod| image(pod) == "v1"), names(&pods))
    })
    .await;
    let patch = json!({ "spec": { "paused": false } });
    cluster.patch(&cluster.deployments(), "web", patch).await;
    cluster.rolled_out("web").await;
    assert!(cluster.active_pods().await.iter().all(|pod| image(pod) == "v2"));
}

#[tokio::test]
async fn recreate_never_runs_two_versions() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let mut web = deployment("web", 3, "v1");
    web["spec"]["strategy"] = json!({ "type": "Recreate" });
    cluster.create(&cluster.deployments(), web).await;
    cluster.rolled_out("web").await;
    let patch = json!({ "spec": { "template": template("web", "v2") } });
    cluster.patch(&cluster.deployments(), "web", patch).await;
    wait_for("the new version", || async {
        let pods = list(&cluster.pods()).await;
        let of = |version: &str| pods.iter().filter(|pod| image(pod) == version).count();
        assert!(of("v1") == 0 || of("v2") == 0, "both versions run: {:?}", names(&pods));
        check(of("v2") == 3, names(&pods))
    })
    .await;
    cluster.rolled_out("web").await;
}

#[tokio::test]
async fn a_restarted_manager_completes_the_rollout() {
    let mut cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 6, "v1")).await;
    cluster.rolled_out("web").await;
    for round in 2..8_u64 {
        let patch = json!({ "spec": { "template": template("web", &format!("v{round}")) } });
        cluster.patch(&cluster.deployments(), "web", patch).await;
        // The manager restarts at a different point of the rollout in each round.
        tokio::time::sleep(std::time::Duration::from_millis(round * 7)).await;
        cluster.kill_manager();
        cluster.start_manager().await;
        let found = cluster.rolled_out("web").await;
        assert_eq!(cluster.active_pods().await.len(), 6);
        let revision = &found.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"];
        assert_eq!(*revision, round.to_string());
    }
}

#[tokio::test]
async fn two_managers_reach_the_same_result() {
    let cluster = Cluster::start().await;
    let _second = cluster.second_manager().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 5, "v0")).await;
    for round in 1..4 {
        let patch = json!({ "spec": { "template": template("web", &format!("v{round}")) } });
        cluster.patch(&cluster.deployments(), "web", patch).await;
        cluster.rolled_out("web").await;
    }
    wait_for("five pods", || async {
        let pods = cluster.active_pods().await;
        check(pods.len() == 5 && pods.iter().all(|pod| image(pod) == "v3"), names(&pods))
    })
    .await;
}

#[tokio::test]
async fn a_rejected_pod_emits_an_event_about_its_owner() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX[..1]).await;
    let fault = json!({
        "answer": { "code": 403, "share": 1.0 },
        "userAgent": "nearhop-manager",
        "path": "/namespaces/default/pods",
    });
    set_faults(&cluster, fault).await;
    cluster.create(&cluster.deployments(), deployment("web", 1, "v1")).await;
    wait_for("an event", || async {
        let sets = list(&cluster.replica_sets()).await;
        let name = sets.first().and_then(|set| set.metadata.name.clone()).unwrap_or_default();
        let events = cluster.events(&name).await;
        check(events.iter().any(|(reason, _)| reason == "FailedCreate"), events)
    })
    .await;
    set_faults(&cluster, json!({})).await;
    cluster.rolled_out("web").await;
}

#[tokio::test]
async fn pods_are_adopted_and_released_by_their_labels() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    let mut stray = json!({ "metadata": { "name": "stray", "labels": { "app": "web" } } });
    stray["spec"] = template("web", "v1")["spec"].clone();
    cluster.create(&cluster.pods(), stray).await;
    let set = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": template("web", "v1"),
        },
    });
    cluster.create(&cluster.replica_sets(), set).await;
    let ready = async |replicas: i32| {
        wait_for("the set", || async {
            let found = cluster.replica_sets().get("web").await.unwrap();
            let status = found.status.unwrap_or_default();
            check(status.ready_replicas == Some(replicas), status)
        })
        .await;
    };
    ready(2).await;
    assert_eq!(cluster.active_pods().await.len(), 2, "the adopted Pod is one of them");
    let patch = json!({ "metadata": { "labels": { "app": "debug" } } });
    cluster.patch(&cluster.pods(), "stray", patch).await;
    wait_for("a successor", || async {
        let pods = cluster.active_pods().await;
        let stray = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some("stray")).unwrap();
        let free = stray.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
        check(pods.len() == 3 && free, names(&pods))
    })
    .await;
}

#[tokio::test]
async fn a_daemon_set_follows_new_cordoned_and_deleted_nodes() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX[..2]).await;
    let daemon = json!({
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": template("agent", "v1"),
        },
    });
    cluster.create(&cluster.daemon_sets(), daemon).await;
    daemons_on(&cluster, &["n1", "n2"], "v1").await;
    cluster.add_nodes(&SIX[2..4]).await;
    daemons_on(&cluster, &["n1", "n2", "n3", "n4"], "v1").await;
    let cordon = json!({ "spec": { "unschedulable": true } });
    cluster.patch(&cluster.nodes(), "n1", cordon).await;
    let taint = json!({ "spec": {
        "taints": [{ "key": "dedicated", "value": "x", "effect": "NoExecute" }],
    } });
    cluster.patch(&cluster.nodes(), "n4", taint).await;
    daemons_on(&cluster, &["n1", "n2", "n3"], "v1").await;
    let patch = json!({ "spec": { "template": template("agent", "v2") } });
    cluster.patch(&cluster.daemon_sets(), "agent", patch).await;
    daemons_on(&cluster, &["n1", "n2", "n3"], "v2").await;
    cluster.delete(&cluster.nodes(), "n3").await;
    wait_for("a node less", || async {
        let status = cluster.daemon_sets().get("agent").await.unwrap().status.unwrap();
        check(status.desired_number_scheduled == 2, status)
    })
    .await;
}

async fn daemons_on(cluster: &Cluster, nodes: &[&str], version: &str) {
    wait_for("daemons", || async {
        let found = cluster.daemon_sets().get("agent").await.expect("the DaemonSet exists");
        let status = found.status.unwrap_or_default();
        let pods = cluster.active_pods().await;
        let mut seen: Vec<String> = pods.iter().map(node_of).collect();
        seen.sort();
        let count = i32::try_from(nodes.len()).expect("a few");
        let good = seen == nodes
            && pods.iter().all(|pod| image(pod) == version)
            && status.number_available == Some(count)
            && status.updated_number_scheduled == Some(count)
            && status.observed_generation == found.metadata.generation;
        check(good, (seen, status))
    })
    .await;
}
