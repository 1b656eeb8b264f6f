//! The demo: measures where connections to a Service go under each policy, and compares with core's
//! prediction.
//!
//! ```text
//!   scenario   the policies and their descriptions
//!   predict    core's prediction, from the cluster's objects
//!   settle     waits until every proxy has applied it
//!   judge      measured against predicted (pure)
//!   picture    measured, as an SVG (pure)
//! ```

mod judge;
mod picture;
pub(crate) mod predict;
mod scenario;
mod settle;

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

pub use judge::{Matrix, Measured, Outcome, POINTS, SIGMAS, Verdict, WORST};
pub use picture::draw_svg;
pub use scenario::Scenario;

use crate::cluster::Cluster;
use crate::config::ConfigFile;
use crate::control::Place;
use crate::drive::run::command_line;
use crate::drive::worker::{Family, Job, Protocol};
use crate::lab::Lab;
use crate::ranges::Ranges;
use crate::topology::Topology;
use crate::{LabError, apply, drive::Tally};

/// CPU of a node per zone, in thousandths: half of all demand comes from the first zone.
const CPU: [u64; 3] = [8000, 4000, 4000];
const NODES_PER_ZONE: usize = 2;

/// One Pod in the first zone, four in each of the others.
const PODS: [(&str, usize); 5] =
    [("node-a1", 1), ("node-b1", 3), ("node-b2", 1), ("node-c1", 2), ("node-c2", 2)];

const NAMESPACE: &str = "demo";
const SERVICE: &str = "web";

/// Connections that a worker has open at the same time.
const CONCURRENCY: usize = 4;
const TIMEOUT_MS: u64 = 5000;

/// Options of the demo.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Options {
    /// Connections per scenario.
    pub connections: u64,
}

/// Progress.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Current step.
    pub step: usize,
    /// Number of steps.
    pub steps: usize,
    /// Description of the step.
    pub doing: String,
}

/// The demo's cluster.
pub fn topology() -> Result<Topology, LabError> {
    Topology::grid_of(&CPU, NODES_PER_ZONE, Ranges::default())
}

/// The demo's Pods and its Service, as a fixture.
fn fixture() -> String {
    let mut text = format!("service {NAMESPACE}/{SERVICE} port=80->8080\n");
    for (node, count) in PODS {
        let letters = node.trim_start_matches("node-");
        text += &format!("pods {NAMESPACE}/{SERVICE}-{letters} x{count} for={SERVICE} on={node}\n");
    }
    text
}

/// Sets one policy after the other, opens connections and compares. Nodes may not be ready yet.
/// A measurement that differs from its prediction is not an error.
pub async fn run(
    lab: &Lab,
    cluster: &Cluster,
    options: Options,
    on_progress: impl Fn(&Progress),
) -> Result<Vec<Outcome>, LabError> {
    let steps = Scenario::ALL.len();
    let report = |step: usize, doing: String| on_progress(&Progress { step, steps, doing });
    report(0, "starting pods".to_owned());
    let objects = ConfigFile::parse("demo", &fixture())?.objects()?;
    apply::apply_all(cluster, &objects, &[]).await?;
    apply::wait_for_pods(cluster, &objects).await?;
    let mut outcomes = Vec::new();
    for (step, scenario) in Scenario::ALL.into_iter().enumerate() {
        report(step, format!("{}: setting it", scenario.title()));
        arrange(cluster, scenario).await?;
        let prediction = settle::settle(lab, cluster, NAMESPACE, SERVICE).await?;
        report(step, format!("{}: {} connections", scenario.title(), options.connections));
        let measured = measure(lab, cluster, options).await?;
        outcomes.push(judge::judge(scenario, &measured, &prediction.load));
    }
    report(steps, "done".to_owned());
    Ok(outcomes)
}

async fn arrange(cluster: &Cluster, scenario: Scenario) -> Result<(), LabError> {
    let service = format!("/api/v1/namespaces/{NAMESPACE}/services/{SERVICE}");
    cluster.patch(&service, &scenario.patch()).await?;
    if scenario == Scenario::LastEndpointLost {
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        cluster.delete_now(&format!("{pods}/{SERVICE}-a1-0")).await?;
    }
    Ok(())
}

/// Opens connections from every node, in proportion to its CPU.
async fn measure(lab: &Lab, cluster: &Cluster, options: Options) -> Result<Measured, LabError> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services/{SERVICE}");
    let service = cluster.get(&path).await?;
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let nodes = &lab.spec().topology.nodes;
    let total: u64 = nodes.iter().map(|node| node.cpu_milli).sum();
    let work = nodes.iter().map(|node| async move {
        let job = Job {
            targets: vec![format!("{address}:80")],
            connections: Some(options.connections * node.cpu_milli / total),
            concurrency: CONCURRENCY,
            timeout_ms: TIMEOUT_MS,
            ..Job::new(Protocol::Tcp, Family::V4)
        };
        let tally = work(lab, &node.name, &job).await?;
        Ok::<_, LabError>((node.zone().to_owned(), tally))
    });
    let tallies = try_join_all(work).await?;
    Ok(Measured::of(&tallies, &zones_of_pods(lab)))
}

/// The zones of Pods, whose names contain their node's letters.
fn zones_of_pods(lab: &Lab) -> BTreeMap<String, String> {
    let mut zones = BTreeMap::new();
    for (node, count) in PODS {
        let zone = lab.spec().topology.node(node).map_or("", |node| node.zone());
        let letters = node.trim_start_matches("node-");
        for n in 0..count {
            zones.insert(format!("{SERVICE}-{letters}-{n}"), zone.to_owned());
        }
    }
    zones
}

async fn work(lab: &Lab, node: &str, job: &Job) -> Result<Tally, LabError> {
    let place = Place::Node(node.to_owned());
    let mut command = lab.command(&place, &lab.spec().program, &command_line(job))?;
    let failed = |why: String| LabError::Drive { what: format!("driving from node/{node}"), why };
    let output = command.output().await.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}
