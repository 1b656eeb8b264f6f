//! `nearhop lab up --detach`: starts the same command in the background and waits until the lab is up.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tokio::process::Child;

use super::supervisor::{self, INTERRUPTED, Signals};
use crate::daemon::block_on;
use crate::output::{exit_code, print};

/// How long the command in the background may take to end its lab.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts the same command in the background and prints its output until the lab is up.
pub(super) fn detach(config: Option<&Path>) -> anyhow::Result<ExitCode> {
    let input = config.filter(|path| *path == Path::new("-")).map(|_| read_input()).transpose()?;
    block_on(async {
        // From here on signals do not end this process, which must end the lab first.
        let mut signals = Signals::new()?;
        let (output, their_end) = io::pipe().context("cannot make a pipe")?;
        let mut child =
            spawn(their_end, if input.is_some() { Stdio::piped() } else { Stdio::null() })?;
        if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
            tokio::spawn(async move {
                // It may have failed before it reads.
                let _ = tokio::io::AsyncWriteExt::write_all(&mut pipe, &input).await;
            });
        }
        tokio::select! {
            text = tokio::task::spawn_blocking(move || read(output)) => {
                finish(&text.context("cannot read its output")??, &mut child).await
            }
            () = signals.next() => end(&mut child).await,
        }
    })
}

/// Standard input: the command in the background cannot read a terminal.
fn read_input() -> anyhow::Result<Vec<u8>> {
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input).context("cannot read standard input")?;
    Ok(input)
}

fn spawn(output: io::PipeWriter, input: Stdio) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .env(supervisor::QUIET_WHEN_UP, "1")
        .stdin(input)
        .stdout(output)
        .process_group(0);
    tokio::process::Command::from(command).spawn().context("cannot start the lab in the background")
}

fn read(mut output: io::PipeReader) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    output.read_to_end(&mut text).context("cannot read its output")?;
    Ok(text)
}

async fn finish(text: &[u8], child: &mut Child) -> anyhow::Result<ExitCode> {
    if let Some(text) = text.strip_suffix(supervisor::UP) {
        print(&String::from_utf8_lossy(text))?;
        return Ok(ExitCode::SUCCESS);
    }
    // It has printed the error.
    Ok(exit_code(child.wait().await.context("cannot wait for the lab")?.code()))
}

/// Ends the lab that is starting, and all of its processes.
async fn end(child: &mut Child) -> anyhow::Result<ExitCode> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(nix::unistd::Pid::from_raw);
    // It may have exited already.
    let _ = pid.map(|pid| nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM));
    if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
        // The lab's processes end with it.
        child.kill().await.context("cannot end the lab in the background")?;
    }
    Ok(ExitCode::from(INTERRUPTED))
}
