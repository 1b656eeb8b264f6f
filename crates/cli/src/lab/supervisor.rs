//! The two processes that hold a lab: the command that the user started, and the first process of
//! the world that it made, which the lab's processes are children of.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_lab::enter::{bind_to_parent, enter};
use nearhop_lab::serve::serve;
use nearhop_lab::{Lab, Spec};
use nearhop_runtime::shutdown::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

use super::block_on;
use crate::{complain, demo};

/// Set by `--detach`: once the lab is up, nobody listens.
pub(super) const QUIET_WHEN_UP: &str = "NEARHOP_QUIET_WHEN_UP";

/// The last word to whoever waits for a lab that goes on without him.
pub(super) const UP: &[u8] = b"\0";

/// What a shell reports of a process that an interrupt ended.
const INTERRUPTED: u8 = 130;

/// The hidden command.
pub(crate) const SUPERVISOR: &str = "lab-supervisor";

/// Holds a lab's processes. Started by `lab up`.
#[derive(Debug, ClapArgs)]
pub(crate) struct SupervisorArgs {
    /// What the lab is to be.
    #[arg(long, value_name = "FILE")]
    spec: PathBuf,

    /// Do the demo, and end.
    #[arg(long, value_name = "JSON")]
    demo: Option<demo::Order>,
}

/// Makes the world, starts its first process, and waits for its end.
pub(crate) fn start(spec: &Spec, more: &[String]) -> anyhow::Result<ExitCode> {
    let file = spec.state.join("spec.json");
    let text = serde_json::to_string(spec).context("a spec is plain data")?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    // Before there is a second thread.
    enter()?;
    block_on(async {
        let mut command = Command::new(&spec.program);
        command.arg(SUPERVISOR).arg("--spec").arg(&file).args(more);
        // Ctrl-C is for this process, which tells the other one once.
        command.stdin(std::process::Stdio::piped()).process_group(0);
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the lab's first process")?;
        if std::env::var_os(QUIET_WHEN_UP).is_some() {
            // From here on the other one speaks.
            close_outputs();
        }
        // Held, not used: `wait` would close it, and that is how the other end learns of our end.
        let _alive = child.stdin.take();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let ended = loop {
            tokio::select! {
                ended = child.wait() => break ended?,
                _ = terminate.recv() => tell(&child),
                _ = interrupt.recv() => tell(&child),
                _ = hangup.recv() => tell(&child),
            }
        };
        Ok(ExitCode::from(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    })
}

/// It ends everything else with itself.
fn tell(child: &tokio::process::Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(nix::unistd::Pid::from_raw);
    // It may have ended a moment ago.
    let _ = pid.map(|pid| nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM));
}

/// Runs the lab until it is told to end.
pub(crate) fn supervise(args: &SupervisorArgs) -> anyhow::Result<ExitCode> {
    bind_to_parent().context("cannot be bound to the command that started this")?;
    let begun = Instant::now();
    let text = fs::read_to_string(&args.spec)
        .with_context(|| format!("cannot read {}", args.spec.display()))?;
    let spec: Spec = serde_json::from_str(&text).context("not a lab's spec")?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let done = runtime.block_on(async {
        let shutdown = Shutdown::on_signals()?;
        match args.demo {
            Some(order) => tokio::select! {
                done = demo::perform(spec, order) => done,
                () = shutdown.wait() => Ok(ExitCode::from(INTERRUPTED)),
            },
            None => {
                serve(spec, &shutdown, |lab| announce(lab, begun)).await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    // Threads that dial for a relay may take their time; nobody waits for them any more.
    runtime.shutdown_background();
    done
}

/// What a user needs next.
fn announce(lab: &Lab, begun: Instant) {
    let status = lab.status();
    let (zones, nodes) = (status.zones.len(), lab.spec().topology.nodes.len());
    let name = &status.name;
    let flag = if name == "lab" { String::new() } else { format!(" --name {name}") };
    let text = format!(
        "lab `{name}`: {}, {}, up after {:.1} s

  export KUBECONFIG={}

  kubectl get nodes -L topology.kubernetes.io/zone
  kubectl create deployment web --image=nearhop/echo --replicas=6 --port=8080
  kubectl expose deployment web --port=80 --target-port=8080
  nearhop lab drive{flag} web
  kubectl patch service web -p '{{\"spec\":{{\"trafficDistribution\":\"PreferSameZone\"}}}}'

  nearhop lab status{flag}     nearhop lab fault{flag} cut zone/{}     nearhop lab down{flag}
",
        counted(zones, "zone"),
        counted(nodes, "node"),
        begun.elapsed().as_secs_f64(),
        quoted(&status.kubeconfig),
        status.zones.keys().next().map_or("", String::as_str),
    );
    lab.warnings().iter().for_each(|warning| complain(&format!("warning: {warning}")));
    let detached = std::env::var_os(QUIET_WHEN_UP).is_some();
    let told = say(text.as_bytes(), if detached { UP } else { b"" });
    // Otherwise `lab status` says the same to whoever asks.
    if detached {
        if told.is_err() {
            // Whoever wanted it gave up before it was there.
            std::process::exit(1);
        }
        close_outputs();
    }
}

fn say(text: &[u8], last: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    out.write_all(last)?;
    out.flush()
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// So that whoever waits for the end of our words does not wait for our own end.
fn close_outputs() {
    if let Ok(nowhere) = fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&nowhere);
        let _ = nix::unistd::dup2_stderr(&nowhere);
    }
}
