//! Two `nearhop controller` processes and one lease: whatever becomes of one of them, exactly one writes.
//!
//! Times are short here (3 s lease); what is asserted about them leaves a second or two for a slow machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_tests::scene::{ControllerProcess, PATIENCE, Scene, read_metric};

const LEASE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(500);
/// What a busy machine may add to anything.
const SLACK: Duration = Duration::from_secs(3);
const LEADS: &str = "leader_election_master_status{name=\"nearhop-controller\"}";

/// A leader, a candidate, and a Service with one pod whose slices the leader keeps.
struct Pair {
    leader: ControllerProcess,
    other: ControllerProcess,
    scene: Scene,
}

fn candidate(scene: &Scene) -> Result<ControllerProcess> {
    let times = [
        ("--leader-elect-lease-duration", "3s"),
        ("--leader-elect-renew-deadline", "2s"),
        ("--leader-elect-retry-period", "500ms"),
    ];
    let arguments: Vec<&str> = times.iter().flat_map(|(flag, value)| [*flag, *value]).collect();
    ControllerProcess::start(&scene.cluster.server, &arguments)
}

async fn leads(process: &ControllerProcess) -> Result<bool> {
    Ok(read_metric(&process.get("/metrics").await?, LEADS) == 1.0)
}

/// Waits until one of two leads; that one is first in the answer.
async fn sort_out(
    a: ControllerProcess,
    b: ControllerProcess,
) -> Result<(ControllerProcess, ControllerProcess)> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match (leads(&a).await?, leads(&b).await?) {
            (true, true) => bail!("both lead"),
            (true, false) => return Ok((a, b)),
            (false, true) => return Ok((b, a)),
            (false, false) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    bail!("nobody leads")
}

impl Pair {
    async fn new() -> Result<Self> {
        let scene = Scene::new().await?;
        scene.node("n1", Some("a")).await?;
        scene.service("web", serde_json::json!({})).await?;
        scene.pod("p", "n1", "10.1.0.1", "web").await?;
        let (leader, other) = sort_out(candidate(&scene)?, candidate(&scene)?).await?;
        scene.settled().await?;
        Ok(Self { leader, other, scene })
    }

    /// Changes the pod's readiness, and waits until the slices say so.
    async fn flip(&self, ready: bool) -> Result<Duration> {
        let start = Instant::now();
        self.scene.report_pod("p", "10.1.0.1", ready).await?;
        let expected = || async {
            let slices = self.scene.slices("web").await?;
            let mut endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter());
            let found = endpoints.next().context("no endpoint")?.conditions.ready;
            Ok(if found == Some(ready) { Ok(()) } else { Err(format!("ready is {found:?}")) })
        };
        self.scene.until("the change is in the slices", PATIENCE, expected).await?;
        Ok(start.elapsed())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_writes() -> Result<()> {
    let pair = Pair::new().await?;
    for round in 0..10 {
        pair.flip(round % 2 == 1).await?;
    }
    let (leader, other) = (pair.leader.writes().await?, pair.other.writes().await?);
    assert!(leader >= 11.0, "one create and ten updates, but {leader}");
    assert_eq!(other, 0.0);
    let ready = pair.other.get("/readyz").await?;
    assert_eq!(ready, "ok", "who waits for the lease is ready to take over");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_the_other_acts_within_the_lease_and_a_retry() -> Result<()> {
    let mut pair = Pair::new().await?;
    pair.leader.process.kill()?;
    pair.leader.process.wait()?;
    let took = pair.flip(false).await?;
    println!("taken over after {took:?}");
    // A renewal may have come just before the kill, and retries are longer by chance by a fifth.
    assert!(took <= LEASE + RETRY.mul_f64(1.2) + SLACK, "{took:?}");
    assert!(pair.other.writes().await? >= 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_stopped_does_not_write_when_it_wakes() -> Result<()> {
    let pair = Pair::new().await?;
    let before = pair.leader.writes().await?;
    pair.leader.signal("STOP")?;
    let took = pair.flip(false).await?;
    println!("taken over after {took:?}");
    assert!(took <= LEASE + RETRY.mul_f64(1.2) + SLACK, "{took:?}");
    // It wakes in the middle of changes that it sees, too.
    for round in 0..20 {
        if round == 5 {
            pair.leader.signal("CONT")?;
        }
        pair.flip(round % 2 == 0).await?;
    }
    // Longer than a candidate pauses: it has looked at the lease.
    tokio::time::sleep(RETRY * 3).await;
    assert_eq!(pair.leader.writes().await?, before, "the stopped one wrote");
    assert!(!leads(&pair.leader).await?);
    assert!(leads(&pair.other).await?);
    assert!(pair.other.writes().await? >= 21.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_end_gives_the_lease_back() -> Result<()> {
    let mut pair = Pair::new().await?;
    pair.leader.signal("TERM")?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = pair.leader.process.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < deadline, "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(status.code(), Some(0));
    let took = pair.flip(false).await?;
    println!("taken over after {took:?}");
    // Nobody waited for the lease to run out: only for the candidate's next look.
    assert!(took < LEASE - RETRY, "{took:?}");
    assert!(pair.other.writes().await? >= 1.0);
    Ok(())
}
