//! Who may ask a node for logs and exec, and whose Pods may land on it.

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{ECHO, Lab, PATIENCE, Room};
use serde_json::{Value, json};

/// A Pod that knows a neighbour's name and its node's address still gets neither its log nor a
/// command into it, nor anything else of that port.
#[test]
fn a_pod_cannot_exec_into_a_neighbour_by_the_node_port() {
    crate::run(async {
        let lab = Lab::up(&["--zones", "1"])?;
        let room = Room::new(&lab.kubeconfig).await?;
        room.server("victim", "node-a1", "x", &["netexec"]).await?;
        room.server("hostile", "node-a2", "x", &["netexec"]).await?;
        room.until_ready(&["victim", "hostile"]).await?;
        // The way that is meant for it.
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
    Ok(address.context("a node has an address")?.to_owned())
}

/// `--kubeconfig`: the cluster's own Pods and DaemonSets stay away from the lab's nodes, and the
/// lab's own Pods do not.
#[test]
fn the_pods_of_a_joined_cluster_stay_off_the_labs_nodes() {
    crate::run(async {
        let cluster = Lab::up(&["--zones", "1", "--nodes-per-zone", "1"])?;
        let room = Room::new(&cluster.kubeconfig).await?;
        room.create(&daemon_set()).await?;
        let config = tempfile::NamedTempFile::new()?;
        // A Pod without a node: the cluster's scheduler has to find one.
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

        // Unless the user asks for them: the Node's taints are the cluster's to take off by then.
        drop(lab);
        room.admin.delete("/api/v1/nodes/far-1").await?.ok()?;
        std::fs::write(config, "node far-1 zone=far\n")?;
        let _lab = Lab::up(&["--config", config, "--kubeconfig", kubeconfig, "--no-taint"])?;
        until_agents(&room, &["far-1", "node-a1"]).await
    });
}

/// The taints of the lab's Node, once it is ready and nothing else keeps Pods away.
async fn taints(room: &Room) -> Result<Value> {
    room.until("the taints of far-1", PATIENCE, || async {
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

/// Waits until the DaemonSet has a Pod on each of these nodes and says that these are all.
async fn until_agents(room: &Room, nodes: &[&str]) -> Result<()> {
    room.until(&format!("guests on {nodes:?}"), PATIENCE, || async {
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
