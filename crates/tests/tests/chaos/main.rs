//! Chaos: pods, nodes, Services and slices change at random while the API drops watches, compacts its history and
//! answers with errors, and while the controller is killed and restarted. Afterwards the slices must be correct.
//!
//! `cargo test -p nearhop-tests --test chaos` runs the fixed seeds below; by hand,
//! `cargo test -p nearhop-tests --test chaos -- --seed 7 --seconds 30` runs another one. A seed fixes the
//! changes and their order, not their timing relative to the controller. The test has its own harness, `harness.rs`,
//! because the standard one accepts no such arguments.

mod changes;
mod checks;
mod harness;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nearhop_tests::scene::{ControllerProcess, Scene, TIMEOUT};
use nearhop_tests::server::{Server, binary};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::changes::Changes;
use crate::checks::Checks;

/// The seeds in CI, and the seconds for each.
const SEEDS: [u64; 2] = [1, 2];
const SECONDS: u64 = 15;
/// How many times the controller is killed.
const KILLS: u32 = 5;
/// Time limit until the slices are correct, after faults are off and the controller is ready.
const SOON: Duration = Duration::from_secs(5);
/// How long new watches hang at a time; at the end three times as long, for the last burst.
const WATCH_OUTAGE: Duration = Duration::from_millis(300);
/// User agent of the client that gets the faults.
const AGENT: &str = "nearhop-controller";

fn main() -> ExitCode {
    harness::main(&SEEDS, SECONDS, |seed, seconds| {
        tokio::runtime::Runtime::new()?.block_on(chaos(seed, seconds))
    })
}

async fn chaos(seed: u64, seconds: u64) -> Result<()> {
    binary().context("build the nearhop command before the chaos")?;
    let scene = Scene::new().await?;
    let server = &scene.cluster.server;
    let stop_faults = Arc::new(AtomicBool::new(false));
    let stop_changes = Arc::new(AtomicBool::new(false));
    let random = SmallRng::seed_from_u64(seed);
    let faults = tokio::spawn(disturb(server.clone(), random.clone(), stop_faults.clone()));
    let changes = Changes::new(&scene, random).await?;
    let changes = tokio::spawn(changes.run(stop_changes.clone()));

    let slot = Duration::from_secs(seconds) / (KILLS + 1);
    let mut controller = start(server)?;
    for _ in 0..KILLS {
        tokio::time::sleep(slot).await;
        controller.process.kill()?;
        controller.process.wait()?;
        controller = start(server)?;
    }
    tokio::time::sleep(slot).await;
    stop_faults.store(true, Ordering::Relaxed);
    faults.await?.context("faults")?;
    // The last changes happen while watches fail, and then the history is compacted.
    server.fault(&interrupt_watches(WATCH_OUTAGE * 3)).await?;
    stop_changes.store(true, Ordering::Relaxed);
    let tally = changes.await?.context("changes")?;
    server.fault(&json!({"compact": true})).await?;

    let checks = Checks { scene: &scene, controller: &controller };
    checks.ready().await?;
    let took = checks.converged(SOON).await?;
    println!("seed {seed}: {tally}; correct after {took:?}");
    ensure!(took <= SOON, "correct only after {took:?}");
    checks.check_end_state().await?;
    let status = controller.process.try_wait()?;
    ensure!(status.is_none(), "the controller ended by itself: {status:?}");
    Ok(())
}

fn start(server: &Server) -> Result<ControllerProcess> {
    // With a lease each restart would wait until the old lease expires; `tests/lease.rs` tests leases.
    ControllerProcess::start(server, &["--leader-elect=false"])
}

/// Ends all watches, and delays new ones. They are delayed and not refused: after several failures the feed backs off,
/// as client-go does, and this test does not cover the backoff.
fn interrupt_watches(pause: Duration) -> Value {
    json!({
        "dropWatches": true, "delayMs": pause.as_millis() as u64, "path": "watch=",
        "watches": true, "userAgent": AGENT,
    })
}

/// Makes the API unreliable for the controller until `stop` is set.
async fn disturb(server: Arc<Server>, mut random: SmallRng, stop: Arc<AtomicBool>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        // The controller misses events: it resumes its watches or, after a compaction, lists again.
        if random.random() {
            server.fault(&interrupt_watches(WATCH_OUTAGE)).await?;
            tokio::time::sleep(WATCH_OUTAGE).await;
        }
        let order = json!({
            "answers": [{"code": 409, "share": 0.05}, {"code": 500, "share": 0.05}],
            "watches": true, "userAgent": AGENT,
            "dropWatches": true, "compact": random.random::<bool>(),
        });
        server.fault(&order).await?;
        let end = Instant::now() + Duration::from_millis(random.random_range(1000..2500));
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Pauses before the next check of a condition; fails after the deadline.
async fn pause_or_fail(what: &str, deadline: Instant) -> Result<()> {
    ensure!(Instant::now() < deadline, "waited {TIMEOUT:?} for: {what}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}
