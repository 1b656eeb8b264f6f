//! Deployments, ReplicaSets and DaemonSets.

use std::collections::BTreeMap;

use serde_json::json;

use crate::cluster::{Cluster, check, deployment, image, list, node_of, template, wait_for};

const SIX: [(&str, &str); 6] =
    [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b"), ("n5", "c"), ("n6", "c")];

#[tokio::test]
async fn a_deployment_comes_up_spread_over_zones_and_nodes() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 9, "v1")).await;
    let found = cluster.rolled_out("web").await;
    let pods = cluster.active_pods().await;
    assert_eq!(pods.len(), 9, "exactly, and never one too many");
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    pods.iter().for_each(|pod| *on.entry(node_of(pod)).or_default() += 1);
    let zone = |nodes: [&str; 2]| nodes.map(|n| on.get(n).copied().unwrap_or(0));
    for nodes in [["n1", "n2"], ["n3", "n4"], ["n5", "n6"]] {
        let mut counts = zone(nodes);
        counts.sort_unstable();
        assert_eq!(counts, [1, 2], "{on:?}");
    }
    let conditions = found.status.unwrap().conditions.unwrap();
    let reason = |kind: &str| {
        let found = conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        (found.status.clone(), found.reason.clone().unwrap())
    };
    assert_eq!(reason("Available"), ("True".to_owned(), "MinimumReplicasAvailable".to_owned()));
    assert_eq!(reason("Progressing"), ("True".to_owned(), "NewReplicaSetAvailable".to_owned()));
}

#[tokio::test]
async fn a_daemon_runs_on_every_node_that_comes() {
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
    let on = async |nodes: &[&str]| {
        wait_for("daemons", || async {
            let found = cluster.daemon_sets().get("agent").await.unwrap();
            let status = found.status.unwrap_or_default();
            let mut seen: Vec<String> = cluster.active_pods().await.iter().map(node_of).collect();
            seen.sort();
            let count = i32::try_from(nodes.len()).unwrap();
            check(
                seen == nodes
                    && status.number_ready == count
                    && status.number_available == Some(count),
                (seen, status),
            )
        })
        .await;
    };
    on(&["n1", "n2"]).await;
    cluster.add_nodes(&SIX[2..3]).await;
    on(&["n1", "n2", "n3"]).await;
    let pods = list(&cluster.pods()).await;
    assert!(pods.iter().all(|pod| image(pod) == "v1"));
}
