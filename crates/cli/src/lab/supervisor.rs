//! The two processes of a lab: the command that the user started, and the supervisor, which is the
//! first process of the lab's PID namespace and the parent of the lab's processes.

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

use crate::daemon::block_on;
use crate::output::exit_code;
use crate::{complain, demo};

/// Set by `--detach`: no output once the lab is up.
pub(super) const QUIET_WHEN_UP: &str = "NEARHOP_QUIET_WHEN_UP";

/// Ends the output of a detached lab that is up.
pub(super) const UP: &[u8] = b"\0";

/// The exit code after SIGINT, as in a shell.
const INTERRUPTED: u8 = 130;

/// The hidden command of the supervisor.
const SUPERVISOR: &str = "lab-supervisor";

/// Supervises a lab's processes. Started by `lab up`.
#[derive(Debug, ClapArgs)]
pub(crate) struct SupervisorArgs {
    /// File with the lab's spec.
    #[arg(long, value_name = "FILE")]
    spec: PathBuf,

    /// Perform the demo, then exit.
    #[arg(long, value_name = "JSON")]
    demo: Option<demo::Order>,
}

/// Enters new namespaces, starts the supervisor in them and waits for its end.
pub(crate) fn start(spec: &Spec, more: &[String]) -> anyhow::Result<ExitCode> {
    let file = spec.state.join("spec.json");
    let text = serde_json::to_string(spec).context("a spec is plain data")?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    // Must happen while the process has one thread.
    enter()?;
    block_on(async {
        let mut command = Command::new(&spec.program);
        command.arg(SUPERVISOR).arg("--spec").arg(&file).args(more);
        // Ctrl-C reaches only this process, which forwards it once.
        command.stdin(std::process::Stdio::piped()).process_group(0);
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the lab's supervisor")?;
        if std::env::var_os(QUIET_WHEN_UP).is_some() {
            // From here on only the supervisor prints.
            close_outputs();
        }
        // The supervisor exits when this pipe closes, so `wait` must not close it.
        let _alive = child.stdin.take();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let ended = loop {
            tokio::select! {
                ended = child.wait() => break ended?,
                _ = terminate.recv() => terminate_supervisor(&child),
                _ = interrupt.recv() => terminate_supervisor(&child),
                _ = hangup.recv() => terminate_supervisor(&child),
            }
        };
        Ok(exit_code(ended.code()))
    })
}

/// All processes of the lab end with the supervisor.
fn terminate_supervisor(child: &tokio::process::Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(nix::unistd::Pid::from_raw);
    // It may have exited already.
    let _ = pid.map(|pid| nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM));
}

/// Runs the lab until shutdown.
pub(crate) fn supervise(args: &SupervisorArgs) -> anyhow::Result<ExitCode> {
    bind_to_parent().context("cannot follow the end of the parent process")?;
    let begun = Instant::now();
    let text = fs::read_to_string(&args.spec)
        .with_context(|| format!("cannot read {}", args.spec.display()))?;
    let spec: Spec = serde_json::from_str(&text).context("invalid spec")?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let done = runtime.block_on(async {
        let shutdown = Shutdown::on_signals()?;
        match args.demo {
            Some(order) => tokio::select! {
                done = demo::perform(spec, order) => done,
                () = shutdown.wait() => Ok(ExitCode::from(INTERRUPTED)),
            },
            None => {
                serve(spec, &shutdown, |lab| print_welcome(lab, begun)).await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    // Threads that connect for a relay may still be blocked.
    runtime.shutdown_background();
    done
}

/// Prints what the user needs next.
fn print_welcome(lab: &Lab, begun: Instant) {
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
    let printed = print_bytes(text.as_bytes(), if detached { UP } else { b"" });
    if detached {
        if printed.is_err() {
            // `lab up --detach` was interrupted before the lab was up.
            std::process::exit(1);
        }
        close_outputs();
    }
}

fn print_bytes(text: &[u8], last: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    out.write_all(last)?;
    out.flush()
}

/// A path, quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Lets the reader of the output see its end before this process exits.
fn close_outputs() {
    if let Ok(nowhere) = fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&nowhere);
        let _ = nix::unistd::dup2_stderr(&nowhere);
    }
}
