//! A lab as users start it, and a namespace in it as an outside test suite would use it.

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

/// Deadline for what must happen: long, because only a failing test waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `nearhop lab up`, running; ended when dropped.
pub struct Lab {
    process: Child,
    scratch: TempDir,
    /// How its API is reached.
    pub kubeconfig: PathBuf,
}

impl Lab {
    /// Starts one, and waits until it says that it is up.
    pub fn up(args: &[&str]) -> Result<Self> {
        Self::up_in(tempfile::tempdir()?, args)
    }

    /// The same with its directory in this one.
    pub fn up_in(scratch: TempDir, args: &[&str]) -> Result<Self> {
        let errors = scratch.path().join("stderr");
        let mut process = command(scratch.path())?
            .args(["lab", "up"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors)?)
            .spawn()
            .context("start nearhop lab up")?;
        let stdout = process.stdout.take().context("stdout is piped")?;
        let (sender, kubeconfigs) = mpsc::channel();
        // The pipe is drained to the end, so that later output can never block it.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(path) = line.trim().strip_prefix("export KUBECONFIG=") {
                    let _ = sender.send(PathBuf::from(path));
                }
            }
        });
        let Ok(kubeconfig) = kubeconfigs.recv_timeout(PATIENCE * 2) else {
            let _ = process.kill();
            let _ = process.wait();
            bail!("nearhop lab up: {}", fs::read_to_string(errors)?);
        };
        Ok(Self { process, scratch, kubeconfig })
    }

    /// The process of `lab up`.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its directory's parent, as `XDG_RUNTIME_DIR`.
    pub fn runtime_dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Runs `nearhop ARGS` where it finds this lab.
    pub fn run(&self, args: &[&str]) -> Result<Output> {
        Ok(command(self.scratch.path())?.args(args).stdin(Stdio::null()).output()?)
    }

    /// Runs `nearhop lab fault ARGS`, which must do.
    pub fn fault(&self, args: &[&str]) -> Result<()> {
        self.text(&[&["lab", "fault"], args].concat()).map(drop)
    }

    /// What `nearhop ARGS` prints; it must end well.
    pub fn text(&self, args: &[&str]) -> Result<String> {
        let output = self.run(args)?;
        if !output.status.success() {
            bail!("nearhop {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What `nearhop lab drive ARGS -o json` prints, however it ends.
    pub fn drive(&self, args: &[&str]) -> Result<Value> {
        let output = self.run(&[&["lab", "drive", "-o", "json"], args].concat())?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("lab drive: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Waits for the end of `lab up`.
    pub fn wait(mut self, patience: Duration) -> Result<std::process::ExitStatus> {
        let deadline = Instant::now() + patience;
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
        // The hard way: nothing may depend on a gentle end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The `nearhop` command, with its labs in this directory.
pub fn command(runtime_dir: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.env("XDG_RUNTIME_DIR", runtime_dir);
    Ok(command)
}
