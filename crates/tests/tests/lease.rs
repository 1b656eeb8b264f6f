//! Two `nearhop controller` processes and one Lease: whatever happens to one of them, exactly one writes.
//!
//! The tests compare the times in the Lease object, so they do not depend on the speed of this machine; the
//! tests of the runtime's lease have the upper bounds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use nearhop_tests::scene::{ControllerProcess, Scene, TIMEOUT, read_metric};

const LEASE: Duration = Duration::from_secs(3);
const LEASE_PATH: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/nearhop-controller";
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

/// Waits until one of two controllers leads; returns the leader first.
async fn until_one_leads(
    a: ControllerProcess,
    b: ControllerProcess,
) -> Result<(ControllerProcess, ControllerProcess)> {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        match (leads(&a).await?, leads(&b).await?) {
            (true, true) => bail!("both lead"),
            (true, false) => return Ok((a, b)),
            (false, true) => return Ok((b, a)),
            (false, false) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    bail!("neither leads")
}

impl Pair {
    async fn new() -> Result<Self> {
        let scene = Scene::new().await?;
        scene.node("n1", Some("a")).await?;
        scene.service("web", serde_json::json!({})).await?;
        scene.pod("p", "n1", "10.1.0.1", "web").await?;
        let (leader, other) = until_one_leads(candidate(&scene)?, candidate(&scene)?).await?;
        scene.settled().await?;
        Ok(Self { leader, other, scene })
    }

    /// Changes the pod's readiness, and waits until the slices have it.
    async fn flip(&self, ready: bool) -> Result<()> {
        self.scene.report_pod("p", "10.1.0.1", ready).await?;
        let expected = || async {
            let slices = self.scene.slices("web").await?;
            let mut endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter());
            let found = endpoints.next().context("no endpoint")?.conditions.ready;
            Ok(if found == Some(ready) { Ok(()) } else { Err(format!("ready is {found:?}")) })
        };
        self.scene.until("the change is in the slices", TIMEOUT, expected).await
    }

    /// `spec` of the Lease.
    async fn lease(&self) -> Result<LeaseSpec> {
        let lease = self.scene.cluster.admin.get(LEASE_PATH).await?.ok()?.json();
        Ok(serde_json::from_value(lease["spec"].clone())?)
    }

    /// The other controller has taken the Lease over, and not before it had expired.
    async fn check_taken_over(&self, before: &LeaseSpec) -> Result<()> {
        let now = self.lease().await?;
        ensure!(leads(&self.other).await?);
        ensure!(self.other.writes().await? >= 1.0);
        ensure!(now.holder_identity != before.holder_identity, "{now:?}");
        ensure!(
            now.lease_transitions == before.lease_transitions.map(|count| count + 1),
            "{now:?}"
        );
        let (acquired, renewed) = (now.acquire_time.clone(), before.renew_time.clone());
        let (acquired, renewed) = acquired.zip(renewed).context("the Lease has no times")?;
        let waited = Duration::try_from(acquired.0.duration_since(renewed.0))?;
        ensure!(waited >= LEASE, "taken over {waited:?} after the last renewal");
        Ok(())
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
    assert_eq!(ready, "ok", "a candidate is ready to take over");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_controller_takes_over_from_a_killed_leader_when_the_lease_has_expired()
-> Result<()> {
    let mut pair = Pair::new().await?;
    pair.leader.process.kill()?;
    pair.leader.process.wait()?;
    let before = pair.lease().await?;
    pair.flip(false).await?;
    pair.check_taken_over(&before).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader_does_not_write_when_it_continues() -> Result<()> {
    let pair = Pair::new().await?;
    let writes = pair.leader.writes().await?;
    pair.leader.signal("STOP")?;
    let before = pair.lease().await?;
    pair.flip(false).await?;
    pair.check_taken_over(&before).await?;
    // The stopped leader continues while the pod changes.
    for round in 0..20 {
        if round == 5 {
            pair.leader.signal("CONT")?;
        }
        pair.flip(round % 2 == 0).await?;
    }
    let steps_down = || async {
        Ok(if leads(&pair.leader).await? { Err("it leads".to_owned()) } else { Ok(()) })
    };
    pair.scene.until("the stopped leader to step down", TIMEOUT, steps_down).await?;
    assert_eq!(pair.leader.writes().await?, writes, "the stopped leader wrote");
    assert!(leads(&pair.other).await?);
    assert!(pair.other.writes().await? >= 21.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_releases_the_lease_when_it_terminates() -> Result<()> {
    let mut pair = Pair::new().await?;
    let before = pair.lease().await?;
    pair.leader.signal("TERM")?;
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = pair.leader.process.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < deadline, "the leader does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(status.code(), Some(0));
    // Released, or taken by the other controller already: no candidate waits for the Lease to expire.
    let after = pair.lease().await?;
    assert_ne!(after.holder_identity, before.holder_identity, "{after:?}");
    pair.flip(false).await?;
    assert!(pair.other.writes().await? >= 1.0);
    Ok(())
}
