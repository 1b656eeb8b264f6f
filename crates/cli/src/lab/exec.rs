//! `nearhop lab exec`: runs a command in a Pod, as `kubectl exec` does, or in a network of the lab.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args as ClapArgs;
use nearhop_lab::control::{Place, Request};
use nearhop_lab::exec::pod::{Container, PodExecError};
use nearhop_lab::exec::{Input, Screen, Session, Stage, place, pod, shim};

use super::{Name, request};
use crate::complain;
use crate::daemon::block_on;

/// Runs a command in a Pod, on a node, outside the cluster, or in the control plane.
///
/// The exit code is the command's: 128 plus the number of the signal that ended it, 127 if the command
/// was not found, 126 if it cannot be executed. When the command ends, or this program, everything that
/// the command started ends too.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab exec web-0 -- cat /etc/resolv.conf
  nearhop lab exec -i -t node/node-a1 -- bash
  nearhop lab exec control-plane -- curl -s http://127.0.0.1:10271/metrics")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Namespace of the Pod. Default: default.
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Container of the Pod. Default: the one that the annotation
    /// kubectl.kubernetes.io/default-container names, or the first.
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Pass standard input to the command. Default: its input is empty.
    #[arg(short = 'i', long)]
    stdin: bool,

    /// Run the command in a terminal of its own.
    #[arg(short = 't', long)]
    tty: bool,

    /// Where: POD or NAMESPACE/POD, node/NAME, external for the network outside the cluster, or
    /// control-plane for the network of the API server, the controller and the manager.
    #[arg(value_name = "TARGET")]
    target: String,

    /// Command and arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs a process of `lab exec`. Started by the lab.
#[derive(Debug, ClapArgs)]
pub(crate) struct ExecArgs {
    #[arg(value_parser = Stage::parse)]
    stage: Stage,

    #[arg(last = true)]
    words: Vec<String>,
}

/// Where a command runs.
enum Target {
    Place(Place),
    Pod(Container),
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let target = args.target()?;
    let mut session = Session {
        command: args.command,
        input: if args.stdin { Input::Passed } else { Input::Empty },
        screen: if args.tty { Screen::Terminal } else { Screen::Streams },
    };
    if let Some(warning) = session.check_terminal() {
        complain(&format!("warning: {warning}"));
    }
    let code = match target {
        Target::Place(place) => place::run(&args.name.find()?, place, &session)?,
        Target::Pod(container) => block_on(run_in_pod(args.name, &container, &session))?,
    };
    Ok(ExitCode::from(code))
}

/// Runs a hidden process.
pub(crate) fn exec_stage(args: &ExecArgs) -> ExitCode {
    shim::main(args.stage, &args.words)
}

impl Args {
    fn target(&self) -> anyhow::Result<Target> {
        let place = match self.target.split_once('/') {
            Some(("node", name)) => Place::Node(name.to_owned()),
            None if self.target == "external" => Place::External,
            None if self.target == "control-plane" => Place::ControlPlane,
            parts => {
                let namespace = self.namespace.as_deref().unwrap_or("default");
                let (namespace, pod) = parts.unwrap_or((namespace, &self.target));
                let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
                let container = self.container.clone();
                return Ok(Target::Pod(Container { namespace, pod, container }));
            }
        };
        if self.container.is_some() || self.namespace.is_some() {
            bail!(
                "{} is a network without containers. Cure: omit -c and -n, or name a Pod",
                self.target
            );
        }
        Ok(Target::Place(place))
    }
}

async fn run_in_pod(name: Name, container: &Container, session: &Session) -> anyhow::Result<u8> {
    let (state, cluster) = name.connect().await?;
    let name = &container.pod;
    match pod::run(&cluster, container, session).await {
        Err(PodExecError::NoPod { .. }) if is_node(&state, name) => Err(anyhow!(
            "{name} is a node, not a Pod. Cure: nearhop lab exec node/{name} -- COMMAND"
        )),
        Err(error) => bail!(error),
        Ok(code) => Ok(code),
    }
}

fn is_node(state: &Path, name: &str) -> bool {
    let status = request(state, &Request::Status).ok().flatten();
    status.is_some_and(|status| status.zones.values().flatten().any(|node| node == name))
}
