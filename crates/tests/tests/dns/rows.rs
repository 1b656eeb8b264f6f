//! The DNS conformance rows over real sockets: hickory decodes the answers, and `dig` and `kdig` print
//! them, if they are installed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr as _;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use nearhop_conform::dns::{Row, read_rows};
use nearhop_core::answer::Index;
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::options::{Listen, Options};
use nearhop_dns::serve::Server;
use nearhop_dns::state::{Shared, State};
use nearhop_runtime::metrics::Metrics;
use nearhop_skip::skip;
use nearhop_tests::dns::Client;
use serde_json::Value;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn files() -> Vec<PathBuf> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/cases/dns");
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    files.sort();
    files
}

/// Starts a server with the cluster of a row.
fn serve(row: &Row) -> Result<(Server, SocketAddr)> {
    let index = Index::build(&row.world);
    let state = State { world: row.world.clone(), index, serial: row.serial, synced: row.synced };
    let listen = Listen::At(vec![SocketAddr::new(LOOPBACK, 0)]);
    let options = Options { listen, threads: 1, ..Options::new(row.config.clone()) };
    let metrics = DnsMetrics::new(&Metrics::new(), "dns://test");
    let server = Server::start(&options, Shared::new(state), metrics)?;
    let address = *server.addresses().first().context("the server has no address")?;
    Ok((server, address))
}

/// Whether a row can be answered without an upstream server.
fn is_ours(row: &Row) -> bool {
    let answers = row.expect["answer"].as_array().map_or(&[][..], Vec::as_slice);
    let zone = |line: &Value| {
        let text = line.as_str().unwrap_or_default().to_lowercase();
        !text.contains(" cname ") || text.ends_with("cluster.local.")
    };
    row.expect["outcome"] != "passed_on" && answers.iter().all(zone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_conformance_row_is_answered_over_udp() {
    // Stopping a server takes a moment, so all stop together.
    let (mut servers, mut passed_over) = (Vec::new(), 0);
    for file in files() {
        for row in read_rows(&std::fs::read(&file).unwrap()).unwrap() {
            if !is_ours(&row) {
                passed_over += 1;
                continue;
            }
            let (server, address) = serve(&row).unwrap();
            let client = Client::at(LOOPBACK, address).unwrap();
            let kind = RecordType::from_str(&row.record_type).unwrap();
            let answer = client.ask(&row.question.name.to_string(), kind).unwrap();
            check(&row, &answer).unwrap_or_else(|error| panic!("{}: {error:#}", row.id));
            servers.push(server);
        }
    }
    let asked = servers.len();
    join_all(servers.into_iter().map(Server::stop)).await;
    assert!(asked > 80 && passed_over < 10, "{asked} asked, {passed_over} need an upstream server");
}

fn check(row: &Row, answer: &Message) -> Result<()> {
    let code = match row.expect["outcome"].as_str().unwrap_or_default() {
        "nxdomain" => ResponseCode::NXDomain,
        "servfail" => ResponseCode::ServFail,
        "refused" => ResponseCode::Refused,
        _ => ResponseCode::NoError,
    };
    ensure!(answer.metadata.response_code == code, "{}", answer.metadata.response_code);
    ensure!(answer.metadata.authoritative == (code != ResponseCode::Refused), "AA");
    ensure!(!answer.metadata.recursion_available, "RA");
    let sections = [
        ("answer", &answer.answers),
        ("authority", &answer.authorities),
        ("additional", &answer.additionals),
    ];
    for (name, records) in sections {
        let expected = row.expect[name].as_array().map_or(&[][..], Vec::as_slice);
        let expected: BTreeSet<String> =
            expected.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let found: BTreeSet<String> = records.iter().map(text).collect();
        ensure!(found == expected, "{name}: {found:?}, expected {expected:?}");
    }
    Ok(())
}

fn text(record: &Record) -> String {
    let kind = record.record_type();
    let data = match &record.data {
        RData::TXT(txt) => format!("\"{txt}\""),
        other => other.to_string(),
    };
    format!("{} {} IN {kind} {data}", record.name.to_ascii(), record.ttl)
}

/// The examples of the DNS specification, with common command-line tools.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dig_and_kdig_show_the_examples_of_the_specification() {
    let file = files().into_iter().find(|path| path.ends_with("dns_spec_examples.json")).unwrap();
    let rows = read_rows(&std::fs::read(&file).unwrap()).unwrap();
    let rows: Vec<&Row> = rows.iter().filter(|row| is_ours(row)).collect();
    let servers: Vec<(Server, SocketAddr)> = rows.iter().map(|row| serve(row).unwrap()).collect();
    for (tool, transport) in [("dig", "+notcp"), ("dig", "+tcp"), ("kdig", "+notcp")] {
        if Command::new(tool).arg("-v").output().is_err() {
            skip(&format!("{tool} is not installed"));
            continue;
        }
        for (row, (_, address)) in rows.iter().zip(&servers) {
            let found = dig(tool, transport, *address, row).unwrap();
            let expected = row.expect["answer"].as_array().cloned().unwrap_or_default();
            // kdig shows all names in lower case.
            let expected: BTreeSet<String> =
                expected.iter().filter_map(Value::as_str).map(str::to_lowercase).collect();
            assert_eq!(found, expected, "{tool} {transport}: {}", row.id);
        }
    }
    join_all(servers.into_iter().map(|(server, _)| server.stop())).await;
}

fn dig(tool: &str, transport: &str, server: SocketAddr, row: &Row) -> Result<BTreeSet<String>> {
    let at = format!("@{}", server.ip());
    let (port, name) = (server.port().to_string(), row.question.name.to_string());
    let args = [&at, "-p", &port, "+noall", "+answer", transport, &name, &row.record_type];
    let output = Command::new(tool).args(args).output()?;
    ensure!(
        output.status.success(),
        "{tool} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8(output.stdout)?;
    let lines = printed.lines().filter(|line| !line.is_empty() && !line.starts_with(';'));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    Ok(lines.map(words).collect())
}
