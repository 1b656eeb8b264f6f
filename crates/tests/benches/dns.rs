//! Performance of the DNS server: questions per second on one core, compared with Knot, which answers
//! the same names from a file.
//!
//! `cargo bench -p nearhop-tests --bench dns` prints figures and asserts nothing. It needs `dnsperf`,
//! `knotd` and `taskset` (Debian: dnsperf, knot, util-linux). The cluster is an embedded API server
//! with Services, slices and PodLocators. A PodLocator for the client's address puts the client into
//! the first zone. Knot has the same names with the records that this client gets. Servers run in turn
//! on one core, dnsperf on another. Sizes: `NEARHOP_BENCH_SERVICES`, `NEARHOP_BENCH_SECONDS`.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_tests::http::{Request, send_all};
use nearhop_tests::server::{Options, Server, binary, start_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Endpoints of each Service.
const PODS: usize = 5;
const NODES: usize = 300;
const ZONES: [&str; 3] = ["a", "b", "c"];
const ROUNDS: usize = 3;
const OURS: &str = "127.0.0.1:5391";
const KNOT: &str = "127.0.0.1:5392";

/// Set in the process that `taskset` has pinned to the core of the clients.
const PINNED: &str = "NEARHOP_BENCH_PINNED";

fn main() -> Result<()> {
    if std::env::var_os(PINNED).is_none() {
        let mut again = Command::new("taskset");
        again.args(["-c", "1"]).arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
        let status = again.env(PINNED, "1").status().context("run taskset")?;
        ensure!(status.success(), "{status}");
        return Ok(());
    }
    let read = |name: &str, usual: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let services = read("NEARHOP_BENCH_SERVICES", 10_000);
    let seconds = read("NEARHOP_BENCH_SECONDS", 5);
    let server = tokio::runtime::Runtime::new()?.block_on(populate(services))?;
    let scratch = tempfile::tempdir()?;
    write_files(scratch.path(), services)?;
    let ours = start_ours(&server)?;
    println!("nearhop dns: {}", memory(&ours.0)?);
    let knot = start_knot(&scratch)?;
    println!("knot: {}", memory(&knot.0)?);
    for kind in ["cluster-ip", "headless"] {
        compare(scratch.path(), kind, seconds)?;
    }
    Ok(())
}

/// Measures both servers in turn at full load, and then each at half of its rate.
fn compare(scratch: &Path, kind: &str, seconds: usize) -> Result<()> {
    let questions = scratch.join(kind);
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (at, address) in [OURS, KNOT].into_iter().enumerate() {
            rates[at].push(dnsperf(address, &questions, seconds)?);
        }
    }
    let median = |rates: &[f64]| {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let [ours, knot] = [median(&rates[0]), median(&rates[1])];
    println!("{kind}: nearhop {ours:.0} q/s, knot {knot:.0} q/s, ratio {:.2}", ours / knot);
    for (name, address, rate) in [("nearhop", OURS, ours), ("knot", KNOT, knot)] {
        let half = pace(address, &questions, seconds, rate / 2.0)?;
        println!(
            "{kind}: {name} at {:.0} q/s: p50 {:.3} ms, p99 {:.3} ms, most {:.3} ms, {} lost",
            rate / 2.0,
            half.at(0.5),
            half.at(0.99),
            half.at(1.0),
            half.lost
        );
    }
    Ok(())
}

/// Questions per second at full load.
fn dnsperf(server: &str, file: &Path, seconds: usize) -> Result<f64> {
    let server: SocketAddr = server.parse()?;
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "dnsperf", "-T", "1", "-c", "8", "-q", "200", "-W"]);
    command.args(["-s", &server.ip().to_string(), "-p", &server.port().to_string()]);
    command.arg("-d").arg(file).args(["-l", &seconds.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().context("run dnsperf")?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(text.contains("NOERROR") && !text.contains("NXDOMAIN"), "answers are wrong: {text}");
    let line = text.lines().find(|line| line.trim_start().starts_with("Queries per second"));
    let word = line.and_then(|line| line.split(':').nth(1)?.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).with_context(|| format!("a rate in {text}"))
}

/// Times in milliseconds, sorted.
struct Times {
    sorted: Vec<f64>,
    lost: usize,
}

impl Times {
    fn at(&self, share: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get((last as f64 * share) as usize).copied().unwrap_or(f64::NAN)
    }
}

/// Sends questions at a fixed rate, without waiting for answers, and measures the time of each. dnsperf
/// could print every time, but printing takes longer than a question.
fn pace(server: &str, file: &Path, seconds: usize, rate: f64) -> Result<Times> {
    let questions: Vec<Vec<u8>> = fs::read_to_string(file)?.lines().map(question).collect();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    let (mut sent_at, mut sorted) = (vec![None; 1 << 16], Vec::new());
    let (began, mut sent, mut lost) = (Instant::now(), 0_usize, 0);
    let total = (rate * seconds as f64) as usize;
    let mut answer = [0; 1500];
    loop {
        let due = (began.elapsed().as_secs_f64() * rate) as usize;
        // A client that was not scheduled for a while does not catch up in one burst.
        let until = due.min(total).min(sent + 8);
        while sent < until {
            let id = (sent & 0xffff) as u16;
            let mut bytes = questions[sent % questions.len()].clone();
            bytes[..2].copy_from_slice(&id.to_be_bytes());
            let before = sent_at[usize::from(id)].replace(Instant::now());
            lost += usize::from(before.is_some());
            sent += 1;
            if socket.send(&bytes).is_err() {
                lost += 1;
            }
        }
        while socket.recv(&mut answer).is_ok() {
            let id = usize::from(u16::from_be_bytes([answer[0], answer[1]]));
            if let Some(at) = sent_at[id].take() {
                sorted.push(at.elapsed().as_secs_f64() * 1000.0);
            }
        }
        if sent == total
            && (sorted.len() + lost == total
                || began.elapsed().as_secs_f64() > seconds as f64 + 1.0)
        {
            break;
        }
    }
    lost = total - sorted.len();
    sorted.sort_by(f64::total_cmp);
    Ok(Times { sorted, lost })
}

/// Encodes a line of dnsperf's input: `NAME A`.
fn question(line: &str) -> Vec<u8> {
    let name = line.split(' ').next().unwrap_or_default();
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// A running server; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn on_one_core(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn start_ours(server: &Server) -> Result<Running> {
    let began = Instant::now();
    let mut command = on_one_core(&binary()?);
    command.args(["dns", "--threads", "1", "--resolv-conf", "/dev/null", "-v", "0"]);
    command.args(["--feature-gates", "PodLocator=true", "--listen", OURS]);
    for flag in ["--health-bind-address", "--ready-bind-address", "--metrics-bind-address"] {
        command.args([flag, "127.0.0.1:0"]);
    }
    command.arg("--kubeconfig").arg(&server.kubeconfig);
    let running = Running(command.spawn().context("start nearhop dns")?);
    until_answers(OURS)?;
    println!("nearhop dns: answers {:.2} s after its start", began.elapsed().as_secs_f64());
    Ok(running)
}

fn start_knot(scratch: &TempDir) -> Result<Running> {
    let mut command = on_one_core(Path::new("/usr/sbin/knotd"));
    command.arg("-c").arg(scratch.path().join("knot.conf"));
    let running = Running(command.spawn().context("start knotd")?);
    until_answers(KNOT)?;
    Ok(running)
}

/// Asks for a Service until there is an answer without an error.
fn until_answers(server: &str) -> Result<()> {
    let question = question("s0.ns-0.svc.cluster.local A");
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let mut answer = [0; 512];
        let asked = socket.send_to(&question, server).and_then(|_| socket.recv(&mut answer));
        if asked.is_ok() && answer[3] & 0x0f == 0 && answer[7] > 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("{server} does not answer")
}

/// Resident memory. taskset executes the server in its own process.
fn memory(child: &Child) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).context("VmRSS")?;
    Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn is_headless(service: usize) -> bool {
    service % 2 == 1
}

