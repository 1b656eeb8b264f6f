//! Faults of the API server: dropped watches, errors, compaction, restart.

use http::Request;
use serde_json::{Value, json};

use crate::cluster::{Cluster, SIX, deployment, template};

/// Sets the faults of the API server.
pub(crate) async fn set_faults(cluster: &Cluster, faults: Value) {
    let body = faults.to_string().into_bytes();
    let request = Request::post("/nearhop/faults").header("content-type", "application/json");
    let request = request.body(body).expect("a valid request");
    let _answer: String = cluster.client.request_text(request).await.expect("faults are enabled");
}

#[tokio::test]
async fn rollouts_complete_despite_server_faults() {
    let cluster = Cluster::start().await;
    cluster.add_nodes(&SIX).await;
    cluster.create(&cluster.deployments(), deployment("web", 6, "v1")).await;
    cluster.rolled_out("web").await;
    let faults = [
        json!({ "dropWatches": true }),
        json!({ "compact": true, "dropWatches": true }),
        json!({ "answer": { "code": 500, "share": 0.3 }, "userAgent": "nearhop-manager" }),
        json!({ "answer": { "code": 409, "share": 0.3 }, "userAgent": "nearhop-manager" }),
        json!({ "answer": { "code": 429, "share": 0.3 }, "userAgent": "nearhop-manager" }),
        json!({ "restart": true }),
    ];
    for (round, fault) in faults.into_iter().enumerate() {
        let patch = json!({ "spec": { "template": template("web", &format!("x{round}")) } });
        set_faults(&cluster, fault.clone()).await;
        cluster.patch(&cluster.deployments(), "web", patch).await;
        set_faults(&cluster, fault).await;
        cluster.rolled_out("web").await;
        set_faults(&cluster, json!({})).await;
        assert_eq!(cluster.active_pods().await.len(), 6, "after round {round}");
    }
}
