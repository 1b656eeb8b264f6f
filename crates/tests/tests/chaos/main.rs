//! Chaos: pods, nodes, Services and slices change at random while the API drops watches, forgets history and answers
//! with errors, and while the controller is killed and started again. When it is over, the slices must be right.
//!
//! `cargo test -p nearhop-tests --test chaos` runs the fixed seeds below; by hand,
//! `cargo test -p nearhop-tests --test chaos -- --seed 7 --seconds 30` runs another one. A seed fixes what is done in
//! which order, not how it falls together with what the controller does. Without the usual harness, since that takes no
//! such arguments; what cargo-nextest asks of a test binary is answered in `harness.rs`.

mod checks;
mod harness;
mod mischief;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nearhop_tests::scene::{ControllerProcess, PATIENCE, Scene};
use nearhop_tests::server::{Server, binary};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::checks::Checks;
use crate::mischief::Mischief;

/// What CI runs.
const SEEDS: [u64; 2] = [1, 2];
const SECONDS: u64 = 15;
/// How often the controller is killed.
const KILLS: u32 = 5;
/// How soon everything must be right, counted from when faults are off and the controller is ready.
const SOON: Duration = Duration::from_secs(5);
/// How long watches fail at a time; at the end three times as long, for the last burst.
const BLIND: Duration = Duration::from_millis(300);
/// Whom the API is unreliable for.
const AGENT: &str = "nearhop-controller";

fn main() -> ExitCode {
    harness::main(&SEEDS, SECONDS, |seed, seconds| {
        tokio::runtime::Runtime::new()?.block_on(chaos(seed, seconds))
    })
}

async fn chaos(seed: u64, seconds: u64) -> Result<()> {
    binary().context("building the command is not part of the chaos")?;
    let scene = Scene::new().await?;
    let server = &scene.cluster.server;
    let (calm, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let random = SmallRng::seed_from_u64(seed);
    let faults = tokio::spawn(disturb(server.clone(), random.clone(), calm.clone()));
    let mischief = Mischief::new(&scene, random).await?;
    let mischief = tokio::spawn(mischief.run(over.clone()));

    let slot = Duration::from_secs(seconds) / (KILLS + 1);
    let mut controller = start(server)?;
    for _ in 0..KILLS {
        tokio::time::sleep(slot).await;
        controller.process.kill()?;
        controller.process.wait()?;
        controller = start(server)?;
    }
    tokio::time::sleep(slot).await;
    calm.store(true, Ordering::Relaxed);
    faults.await?.context("faults")?;
    // The last changes happen while watches fail, and then the history is compacted.
    server.fault(&blind(BLIND * 3)).await?;
    over.store(true, Ordering::Relaxed);
    let tally = mischief.await?.context("mischief")?;
    server.fault(&json!({"compact": true})).await?;

    let checks = Checks { scene: &scene, controller: &controller };
    checks.ready().await?;
    let took = checks.converged(SOON).await?;
    println!("seed {seed}: {tally}; right after {took:?}");
    ensure!(took <= SOON, "right only after {took:?}");
    checks.nothing_is_left().await?;
    let status = controller.process.try_wait()?;
    ensure!(status.is_none(), "the controller ended by itself: {status:?}");
    Ok(())
}

fn start(server: &Server) -> Result<ControllerProcess> {
    // With a lease each restart would wait for the last one's to run out; leases have a test of their own.
    ControllerProcess::start(server, &["--leader-elect=false"])
}

/// All watches end, and new ones hang for a while before they begin. They hang rather than fail: after failures in a row
/// the feed pauses ever longer, as client-go does, and how long is not what is tested here.
fn blind(pause: Duration) -> Value {
    json!({
        "dropWatches": true, "delayMs": pause.as_millis() as u64, "path": "watch=",
        "watches": true, "userAgent": AGENT,
    })
}

/// Makes the API unreliable, for the controller only, until it is to be calm.
async fn disturb(server: Arc<Server>, mut random: SmallRng, calm: Arc<AtomicBool>) -> Result<()> {
    while !calm.load(Ordering::Relaxed) {
        // What was missed in the dark can be asked for afterwards, or has to be read anew.
        if random.random() {
            server.fault(&blind(BLIND)).await?;
            tokio::time::sleep(BLIND).await;
        }
        let order = json!({
            "answers": [{"code": 409, "share": 0.05}, {"code": 500, "share": 0.05}],
            "watches": true, "userAgent": AGENT,
            "dropWatches": true, "compact": random.random::<bool>(),
        });
        server.fault(&order).await?;
        let end = Instant::now() + Duration::from_millis(random.random_range(1000..2500));
        while Instant::now() < end && !calm.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Waits for something that must come at some time.
async fn patiently(what: &str, deadline: Instant) -> Result<()> {
    ensure!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for: {what}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}
