//! Faults in a lab, and the traffic meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{AGNHOST, Lab, Room, TIMEOUT};
use serde_json::json;

use crate::rollout::{
    Gap, check_lines, client, deployment, roll, service, until_local, until_rolled, zone,
};

const ZONES: [&str; 3] = ["a", "b", "c"];

/// A Service with PreferSameZone and two ready Pods in each zone, and a client in each zone.
async fn scene(lab: &Lab) -> Result<(Room, Vec<(String, String)>)> {
    let room = Room::new(&lab.kubeconfig).await?;
    let address = service(&room, "PreferSameZone").await?;
    for letter in ZONES {
        let name = format!("web-{letter}");
        room.create(&deployment(&name, &zone(letter), 2, Gap::None)).await?;
        until_rolled(&room, &name).await?;
    }
    until_local(lab, &room).await?;
    let mut clients = Vec::new();
    for letter in ZONES {
        let client = client(&room, &format!("node-{letter}1"), &address, 50).await?;
        clients.push((client, format!("web-{letter}-")));
    }
    Ok((room, clients))
}

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Checks that no request was refused, and none left its zone.
async fn check_all(room: &Room, clients: &[(String, String)]) -> Result<()> {
    for (client, prefix) in clients {
        check_lines(client, &room.lines(client).await?, prefix)?;
    }
    Ok(())
}

/// A zone is cut off: traffic continues inside and outside of it. After `heal` its nodes are ready
/// again.
#[test]
fn traffic_continues_while_a_zone_is_cut_off() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let (room, clients) = scene(&lab).await?;
        lab.fault(&["cut", "zone/zone-a"])?;
        until_nodes(&room, &["node-b1", "node-b2", "node-c1", "node-c2"]).await?;
        room.until("the lost endpoints to be unready", TIMEOUT, || async {
            let endpoints = room.endpoints("web").await?;
            let ready = endpoints.iter().filter(|one| one["conditions"]["ready"] == true);
            let zones: BTreeSet<&str> = ready.filter_map(|one| one["zone"].as_str()).collect();
            let gone = !zones.contains("zone-a");
            Ok(if gone { Ok(()) } else { Err(format!("{zones:?}")) })
        })
        .await?;
        wait(2).await;
        lab.fault(&["heal", "zone/zone-a"])?;
        let nodes = ["node-a1", "node-a2", "node-b1", "node-b2", "node-c1", "node-c2"];
        until_nodes(&room, &nodes).await?;
        until_local(&lab, &room).await?;
        // After `heal`, proxies of the zone may see its Pods as not ready before the nodes report
        // again: its clients may reach other zones for a moment, but no request fails.
        let (own, others) = clients.split_first().context("no clients")?;
        check_lines(&own.0, &room.lines(&own.0).await?, "web-")?;
        check_all(&room, others).await
    });
}

async fn until_nodes(room: &Room, wanted: &[&str]) -> Result<()> {
    room.until(&format!("exactly {wanted:?} ready"), TIMEOUT, || async {
        let list = room.admin.get("/api/v1/nodes").await?.ok()?.json();
        let nodes = list["items"].as_array().cloned().unwrap_or_default();
        let ready: Vec<&str> = nodes
            .iter()
            .filter(|node| {
                let conditions = node["status"]["conditions"].as_array();
                conditions.is_some_and(|all| {
                    all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
                })
            })
            .filter_map(|node| node["metadata"]["name"].as_str())
            .collect();
        Ok(if ready == wanted { Ok(()) } else { Err(format!("{ready:?}")) })
    })
    .await
}

/// A proxy is killed: its rules keep working. After a restart it does not change correct rules.
#[test]
fn traffic_continues_while_a_proxy_is_down() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let (room, clients) = scene(&lab).await?;
        lab.fault(&["kill", "proxy/node-a1"])?;
        let before = rules(&lab)?;
        wait(3).await;
        lab.fault(&["start", "proxy/node-a1"])?;
        until_synced(&lab, &room, "node-a1").await?;
        ensure!(before == rules(&lab)?, "the rules have changed\n{before}\n{}", rules(&lab)?);
        check_all(&room, &clients).await?;
        // The restarted proxy applies a new policy.
        room.patch("services/web", &json!({"spec": {"trafficDistribution": null}})).await?;
        let name = format!("{}/web", room.namespace);
        room.until("the new policy on the node", TIMEOUT, || async {
            let report = lab.drive(&[&name, "--from", "node/node-a1", "-n", "100"])?;
            let everywhere =
                report["matrix"]["zone-a"].as_object().is_some_and(|row| row.len() == 3);
            Ok(if everywhere { Ok(()) } else { Err(report.to_string()) })
        })
        .await?;
        for (client, _) in &clients {
            check_lines(client, &room.lines(client).await?, "web-")?;
        }
        Ok(())
    });
}

/// Waits until the proxy is ready: it has read all objects, and the kernel has its rules.
async fn until_synced(lab: &Lab, room: &Room, node: &str) -> Result<()> {
    let ask = "exec 3<>/dev/tcp/127.0.0.1/10249; \
               printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3; head -1 <&3 | grep -q ' 200 '";
    room.until(&format!("proxy/{node} to be ready"), TIMEOUT, || async {
        let done = lab.run(&["lab", "exec", &format!("node/{node}"), "--", "bash", "-c", ask])?;
        Ok(if done.status.success() { Ok(()) } else { Err(format!("{done:?}")) })
    })
    .await
}

