//! `nearhop agent`: a small kubelet, and the hidden commands of its container processes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use nearhop_agent::container::{self, Stage};
use nearhop_agent::{Clients, Options};
use nearhop_runtime::admin;
use nearhop_runtime::client::connect;
use nearhop_runtime::health::Health;
use nearhop_runtime::pki::KUBELET_CLIENT;
use nearhop_runtime::shutdown::Shutdown;
use nearhop_runtime::tls::read_file;

use crate::daemon::{self, RETRY, read_pair, serve_admin};
use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen};
use crate::version;

/// Runs a node agent: registers a Node and runs its Pods as processes in network namespaces.
///
/// A small kubelet for tests and for the lab. Needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  sudo nearhop agent --node-name n1 --node-ip 192.168.1.10 --pod-cidr 10.244.0.0/24 \\
      --root-dir /var/lib/nearhop --kubeconfig kubeconfig
  sudo nearhop agent --node-name n1 --node-ip 192.168.1.10,fd00::10 --root-dir /var/lib/nearhop \\
      --pod-cidr 10.244.0.0/24,fd00:10::/64 --labels topology.kubernetes.io/zone=a")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Name of the Node object.
    #[arg(help_heading = "Node", long, value_name = "NODE")]
    node_name: String,

    /// Node addresses: one, or one per IP family, the primary one first.
    #[arg(
        help_heading = "Node",
        long,
        value_name = "IP[,IP]",
        value_delimiter = ',',
        required = true
    )]
    node_ip: Vec<IpAddr>,

    /// Pod address ranges: one, or one per IP family.
    #[arg(
        help_heading = "Node",
        long,
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        required = true
    )]
    pod_cidr: Vec<IpNet>,

    /// Labels of the Node.
    #[arg(help_heading = "Node", long, value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = parse_label)]
    labels: Vec<(String, String)>,

    /// Taints that the agent adds when it registers the Node.
    #[arg(help_heading = "Node", long, value_name = "KEY[=VALUE]:EFFECT,…", value_delimiter = ',', value_parser = parse_taint)]
    register_with_taints: Vec<Taint>,

    /// CPU capacity that the Node reports.
    #[arg(help_heading = "Node", long, value_name = "QUANTITY", default_value = "4")]
    cpu: String,

    /// Memory capacity that the Node reports.
    #[arg(help_heading = "Node", long, value_name = "QUANTITY", default_value = "8Gi")]
    memory: String,

    /// Port for logs and exec on the node addresses.
    #[arg(help_heading = "Logs and exec", long, value_name = "PORT", default_value_t = 10250)]
    port: u16,

    /// Serving certificate of that port (PEM); by default the agent creates a self-signed one.
    #[arg(
        help_heading = "Logs and exec",
        long,
        value_name = "FILE",
        requires = "tls_private_key_file"
    )]
    tls_cert_file: Option<PathBuf>,

    /// Private key of --tls-cert-file (PEM).
    #[arg(help_heading = "Logs and exec", long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,

    /// CA of the API server's client certificate (PEM). Without it the agent rejects logs and exec.
    #[arg(help_heading = "Logs and exec", long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,

    /// Common names of client certificates that may request logs and exec.
    #[arg(help_heading = "Logs and exec", long, value_name = "NAME,…", value_delimiter = ',', default_value = KUBELET_CLIENT)]
    client_allowed_names: Vec<String>,

    /// Directory for logs and volumes: new, empty, or that of an earlier agent, whose files the
    /// agent deletes.
    #[arg(help_heading = "Pods", long, value_name = "DIR")]
    root_dir: PathBuf,

    /// Interval of Lease renewals.
    #[arg(help_heading = "Node", long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    heartbeat: Duration,

    /// Cluster DNS server for Pods.
    #[arg(help_heading = "Pods", long, value_name = "IP")]
    cluster_dns: Option<IpAddr>,

    /// Cluster domain.
    #[arg(help_heading = "Pods", long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,

    /// Address for /livez, /readyz and /metrics; port 0 selects a free port.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:10273")]
    bind_address: SocketAddr,

    #[command(flatten)]
    log: LogArgs,
}

/// A container process.
#[derive(Debug, ClapArgs)]
#[command(disable_help_flag = true)]
pub(crate) struct ContainerArgs {
    /// The process.
    #[arg(value_parser = parse_stage)]
    stage: Stage,

    /// The spec.
    file: PathBuf,

    /// A program's arguments.
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

/// Runs until shutdown.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    // Two threads: the agent mostly waits.
    daemon::run(2, serve(args))
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let (metrics, health) = (version::metrics(), Health::new());
    let client = connect(&args.cluster.client("agent"), Some(&metrics)).await?;
    let _admin = serve_admin(args.bind_address, RETRY, admin::routes(metrics, health.clone()))?;
    nearhop_agent::run(Options { health, ..options(args)? }, client, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: Args) -> anyhow::Result<Options> {
    let serving = read_pair(
        ("--tls-cert-file", args.tls_cert_file.as_ref()),
        ("--tls-private-key-file", args.tls_private_key_file.as_ref()),
    )?;
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
        serving,
        clients,
        cluster_dns: args.cluster_dns,
        cluster_domain: args.cluster_domain,
        heartbeat: args.heartbeat.max(Duration::from_millis(100)),
        ..Options::new(&args.node_name, args.root_dir)
    })
}

/// Runs a container process.
pub(crate) fn container(args: &ContainerArgs) -> anyhow::Result<ExitCode> {
    Ok(container::main(args.stage, &args.file, &args.words))
}

/// Runs a built-in image.
pub(crate) fn image(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    Ok(nearhop_agent::image::main(&args.image, &args.arguments))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a taint as a kubelet does.
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
    Stage::parse(text).ok_or_else(|| "not a stage of a container".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_parse_as_in_a_kubelet() {
        let taint = |text: &str| parse_taint(text).map(|it| (it.key, it.value, it.effect));
        let (key, effect) = ("a.b/c".to_owned(), "NoSchedule".to_owned());
        assert_eq!(taint("a.b/c:NoSchedule"), Ok((key.clone(), None, effect.clone())));
        assert_eq!(taint("a.b/c=d:NoSchedule"), Ok((key, Some("d".to_owned()), effect)));
        for bad in ["", "a", "a:Never", ":NoSchedule", "=b:NoExecute"] {
            assert!(parse_taint(bad).is_err(), "{bad:?}");
        }
    }
}
