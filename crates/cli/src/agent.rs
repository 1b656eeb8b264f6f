//! `nearhop agent`: a very small kubelet, and the hidden commands that its containers are made of.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use nearhop_agent::container::{self, Stage};
use nearhop_agent::{Clients, Options};
use nearhop_runtime::client::connect;
use nearhop_runtime::health::Health;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::pki::{KUBELET_CLIENT, Pair};
use nearhop_runtime::shutdown::Shutdown;
use nearhop_runtime::tls::read_file;

use crate::daemon::{serve_admin, supervised};
use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen};

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

    /// Taints of the Node, written when the agent registers it.
    #[arg(long, value_name = "KEY[=VALUE]:EFFECT,…", value_delimiter = ',', value_parser = parse_taint)]
    register_with_taints: Vec<Taint>,

    /// How much CPU the Node says it has.
    #[arg(long, value_name = "QUANTITY", default_value = "4")]
    cpu: String,

    /// How much memory the Node says it has.
    #[arg(long, value_name = "QUANTITY", default_value = "8Gi")]
    memory: String,

    /// Where logs and exec are served, on the node's addresses.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    port: u16,

    /// Certificate of that port (PEM); without it the agent makes one that it signs itself.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,

    /// Private key of --tls-cert-file (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,

    /// CA of the API server's client certificate (PEM). Without it logs and exec are refused.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,

    /// Common names of client certificates that may ask for logs and exec.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = KUBELET_CLIENT)]
    client_allowed_names: Vec<String>,

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

    /// Where /livez, /readyz and /metrics are served; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:10273")]
    bind_address: SocketAddr,

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
    args.log.init();
    // Two threads: pods are mostly waited for.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().context("cannot start threads")?;
    let done = runtime.block_on(supervised(serve(args)));
    // What still waits for the kernel or the API must not keep containers alive.
    runtime.shutdown_background();
    done
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let (metrics, health) = (Metrics::of_process(), Health::new());
    let client = connect(&args.cluster.client("agent"), Some(&metrics)).await?;
    let _admin = serve_admin(args.bind_address, metrics, health.clone())?;
    nearhop_agent::run(Options { health, ..options(args)? }, client, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: Args) -> anyhow::Result<Options> {
    let pair = args.tls_cert_file.as_ref().zip(args.tls_private_key_file.as_ref());
    let serving = pair.map(|(certificate, key)| {
        anyhow::Ok(Pair {
            certificate: read_file("--tls-cert-file", certificate)?,
            key: read_file("--tls-private-key-file", key)?,
        })
    });
    let names = args.client_allowed_names;
    let authorities = args.client_ca_file.map(|path| read_file("--client-ca-file", &path));
    let clients = authorities.transpose()?.map(|authorities| Clients { authorities, names });
    Ok(Options {
        addresses: args.node_ip,
        pod_cidrs: args.pod_cidr,
        labels: args.labels.into_iter().collect::<BTreeMap<_, _>>(),
        taints: args.register_with_taints,
        cpu: args.cpu,
        memory: args.memory,
        port: args.port,
        serving: serving.transpose()?,
        clients,
        cluster_dns: args.cluster_dns,
        cluster_domain: args.cluster_domain,
        heartbeat: args.heartbeat.max(Duration::from_millis(100)),
        ..Options::new(&args.node_name, args.root_dir)
    })
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

/// Reads a taint as a kubelet does.
pub(crate) fn parse_taint(text: &str) -> Result<Taint, String> {
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let expected = || format!("expected KEY=VALUE:EFFECT or KEY:EFFECT, EFFECT one of {effects:?}");
    let (what, effect) = text.rsplit_once(':').ok_or_else(expected)?;
    let (key, value) = what.split_once('=').map_or((what, None), |(key, value)| (key, Some(value)));
    if key.is_empty() || !effects.contains(&effect) {
        return Err(expected());
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: effect.to_owned(),
        time_added: None,
    })
}

fn parse_stage(text: &str) -> Result<Stage, String> {
    Stage::parse(text).ok_or_else(|| "expected sandbox, run, init, exec or terminal".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_read_as_a_kubelet_reads_them() {
        let taint = |text: &str| parse_taint(text).map(|it| (it.key, it.value, it.effect));
        let (key, effect) = ("a.b/c".to_owned(), "NoSchedule".to_owned());
        assert_eq!(taint("a.b/c:NoSchedule"), Ok((key.clone(), None, effect.clone())));
        assert_eq!(taint("a.b/c=d:NoSchedule"), Ok((key, Some("d".to_owned()), effect)));
        for bad in ["", "a", "a:Never", ":NoSchedule", "=b:NoExecute"] {
            assert!(parse_taint(bad).is_err(), "{bad:?}");
        }
    }
}
