//! The Python client against the command that users run: the session in `data/python/session.py`.
//!
//! Needs python3 with venv, and PyPI once; skipped if either is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nearhop_skip::skip;
use nearhop_tests::replay::transcript::data;
use nearhop_tests::server::{Options, start_process};

/// Time limit of the installation; the test is skipped if it takes longer.
const INSTALL: Duration = Duration::from_secs(90);
/// The client the recordings were made with, and what is compatible with it.
const PACKAGE: &str = "kubernetes>=34,<38";

/// Runs a command with a time limit; the error is its output.
fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let deadline = Instant::now() + limit;
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("not done within {} s", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Err(format!("{}\n{}", text(&output.stdout), text(&output.stderr)))
}

/// Path of a Python with the client, installed once in the build directory.
fn python() -> Result<Result<PathBuf, String>> {
    let executable = std::env::current_exe()?;
    let target = executable
        .ancestors()
        .nth(3)
        .context("the test executable is not in target/<profile>/deps")?;
    let home = target.join("python-client");
    let python = home.join("bin/python");
    let has_client = |python: &Path| {
        run(Command::new(python).args(["-c", "import kubernetes"]), Duration::from_secs(30)).is_ok()
    };
    if has_client(&python) {
        return Ok(Ok(python));
    }
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&home), INSTALL);
    if let Err(error) = made {
        return Ok(Err(format!("python3 -m venv: {error}")));
    }
    let installed = run(
        Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            PACKAGE,
        ]),
        INSTALL,
    );
    Ok(installed.map(|()| python).map_err(|error| format!("pip install {PACKAGE}: {error}")))
}

#[test]
fn a_session_of_the_python_client() -> Result<()> {
    let python = match python()? {
        Ok(python) => python,
        Err(why) => {
            skip(&format!("the Python client cannot be installed: {why}"));
            return Ok(());
        }
    };
    let server = start_process(&Options::default())?;
    let mut session = Command::new(python);
    session.arg(data().join("python/session.py")).arg(&server.kubeconfig);
    if let Err(error) = run(&mut session, Duration::from_secs(120)) {
        panic!("the session failed: {error}");
    }
    Ok(())
}
