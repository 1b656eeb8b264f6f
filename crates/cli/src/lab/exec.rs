//! `nearhop lab exec`: a command in a Pod, as `kubectl exec` would run it, or on a node.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use nearhop_lab::cluster::describe;
use nearhop_lab::control::{Answer, Place, Request, ask};
use tokio::io::{AsyncWriteExt as _, copy, stderr, stdin, stdout};

use super::{Name, block_on};

/// Runs a command in a Pod, or in a node's network.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Namespace of the Pod.
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// Container; the first without.
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Hand standard input on.
    #[arg(short = 'i', long)]
    stdin: bool,

    /// The Pod: NAME or NAMESPACE/NAME; or node/NAME, or external.
    #[arg(value_name = "POD")]
    pod: String,

    /// The command, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs it; the exit code is the command's.
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
            Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
        }
        Answer::Refused(why) => bail!("{why}"),
        Answer::Done | Answer::Status(_) => bail!("the lab answered another question"),
    }
}

async fn exec(args: Args) -> anyhow::Result<ExitCode> {
    let (_, cluster) = args.name.connect().await?;
    let (namespace, name) = args.pod.split_once('/').unwrap_or((&args.namespace, &args.pod));
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), namespace);
    let mut params = AttachParams::default().stdin(args.stdin).stdout(true).stderr(true);
    let refused = |error: kube::Error| anyhow!("pod {namespace}/{name}: {}", describe(&error));
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
            // Either side may end it.
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

fn first_container(pod: &Pod) -> Option<String> {
    Some(pod.spec.as_ref()?.containers.first()?.name.clone())
}

/// Of a command that failed, the API says so in a cause named `ExitCode`.
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
        crate::complain(&format!("error: {}", status.message.as_deref().unwrap_or("it failed")));
    }
    number.unwrap_or(1)
}
