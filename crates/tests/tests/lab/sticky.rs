//! Clients of a Service with session affinity, while its endpoints are removed and created.

mod clients;
mod rule;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nearhop_skip::skip;
use nearhop_tests::lab::{ECHO, Lab, Room, TIMEOUT};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use crate::rollout::{Gap, deployment, roll, until_rolled, zone};
use clients::{Job, Report};
use rule::{Flow, Outage, Seen, now};

const ZONES: [&str; 3] = ["a", "b", "c"];
/// Nodes with clients, and how many clients each has: a hundred addresses.
const CLIENTS: [(&str, u8); 3] = [("node-a1", 34), ("node-b1", 33), ("node-c1", 33)];
/// Nodes without clients that are cut off, together with their Pods. `node-c2` is never cut off.
const SERVERS: [&str; 2] = ["node-a2", "node-b2"];
/// Last byte of the first client's address; Pods use the other end of the node's range.
const FIRST: u8 = 201;
/// How long the clients run, unless `NEARHOP_TEST_STICKY_SECONDS` is set.
const SECONDS: u64 = 120;
/// Pause between two polls of the EndpointSlices; a poll that takes longer than this is late.
const POLL: Duration = Duration::from_millis(50);

/// A hundred clients, each with an address of its own, open TCP connections and send datagrams that
/// get no answer, for two minutes. Meanwhile Pods are deleted by force and rolled, nodes are cut off
/// and proxies are killed. No new flow goes to an endpoint that is gone for more than a second; see
/// [`rule`] for how that is measured. Flows of a proxy that is killed or cut off from the API server
/// do not count until a second after the proxy is in sync again.
#[test]
fn sticky_clients_are_never_sent_to_an_endpoint_that_is_gone() {
    if clients::work_if_asked() {
        return;
    }
    crate::run(async {
        let seconds = std::env::var("NEARHOP_TEST_STICKY_SECONDS").ok();
        let seconds = seconds.map_or(Ok(SECONDS), |text| text.parse())?;
        let lab = Arc::new(Lab::up(&[])?);
        let room = Arc::new(Room::new(&lab.kubeconfig).await?);
        let address = serve(&room).await?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let watch = tokio::spawn(watch(room.clone(), seen.clone()));
        let mut clients = Vec::new();
        for (node, count) in CLIENTS {
            let job = job(&room, node, count, &address, seconds).await?;
            clients.push((node, start(&lab, node, &job)?));
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut disturber = Disturber { lab: &lab, room: &room, outages: Vec::new(), marks: 0 };
        let mut turn = 0;
        while Instant::now() < end && clients.iter().any(|(_, one)| !one.is_finished()) {
            disturber.disturb(turn).await.with_context(|| format!("turn {turn}"))?;
            turn += 1;
        }
        let outages = disturber.outages;
        let mut reports = Vec::new();
        for (node, client) in clients {
            reports.push(clients::read(node, &client.await??)?);
        }
        // So that the last absences end after the last flows.
        sleep(Duration::from_secs(1)).await;
        watch.abort();
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = reports.iter().find_map(|report| report.skipped.as_ref()) {
            skip(&format!("flows cannot be listed: {why}"));
            return Ok(());
        }
        judge(&reports, &seen, &outages, turn)
    });
}

/// Checks that no flow went to a removed endpoint, and that there were enough flows.
fn judge(reports: &[Report], seen: &Seen, outages: &[Outage], turns: usize) -> Result<()> {
    let flows: Vec<&Flow> = reports.iter().flat_map(|report| &report.flows).collect();
    let opened: usize = reports.iter().map(|report| report.opened).sum();
    let served: usize = reports.iter().map(|report| report.served).sum();
    let stalled: f64 = seen.stalls.iter().map(|(_, late)| late).sum();
    let summary = format!(
        "{turns} turns, {} endpoints gone; of {opened} connections and as many datagrams {} were \
         seen, {served} connections were accepted; late by {stalled:.0} ms in all",
        seen.gone.len(),
        flows.len(),
    );
    eprintln!("{summary}");
    let wrong: Vec<&&Flow> = flows.iter().filter(|flow| seen.is_wrong(flow, outages)).collect();
    for flow in wrong.iter().take(10) {
        let Flow { node, from, protocol, source, endpoint, .. } = flow;
        let gone = seen.gone.get(endpoint);
        eprintln!("{node} {from} {protocol} {source} to {endpoint}, gone {gone:?}");
    }
    ensure!(wrong.is_empty(), "{} to endpoints that are gone: {outages:?}; {summary}", wrong.len());
    ensure!(seen.gone.len() >= turns, "too few endpoints were removed: {summary}");
    ensure!(flows.len() * 10 > opened * 2 * 8, "too few flows were seen: {summary}");
    ensure!(served * 2 > opened, "too few connections were accepted: {summary}");
    Ok(())
}

/// Creates the Service, its Pods, and a Pod that stays; returns the Service's address.
async fn serve(room: &Room) -> Result<String> {
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": 8080},
        // No process receives there: a flow of datagrams never has an answer.
        {"name": "datagrams", "port": 80, "targetPort": 9999, "protocol": "UDP"},
    ]);
    let spec = json!({"selector": {"app": "web"}, "sessionAffinity": "ClientIP", "ports": ports});
    let service = room.service("web", spec).await?;
    for letter in ZONES {
        let name = format!("web-{letter}");
        room.create(&deployment(&name, &zone(letter), 2, Gap::None)).await?;
    }
    for letter in ZONES {
        until_rolled(room, &format!("web-{letter}")).await?;
    }
    room.until_endpoints("web", 6).await?;
    let container = json!({"name": "server", "image": ECHO});
    room.pod("steady", "node-c2", &json!({"app": "steady"}), container).await?;
    room.until_ready(&["steady"]).await?;
    Ok(service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned())
}

