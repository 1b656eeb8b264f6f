//! The two processes of a lab: the command that the user started, and the supervisor, which is the
//! first process of the lab's PID namespace and the parent of the lab's processes.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_core::Gates;
use nearhop_lab::config::ConfigFile;
use nearhop_lab::control::Status;
use nearhop_lab::enter::{HeldSignals, bind_to_parent, enter};
use nearhop_lab::serve::serve;
use nearhop_lab::{Lab, Spec};
use nearhop_runtime::shutdown::Shutdown;
use serde::Serialize;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use super::{counted, name_flag};
use crate::daemon::block_on;
use crate::output::{Output, OutputArgs, exit_code};
use crate::{complain, demo};

/// Set by `--detach`: no output once the lab is up.
pub(super) const QUIET_WHEN_UP: &str = "NEARHOP_QUIET_WHEN_UP";

/// Ends the output of a detached lab that is up.
pub(super) const UP: &[u8] = b"\0";

/// The exit code after SIGINT, as in a shell.
pub(super) const INTERRUPTED: u8 = 130;

/// The pause between two signals to the supervisor, and the time until it is killed.
const REPEAT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(5);

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

    #[command(flatten)]
    output: OutputArgs,
}

/// The arguments that select the output of the supervisor.
pub(super) fn output_flag(output: Output) -> [String; 2] {
    let value = match output {
        Output::Json => "json",
        _ => "text",
    };
    ["--output".to_owned(), value.to_owned()]
}

/// Enters new namespaces, starts the supervisor in them and waits for its end.
pub(crate) fn start(spec: &Spec, more: &[String], held: HeldSignals) -> anyhow::Result<ExitCode> {
    let file = spec.state.join("spec.json");
    let text = serde_json::to_string(spec).context("a spec is plain data")?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    // Must happen while the process has one thread.
    let _memory = enter(&spec.state)?;
    block_on(async {
        let mut signals = Signals::new()?;
        // From here on signals are received.
        drop(held);
        let mut command = Command::new(&spec.program);
        command.arg(SUPERVISOR).arg("--spec").arg(&file).args(more);
        // Ctrl-C reaches only this process, which forwards it.
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
        tokio::select! {
            ended = child.wait() => return Ok(exit_code(ended?.code())),
            () = signals.next() => {}
        }
        terminate(&mut child).await
    })
}

/// SIGTERM, SIGINT and SIGHUP.
pub(super) struct Signals([tokio::signal::unix::Signal; 3]);

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [terminate, interrupt, hangup] = kinds.map(signal);
        Ok(Self([terminate?, interrupt?, hangup?]))
    }

    pub(super) async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Ends the supervisor, and all processes of the lab with it. As the first process of its PID
/// namespace it gets no signal before it has a handler, so the signal is repeated.
async fn terminate(child: &mut Child) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(nix::unistd::Pid::from_raw);
        // It may have exited already.
        let _ = pid.map(|pid| nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM));
        if let Ok(ended) = tokio::time::timeout(REPEAT, child.wait()).await {
            return Ok(exit_code(ended?.code()));
        }
    }
    child.kill().await.context("cannot end the lab's supervisor")?;
    Ok(ExitCode::from(INTERRUPTED))
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
                let mut is_up = false;
                serve(spec, &shutdown, |lab| {
                    is_up = true;
                    print_welcome(lab, begun, args.output.output);
                })
                .await?;
                Ok(ExitCode::from(if is_up { 0 } else { INTERRUPTED }))
            }
        }
    });
    // Threads that connect for a relay may still be blocked.
    runtime.shutdown_background();
    done
}

/// Prints what the user needs next.
fn print_welcome(lab: &Lab, begun: Instant, output: Output) {
    let report = Report::of(lab, begun);
    let text = match output {
        Output::Json => {
            serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n"
        }
        _ => describe(&report),
    };
    if std::env::var_os(QUIET_WHEN_UP).is_none() {
        // A thread, because a reader that does not read must not stop the lab.
        std::thread::spawn(move || {
            warn(&report);
            // The reader may have closed the pipe.
            let _ = print_bytes(text.as_bytes(), b"");
        });
        return;
    }
    warn(&report);
    if print_bytes(text.as_bytes(), UP).is_err() {
        // `lab up --detach` was interrupted before the lab was up.
        std::process::exit(1);
    }
    close_outputs();
}

