//! What an earlier start with the same `--data-dir` has left in the API: Nodes of another topology and
//! their Pods, and the text of `--config`.
//!
//! Nodes that no agent of this lab serves would stay Ready until the grace period ends, and their Pods'
//! addresses would belong to other nodes. So they are removed before the agents start. A Node of
//! another agent registers again by itself.

use nearhop_core::labels::well_known;
use nearhop_runtime::client::ApiFailure;
use serde_json::{Value, json};

use crate::LabError;
use crate::cluster::{Cluster, name_of};
use crate::config::ConfigFile;
use crate::spec::{Api, Spec};
use crate::topology::{LabNode, RACK};

/// The end of the version that the node agent reports.
const AGENT: &str = "-nearhop";

/// Names in one message.
const MAX_NAMES: usize = 5;

const NODES: &str = "/api/v1/nodes";
const RECORDS: &str = "/api/v1/namespaces/kube-system/configmaps/nearhop-lab";

/// Removes Nodes that do not fit the topology, and the Pods of nodes that are gone. Returns what was
/// removed, in words.
pub(crate) async fn remove(cluster: &Cluster, spec: &Spec) -> Result<Vec<String>, LabError> {
    let Api::Own { data } = &spec.api else { return Ok(Vec::new()) };
    check_services(cluster, spec).await?;
    let nodes = cluster.list(NODES).await?;
    let ours = nodes.iter().filter(|node| is_ours(node));
    let (mut gone, mut moved) = (Vec::new(), Vec::new());
    for node in ours {
        let path = format!("{NODES}/{}", name_of(node));
        match spec.topology.node(name_of(node)) {
            None => {
                cluster.delete_now(&path).await?;
                gone.push(name_of(node).to_owned());
            }
            Some(wanted) if node["spec"]["podCIDRs"] != json!(wanted.pod_cidrs) => {
                cluster.delete_now(&path).await?;
                moved.push(name_of(node).to_owned());
            }
            Some(wanted) => drop_old_labels(cluster, &path, node, wanted).await?,
        }
    }
    let pods = remove_pods(cluster, &gone).await?;
    let directory = data.display();
    let mut said = Vec::new();
    if !gone.is_empty() {
        let pods = match &pods[..] {
            [] => "no Pods were on them".to_owned(),
            pods => format!("their Pods {}", list(pods)),
        };
        said.push(format!(
            "--data-dir {directory} had nodes that this lab does not have; removed {}, and {pods}",
            list(&gone)
        ));
    }
    if !moved.is_empty() {
        said.push(format!(
            "--data-dir {directory} had other Pod addresses for {}; their Pods get new addresses",
            list(&moved)
        ));
    }
    Ok(said)
}

fn is_ours(node: &Value) -> bool {
    node["status"]["nodeInfo"]["kubeletVersion"].as_str().is_some_and(|text| text.ends_with(AGENT))
}

/// Removes topology labels that the node does not have any more; the agent sets the others.
async fn drop_old_labels(
    cluster: &Cluster,
    path: &str,
    node: &Value,
    wanted: &LabNode,
) -> Result<(), LabError> {
    let known = &node["metadata"]["labels"];
    let topology = [well_known::ZONE, well_known::REGION, RACK];
    let old = topology.into_iter().filter(|key| known.get(key).is_some());
    let old = old.filter(|key| !wanted.labels.contains_key(*key));
    let labels: serde_json::Map<String, Value> =
        old.map(|key| (key.to_owned(), Value::Null)).collect();
    if !labels.is_empty() {
        cluster.patch(path, &json!({"metadata": {"labels": labels}})).await?;
    }
    Ok(())
}

async fn remove_pods(cluster: &Cluster, nodes: &[String]) -> Result<Vec<String>, LabError> {
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let mut removed = Vec::new();
    for pod in cluster.list("/api/v1/pods").await? {
        let on = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if nodes.iter().any(|node| node == on) {
            let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
            let path = format!("/api/v1/namespaces/{namespace}/pods/{}", name_of(&pod));
            cluster.delete_now(&path).await?;
            removed.push(format!("{namespace}/{}", name_of(&pod)));
        }
    }
    Ok(removed)
}

/// Refuses other cluster IPs: those of existing Services cannot change.
async fn check_services(cluster: &Cluster, spec: &Spec) -> Result<(), LabError> {
    let Api::Own { data } = &spec.api else { return Ok(()) };
    let Some(service) = find(cluster, "/api/v1/namespaces/kube-system/services/kube-dns").await?
    else {
        return Ok(());
    };
    let known = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    let known: Vec<&str> = known.filter_map(Value::as_str).collect();
    let Some(wanted) = spec.dns_addresses() else { return Ok(()) };
    if known == wanted.map(|address| address.to_string()) {
        return Ok(());
    }
    Err(LabError::OtherServices {
        path: data.clone(),
        kept: known.join(" and "),
        wanted: spec.topology.ranges.services.to_string(),
    })
}

async fn find(cluster: &Cluster, path: &str) -> Result<Option<Value>, LabError> {
    match cluster.get(path).await {
        Err(LabError::Api(ApiFailure::NotFound { .. })) => Ok(None),
        found => found.map(Some),
    }
}

fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(MAX_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The objects that the last start applied from its file.
pub(crate) async fn earlier_objects(cluster: &Cluster) -> Result<Vec<Value>, LabError> {
    let record = find(cluster, RECORDS).await?;
    let text = record.as_ref().and_then(|record| record["data"]["config"].as_str());
    // A record of another version of this program may not be readable.
    let objects = text.and_then(|text| ConfigFile::parse("", text).ok()?.objects().ok());
    Ok(objects.unwrap_or_default())
}

/// Keeps the text of the file for the next start.
pub(crate) async fn record(cluster: &Cluster, text: &str) -> Result<(), LabError> {
    let record = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "kube-system", "name": "nearhop-lab"},
        "data": {"config": text},
    });
    cluster.apply_by_force(RECORDS, &record).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_names_are_cut() {
        let names = |count: usize| -> Vec<String> { (0..count).map(|n| format!("n{n}")).collect() };
        assert_eq!(list(&names(2)), "n0, n1");
        assert_eq!(list(&names(7)), "n0, n1, n2, n3, n4 and 2 more");
    }

    #[test]
    fn only_nodes_of_our_agent_are_removed() {
        let node = |version: &str| json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        assert!(is_ours(&node("v1.36.2-nearhop")));
        assert!(!is_ours(&node("v1.36.2")) && !is_ours(&json!({})));
    }
}