/// What the clients of a node do.
async fn job(room: &Room, node: &str, count: u8, address: &str, seconds: u64) -> Result<Job> {
    let object = room.admin.get(&format!("/api/v1/nodes/{node}")).await?.ok()?.json();
    let range = object["spec"]["podCIDR"].as_str().unwrap_or_default();
    let network = range.strip_suffix(".0/24").with_context(|| format!("{node} has {range}"))?;
    let sources: Result<Vec<IpAddr>, _> =
        (FIRST..FIRST + count).map(|place| format!("{network}.{place}").parse()).collect();
    let at = format!("{address}:80").parse()?;
    Ok(Job { sources: sources?, tcp: at, udp: at, seconds })
}

/// Starts the clients of a node; the task returns what they print.
fn start(lab: &Arc<Lab>, node: &str, job: &Job) -> Result<JoinHandle<Result<String>>> {
    let mut args = vec!["lab".to_owned(), "exec".to_owned(), format!("node/{node}"), "--".into()];
    args.extend(job.command()?);
    let lab = lab.clone();
    Ok(spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = lab.run(&args)?;
        let text = String::from_utf8(output.stdout)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "clients: {errors}\n{text:.2000}");
        Ok(text)
    }))
}

/// Polls the EndpointSlices until it is aborted.
async fn watch(room: Arc<Room>, seen: Arc<Mutex<Seen>>) {
    let late = |began: Instant| (began.elapsed().saturating_sub(POLL * 2)).as_secs_f64() * 1000.0;
    loop {
        let (turn, began) = (Instant::now(), now());
        let endpoints = room.endpoints("web").await;
        let done = now();
        sleep(POLL).await;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(endpoints) = endpoints {
            seen.look(began, done, addresses(&endpoints));
        }
        if late(turn) > 0.0 {
            seen.stalls.push((began, late(turn)));
        }
    }
}

