//! `nearhop lab up`: checks the flags and starts the supervisor in namespaces that end with this
//! process.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args as ClapArgs, ValueEnum};
use nearhop_core::Gates;
use nearhop_lab::Topology;
use nearhop_lab::config::ConfigFile;
use nearhop_lab::enter::HeldSignals;
use nearhop_lab::ranges::{Dual, Ranges};
use nearhop_lab::spec::{Api, ConfigText, Controllers, Spec, Taint};
use nearhop_lab::state::{self, LabName, StateDir};
use nearhop_lab::topology::Delays;

use super::check::read_config;
use super::detach::detach;
use super::{Name, supervisor};
use crate::manager::parse_grace;
use crate::output::OutputArgs;
use crate::parse::parse_listen;

/// Starts a lab. It runs until Ctrl-C or `nearhop lab down`.
///
/// Prints the KUBECONFIG of the lab and example commands once all nodes are ready.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab up --zones 2 --nodes-per-zone 3
  nearhop lab up --config shop.lab --data-dir ~/lab    # the next start finds the same objects
  export KUBECONFIG=$(nearhop lab up -d -o json | jq -r .kubeconfig)")]
// Each lab has a name of its own, so the default is another one than that of the other commands.
#[command(mut_arg("name", |name| name.help("Name of the lab. Default: lab, or the first of lab-2, lab-3, … that is free")))]
pub(crate) struct Args {
    #[command(flatten)]
    name: Name,

    /// Number of zones, named zone-a, zone-b, …
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        conflicts_with = "config",
        help_heading = "Nodes"
    )]
    zones: usize,

    /// Nodes per zone, named node-a1, node-a2, …
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        conflicts_with = "config",
        help_heading = "Nodes"
    )]
    nodes_per_zone: usize,

    /// File with one node, Service or Pod per line, such as `node n1 zone=a cpu=4`; `-` is standard
    /// input. docs/lab-config.md describes it, `nearhop lab check` checks it.
    #[arg(long, value_name = "FILE", help_heading = "Nodes")]
    config: Option<PathBuf>,

    /// Keep the API objects in this directory. Default: they are in memory, and deleted with the lab.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig", help_heading = "API")]
    data_dir: Option<PathBuf>,

    /// Join the cluster of this kubeconfig. Default: the lab starts its own API server.
    #[arg(long, value_name = "FILE", help_heading = "API")]
    kubeconfig: Option<PathBuf>,

    /// Register nodes without the taint `nearhop.dev/lab:NoSchedule`, so that other Pods of the
    /// joined cluster can run on them.
    #[arg(long, requires = "kubeconfig", help_heading = "API")]
    no_taint: bool,

    /// Whether to run controllers for EndpointSlices, Deployments, scheduling and nodes. auto: unless
    /// the lab joins a cluster.
    #[arg(long, value_name = "auto|all|none", default_value = "auto", help_heading = "API")]
    controllers: Which,

    /// Address of the API server on this machine; port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = ":0", help_heading = "API")]
    listen: SocketAddr,

    /// Node addresses, inside the lab: one IPv4 and one IPv6 range.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().nodes, help_heading = "Network")]
    node_cidr: Dual,

    /// Pod addresses, inside the lab: one IPv4 and one IPv6 range, divided among the nodes.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().pods, help_heading = "Network")]
    pod_cidr: Dual,

    /// Cluster IPs: one IPv4 and one IPv6 range.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().services, help_heading = "Network")]
    service_cidr: Dual,

    /// Network delay between nodes, and added between zones and regions, such as
    /// `node=100us,zone=2ms,region=30ms`. Needs netem in the kernel. Default: none.
    #[arg(long, value_name = "TIER=DURATION,…", default_value = "", help_heading = "Network")]
    delay: Delays,

    /// How long a node may miss heartbeats until it is not ready and loses its traffic. Default: 50s,
    /// as in Kubernetes.
    #[arg(long, value_name = "DURATION", value_parser = parse_grace, help_heading = "Nodes")]
    node_monitor_grace_period: Option<Duration>,

    /// Feature gates of the API server, controller, DNS servers and proxies.
    #[arg(long, value_name = "NAME=BOOL,…", value_parser = parse_gates, default_value = "", help_heading = "API")]
    feature_gates: String,

    /// Run in the background: return when the lab is up. Stop it with `nearhop lab down`.
    #[arg(short, long, help_heading = "Run")]
    detach: bool,

    #[command(flatten, next_help_heading = "Run")]
    output: OutputArgs,
}

