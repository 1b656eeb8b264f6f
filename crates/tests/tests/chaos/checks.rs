//! Checks after the chaos.
//!
//! Balanced and Auto keep a decision for a while (a table of weights stays for 30 s). A plan from scratch reads that
//! table from the slices, so it keeps the same decisions as the controller, and all policies can be compared. The
//! endpoints are compared a second time with a plan that does not see the slices.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use nearhop_core::model::{Endpoint, Slice};
use nearhop_core::world::PlanTime;
use nearhop_core::{Change, Kind};
use nearhop_tests::scene::{ControllerProcess, Scene, TIMEOUT, read_metric};

use crate::pause_or_fail;

/// Far above the memory for a cluster of this size (about 40 MiB in a debug build), far below a serious leak.
const MOST_MEMORY_MIB: u64 = 160;

pub(crate) struct Checks<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) controller: &'a ControllerProcess,
}

impl Checks<'_> {
    /// Waits until the controller is ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while self.controller.get("/readyz").await? != "ok" {
            pause_or_fail("/readyz", deadline).await?;
        }
        Ok(())
    }

    /// Waits until the slices are correct; returns how long it took. Prints the differences that exist after `soon`.
    pub(crate) async fn converged(&self, soon: Duration) -> Result<Duration> {
        let start = Instant::now();
        let mut shown = false;
        loop {
            let wrong = self.scene.differences().await?;
            let took = start.elapsed();
            if wrong.is_empty() {
                return Ok(took);
            }
            if took > soon && !shown {
                println!("still wrong after {took:?}: {}", wrong.join("; "));
                shown = true;
            }
            pause_or_fail(&wrong.join("; "), start + TIMEOUT)
                .await
                .with_context(|| self.metrics())?;
        }
    }

    /// Checks that no wrong endpoint is left, the queue is idle, and memory has not grown.
    pub(crate) async fn check_end_state(&self) -> Result<()> {
        let mut world = self.scene.world().await?;
        let with_slices = world.clone();
        world.apply(Change::Listed(Kind::Slice, Default::default()));
        for service in world.services() {
            let now = PlanTime::at(Timestamp::now());
            let plan = world.plan(&service.key, now).context("a Service without a plan")?;
            let wanted = describe(plan.create.iter());
            let ours = |slice: &&Slice| slice.managed_by() == Some(&self.scene.settings.controller);
            let found = with_slices.slices(&service.key).map(|slice| &**slice).filter(ours);
            let found = describe(found);
            ensure!(wanted == found, "{}: wanted\n{wanted}found\n{found}", service.key);
        }
        self.idle().await?;
        let memory = self.memory()?;
        println!("memory of the controller: {memory} MiB");
        ensure!(memory < MOST_MEMORY_MIB, "{memory} MiB");
        Ok(())
    }

    /// Waits until the queue is empty, and checks that no Service is retried repeatedly.
    async fn idle(&self) -> Result<()> {
        let series = |name: &str| format!("workqueue_{name}{{name=\"endpoint_slice\"}}");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = self.controller.get("/metrics").await?;
            if read_metric(&text, &series("depth")) == 0.0 {
                break;
            }
            pause_or_fail("an empty queue", deadline).await?;
        }
        let counts = |text: &str| {
            (read_metric(text, &series("adds_total")), read_metric(text, &series("retries_total")))
        };
        let before = counts(&self.controller.get("/metrics").await?);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = counts(&self.controller.get("/metrics").await?);
        let changes = format!("adds and retries {before:?}, then {after:?}");
        ensure!(before.1 == after.1, "a Service still fails: {changes}");
        // A table of weights may be due for an update now; a loop would cause many more adds.
        ensure!(after.0 - before.0 <= 20.0, "the queue does not become idle: {changes}");
        Ok(())
    }

    fn metrics(&self) -> String {
        format!("controller at {}", self.controller.admin)
    }

    fn memory(&self) -> Result<u64> {
        let pid = self.controller.process.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? / 1024)
    }
}

/// The endpoints of slices, one per line, without hints, which are checked elsewhere.
fn describe<'a>(slices: impl Iterator<Item = &'a Slice>) -> String {
    let line = |slice: &Slice, endpoint: &Endpoint| {
        let endpoint = Endpoint { hints: None, ..endpoint.clone() };
        format!("{:?} {:?} {endpoint:?}\n", slice.address_type, slice.ports)
    };
    let lines = |slice: &Slice| -> Vec<String> {
        slice.endpoints.iter().map(|endpoint| line(slice, endpoint)).collect()
    };
    let mut all: Vec<String> = slices.flat_map(lines).collect();
    all.sort();
    all.concat()
}
