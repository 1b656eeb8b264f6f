//! A lab that `nearhop lab up` starts, and a namespace in it that a test uses only through the API.

mod room;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::server::binary;

pub use room::{AGNHOST, ECHO, Line, Room};

/// Time limit for a condition; long, because only a failing test waits for all of it.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A running `nearhop lab up`; killed when dropped.
pub struct Lab {
    process: Child,
    scratch: TempDir,
    /// Path of its kubeconfig.
    pub kubeconfig: PathBuf,
}

impl Lab {
    /// Starts a lab, and waits until it prints the path of its kubeconfig.
    pub fn up(args: &[&str]) -> Result<Self> {
        Self::up_in(tempfile::tempdir()?, args)
    }

    /// The same with `scratch` as `XDG_RUNTIME_DIR`. Nodes are lost after 8 s, not after the 50 s of
    /// Kubernetes: tests wait for that.
    pub fn up_in(scratch: TempDir, args: &[&str]) -> Result<Self> {
        let errors = scratch.path().join("stderr");
        let joins = args.contains(&"--kubeconfig");
        let own = if joins { &[][..] } else { &["--node-monitor-grace-period", "8s"][..] };
        let mut process = command(scratch.path())?
            .args(["lab", "up"])
            .args(own)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors)?)
            .spawn()
            .context("start nearhop lab up")?;
        let stdout = process.stdout.take().context("stdout is piped")?;
        let (sender, kubeconfigs) = mpsc::channel();
        // Reads the pipe to its end, so that later output never blocks the lab.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(path) = line.trim().strip_prefix("export KUBECONFIG=") {
                    let _ = sender.send(PathBuf::from(path));
                }
            }
        });
        let Ok(kubeconfig) = kubeconfigs.recv_timeout(TIMEOUT * 2) else {
            let _ = process.kill();
            let _ = process.wait();
            bail!("nearhop lab up: {}", fs::read_to_string(errors)?);
        };
        Ok(Self { process, scratch, kubeconfig })
    }

    /// What `lab up` has printed to standard error.
    pub fn warnings(&self) -> Result<String> {
        Ok(fs::read_to_string(self.scratch.path().join("stderr"))?)
    }

    /// Stops the lab; returns what `lab down` printed.
    pub fn down(mut self) -> Result<String> {
        let said = self.text(&["lab", "down"])?;
        self.process.wait()?;
        Ok(said)
    }

    /// Process id of `lab up`.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// `XDG_RUNTIME_DIR` of the lab, the parent of its directory.
    pub fn runtime_dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Runs `nearhop ARGS` with the same `XDG_RUNTIME_DIR`, so that it finds this lab.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        Ok(command(self.scratch.path())?.args(args).stdin(Stdio::null()).output()?)
    }

    /// Runs `nearhop lab fault ARGS`, which must succeed.
    pub fn fault(&self, args: &[&str]) -> Result<()> {
        self.text(&[&["lab", "fault"], args].concat()).map(drop)
    }

    /// Standard output of `nearhop ARGS`, which must succeed.
    pub fn text(&self, args: &[&str]) -> Result<String> {
        let output = self.run(args)?;
        if !output.status.success() {
            bail!("nearhop {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Report of `nearhop lab drive ARGS -o json`, with any exit code.
    pub fn drive(&self, args: &[&str]) -> Result<Value> {
        let output = self.run(&[&["lab", "drive", "-o", "json"], args].concat())?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("lab drive: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Waits for the end of `lab up`.
    pub fn wait(mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("lab up still runs")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // With SIGKILL: no test may depend on a graceful end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The `nearhop` command with this `XDG_RUNTIME_DIR`, in which it keeps its labs.
pub fn command(runtime_dir: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.env("XDG_RUNTIME_DIR", runtime_dir);
    Ok(command)
}
