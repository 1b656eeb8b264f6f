//! A lab whose node cannot get ready: `lab up` gives up, and signals end it.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nearhop_tests::lab::command;

use crate::endings::{labs_in, process_ids_of, signal, until_gone};

/// `lab up --detach`, with its agents suspended as soon as they run.
fn start_stuck(runtime: &Path) -> Result<Child> {
    let process = command(runtime)?
        .args(["lab", "up", "--detach", "--zones", "1", "--nodes-per-zone", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let agents = process_ids_of(runtime)?.into_iter().filter(|pid| is_agent(*pid));
        let agents: Vec<u32> = agents.collect();
        if !agents.is_empty() {
            agents.into_iter().try_for_each(|pid| signal(pid, "-STOP"))?;
            return Ok(process);
        }
        if Instant::now() > deadline {
            bail!("no agent was started");
        }
    }
}

fn is_agent(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"agent")
}

/// Ctrl-C, `kill` and a closed terminal while `--detach` waits: nothing remains.
#[test]
fn signals_end_a_detached_lab_that_is_starting() {
    crate::run(async {
        for name in ["-INT", "-TERM", "-HUP"] {
            let scratch = tempfile::tempdir()?;
            let mut process = start_stuck(scratch.path())?;
            signal(process.id(), name)?;
            let ended = process.wait()?;
            ensure!(ended.code() == Some(130), "{name}: {ended}");
            until_gone(scratch.path()).context(name)?;
            ensure!(labs_in(scratch.path())?.is_empty(), "{name}");
        }
        Ok(())
    });
}

/// The error names the node and the state of its agent.
#[test]
fn a_lab_whose_node_does_not_get_ready_gives_up() {
    crate::run(async {
        let scratch = tempfile::tempdir()?;
        let process = start_stuck(scratch.path())?;
        let output = process.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{output:?}");
        ensure!(said.contains("nodes not ready after 30 s: node-a1"), "{said}");
        ensure!(said.contains("agent/node-a1 is running; its log ends with:"), "{said}");
        until_gone(scratch.path())?;
        ensure!(labs_in(scratch.path())?.is_empty());
        Ok(())
    });
}
