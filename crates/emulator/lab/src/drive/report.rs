//! The counts of all clients, by Pod, node and zone. Pure.
//!
//! `docs/lab.md` describes every field; a test compares.

use std::collections::BTreeMap;

use serde::Serialize;

use super::origin::{Client, EXTERNAL, Endpoints};
use super::places::Places;
use super::question::{From, Question};
use super::tally::{Causes, Percentiles, Tally, add_causes};
use super::worker::Times;

/// Counts by the location of the client and of the Pod.
pub type Matrix = BTreeMap<String, BTreeMap<String, u64>>;

/// The result of a drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `NAMESPACE/NAME` of the Service.
    pub service: String,
    /// Why it ended.
    pub end: End,
    /// Number of connections that were asked for; None if the speed decides it.
    pub planned: Option<u64>,
    /// Ended connections.
    pub connections: u64,
    /// Answered connections.
    pub answered: u64,
    /// Failed connections.
    pub failed: u64,
    /// Time until the last connection ended.
    pub seconds: f64,
    /// Speed.
    pub rate: Rate,
    /// Share of the answers between known zones that left their zone, 0 to 1. None without any.
    pub cross_zone: Option<f64>,
    /// Share of the answers between known nodes that left their node, 0 to 1. None without any.
    pub cross_node: Option<f64>,
    /// Answers by zone of the client and of the Pod.
    pub matrix: Matrix,
    /// Answers by node of the client and of the Pod.
    pub node_matrix: Matrix,
    /// Answers by Pod.
    pub pods: BTreeMap<String, Answered>,
    /// Answers by node of the Pod.
    pub nodes: BTreeMap<String, u64>,
    /// Connections by client.
    pub clients: BTreeMap<String, ClientCounts>,
    /// Failures by cause.
    pub failures: Causes,
    /// Failures by client.
    pub failures_by_source: BTreeMap<String, Causes>,
    /// Failures by the endpoint that the kernel had chosen, else by the address that was used.
    pub failures_by_target: BTreeMap<String, Causes>,
    /// Latencies; None without answers.
    pub latency: Option<Percentiles>,
    /// Judged conditions.
    pub assertions: Vec<Judged>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// Clients that did not run to their end. Their counts up to then are included.
    pub lost_clients: BTreeMap<String, String>,
}

/// Why a drive ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// All connections were opened.
    #[default]
    Finished,
    /// By a signal.
    Interrupted,
    /// Every connection timed out.
    GaveUp,
}

/// The speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Connections per second that were asked for.
    pub wanted: Option<f64>,
    /// Connections per second that began.
    pub reached: f64,
    /// Connections that began more than 100 ms after their time.
    pub late: u64,
}

/// The answers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answered {
    /// Node; empty if the API has no such Pod.
    pub node: String,
    /// Zone; empty if the node has none, or the API has no such Pod.
    pub zone: String,
    /// Number of answers.
    pub answers: u64,
}

/// The connections of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCounts {
    /// Node, or `external`.
    pub node: String,
    /// Zone, or `external`; empty if the node has none.
    pub zone: String,
    /// Answered connections.
    pub answered: u64,
    /// Failed connections.
    pub failed: u64,
}

/// A judged condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judged {
    /// As it was written.
    pub assertion: String,
    /// Whether it held.
    pub held: bool,
    /// The measured value, or why there is none.
    pub measured: String,
}

/// A client that did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) client: String,
    pub(super) why: String,
}

/// What the clients have counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measurement {
    pub(super) clients: Vec<(Client, Tally)>,
    pub(super) lost: Vec<Lost>,
    pub(super) times: Times,
    pub(super) end: End,
    pub(super) planned: Option<u64>,
    pub(super) endpoints: Endpoints,
}

impl Measurement {
    pub(super) fn of(clients: Vec<(Client, Tally)>) -> Self {
        Self { clients, ..Self::default() }
    }

    /// Includes the times of a client.
    pub(super) fn extend(&mut self, times: Times) {
        self.times.last_begun = self.times.last_begun.max(times.last_begun);
        self.times.ended = self.times.ended.max(times.ended);
    }
}

/// Combines the counts of all clients.
pub(super) fn report(question: &Question, measured: &Measurement, places: &Places) -> Report {
    let mut all = Tally::default();
    let mut counts = Counts::default();
    for (client, tally) in &measured.clients {
        all.merge(tally);
        counts.add(client, tally, places);
    }
    let unknown = Unknown { zone: counts.zones.unknown, node: counts.nodes.unknown };
    let (answered, failed) = (all.answered(), all.failed());
    let connections = answered + failed;
    let lost = measured.lost.iter().map(|one| (one.client.clone(), one.why.clone()));
    let mut report = Report {
        service: format!("{}/{}", question.service.namespace, question.service.name),
        end: measured.end,
        planned: measured.planned,
        connections,
        answered,
        failed,
        seconds: measured.times.ended,
        rate: rate(question, &all, measured.times),
        cross_zone: counts.zones.share(),
        cross_node: counts.nodes.share(),
        matrix: counts.zones.matrix,
        node_matrix: counts.nodes.matrix,
        pods: counts.pods,
        nodes: counts.pod_nodes,
        clients: counts.clients,
        failures: all.failures,
        failures_by_source: counts.by_source,
        failures_by_target: by_target(&all.targets, places),
        latency: all.latencies.percentiles(),
        lost_clients: lost.collect(),
        ..Report::default()
    };
    report.notes = notes(question, measured.endpoints, &report);
    report.notes.extend(note_unknown(unknown, &report));
    report
}

