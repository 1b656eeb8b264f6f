//! Performance of the controller: a cold start in a large cluster, and the latency from a Pod's change
//! to its slice.
//!
//! `cargo bench -p nearhop-tests --bench controller` prints figures and asserts nothing, because they
//! depend on the machine as much as on the controller. API server and controller are release builds in
//! their own processes, and share the machine with the clients. These variables change the sizes:
//! `NEARHOP_BENCH_SERVICES`, `NEARHOP_BENCH_PODS` (of each Service), `NEARHOP_BENCH_NODES`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use nearhop_tests::http::{Connection, Request, Target, send_all};
use nearhop_tests::scene::ControllerProcess;
use nearhop_tests::server::{Options, Server, start_process};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const CLIENTS: usize = 8;
const NAMESPACES: usize = 100;
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// Number of measured changes, one after the other.
const MEASURED: usize = 400;
/// Pod changes per second in the background.
const LOAD: f64 = 500.0;

#[derive(Clone, Copy)]
struct Size {
    services: usize,
    pods: usize,
    nodes: usize,
}

fn main() -> Result<()> {
    let read = |name: &str, usual: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let size = Size {
        services: read("NEARHOP_BENCH_SERVICES", 10_000),
        pods: read("NEARHOP_BENCH_PODS", 10),
        nodes: read("NEARHOP_BENCH_NODES", 5_000),
    };
    tokio::runtime::Runtime::new()?.block_on(measure(size))
}

async fn measure(size: Size) -> Result<()> {
    let server = start_process(&Options::default())?;
    let began = Instant::now();
    populate(&server.admin, size).await?;
    println!(
        "cluster: {} Services x {} Pods, {} Nodes, made in {:.0} s",
        size.services,
        size.pods,
        size.nodes,
        began.elapsed().as_secs_f64()
    );
    let board = Board::watch(&server.admin).await?;
    let cold = cold_start(&server, &board, size).await?;
    usage("cold start", &cold)?;
    quiet_restart(&server, cold, size).await?;
    let controller = start(&server)?;
    ready(&controller).await?;
    for (title, rate) in [("alone", 0.0), ("beside 500 changes/s", LOAD)] {
        let (answered, sent) = latencies(&server.admin, &board, size, rate).await?;
        report(title, "from the answer to the Pod's update to the slice's event", answered);
        report(title, "from the request of the Pod's update to the slice's event", sent);
    }
    usage("in the end", &controller)
}

fn start(server: &Server) -> Result<ControllerProcess> {
    ControllerProcess::start(server, &["--leader-elect=false", "-v", "0"])
}

/// Starts the controller without slices, and waits for all of them.
async fn cold_start(server: &Server, board: &Board, size: Size) -> Result<ControllerProcess> {
    let began = Instant::now();
    let controller = start(server)?;
    ready(&controller).await?;
    println!("cold start: all lists arrived after {:.2} s", began.elapsed().as_secs_f64());
    board.wait_for(size.services).await;
    println!(
        "cold start: all {} slices written after {:.2} s",
        size.services,
        began.elapsed().as_secs_f64()
    );
    Ok(controller)
}

/// Restarts the controller when all slices are correct already.
async fn quiet_restart(server: &Server, old: ControllerProcess, size: Size) -> Result<()> {
    drop(old);
    let began = Instant::now();
    let controller = start(server)?;
    ready(&controller).await?;
    let series = "endpoint_slice_controller_syncs{result=\"success\"}";
    loop {
        let metrics = controller.get("/metrics").await?;
        if nearhop_tests::scene::read_metric(&metrics, series) >= size.services as f64 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "restart: all {} Services planned after {:.2} s",
        size.services,
        began.elapsed().as_secs_f64()
    );
    usage("restart", &controller)
}

async fn ready(controller: &ControllerProcess) -> Result<()> {
    while controller.get("/readyz").await? != "ok" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// CPU time and memory of a process.
fn usage(title: &str, controller: &ControllerProcess) -> Result<()> {
    let pid = controller.process.id();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("stat")?.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
    };
    println!(
        "{title}: {:.2} s CPU, {} MiB resident, {} MiB at most",
        ticks / 100.0,
        kib("VmRSS:") >> 10,
        kib("VmHWM:") >> 10
    );
    Ok(())
}

fn namespace(service: usize) -> String {
    format!("bench-{}", service % NAMESPACES)
}

fn address(service: usize, pod: usize) -> String {
    let number = service * 10 + pod;
    format!("10.{}.{}.{}", 1 + number / 62_500, number / 250 % 250, 1 + number % 250)
}