/// The rules in the kernel, if `nft` is installed: without handles and counters, which differ between
/// equal rules, and without the lock table of a running proxy.
fn rules(lab: &Lab) -> Result<String> {
    let shown = lab.run(&["lab", "exec", "node/node-a1", "--", "nft", "-s", "list", "ruleset"])?;
    if !shown.status.success() {
        skip(&format!("`nft list ruleset`: {}", String::from_utf8_lossy(&shown.stderr)));
    }
    let text = String::from_utf8(shown.stdout)?;
    let tables = text.split_inclusive("\n}\n").filter(|table| !table.contains("nearhop.lock"));
    Ok(tables.collect())
}

/// The API server is down for 30 s. Meanwhile one Pod ends, another one restarts, and clients in other
/// zones see no error. Five seconds after its return no request fails.
#[test]
fn traffic_continues_while_the_api_server_is_down() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let (room, clients) = scene(&lab).await?;
        let (others, own) = (&clients[1..], &clients[0].0);
        for (name, policy) in [("web-a-ended", "Never"), ("web-a-restarted", "Always")] {
            room.create(&json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"app": "web"}},
                "spec": {
                    "nodeName": "node-a2",
                    "restartPolicy": policy,
                    "containers": [{
                        "name": "server",
                        "image": AGNHOST,
                        "args": ["netexec", "--http-port=8080", "--udp-port=-1"],
                    }],
                },
            }))
            .await?;
        }
        room.until_ready(&["web-a-ended", "web-a-restarted"]).await?;
        room.until_endpoints("web", 8).await?;
        let exits =
            [address(&room, "web-a-ended").await?, address(&room, "web-a-restarted").await?];

        lab.fault(&["kill", "apiserver"])?;
        let down = Instant::now();
        wait(5).await;
        for address in &exits {
            exit(&lab, address)?;
        }
        wait(25).await;
        ensure!(down.elapsed() >= Duration::from_secs(30));
        lab.fault(&["start", "apiserver"])?;
        let before =
            room.until("the API server", TIMEOUT, || async { Ok(Ok(room.lines(own).await?)) });
        let back = before.await?.last().context("the client has no lines")?.at;
        room.until_endpoints("web", 7).await?;
        let name = format!("{}/web", room.namespace);
        room.until("the three Pods of zone-a to answer", TIMEOUT, || async {
            let report = lab.drive(&[&name, "--from", "zone/zone-a", "-n", "200"])?;
            let pods = report["pods"].as_object().cloned().unwrap_or_default();
            let served = report["answered"] == 200 && report["crossZone"] == 0.0;
            let right = pods.len() == 3 && pods.contains_key("web-a-restarted");
            Ok(if served && right { Ok(()) } else { Err(report.to_string()) })
        })
        .await?;

        for (client, prefix) in others {
            check_lines(client, &room.lines(client).await?, prefix)?;
        }
        // Clients may reach the ended Pod until all proxies have removed it.
        let lines = room.lines(own).await?;
        let last =
            lines.iter().rfind(|line| line.result.starts_with('!')).map_or(back, |line| line.at);
        ensure!(last - back < 5000.0, "still refused {} ms after its return", last - back);
        let served = lines.iter().filter(|line| line.result.starts_with("web-a-")).count();
        ensure!(served * 10 > lines.len() * 6, "{served} of {} in the Pods' own zone", lines.len());
        Ok(())
    });
}

async fn address(room: &Room, pod: &str) -> Result<String> {
    let pod = room.get(&format!("pods/{pod}")).await?;
    Ok(format!("{}:8080", pod["status"]["podIP"].as_str().unwrap_or_default()))
}

/// Makes a server end by a request from its node.
fn exit(lab: &Lab, address: &str) -> Result<()> {
    let (host, port) = address.split_once(':').unwrap_or_default();
    let ask = format!(
        "exec 3<>/dev/tcp/{host}/{port}; printf 'GET /exit?code=0 HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    );
    lab.run(&["lab", "exec", "node/node-a2", "--", "bash", "-c", &ask])?;
    Ok(())
}

/// Controllers restart during a rolling update: no request fails or leaves its zone.
#[test]
fn traffic_continues_while_controllers_restart_during_a_rollout() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let (room, clients) = scene(&lab).await?;
        for letter in ZONES {
            roll(&room, &format!("web-{letter}"), "2").await?;
        }
        for _ in 0..2 {
            lab.fault(&["restart", "controller"])?;
            tokio::time::sleep(Duration::from_millis(700)).await;
            lab.fault(&["restart", "manager"])?;
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        for letter in ZONES {
            until_rolled(&room, &format!("web-{letter}")).await?;
        }
        room.until_endpoints("web", 6).await?;
        until_local(&lab, &room).await?;
        check_all(&room, &clients).await
    });
}

/// The API returns errors, ends watches and compacts its history: scaling still completes, and no
/// request fails.
#[test]
fn traffic_continues_while_the_api_is_flaky() {
    crate::run(async {
        let lab = Lab::up(&[])?;
        let (room, clients) = scene(&lab).await?;
        lab.fault(&["drop-watches"])?;
        lab.fault(&["compact"])?;
        lab.fault(&["flaky", "--share", "20", "--delay", "20ms"])?;
        for letter in ZONES {
            let path = format!("deployments/web-{letter}");
            room.until("scaled", TIMEOUT, || async {
                room.patch(&path, &json!({"spec": {"replicas": 3}})).await?;
                Ok(Ok(()))
            })
            .await?;
        }
        room.until_endpoints("web", 9).await?;
        wait(2).await;
        lab.fault(&["heal", "all"])?;
        until_local(&lab, &room).await?;
        check_all(&room, &clients).await
    });
}