/// With a rate, the time that counts ends one interval after the last connection began.
fn rate(question: &Question, all: &Tally, times: Times) -> Rate {
    let wanted = question.amount.rate;
    let seconds = wanted.map_or(times.ended, |rate| times.last_begun + 1.0 / rate);
    let connections = (all.answered() + all.failed()) as f64;
    let reached = if seconds > 0.0 { connections / seconds } else { 0.0 };
    Rate { wanted, reached, late: all.late }
}

fn notes(question: &Question, endpoints: Endpoints, report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if endpoints.ready == 0 {
        notes.push(format!(
            "Service {} had no ready endpoint at the start ({} in its EndpointSlices). Cure: kubectl \
             get endpointslices,pods -n {}",
            report.service, endpoints.all, question.service.namespace
        ));
    }
    if let Some(wanted) = report.rate.wanted
        && report.rate.late > 0
    {
        notes.push(format!(
            "the rate was not kept: {wanted:.0}/s wanted, {:.1}/s reached; {} connections began more \
             than 100 ms late. Cure: a larger --concurrency, a shorter --timeout or a lower --rate",
            report.rate.reached, report.rate.late
        ));
    }
    if report.answered > 0 && report.cross_zone.is_none() {
        let has_zone = report.clients.values().any(|it| it.answered > 0 && !it.zone.is_empty());
        let why = match question.from {
            From::External => "an external client has no zone",
            _ if has_zone => {
                "the API does not have the Pods that answered, or their nodes have no zone label"
            }
            _ => "the nodes of the clients have no zone label",
        };
        notes.push(format!("share from another zone: n/a, because {why}"));
    }
    notes
}

/// Answers that a share leaves out, because the location of the Pod is not known.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    zone: u64,
    node: u64,
}

fn note_unknown(unknown: Unknown, report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if unknown.zone > 0 && report.cross_zone.is_some() {
        notes.push(format!(
            "share from another zone: without {} of {} answers, because the API does not have the Pod, \
             or its node has no zone label",
            unknown.zone, report.answered
        ));
    }
    if unknown.node > 0 {
        notes.push(format!(
            "share from another node: without {} of {} answers, because the API does not have the Pod",
            unknown.node, report.answered
        ));
    }
    notes
}

fn by_target(targets: &BTreeMap<String, Causes>, places: &Places) -> BTreeMap<String, Causes> {
    let mut named = BTreeMap::new();
    for (target, causes) in targets {
        add_causes(named.entry(name_target(target, places)).or_default(), causes);
    }
    named
}

/// `pod/default/web-0 (10.244.1.2:8080)` for an address with an owner.
fn name_target(target: &str, places: &Places) -> String {
    let address = target.parse::<std::net::SocketAddr>().ok();
    let owner = address.and_then(|address| places.owners.get(&address.ip()));
    owner.map_or_else(|| target.to_owned(), |owner| format!("{owner} ({target})"))
}

#[derive(Default)]
struct Counts {
    zones: Crossing,
    nodes: Crossing,
    pods: BTreeMap<String, Answered>,
    pod_nodes: BTreeMap<String, u64>,
    clients: BTreeMap<String, ClientCounts>,
    by_source: BTreeMap<String, Causes>,
}

impl Counts {
    fn add(&mut self, client: &Client, tally: &Tally, places: &Places) {
        // So that a client without answers has its row, too.
        self.zones.matrix.entry(client.zone.clone()).or_default();
        self.nodes.matrix.entry(client.node.clone()).or_default();
        for (pod, answers) in &tally.answers {
            let place = places.pods.get(pod);
            let (node, zone) = place.map(|place| (&*place.node, &*place.zone)).unwrap_or_default();
            let inside = client.name != EXTERNAL;
            self.zones.count((&client.zone, inside), zone, *answers);
            self.nodes.count((&client.node, inside), node, *answers);
            *self.pod_nodes.entry(node.to_owned()).or_default() += answers;
            let own = self.pods.entry(pod.clone()).or_default();
            let (node, zone) = (node.to_owned(), zone.to_owned());
            *own = Answered { node, zone, answers: own.answers + answers };
        }
        if tally.failed() > 0 {
            self.by_source.insert(client.name.clone(), tally.failures.clone());
        }
        let Client { node, zone, .. } = client.clone();
        let (answered, failed) = (tally.answered(), tally.failed());
        self.clients.insert(client.name.clone(), ClientCounts { node, zone, answered, failed });
    }
}

/// Answers by location, and how many left theirs.
#[derive(Default)]
struct Crossing {
    matrix: Matrix,
    counted: u64,
    crossed: u64,
    /// To a known location from an unknown one.
    unknown: u64,
}

impl Crossing {
    /// Counts answers from one location to another; an empty name is an unknown location. The share
    /// includes only answers whose two locations are known: of others it would say that they stayed.
    fn count(&mut self, (from, is_inside): (&str, bool), to: &str, answers: u64) {
        let row = self.matrix.entry(from.to_owned()).or_default();
        *row.entry(to.to_owned()).or_default() += answers;
        if !is_inside || from.is_empty() {
            return;
        }
        if to.is_empty() {
            self.unknown += answers;
            return;
        }
        self.counted += answers;
        self.crossed += if from == to { 0 } else { answers };
    }

    fn share(&self) -> Option<f64> {
        (self.counted > 0).then(|| self.crossed as f64 / self.counted as f64)
    }
}

#[cfg(test)]
pub(super) mod tests;
