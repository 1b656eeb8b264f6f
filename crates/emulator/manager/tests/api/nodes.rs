//! Node health, and the default objects of namespaces.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, ServiceAccount};
use kube::api::{Api, Patch, PatchParams};
use nearhop_manager::Options;
use serde_json::json;

use crate::cluster::{Cluster, SIX, check, deployment, list, node_of, wait_for};

fn quick() -> Options {
    Options { node_monitor_grace_period: Duration::from_secs(1), ..Options::default() }
}

/// Renews the Leases of nodes until dropped.
struct Heartheartbeats(tokio::task::JoinHandle<()>);

impl Heartheartbeats {
    fn of(cluster: &Cluster, nodes: &'static [&'static str]) -> Self {
        let api: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-node-lease");
        Self(tokio::spawn(async move {
            loop {
                for node in nodes {
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": { "name": node },
                        "spec": { "holderIdentity": node, "leaseDurationSeconds": 40,
                                  "renewTime": format!("{:.6}", jiff::Timestamp::now()) },
                    });
                    let params = PatchParams::apply("test").force();
                    let _late = api.patch(node, &params, &Patch::Apply(lease)).await;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }))
    }
}

impl Drop for Heartheartbeats {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn taints(node: &Node) -> Vec<String> {
    let all = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let mut all: Vec<String> =
        all.into_iter().flatten().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    all.sort();
    all
}

fn ready(node: &Node) -> (String, String) {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|one| one.type_ == "Ready").cloned();
    ready.map(|r| (r.status, r.reason.unwrap_or_default())).unwrap_or_default()
}

#[tokio::test]
async fn pods_move_away_from_a_silent_node() {
    let cluster = Cluster::start_with(quick()).await;
    let heartbeats = Heartheartbeats::of(&cluster, &["n1", "n3"]);
    cluster.add_nodes(&[SIX[0], SIX[2]]).await;
    let mut web = deployment("web", 2, "v1");
    web["spec"]["template"]["spec"]["tolerations"] = json!([
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
          "tolerationSeconds": 1 },
    ]);
    cluster.create(&cluster.deployments(), web).await;
    cluster.rolled_out("web").await;
    cluster.kubelet.lose("n3");
    drop(heartbeats);
    let _heartbeats = Heartheartbeats::of(&cluster, &["n1"]);
    wait_for("a lost node", || async {
        let node = cluster.nodes().get("n3").await.unwrap();
        let expected = ["NoExecute", "NoSchedule"]
            .map(|effect| format!("node.kubernetes.io/unreachable:{effect}"));
        let lost = ready(&node) == ("Unknown".to_owned(), "NodeStatusUnknown".to_owned());
        check(lost && taints(&node) == expected, (ready(&node), taints(&node)))
    })
    .await;
    cluster.rolled_out("web").await;
    wait_for("a pod that moved", || async {
        let on: Vec<String> = cluster.active_pods().await.iter().map(node_of).collect();
        check(on == ["n1", "n1"], on)
    })
    .await;
    let stuck = list(&cluster.pods()).await;
    let stuck =
        stuck.iter().find(|pod| node_of(pod) == "n3").expect("the Pod on the lost node remains");
    let conditions = stuck.status.as_ref().unwrap().conditions.as_ref().unwrap();
    assert!(conditions.iter().any(|one| one.type_ == "Ready" && one.status == "False"));
    assert_eq!(ready(&cluster.nodes().get("n1").await.unwrap()).0, "True");
    cluster.delete(&cluster.nodes(), "n3").await;
    wait_for("the pods of a node that is gone", || async {
        let left = list(&cluster.pods()).await.len();
        check(left == 2, left)
    })
    .await;
}

#[tokio::test]
async fn a_recovered_node_loses_its_taints() {
    let cluster = Cluster::start_with(quick()).await;
    cluster.add_nodes(&SIX[..1]).await;
    wait_for("a lost node", || async {
        let node = cluster.nodes().get("n1").await.unwrap();
        check(ready(&node).0 == "Unknown" && taints(&node).len() == 2, taints(&node))
    })
    .await;
    let _heartbeats = Heartheartbeats::of(&cluster, &["n1"]);
    let patch = Patch::Merge(json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "reason": "KubeletReady" },
    ] } }));
    cluster.nodes().patch_status("n1", &PatchParams::default(), &patch).await.unwrap();
    wait_for("a clean node", || async {
        let node = cluster.nodes().get("n1").await.unwrap();
        check(ready(&node).0 == "True" && taints(&node).is_empty(), taints(&node))
    })
    .await;
    cluster.patch(&cluster.nodes(), "n1", json!({ "spec": { "unschedulable": true } })).await;
    wait_for("a cordon", || async {
        let node = cluster.nodes().get("n1").await.unwrap();
        check(taints(&node) == ["node.kubernetes.io/unschedulable:NoSchedule"], taints(&node))
    })
    .await;
}

#[tokio::test]
async fn each_namespace_has_a_service_account_and_the_cluster_ca() {
    let options = Options { root_ca: Some("PEM".to_owned()), ..Options::default() };
    let cluster = Cluster::start_with(options).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    cluster.create(&namespaces, json!({ "metadata": { "name": "shop" } })).await;
    for namespace in ["shop", "kube-system"] {
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
        let right = async || {
            wait_for(namespace, || async {
                let account = accounts.get_opt("default").await.unwrap();
                let map = maps.get_opt("kube-root-ca.crt").await.unwrap();
                let text = map.and_then(|map| map.data).and_then(|d| d.get("ca.crt").cloned());
                check(account.is_some() && text.as_deref() == Some("PEM"), (account, text))
            })
            .await;
        };
        right().await;
        cluster.delete(&accounts, "default").await;
        right().await;
        cluster.patch(&maps, "kube-root-ca.crt", json!({ "data": { "ca.crt": "?" } })).await;
        right().await;
    }
}