fn namespace(service: usize) -> String {
    format!("ns-{}", service % 100)
}

fn cluster_ip(service: usize) -> String {
    format!("10.96.{}.{}", service / 250 + 1, service % 250 + 1)
}

fn pod_ip(service: usize, pod: usize) -> String {
    let number = service * PODS + pod;
    format!("10.{}.{}.{}", 100 + number / 62_500, number / 250 % 250, number % 250 + 1)
}

fn zone(pod: usize) -> &'static str {
    ZONES[pod % ZONES.len()]
}

fn node(service: usize, pod: usize) -> String {
    format!("node-{}-{}", zone(pod), service % (NODES / ZONES.len()))
}

/// The addresses that a client of the first zone gets.
fn near(service: usize) -> Vec<String> {
    (0..PODS).filter(|pod| zone(*pod) == ZONES[0]).map(|pod| pod_ip(service, pod)).collect()
}

async fn populate(services: usize) -> Result<Server> {
    let server = start_process(&Options {
        controllers: nearhop_apiserver::Controllers::Bare,
        ..Options::default()
    })?;
    let began = Instant::now();
    let crd = nearhop_api::locator::definition();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.admin.post(path, &crd).await?.expect(201)?;
    let namespaces = (0..100)
        .map(|n| post("/api/v1/namespaces", &json!({"metadata": {"name": format!("ns-{n}")}})));
    send_all(&server.admin, namespaces.collect()).await?;
    let mut requests: Vec<Request> = Vec::new();
    for service in 0..services {
        requests.push(service_object(service));
        requests.push(slice_object(service));
        requests.extend((0..PODS).map(|pod| locator(service, pod)));
    }
    send_all(&server.admin, requests).await?;
    let mine = json!({
        "apiVersion": "nearhop.dev/v1alpha1", "kind": "PodLocator",
        "metadata": {"name": "client", "ownerReferences": owner("client")},
        "ips": [{"ip": "127.0.0.1"}], "nodeName": "node-a-0", "nodeLabels": labels("node-a-0", "a"),
    });
    send_all(&server.admin, vec![post(&locators("ns-0"), &mine)]).await?;
    println!(
        "cluster: {services} Services, {} endpoints and PodLocators, made in {:.0} s",
        services * PODS,
        began.elapsed().as_secs_f64()
    );
    Ok(server)
}