fn warn(report: &Report) {
    report.warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
}

/// What `lab up -o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(flatten)]
    status: Box<Status>,
    nodes: Vec<NodeRow>,
    /// `NAMESPACE/NAME` of the Services of --config.
    services: Vec<String>,
    /// The first Service of --config whose traffic the suggested patch changes.
    #[serde(skip)]
    to_patch: Option<String>,
    up_after_seconds: f64,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeRow {
    name: String,
    zone: String,
    addresses: [std::net::IpAddr; 2],
    pod_cidrs: [ipnet::IpNet; 2],
}

impl Report {
    fn of(lab: &Lab, begun: Instant) -> Self {
        let spec = lab.spec();
        let nodes = spec.topology.nodes.iter().map(|node| NodeRow {
            name: node.name.clone(),
            zone: node.zone().to_owned(),
            addresses: node.addresses,
            pod_cidrs: node.pod_cidrs,
        });
        let config = spec.config.as_ref();
        let config = config.and_then(|config| ConfigFile::parse(&config.name, &config.text).ok());
        let status = Box::new(lab.status());
        // They were checked by `lab up`.
        let gates = Gates::parse(&status.feature_gates).unwrap_or_default();
        let to_patch = config.as_ref().and_then(|config| config.service_to_patch(&gates));
        let services = config.iter().flat_map(|config| &config.fixture().services);
        Self {
            status,
            nodes: nodes.collect(),
            services: services.map(|service| service.key.to_string()).collect(),
            to_patch: to_patch.map(ToString::to_string),
            up_after_seconds: begun.elapsed().as_secs_f64(),
            warnings: lab.warnings().to_vec(),
        }
    }
}

fn describe(report: &Report) -> String {
    let status = &report.status;
    let flag = name_flag(&status.name);
    let zone = status.zones.keys().find(|zone| !zone.is_empty());
    let place = match (zone, report.nodes.first()) {
        (Some(zone), _) => format!("zone/{zone}"),
        (None, Some(node)) => format!("node/{}", node.name),
        (None, None) => String::new(),
    };
    format!(
        "lab `{}`: {}, {}, up after {:.1} s

  export KUBECONFIG={}

  kubectl get nodes -L topology.kubernetes.io/zone
{}
  nearhop lab status{flag}     nearhop lab fault{flag} cut {place}     nearhop lab down{flag}
",
        status.name,
        counted(status.named_zones(), "zone"),
        counted(report.nodes.len(), "node"),
        report.up_after_seconds,
        quoted(&status.kubeconfig),
        suggestions(report, &flag),
    )
}

/// Commands for the first Service of the file, or for a new one.
fn suggestions(report: &Report, flag: &str) -> String {
    let patch = "-p '{\"spec\":{\"trafficDistribution\":\"PreferSameZone\"}}'";
    match report.services.first() {
        Some(path) => {
            let patched = report.to_patch.as_ref().map(|path| {
                let (namespace, name) = path.split_once('/').unwrap_or(("default", path));
                format!("  kubectl -n {namespace} patch service {name} {patch}\n")
            });
            format!("  nearhop lab drive{flag} {path}\n{}", patched.unwrap_or_default())
        }
        None => format!(
            "  kubectl create deployment web --image=nearhop/echo --replicas=6 --port=8080
  kubectl expose deployment web --port=80 --target-port=8080
  nearhop lab drive{flag} web
  kubectl patch service web {patch}
"
        ),
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

/// Lets the reader of the output see its end before this process exits.
fn close_outputs() {
    if let Ok(nowhere) = fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&nowhere);
        let _ = nix::unistd::dup2_stderr(&nowhere);
    }
}
