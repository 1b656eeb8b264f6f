//! Performance of the API server: writes per second, a large list, fan-out to many watchers, memory.
//!
//! `cargo bench -p nearhop-tests --bench api` prints figures and asserts nothing, because they depend on the machine as
//! much as on the server. The server is the release build of the command in its own process. The clients are cheap (one
//! connection each, prepared bodies), but share the machine with it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use nearhop_tests::cluster::version;
use nearhop_tests::http::{Request, Target};
use nearhop_tests::server::{Options, Server, start_process};
use serde_json::json;
use tokio::task::JoinSet;

const CLIENTS: usize = 16;
const OBJECTS: usize = 10_000;
const WATCHERS: usize = 200;
const EVENTS: usize = 100;
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn main() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let ephemeral = start_process(&Options::default())?;
        measure("ephemeral", &ephemeral).await?;
        drop(ephemeral);
        let data = tempfile::tempdir()?;
        let options = Options { data_dir: Some(data.path().into()), ..Options::default() };
        measure("persistent", &start_process(&options)?).await
    })
}

async fn measure(title: &str, server: &Server) -> Result<()> {
    println!("{title}: rss of the empty server {} MiB", rss(server)?);
    let services = (0..OBJECTS).map(service).collect();
    let slices = (0..OBJECTS).map(slice).collect();
    let rate = create(&server.admin, SERVICES, services).await?;
    println!("{title}: {rate:.0} Services/s, {CLIENTS} clients, {OBJECTS} objects");
    let rate = create(&server.admin, SLICES, slices).await?;
    println!(
        "{title}: {rate:.0} EndpointSlices/s of 10 endpoints, {CLIENTS} clients, {OBJECTS} objects"
    );
    println!("{title}: rss with all of them {} MiB", rss(server)?);
    let (median, size) = list(&server.admin).await?;
    println!(
        "{title}: list of {OBJECTS} EndpointSlices {} ms, {} MiB",
        median.as_millis(),
        size >> 20
    );
    let (half, most) = fan_out(&server.admin).await?;
    println!(
        "{title}: event to {WATCHERS} watchers p50 {:.2} ms, p99 {:.2} ms over {EVENTS} events",
        millis(half),
        millis(most)
    );
    println!("{title}: rss at the end {} MiB", rss(server)?);
    Ok(())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn service(number: usize) -> Bytes {
    let body = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{number}"), "labels": {"app": format!("a{number}")}},
        "spec": {"selector": {"app": format!("a{number}")}, "trafficDistribution": "PreferSameZone",
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
    body.to_string().into()
}

fn slice(number: usize) -> Bytes {
    let endpoint = |at: usize| {
        let address =
            format!("10.{}.{}.{}", 128 + number / 6400, number / 25 % 256, number % 25 * 10 + at);
        json!({"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("n{}", at % 3), "zone": format!("zone-{}", at % 3),
            "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("p{number}-{at}")},
            "hints": {"forZones": [{"name": format!("zone-{}", at % 3)}]}})
    };
    let body = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("s{number}-x"), "labels": {"kubernetes.io/service-name": format!("s{number}")}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": (0..10).map(endpoint).collect::<Vec<_>>()});
    body.to_string().into()
}

/// Creates objects from all clients; returns objects per second.
async fn create(target: &Target, path: &str, bodies: Vec<Bytes>) -> Result<f64> {
    let count = bodies.len();
    let bodies = Arc::new(bodies);
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(target.connect().await?);
    }
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for (client, mut connection) in connections.into_iter().enumerate() {
        let (bodies, path) = (bodies.clone(), path.to_owned());
        clients.spawn(async move {
            for body in bodies.iter().skip(client).step_by(CLIENTS) {
                let request = Request::new("POST", &path).bytes("application/json", body.clone());
                connection.send(request).await?.expect(201)?;
            }
            anyhow::Ok(())
        });
    }
    for result in clients.join_all().await {
        result?;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// The median time of five whole lists, and their size.
async fn list(target: &Target) -> Result<(Duration, usize)> {
    let mut connection = target.connect().await?;
    let mut times = Vec::new();
    let mut size = 0;
    for _ in 0..5 {
        let start = Instant::now();
        size = connection.send(Request::new("GET", SLICES)).await?.expect(200)?.body.len();
        times.push(start.elapsed());
    }
    times.sort();
    Ok((times.get(2).copied().unwrap_or_default(), size))
}

/// Latency from a request to its event at a watcher: p50 and p99 of all events.
async fn fan_out(target: &Target) -> Result<(Duration, Duration)> {
    let map = json!({"metadata": {"name": "event"}, "data": {"v": "-"}});
    let made = target.post(MAPS, &map).await?.expect(201)?.json();
    let path = format!("{MAPS}?watch=true&resourceVersion={}", version(&made));
    let sent: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let mut watch = target.open(Request::new("GET", &path)).await?;
        let sent = sent.clone();
        watchers.spawn(async move {
            let mut latencies = Vec::with_capacity(EVENTS);
            while latencies.len() < EVENTS {
                let event =
                    watch.event(Duration::from_secs(30)).await.context("the watch ended")?;
                let now = Instant::now();
                let number: usize =
                    event["object"]["data"]["v"].as_str().unwrap_or_default().parse()?;
                let sent = sent.lock().unwrap_or_else(PoisonError::into_inner).get(number).copied();
                latencies.push(now - sent.context("an event without a request")?);
            }
            anyhow::Ok(latencies)
        });
    }
    let mut connection = target.connect().await?;
    for number in 0..EVENTS {
        let body = json!({"data": {"v": number.to_string()}}).to_string();
        let request = Request::new("PATCH", &format!("{MAPS}/event"))
            .bytes("application/merge-patch+json", body);
        sent.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        connection.send(request).await?.expect(200)?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut all = Vec::new();
    for latencies in watchers.join_all().await {
        all.extend(latencies?);
    }
    all.sort();
    let at = |share: usize| all.get(all.len() * share / 100).copied().unwrap_or_default();
    Ok((at(50), at(99)))
}

/// Resident memory of the server in MiB.
fn rss(server: &Server) -> Result<u64> {
    let pid = server.pid().context("no process")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024)
}
