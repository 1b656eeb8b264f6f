//! The clients of one node: they open new flows all the time, and read the endpoint of each flow from
//! the node's conntrack table. So no endpoint has to answer.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nearhop_core::{Family, Protocol};
use nearhop_net::{Namespace, star};
use nearhop_proxy::conntrack::Conntrack;
use serde::{Deserialize, Serialize};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::rule::{Flow, now};

/// The variable that holds the [`Job`].
const JOB: &str = "NEARHOP_TEST_STICKY_JOB";
/// The harness's name of the test that calls [`work_if_asked`].
const NAME: &str = "sticky::sticky_clients_are_never_sent_to_an_endpoint_that_is_gone";
/// Start of the line that is printed if the kernel does not list flows.
const SKIPPED: &str = "skipped: ";

/// How often each client opens a flow of each protocol.
const ROUND: Duration = Duration::from_millis(400);
/// Pause between opening flows and reading the table.
const SETTLE: Duration = Duration::from_millis(100);
/// Long enough for two retransmissions of an unanswered SYN (after 1 s and 3 s).
const CONNECT: Duration = Duration::from_millis(3500);
/// Source port of the flows that stay open; each round of new flows uses the next port.
const FIRST_PORT: u16 = 20_000;

/// What the clients of one node do.
#[derive(Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) sources: Vec<IpAddr>,
    pub(super) tcp: SocketAddr,
    pub(super) udp: SocketAddr,
    pub(super) seconds: u64,
}

/// What the clients saw.
pub(super) struct Report {
    pub(super) flows: Vec<Flow>,
    /// Connections that were opened, and those of them that were accepted.
    pub(super) opened: usize,
    pub(super) served: usize,
    /// Why the flows could not be read.
    pub(super) skipped: Option<String>,
}

impl Job {
    /// The command that runs the job on a node.
    pub(super) fn command(&self) -> Result<Vec<String>> {
        let binary = std::env::current_exe()?;
        let binary = binary.to_str().context("the path of this test is not UTF-8")?.to_owned();
        let job = format!("{JOB}={}", serde_json::to_string(self)?);
        let flags = ["--exact", NAME, "--nocapture"].map(str::to_owned);
        Ok([&["env".to_owned(), job, binary][..], &flags].concat())
    }
}

/// Reads what the command printed.
pub(super) fn read(node: &str, output: &str) -> Result<Report> {
    let mut report = Report { flows: Vec::new(), opened: 0, served: 0, skipped: None };
    let mut ended = false;
    for line in output.lines() {
        if let Some(why) = line.strip_prefix(SKIPPED) {
            report.skipped = Some(why.to_owned());
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["flow", from, until, protocol, source, endpoint] => report.flows.push(Flow {
                node: node.to_owned(),
                from: from.parse()?,
                until: until.parse()?,
                protocol: protocol.to_owned(),
                source: source.parse()?,
                endpoint: endpoint.parse()?,
            }),
            ["end", opened, served] => {
                (report.opened, report.served) = (opened.parse()?, served.parse()?);
                ended = true;
            }
            _ => {}
        }
    }
    anyhow::ensure!(ended || report.skipped.is_some(), "{node}: no end of {output:.2000}");
    Ok(report)
}

/// Runs the job of this process, if it has one; returns whether it has. Such a process runs on a node,
/// where [`Job::command`] starts the test binary again.
pub(super) fn work_if_asked() -> bool {
    let Ok(job) = std::env::var(JOB) else { return false };
    // The harness has printed the start of a line.
    println!();
    let job: Job = serde_json::from_str(&job).unwrap();
    work(&job).unwrap_or_else(|error| panic!("{error:#}"));
    true
}

fn work(job: &Job) -> Result<()> {
    let mut table = Conntrack::open()?;
    if let Err(error) = table.dump(Family::Ipv4, Protocol::Udp, || (), |(), _| ()) {
        println!("{SKIPPED}{error}");
        return Ok(());
    }
    let clients = Namespace::new("clients")?;
    star::attach(&Namespace::current()?, "sticky", &clients, &job.sources)?;
    clients.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(open_flows(job, table))
    })
}

async fn open_flows(job: &Job, mut table: Conntrack) -> Result<()> {
    let bind = |source: &IpAddr, port| UdpSocket::bind((*source, port));
    let lasting =
        job.sources.iter().map(|one| bind(one, FIRST_PORT)).collect::<Result<Vec<_>, _>>()?;
    let mut connects = JoinSet::new();
    let (mut opened, mut served) = (0, 0);
    let end = Instant::now() + Duration::from_secs(job.seconds);
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for port in FIRST_PORT + 1.. {
        if Instant::now() > end {
            break;
        }
        rounds.tick().await;
        let from = now();
        for (source, lasting) in job.sources.iter().zip(&lasting) {
            // An error belongs to an earlier datagram and has no meaning here.
            let _ = lasting.send_to(b"x", job.udp);
            let _ = bind(source, port)?.send_to(b"x", job.udp);
            let socket = TcpSocket::new_v4()?;
            socket.bind((*source, port).into())?;
            // The reset at its end deletes the flow, so that the table does not fill up.
            socket.set_zero_linger()?;
            connects.spawn(timeout(CONNECT, socket.connect(job.tcp)));
            opened += 1;
        }
        sleep(SETTLE).await;
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let ours = |flow: &nearhop_netfilter::conntrack::Flow| {
                let source = flow.original.source;
                source.port() == port && job.sources.contains(&source.ip())
            };
            let found = table.dump(Family::Ipv4, protocol, Vec::new, |found, flow| {
                if ours(flow) {
                    found.push((flow.original.source.ip(), flow.endpoint().ip));
                }
            })?;
            let until = now();
            for (source, endpoint) in found.value {
                println!("flow {from} {until} {protocol} {source} {endpoint}");
            }
        }
        while let Some(done) = connects.try_join_next() {
            served += usize::from(matches!(done, Ok(Ok(Ok(_)))));
        }
    }
    while let Some(done) = connects.join_next().await {
        served += usize::from(matches!(done, Ok(Ok(Ok(_)))));
    }
    println!("end {opened} {served}");
    Ok(())
}
