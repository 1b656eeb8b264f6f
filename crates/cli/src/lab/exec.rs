//! `nearhop lab exec`: runs a command in a Pod, as `kubectl exec` does, or on a node.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use nearhop_lab::cluster::describe;
use nearhop_lab::control::{Answer, Place, Request, ask};
use tokio::io::{AsyncWriteExt as _, copy, stderr, stdin, stdout};

use super::{Name, request};
use crate::daemon::block_on;
use crate::output;

/// Runs a command in a Pod, in a node's network namespace, or outside the cluster.
///
/// The exit code is the command's.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab exec client -- getent ahostsv4 db
  nearhop lab exec node/node-a1 -- ip addr")]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Namespace of the Pod.
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// Container of the Pod. Default: the first.
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Pass standard input to the command (Pods only).
    #[arg(short = 'i', long)]
    stdin: bool,

    /// Where: POD, NAMESPACE/POD, node/NAME, or external for the network outside the cluster.
    #[arg(value_name = "PLACE")]
    pod: String,

    /// Command and arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let place = match args.pod.split_once('/') {
        Some(("node", name)) => Place::Node(name.to_owned()),
        None if args.pod == "external" => Place::External,
        _ => return block_on(exec(args)),
    };
    let (program, rest) = args.command.split_first().context("no command after `--`")?;
    let request = Request::Run(place, program.into(), rest.to_vec());
    match ask(&args.name.find()?, &request).context("the lab does not answer")? {
        Answer::Output { stdout: out, stderr: errors, code } => {
            std::io::stdout().write_all(out.as_bytes())?;
            std::io::stderr().write_all(errors.as_bytes())?;
            Ok(output::exit_code(code))
        }
        Answer::Refused(why) => bail!("{why}"),
        Answer::Done | Answer::Status(_) => bail!("unexpected answer from the lab"),
    }
}

async fn exec(args: Args) -> anyhow::Result<ExitCode> {
    let (state, cluster) = args.name.connect().await?;
    let (namespace, name) = args.pod.split_once('/').unwrap_or((&args.namespace, &args.pod));
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), namespace);
    let mut params = AttachParams::default().stdin(args.stdin).stdout(true).stderr(true);
    let refused = |error: kube::Error| match &error {
        kube::Error::Api(status) if status.is_not_found() && is_node(&state, name) => {
            anyhow!("{name} is a node, not a Pod. Cure: nearhop lab exec node/{name} -- COMMAND")
        }
        _ => anyhow!("Pod {namespace}/{name}: {}", describe(&error)),
    };
    params.container = match args.container {
        Some(container) => Some(container),
        None => first_container(&pods.get(name).await.map_err(refused)?),
    };
    let mut process = pods.exec(name, args.command, &params).await.map_err(refused)?;
    let status = process.take_status();
    let output = process.stdout();
    let errors = process.stderr();
    let input = process.stdin();
    let forward = tokio::spawn(async move {
        if let Some(mut input) = input {
            // Either side may close it.
            let _ = copy(&mut stdin(), &mut input).await;
            let _ = input.shutdown().await;
        }
    });
    let print = async {
        if let Some(mut output) = output {
            let _ = copy(&mut output, &mut stdout()).await;
        }
    };
    let complain = async {
        if let Some(mut errors) = errors {
            let _ = copy(&mut errors, &mut stderr()).await;
        }
    };
    tokio::join!(print, complain);
    forward.abort();
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    Ok(ExitCode::from(exit_code(status.as_ref())))
}

fn is_node(state: &Path, name: &str) -> bool {
    let status = request(state, &Request::Status).ok().flatten();
    status.is_some_and(|status| status.zones.values().flatten().any(|node| node == name))
}

fn first_container(pod: &Pod) -> Option<String> {
    Some(pod.spec.as_ref()?.containers.first()?.name.clone())
}

/// The exit code of a failed command is in the status cause `ExitCode`.
fn exit_code(status: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>) -> u8 {
    let Some(status) = status else { return 1 };
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
    let code =
        causes.into_iter().flatten().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let number = code.and_then(|cause| cause.message.as_deref()?.parse().ok());
    if number.is_none() {
        crate::complain(&format!(
            "error: {}",
            status.message.as_deref().unwrap_or("the command failed")
        ));
    }
    number.unwrap_or(1)
}