fn addresses(endpoints: &[Value]) -> BTreeSet<IpAddr> {
    let texts = endpoints.iter().filter_map(|one| one["addresses"][0].as_str());
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Deletes Pods, cuts nodes off and kills proxies, in turns.
struct Disturber<'a> {
    lab: &'a Lab,
    room: &'a Room,
    outages: Vec<Outage>,
    marks: usize,
}

impl Disturber<'_> {
    async fn disturb(&mut self, turn: usize) -> Result<()> {
        let cycle = turn / 5;
        let (client, _) = CLIENTS[cycle % CLIENTS.len()];
        let server = SERVERS[cycle % SERVERS.len()];
        match turn % 5 {
            0 => {
                self.kill_pod(turn, |_| true).await?;
                sleep(Duration::from_secs(3)).await;
            }
            1 => {
                self.lab.fault(&["cut", &format!("node/{server}")])?;
                // Some clients now wait for an answer from that node.
                sleep(Duration::from_secs(1)).await;
                self.kill_pod(turn, |pod| pod["spec"]["nodeName"] == server).await?;
                sleep(Duration::from_secs(4)).await;
                self.lab.fault(&["heal", &format!("node/{server}")])?;
            }
            2 => {
                let from = now();
                self.lab.fault(&["kill", &format!("proxy/{client}")])?;
                self.kill_pod(turn, |_| true).await?;
                sleep(Duration::from_secs(2)).await;
                self.lab.fault(&["start", &format!("proxy/{client}")])?;
                self.end_outage(client, from).await?;
                sleep(Duration::from_secs(2)).await;
            }
            3 => {
                for letter in ZONES {
                    roll(self.room, &format!("web-{letter}"), &turn.to_string()).await?;
                }
                sleep(Duration::from_secs(6)).await;
            }
            _ => {
                let from = now();
                self.lab.fault(&["cut", &format!("node/{client}")])?;
                self.kill_pod(turn, |pod| pod["spec"]["nodeName"] != client).await?;
                sleep(Duration::from_secs(2)).await;
                self.lab.fault(&["heal", &format!("node/{client}")])?;
                self.end_outage(client, from).await?;
                sleep(Duration::from_secs(2)).await;
            }
        }
        Ok(())
    }

    /// Deletes one of these Pods by force, if there are any.
    async fn kill_pod(&self, turn: usize, which: impl Fn(&Value) -> bool) -> Result<()> {
        let pods = self.room.pods_of("web").await?;
        let some: Vec<&Value> = pods.iter().filter(|pod| which(pod)).collect();
        if some.is_empty() {
            return Ok(());
        }
        let name = some[turn % some.len()]["metadata"]["name"].as_str().unwrap_or_default();
        // It may have ended by itself, in the middle of a rolling update.
        let _ = self.room.kill_pod(name).await;
        Ok(())
    }

    /// Waits until a node's proxy has all objects that are written by now, and records its outage.
    /// The proxy has them when it serves a new Service whose EndpointSlice is the newest object.
    async fn end_outage(&mut self, node: &str, from: f64) -> Result<()> {
        self.marks += 1;
        let name = format!("mark-{}", self.marks);
        let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
        let service = self.room.service(&name, json!({"ports": ports})).await?;
        let steady = self.room.get("pods/steady").await?;
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": [steady["status"]["podIP"]], "conditions": {"ready": true}}],
        });
        self.room.create(&slice).await?;
        let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
        let ask = format!("exec 3<>/dev/tcp/{address}/80");
        let place = format!("node/{node}");
        let command = ["lab", "exec", &place, "--", "timeout", "1", "bash", "-c", &ask];
        self.room
            .until(&format!("proxy/{node} to be in sync"), TIMEOUT, || async {
                let done = self.lab.run(&command)?;
                Ok(if done.status.success() { Ok(()) } else { Err(format!("{done:?}")) })
            })
            .await?;
        self.outages.push(Outage { node: node.to_owned(), from, until: now() });
        Ok(())
    }
}
