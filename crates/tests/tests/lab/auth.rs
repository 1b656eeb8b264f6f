//! Access to a node's logs and exec, and which Pods are scheduled to a lab's nodes.

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{ECHO, Lab, Room, TIMEOUT};
use serde_json::{Value, json};

/// A Pod that knows the name of another Pod and the address of its node can neither read its log nor
/// exec into it, nor list Pods at that port.
#[test]
fn a_pod_cannot_exec_into_a_neighbour_by_the_node_port() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "1"])?;
        let room = Room::new(&lab.kubeconfig).await?;
        room.server("victim", "node-a1", "x", &["netexec"]).await?;
        room.server("hostile", "node-a2", "x", &["netexec"]).await?;
        room.until_ready(&["victim", "hostile"]).await?;
        // Through the API server both work.
        let (name, _) = room.exec("victim", &["hostname"]).await?;
        ensure!(name.trim() == "victim", "{name}");
        room.log("victim", "").await?;
        if std::process::Command::new("curl").arg("--version").output().is_err() {
            skip("curl is not installed");
            return Ok(());
        }
        let place = format!("{}/victim/server", room.namespace);
        let paths = [
            format!("exec/{place}?command=id&output=1"),
            format!("containerLogs/{place}"),
            "pods".to_owned(),
        ];
        for node in ["node-a1", "node-a2"] {
            let address = address_of(&room, node).await?;
            for path in &paths {
                let url = format!("https://{address}:10250/{path}");
                let (code, _) = room.exec("hostile", &ask(&url)).await?;
                ensure!(code == "401", "{url}: {code}");
                let (code, _) = room.exec("hostile", &ask(&url.replace("https", "http"))).await?;
                ensure!(code == "000", "without TLS, {url}: {code}");
            }
        }
        Ok(())
    });
}

fn ask(url: &str) -> [&str; 8] {
    ["curl", "-sk", "--max-time", "10", "-o/dev/null", "-w", "%{http_code}", url]
}

async fn address_of(room: &Room, node: &str) -> Result<String> {
    let node = room.admin.get(&format!("/api/v1/nodes/{node}")).await?.ok()?.json();
    let address = node["status"]["addresses"][0]["address"].as_str();
    Ok(address.context("the node has no address")?.to_owned())
}

/// With `--kubeconfig`, the cluster's own Pods and DaemonSets are not scheduled to the lab's nodes, but
/// the lab's own Pods are.
#[test]
fn the_pods_of_a_joined_cluster_stay_off_the_labs_nodes() {
    crate::run(async {
        let cluster = Lab::up(&["--zones", "1", "--nodes-per-zone", "1"])?;
        let room = Room::new(&cluster.kubeconfig).await?;
        room.create(&daemon_set()).await?;
        let config = tempfile::NamedTempFile::new()?;
        // A Pod without a node: the cluster's scheduler chooses one.
        std::fs::write(config.path(), "node far-1 zone=far\npod shop/own for=own on=\"\"\n")?;
        let files = [config.path(), cluster.kubeconfig.as_path()];
        let [config, kubeconfig] = files.map(|path| path.to_str().unwrap_or_default());
        let lab = Lab::up(&["--config", config, "--kubeconfig", kubeconfig])?;
        ensure!(
            taints(&room).await? == json!([{"key": "nearhop.dev/lab", "effect": "NoSchedule"}])
        );
        let own = room.admin.get("/api/v1/namespaces/shop/pods/own").await?.ok()?.json();
        let tolerated = own["spec"]["tolerations"].to_string();
        ensure!(tolerated.contains("nearhop.dev/lab"), "{own}");
        until_agents(&room, &["node-a1"]).await?;

        // With `--no-taint` they are scheduled. The Node is deleted first, because a lab does not remove
        // the taint of an existing Node.
        drop(lab);
        room.admin.delete("/api/v1/nodes/far-1").await?.ok()?;
        std::fs::write(config, "node far-1 zone=far\n")?;
        let _lab = Lab::up(&["--config", config, "--kubeconfig", kubeconfig, "--no-taint"])?;
        until_agents(&room, &["far-1", "node-a1"]).await
    });
}

/// The taints of the lab's Node, when no `node.kubernetes.io/` taint is left.
async fn taints(room: &Room) -> Result<Value> {
    room.until("the taints of far-1", TIMEOUT, || async {
        let node = room.admin.get("/api/v1/nodes/far-1").await?.ok()?.json();
        let taints = node["spec"]["taints"].clone();
        let waiting = taints.to_string().contains("node.kubernetes.io/");
        Ok(if waiting { Err(taints.to_string()) } else { Ok(taints) })
    })
    .await
}

fn daemon_set() -> Value {
    let labels = json!({"app": "guest"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "guest"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": ECHO}]},
            },
        },
    })
}

/// Waits until the DaemonSet has Pods on exactly these nodes and its status has the same number.
async fn until_agents(room: &Room, nodes: &[&str]) -> Result<()> {
    room.until(&format!("guests on {nodes:?}"), TIMEOUT, || async {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/guest", room.namespace);
        let status = room.admin.get(&path).await?.ok()?.json()["status"].clone();
        let pods = room.pods_of("guest").await?;
        let mut on: Vec<&str> =
            pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        on.sort_unstable();
        let done = on == nodes && status["desiredNumberScheduled"] == nodes.len();
        Ok(if done { Ok(()) } else { Err(format!("{on:?}, {status}")) })
    })
    .await
}
