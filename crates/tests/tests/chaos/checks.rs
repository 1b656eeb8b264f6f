//! What must be true when the chaos is over.
//!
//! Balanced and Auto hold on to what they decided for a while (a table of weights rests for 30 s), and a plan from
//! scratch has no memory. It needs none: it takes over the table that the slices carry, so what the controller holds on
//! to is what the plan from scratch holds on to as well, and no policy has to be left out. The endpoints themselves are
//! compared once more with a plan that does not see the slices at all.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use nearhop_core::model::{Endpoint, Slice};
use nearhop_core::world::PlanTime;
use nearhop_core::{Change, Kind};
use nearhop_tests::scene::{ControllerProcess, PATIENCE, Scene, read_metric};

use crate::patiently;

/// Far above what a cluster of this size takes (about 40 MiB in a debug build), far below a leak worth the name.
const MOST_MEMORY_MIB: u64 = 160;

pub(crate) struct Checks<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) controller: &'a ControllerProcess,
}

impl Checks<'_> {
    /// Waits until the controller has seen everything.
    pub(crate) async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.controller.get("/readyz").await? != "ok" {
            patiently("/readyz", deadline).await?;
        }
        Ok(())
    }

    /// Waits until the slices are right, and says how long it took. Who is not done `soon` is shown.
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
            patiently(&wrong.join("; "), start + PATIENCE).await.with_context(|| self.metrics())?;
        }
    }

    /// Nothing is left over, the queue is idle, memory has not grown.
    pub(crate) async fn nothing_is_left(&self) -> Result<()> {
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

    /// Waits until nothing waits in the queue, and checks that no Service is retried again and again.
    async fn idle(&self) -> Result<()> {
        let series = |name: &str| format!("workqueue_{name}{{name=\"endpoint_slice\"}}");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.controller.get("/metrics").await?;
            if read_metric(&text, &series("depth")) == 0.0 {
                break;
            }
            patiently("an empty queue", deadline).await?;
        }
        let counts = |text: &str| {
            (read_metric(text, &series("adds_total")), read_metric(text, &series("retries_total")))
        };
        let before = counts(&self.controller.get("/metrics").await?);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = counts(&self.controller.get("/metrics").await?);
        let changes = format!("adds and retries {before:?}, then {after:?}");
        ensure!(before.1 == after.1, "a Service still fails: {changes}");
        // A table of weights may just have rested enough; a loop would be many.
        ensure!(after.0 - before.0 <= 20.0, "work goes on and on: {changes}");
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

/// The endpoints of slices, one a line, without hints: what a plan holds on to is judged elsewhere.
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