async fn populate(target: &Target, size: Size) -> Result<()> {
    let namespaces = (0..NAMESPACES).map(|i| {
        post("/api/v1/namespaces".into(), &json!({"metadata": {"name": format!("bench-{i}")}}))
    });
    send_all(target, namespaces.collect()).await?;
    let nodes = (0..size.nodes).map(|i| {
        post("/api/v1/nodes".into(), &json!({
            "metadata": {"name": format!("node-{i}"), "labels": {
                "topology.kubernetes.io/zone": format!("zone-{}", i % 3),
                "kubernetes.io/hostname": format!("node-{i}"),
            }},
            "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
    });
    send_all(target, nodes.collect()).await?;
    let services = (0..size.services).map(|i| {
        post(
            format!("/api/v1/namespaces/{}/services", namespace(i)),
            &json!({
                "metadata": {"name": format!("s{i}"), "labels": {"app": format!("a{i}")}},
                "spec": {
                    "selector": {"app": format!("a{i}")}, "trafficDistribution": "PreferSameZone",
                    "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
                },
            }),
        )
    });
    send_all(target, services.collect()).await?;
    let pods = |make: fn(usize, usize, Size) -> Request| {
        let all = (0..size.services).flat_map(move |i| (0..size.pods).map(move |k| (i, k)));
        all.map(move |(i, k)| make(i, k, size)).collect::<Vec<_>>()
    };
    send_all(target, pods(pod)).await?;
    send_all(target, pods(|i, k, _| pod_status(i, k, true))).await
}

fn post(path: String, body: &Value) -> Request {
    Request::new("POST", &path).json(body)
}

/// A Pod of typical size: about 2 kB with the fields of the server.
fn pod(service: usize, number: usize, size: Size) -> Request {
    let env: Vec<Value> = (0..12)
        .map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("some value of setting {i}")}))
        .collect();
    let body = json!({
        "metadata": {
            "name": format!("s{service}-{number}"),
            "labels": {"app": format!("a{service}"), "pod-template-hash": "5d4f8c7b9", "tier": "backend"},
            "annotations": {"example.com/config-hash": "3b5d5c3712955042212316173ccf37be8f2d9a1e"},
        },
        "spec": {
            "nodeName": format!("node-{}", (service * size.pods + number) % size.nodes),
            "containers": [{
                "name": "main", "image": "registry.example.com/team/application:v1.2.3",
                "ports": [{"name": "http", "containerPort": 8080}], "env": env,
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
            }],
        },
    });
    post(format!("/api/v1/namespaces/{}/pods", namespace(service)), &body)
}

fn pod_status(service: usize, number: usize, ready: bool) -> Request {
    let ip = address(service, number);
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
    }});
    let path = format!("/api/v1/namespaces/{}/pods/s{service}-{number}/status", namespace(service));
    Request::new("PATCH", &path)
        .bytes("application/merge-patch+json", Bytes::from(status.to_string()))
}

/// From a watch of all slices: how many times and when each Service's slice was last written.
#[derive(Clone, Default)]
struct Board(Arc<Mutex<BTreeMap<String, (u64, Instant)>>>);

impl Board {
    async fn watch(target: &Target) -> Result<Self> {
        let list = target.get(&format!("{SLICES}?limit=1")).await?.ok()?.json();
        let version = list["metadata"]["resourceVersion"].as_str().context("a version")?.to_owned();
        let path = format!("{SLICES}?watch=true&resourceVersion={version}");
        let mut watch = target.open(Request::new("GET", &path)).await?;
        let board = Self::default();
        let writer = board.clone();
        tokio::spawn(async move {
            while let Some(event) = watch.event(Duration::from_secs(600)).await {
                let now = Instant::now();
                let service = &event["object"]["metadata"]["labels"]["kubernetes.io/service-name"];
                let Some(service) = service.as_str() else { continue };
                let mut board = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
                let entry = board.entry(service.to_owned()).or_insert((0, now));
                *entry = (entry.0 + 1, now);
            }
        });
        Ok(board)
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn get(&self, service: &str) -> (u64, Instant) {
        let board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        board.get(service).copied().unwrap_or((0, Instant::now()))
    }

    async fn wait_for(&self, services: usize) {
        while self.len() < services {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Latencies of changes of single Pods while other Pods change at `rate` per second: from the answer
/// and from the request to the slice's event.
async fn latencies(
    target: &Target,
    board: &Board,
    size: Size,
    rate: f64,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let load = (rate > 0.0).then(|| tokio::spawn(change_pods(target.clone(), size, rate)));
    let mut connection = target.connect().await?;
    let (mut answered, mut sent) = (Vec::new(), Vec::new());
    for i in 0..MEASURED {
        // The first tenth of the Services is measured, the others are the load.
        let service = i * 7 % (size.services / 10).max(1);
        let name = format!("s{service}");
        let before = board.get(&name).0;
        let (at_request, at_answer) = flip(&mut connection, service, false).await?;
        while board.get(&name).0 == before {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let seen = board.get(&name).1;
        answered.push(seen.saturating_duration_since(at_answer));
        sent.push(seen.saturating_duration_since(at_request));
        flip(&mut connection, service, true).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if let Some(load) = load {
        let changed = load.await??;
        println!("load: {changed:.0} Pod changes/s were made");
    }
    Ok((answered, sent))
}

async fn flip(
    connection: &mut Connection,
    service: usize,
    ready: bool,
) -> Result<(Instant, Instant)> {
    let began = Instant::now();
    connection.send(pod_status(service, 0, ready)).await?.ok()?;
    Ok((began, Instant::now()))
}

/// Changes Pods of the other Services for 10 s; returns changes per second.
async fn change_pods(target: Target, size: Size, rate: f64) -> Result<f64> {
    let began = Instant::now();
    let duration = Duration::from_secs(10);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = target.connect().await?;
        clients.spawn(async move {
            let mut pause = tokio::time::interval(Duration::from_secs_f64(CLIENTS as f64 / rate));
            let mut changed = 0_usize;
            while began.elapsed() < duration {
                pause.tick().await;
                let others = size.services - size.services / 10;
                let service = size.services / 10 + (changed * CLIENTS + client) * 13 % others;
                let ready = changed * CLIENTS / others % 2 == 1;
                connection.send(pod_status(service, 1, ready)).await?.ok()?;
                changed += 1;
            }
            anyhow::Ok(changed)
        });
    }
    let changed: Result<Vec<usize>> = clients.join_all().await.into_iter().collect();
    Ok(changed?.into_iter().sum::<usize>() as f64 / began.elapsed().as_secs_f64())
}

fn report(title: &str, what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    println!(
        "{title}: {what}: p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