/// The period of Kubernetes since 1.32.
pub(crate) const NODE_GRACE: Duration = Duration::from_secs(50);

/// `--controllers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Auto,
    All,
    None,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // The command in the background has the flag, too.
    if args.detach && std::env::var_os(supervisor::QUIET_WHEN_UP).is_none() {
        return detach(args.config.as_deref());
    }
    let (mut topology, config) = args.topology()?;
    topology.delays = args.delay;
    let api = args.api()?;
    let controllers = args.controllers(api.as_deref())?;
    let data = args.data_dir.map(writable).transpose()?;
    // Ctrl-C must not end this process between making the directory and being able to remove it.
    let held = HeldSignals::hold().context("cannot hold signals")?;
    let name = args.name.given().map_or(LabName::Like("lab"), LabName::Exactly);
    let state = StateDir::create(&state::base()?, name)?;
    let data = data.unwrap_or_else(|| Spec::data_in_memory(state.path()));
    let taint = if args.no_taint { Taint::None } else { Taint::NoSchedule };
    let spec = Spec {
        name: state.name().to_owned(),
        state: state.path().to_owned(),
        program: std::env::current_exe().context("cannot find the path of this program")?,
        topology,
        controllers,
        node_grace: args.node_monitor_grace_period.unwrap_or(NODE_GRACE),
        api: match api {
            Some(kubeconfig) => Api::Joined { kubeconfig, taint },
            None => Api::Own { data },
        },
        listen: args.listen,
        gates: args.feature_gates,
        config,
    };
    let output = supervisor::output_flag(args.output.output);
    supervisor::start(&spec, &output, held)
}

impl Args {
    /// The nodes, and the text of --config.
    fn topology(&self) -> anyhow::Result<(Topology, Option<ConfigText>)> {
        let ranges =
            Ranges { nodes: self.node_cidr, pods: self.pod_cidr, services: self.service_cidr };
        let Some(path) = &self.config else {
            return Ok((Topology::grid(self.zones, self.nodes_per_zone, ranges)?, None));
        };
        let (name, text) = read_config(path).context("--config")?;
        let config = ConfigFile::parse(&name, &text)?;
        let topology = config.topology(ranges)?;
        // Reports objects that cannot be created before anything is started.
        config.objects()?;
        Ok((topology, Some(ConfigText { name, text })))
    }

    fn controllers(&self, joined: Option<&Path>) -> anyhow::Result<Controllers> {
        let controllers = match (self.controllers, joined) {
            (Which::All, _) | (Which::Auto, None) => Controllers::All,
            (Which::None, _) | (Which::Auto, Some(_)) => Controllers::None,
        };
        if controllers == Controllers::None && self.node_monitor_grace_period.is_some() {
            bail!(
                "--node-monitor-grace-period is a setting of the manager, and this lab runs none. \
                 Cure: --controllers all, or the same flag of the cluster's kube-controller-manager"
            );
        }
        Ok(controllers)
    }

    fn api(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(kubeconfig) = &self.kubeconfig else { return Ok(None) };
        fs::metadata(kubeconfig)
            .with_context(|| format!("cannot read --kubeconfig {}", kubeconfig.display()))?;
        absolute(kubeconfig.clone()).map(Some)
    }
}

/// The absolute path of a directory in which a file can be made.
fn writable(path: PathBuf) -> anyhow::Result<PathBuf> {
    let path = absolute(path)?;
    let refused = || format!("cannot write to --data-dir {}", path.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).with_context(refused)?;
    let probe = path.join(".nearhop-probe");
    fs::write(&probe, "x").and_then(|()| fs::remove_file(&probe)).with_context(refused)?;
    Ok(path)
}

fn absolute(path: PathBuf) -> anyhow::Result<PathBuf> {
    std::path::absolute(&path).with_context(|| format!("{} has no absolute path", path.display()))
}

fn parse_gates(text: &str) -> Result<String, String> {
    Gates::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