fn service_object(service: usize) -> Request {
    let mut spec = json!({
        "clusterIP": cluster_ip(service),
        "topologyKeys": ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"],
        "ports": [{"name": "http", "port": 80}],
    });
    if is_headless(service) {
        spec["clusterIP"] = json!("None");
    }
    let path = format!("/api/v1/namespaces/{}/services", namespace(service));
    post(&path, &json!({"metadata": {"name": format!("s{service}")}, "spec": spec}))
}

/// A slice as the controller writes it.
fn slice_object(service: usize) -> Request {
    let endpoint = |pod: usize| {
        json!({
            "addresses": [pod_ip(service, pod)], "conditions": {"ready": true},
            "nodeName": node(service, pod), "zone": zone(pod),
        })
    };
    let nodes: Value = (0..PODS)
        .map(|pod| (node(service, pod), json!([node(service, pod), zone(pod)])))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"];
    let routing = json!({"v": 1, "keys": keys, "nodes": nodes}).to_string();
    let name = format!("s{service}");
    let body = json!({
        "metadata": {
            "name": format!("{name}-1"),
            "labels": {"kubernetes.io/service-name": name},
            "annotations": {"nearhop.dev/routing": routing},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80}],
        "endpoints": (0..PODS).map(endpoint).collect::<Vec<_>>(),
    });
    let path = "/apis/discovery.k8s.io/v1/namespaces";
    post(&format!("{path}/{}/endpointslices", namespace(service)), &body)
}

fn labels(node: &str, zone: &str) -> Value {
    json!({
        "kubernetes.io/hostname": node,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": "r",
    })
}

fn locators(namespace: &str) -> String {
    format!("/apis/nearhop.dev/v1alpha1/namespaces/{namespace}/podlocators")
}

/// An owner as the controller writes it. The server has no garbage collector, so the Pods need not
/// exist.
fn owner(pod: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": format!("uid-{pod}")}])
}

fn locator(service: usize, pod: usize) -> Request {
    let (node, name) = (node(service, pod), format!("s{service}-{pod}"));
    let body = json!({
        "apiVersion": "nearhop.dev/v1alpha1", "kind": "PodLocator",
        "metadata": {"name": name, "ownerReferences": owner(&name)},
        "ips": [{"ip": pod_ip(service, pod)}],
        "nodeName": node, "nodeLabels": labels(&node, zone(pod)),
    });
    post(&locators(&namespace(service)), &body)
}

fn post(path: &str, body: &Value) -> Request {
    Request::new("POST", path).json(body)
}

/// The questions, and Knot's zone and configuration.
fn write_files(scratch: &Path, services: usize) -> Result<()> {
    let mut zone = String::from(
        "$ORIGIN cluster.local.\n$TTL 5\n@ SOA ns.dns hostmaster 1 7200 1800 86400 5\n\
         @ NS ns.dns\nns.dns A 127.0.0.1\n",
    );
    let mut questions = [String::new(), String::new()];
    for service in 0..services {
        let name = format!("s{service}.{}.svc", namespace(service));
        let headless = is_headless(service);
        let addresses = if headless { near(service) } else { vec![cluster_ip(service)] };
        for address in addresses {
            writeln!(zone, "{name} A {address}")?;
        }
        writeln!(questions[usize::from(headless)], "{name}.cluster.local A")?;
    }
    fs::write(scratch.join("cluster-ip"), &questions[0])?;
    fs::write(scratch.join("headless"), &questions[1])?;
    fs::write(scratch.join("zone"), zone)?;
    let at = scratch.display();
    let listen = KNOT.replace(':', "@");
    let config = format!(
        "server:\n    listen: {listen}\n    udp-workers: 1\n    tcp-workers: 1\n    \
         background-workers: 1\n    rundir: {at}\ndatabase:\n    storage: {at}\n\
         template:\n  - id: default\n    storage: {at}\n    semantic-checks: off\n    \
         zonefile-sync: -1\n    journal-content: none\nzone:\n  - domain: cluster.local\n    file: zone\n"
    );
    fs::write(scratch.join("knot.conf"), config)?;
    Ok(())
}
