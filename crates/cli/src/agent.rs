//! `nearhop agent`: a very small kubelet, and the hidden commands that its containers are made of.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use ipnet::IpNet;
use nearhop_agent::Options;
use nearhop_agent::container::{self, Stage};
use nearhop_runtime::client::connect;
use nearhop_runtime::log;
use nearhop_runtime::shutdown::Shutdown;

use crate::parse::{ClusterArgs, LogArgs, parse_duration};

/// Registers a Node and runs its pods as processes, each pod in a network of its own.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Name of the Node.
    #[arg(long, value_name = "NODE")]
    node_name: String,

    /// The node's addresses: one, or one of each family, the primary one first.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', required = true)]
    node_ip: Vec<IpAddr>,

    /// Where pods' addresses come from: one range, or one of each family.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',', required = true)]
    pod_cidr: Vec<IpNet>,

    /// Labels of the Node.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = parse_label)]
    labels: Vec<(String, String)>,

    /// How much CPU the Node says it has.
    #[arg(long, value_name = "QUANTITY", default_value = "4")]
    cpu: String,

    /// How much memory the Node says it has.
    #[arg(long, value_name = "QUANTITY", default_value = "8Gi")]
    memory: String,

    /// Where logs and exec are served, on the node's addresses.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    port: u16,

    /// Where logs and volumes live: a new or empty directory, or that of an earlier agent, which is
    /// emptied.
    #[arg(long, value_name = "DIR")]
    root_dir: PathBuf,

    /// How often the Node's Lease is renewed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    heartbeat: Duration,

    /// The cluster's name server, for pods.
    #[arg(long, value_name = "IP")]
    cluster_dns: Option<IpAddr>,

    /// The domain that Services' names end in.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,

    #[command(flatten)]
    log: LogArgs,
}

/// One of the processes of a container.
#[derive(Debug, ClapArgs)]
#[command(disable_help_flag = true)]
pub(crate) struct ContainerArgs {
    /// Which one.
    #[arg(value_parser = parse_stage)]
    stage: Stage,

    /// What it is to do.
    file: PathBuf,

    /// A program's words.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A built-in image.
#[derive(Debug, ClapArgs)]
#[command(disable_help_flag = true)]
pub(crate) struct ImageArgs {
    /// Its short name.
    image: String,

    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs until it is told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    log::init(args.log.verbosity, args.log.log_format);
    // Two threads: pods are mostly waited for.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().context("cannot start threads")?;
    let done = runtime.block_on(serve(args));
    // What still waits for the kernel or the API must not keep containers alive.
    runtime.shutdown_background();
    done
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let client = connect(&args.cluster.client("agent"), None).await?;
    nearhop_agent::run(options(args), client, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: Args) -> Options {
    Options {
        addresses: args.node_ip,
        pod_cidrs: args.pod_cidr,
        labels: args.labels.into_iter().collect::<BTreeMap<_, _>>(),
        cpu: args.cpu,
        memory: args.memory,
        port: args.port,
        cluster_dns: args.cluster_dns,
        cluster_domain: args.cluster_domain,
        heartbeat: args.heartbeat.max(Duration::from_millis(100)),
        ..Options::new(&args.node_name, args.root_dir)
    }
}

/// Is one of the processes of a container.
pub(crate) fn container(args: &ContainerArgs) -> anyhow::Result<ExitCode> {
    Ok(container::main(args.stage, &args.file, &args.words))
}

/// Plays a built-in image.
pub(crate) fn image(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    Ok(nearhop_agent::image::main(&args.image, &args.arguments))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_stage(text: &str) -> Result<Stage, String> {
    Stage::parse(text).ok_or_else(|| "expected sandbox, run, init, exec or terminal".to_owned())
}
