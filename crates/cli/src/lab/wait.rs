//! `nearhop lab wait`: waits for a lab, for scripts.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use nearhop_lab::LabError;
use nearhop_lab::ready::{Goal, wait_until};

use super::Name;
use crate::complain;
use crate::daemon::block_on;
use crate::parse::parse_duration;

/// Exit code after the timeout.
const LATE: u8 = 1;

const POLL: Duration = Duration::from_millis(50);

/// Waits until a lab is up, or until every node routes a Service.
///
/// Exit code 0: reached. 1: not within --timeout; standard error names what is missing.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab wait
  nearhop lab wait --for service/shop/cart --timeout 2m
  nearhop lab wait --for ready --for service/web && nearhop lab drive web")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Goal: ready (the lab is up and its nodes are ready), or service/[NAMESPACE/]NAME (it has a
    /// ready endpoint, and all proxies have programmed its EndpointSlices). May be repeated.
    #[arg(long = "for", value_name = "GOAL", default_value = "ready")]
    goals: Vec<Goal>,

    /// Time limit for all goals together.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "60s")]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + args.timeout;
    // `lab up` may have been started a moment ago.
    let state = loop {
        match args.name.find() {
            Ok(state) => break state,
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(error) => {
                complain(&format!("error: {error}"));
                return Ok(ExitCode::from(LATE));
            }
        }
    };
    for goal in &args.goals {
        let left = deadline.saturating_duration_since(Instant::now());
        match block_on(async { Ok(wait_until(&state, goal, left).await) })? {
            Err(LabError::NotReady(why)) => {
                complain(&format!("error: {why}"));
                return Ok(ExitCode::from(LATE));
            }
            done => done?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
