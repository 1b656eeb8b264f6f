//! `nearhop lab up`: checks the flags and starts the supervisor in namespaces that end with this
//! process.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use clap::{Args as ClapArgs, ValueEnum};
use nearhop_core::Gates;
use nearhop_core::fixture::Fixture;
use nearhop_lab::Topology;
use nearhop_lab::objects;
use nearhop_lab::ranges::{Dual, Ranges};
use nearhop_lab::spec::{Api, Controllers, Spec, Taint};
use nearhop_lab::state::{self, LabName, StateDir};
use nearhop_lab::topology::Delays;

use super::supervisor;
use crate::output::exit_code;
use crate::parse::parse_listen;

/// Starts a lab. It runs until Ctrl-C or `nearhop lab down`.
///
/// Prints the KUBECONFIG of the lab and example commands once all nodes are ready.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop lab up
  nearhop lab up --zones 2 --nodes-per-zone 3 --detach
  nearhop lab up --config shop.lab --delay zone=2ms")]
pub(crate) struct Args {
    /// Number of zones, named zone-a, zone-b, …
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "config")]
    zones: usize,

    /// Nodes per zone, named node-a1, node-a2, …
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "config")]
    nodes_per_zone: usize,

    /// File with one node, Service or Pod per line, such as `node n1 zone=a cpu=4`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Name of the lab, to run several. Default: lab, or lab-2 and so on if that runs.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Keep the API objects in this directory. Default: they are deleted with the lab.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,

    /// Join the cluster of this kubeconfig. Default: the lab starts its own API server.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Register nodes without the taint `nearhop.dev/lab:NoSchedule`, so that other Pods of the
    /// joined cluster can run on them.
    #[arg(long, requires = "kubeconfig")]
    no_taint: bool,

    /// Whether to run controllers for EndpointSlices, Deployments, scheduling and nodes. auto: unless
    /// the lab joins a cluster.
    #[arg(long, value_name = "auto|all|none", default_value = "auto")]
    controllers: Which,

    /// Address of the API server on this machine; port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = ":0")]
    listen: SocketAddr,

    /// Node addresses, inside the lab: one IPv4 and one IPv6 range.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().nodes)]
    node_cidr: Dual,

    /// Pod addresses, inside the lab: one IPv4 and one IPv6 range, divided among the nodes.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().pods)]
    pod_cidr: Dual,

    /// Cluster IPs: one IPv4 and one IPv6 range.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().services)]
    service_cidr: Dual,

    /// Network delay between nodes, and added between zones and regions, such as
    /// `node=100us,zone=2ms,region=30ms`. Needs netem in the kernel. Default: none.
    #[arg(long, value_name = "TIER=DURATION,…", default_value = "")]
    delay: Delays,

    /// Feature gates of the API server, controller, DNS servers and proxies.
    #[arg(long, value_name = "NAME=BOOL,…", value_parser = parse_gates, default_value = "")]
    feature_gates: String,

    /// Run in the background: return when the lab is up. Stop it with `nearhop lab down`.
    #[arg(short, long)]
    detach: bool,
}

/// `--controllers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Auto,
    All,
    None,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.detach {
        return detach();
    }
    let (mut topology, fixture) = args.topology()?;
    topology.delays = args.delay;
    let api = args.api()?;
    let state = StateDir::create(
        &state::base(),
        args.name.as_deref().map_or(LabName::Like("lab"), LabName::Exactly),
    )?;
    let data = |data: Option<PathBuf>| data.unwrap_or_else(|| state.path().join("data"));
    let taint = if args.no_taint { Taint::None } else { Taint::NoSchedule };
    let spec = Spec {
        name: state.name().to_owned(),
        state: state.path().to_owned(),
        program: std::env::current_exe().context("cannot find the path of this program")?,
        topology,
        controllers: match (args.controllers, &api) {
            (Which::All, _) | (Which::Auto, None) => Controllers::All,
            (Which::None, _) | (Which::Auto, Some(_)) => Controllers::None,
        },
        api: match api {
            Some(kubeconfig) => Api::Joined { kubeconfig, taint },
            None => Api::Own { data: data(args.data_dir.map(absolute).transpose()?) },
        },
        listen: args.listen,
        gates: args.feature_gates,
        fixture,
    };
    supervisor::start(&spec, &[])
}

impl Args {
    /// The nodes, and the text of --config.
    fn topology(&self) -> anyhow::Result<(Topology, Option<String>)> {
        let ranges =
            Ranges { nodes: self.node_cidr, pods: self.pod_cidr, services: self.service_cidr };
        let Some(path) = &self.config else {
            return Ok((Topology::grid(self.zones, self.nodes_per_zone, ranges)?, None));
        };
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read --config {}", path.display()))?;
        let wrong = |error| format!("--config {}: {error}", path.display());
        let fixture = Fixture::parse(&text).map_err(|e| anyhow::anyhow!(wrong(e.to_string())))?;
        let topology = Topology::from_fixture(&fixture, ranges)?;
        // Reports objects that cannot be created before anything is started.
        objects::of_fixture(&text)?;
        Ok((topology, Some(text)))
    }

    fn api(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(kubeconfig) = &self.kubeconfig else { return Ok(None) };
        fs::metadata(kubeconfig)
            .with_context(|| format!("cannot read --kubeconfig {}", kubeconfig.display()))?;
        absolute(kubeconfig.clone()).map(Some)
    }
}

fn absolute(path: PathBuf) -> anyhow::Result<PathBuf> {
    std::path::absolute(&path).with_context(|| format!("{} has no absolute path", path.display()))
}

/// Starts the same command in the background and prints its output until the lab is up.
fn detach() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--detach" && arg != "-d");
    let (mut output, their_end) = io::pipe().context("cannot make a pipe")?;
    let mut child = Command::new(program)
        .args(args)
        .env_remove("NEARHOP_DETACH")
        .env_remove("NEARHOP_LAB_UP_DETACH")
        .env(supervisor::QUIET_WHEN_UP, "1")
        .stdin(Stdio::null())
        .stdout(their_end.try_clone()?)
        .stderr(their_end)
        .process_group(0)
        .spawn()
        .context("cannot start the lab in the background")?;
    let mut text = Vec::new();
    output.read_to_end(&mut text).context("cannot read its output")?;
    if let Some(text) = text.strip_suffix(supervisor::UP) {
        io::stdout().write_all(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    io::stderr().write_all(&text)?;
    Ok(exit_code(child.wait().context("cannot wait for the lab")?.code()))
}

fn parse_gates(text: &str) -> Result<String, String> {
    Gates::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The name is also a directory's.
fn parse_name(text: &str) -> Result<String, String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > 40 || !text.chars().all(sound) {
        return Err("expected up to 40 letters, digits, `-` and `_`".to_owned());
    }
    Ok(text.to_owned())
}
