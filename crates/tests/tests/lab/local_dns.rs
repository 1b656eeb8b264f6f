//! KEP-3015, "DNS": a DNS server on each node. Clients reach the server on their own node or, while it
//! is missing, one in their own zone.

use std::time::Instant;

use anyhow::{Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{AGNHOST, Lab, Line, Room, TIMEOUT};
use serde_json::json;

const NODES: [&str; 6] = ["node-a1", "node-a2", "node-b1", "node-b2", "node-c1", "node-c2"];
const RATE: u32 = 100;

#[test]
fn kep_3015_local_dns_falls_back_to_the_zone_and_returns() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        for node in NODES {
            // Flows of long-lived clients return to the own node as well.
            lab.fault(&["restart", &format!("proxy/{node}"), "--", "--udp-rehome=immediate"])?;
        }
        let room = Room::new(&lab.kubeconfig).await?;
        let address = create(&room).await?;
        let begun = Instant::now();
        for node in NODES {
            let job = json!({
                "targets": [format!("{address}:53")],
                "protocol": "udp",
                "connections": 100_000,
                "concurrency": 8,
                "timeoutMs": 500,
                "rate": RATE,
            });
            room.client_loop(&format!("client-{node}"), node, &job).await?;
        }
        // Clients may start before the rules exist; from here on each reaches its own node.
        let mut start = Vec::new();
        for node in NODES {
            until_answered_by(&room, &format!("client-{node}"), &format!("dns-{node}")).await?;
            start.push(room.lines(&format!("client-{node}")).await?.len());
        }

        // The local server is deleted: queries to it are lost, then its zone answers.
        room.kill_pod("dns-node-a1").await?;
        until_answered_by(&room, "client-node-a1", "dns-node-a2").await?;
        let lines = room.lines("client-node-a1").await?;
        check_loss(&lines[start[0]..])?;

        // The local server is back: the own node answers again, and no flow stays on the other Pod.
        serve(&room, "node-a1").await?;
        room.until_ready(&["dns-node-a1"]).await?;
        until_answered_by(&room, "client-node-a1", "dns-node-a1").await?;
        check_flows(&lab, &room).await?;

        // Clients on other nodes saw no change.
        for (node, start) in NODES.iter().zip(&start).skip(1) {
            let lines = room.lines(&format!("client-{node}")).await?;
            let own = format!("dns-{node}");
            let other = lines[*start..].iter().find(|line| line.result != own);
            ensure!(other.is_none(), "{node}: {other:?}");
            let least = begun.elapsed().as_secs_f64() * f64::from(RATE) / 4.0;
            ensure!(lines.len() as f64 > least, "{node}: only {} queries", lines.len());
        }
        Ok(())
    });
}

async fn serve(room: &Room, node: &str) -> Result<()> {
    let container = json!({
        "name": "dns",
        "image": AGNHOST,
        "args": ["netexec", "--http-port=8080", "--udp-port=5353"],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
    });
    room.pod(&format!("dns-{node}"), node, &json!({"app": "dns"}), container).await
}

/// Creates the Service, and a server on each node; returns the Service's address.
async fn create(room: &Room) -> Result<String> {
    let service = room
        .service(
            "dns",
            json!({
                "selector": {"app": "dns"},
                "trafficDistribution": "PreferSameNode",
                "ports": [{"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"}],
            }),
        )
        .await?;
    for node in NODES {
        serve(room, node).await?;
    }
    let names = NODES.map(|node| format!("dns-{node}"));
    room.until_ready(&names.each_ref().map(String::as_str)).await?;
    room.until("hints for all nodes", TIMEOUT, || async {
        let endpoints = room.endpoints("dns").await?;
        let hinted = endpoints.iter().filter(|one| !one["hints"]["forNodes"].is_null()).count();
        Ok(if hinted == NODES.len() { Ok(()) } else { Err(format!("{hinted} have hints")) })
    })
    .await?;
    Ok(service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the last 20 answers of a client are from one Pod.
async fn until_answered_by(room: &Room, client: &str, pod: &str) -> Result<()> {
    room.until(&format!("{client} to be answered by {pod}"), TIMEOUT, || async {
        let lines = room.lines(client).await?;
        let last: Vec<&str> =
            lines.iter().rev().take(20).map(|line| line.result.as_str()).collect();
        let own = last.len() == 20 && last.iter().all(|result| *result == pod);
        Ok(if own { Ok(()) } else { Err(format!("{last:?}")) })
    })
    .await
}

/// Checks that the client was without an answer for at most one second, and that only its own node
/// and its own zone answered.
fn check_loss(lines: &[Line]) -> Result<()> {
    let mut answered = lines.first().map_or(0.0, |line| line.at);
    for line in lines {
        if line.result.starts_with('!') {
            ensure!(line.at - answered < 1000.0, "no answer from {answered} to {} ms", line.at);
        } else {
            let near = ["dns-node-a1", "dns-node-a2"].contains(&line.result.as_str());
            ensure!(near, "{line:?} left the zone");
            answered = line.at;
        }
    }
    Ok(())
}

/// Waits until no flow of the node leads to another node's Pod.
async fn check_flows(lab: &Lab, room: &Room) -> Result<()> {
    let other = room.get("pods/dns-node-a2").await?;
    let address = other["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    if !std::path::Path::new("/proc/net/nf_conntrack").exists() {
        skip("this kernel has no /proc/net/nf_conntrack");
        return Ok(());
    }
    room.until("no flow left on the other Pod", TIMEOUT, || async {
        let flows =
            lab.text(&["lab", "exec", "node/node-a1", "--", "cat", "/proc/net/nf_conntrack"])?;
        let left: Vec<&str> = flows.lines().filter(|flow| flow.contains(&address)).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(left.join("\n")) })
    })
    .await
}
