//! `nearhop lab up`: checks what was asked for, makes a world that ends with this process, and
//! starts the supervisor in it.

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
use nearhop_lab::spec::{Api, Controllers, Guests, Spec};
use nearhop_lab::state::{self, LabName, StateDir};
use nearhop_lab::topology::Delays;

use super::supervisor;
use crate::parse::parse_listen;

/// Starts a lab and keeps it until Ctrl-C or `lab down`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Zones: zone-a, zone-b and so on.
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "config")]
    zones: usize,

    /// Nodes in each zone: node-a1, node-a2 and so on.
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "config")]
    nodes_per_zone: usize,

    /// A file that describes nodes, Services and Pods, a line each: `node n1 zone=a cpu=4`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Name, where several labs run.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Keep objects in this directory; without it they end with the lab.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,

    /// Join the cluster of this kubeconfig instead of starting an API server.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Register nodes without the taint `nearhop.dev/lab:NoSchedule`: the Pods and DaemonSets of the
    /// cluster that the lab joins may land there.
    #[arg(long, requires = "kubeconfig")]
    no_taint: bool,

    /// Controllers (EndpointSlices, Deployments, scheduler, nodes): auto runs them unless the lab
    /// joins a cluster, which has its own.
    #[arg(long, value_name = "auto|all|none", default_value = "auto")]
    controllers: Which,

    /// Where the API server is reached from this machine; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = ":0")]
    listen: SocketAddr,

    /// Addresses of nodes, inside the lab.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().nodes)]
    node_cidr: Dual,

    /// Addresses of Pods, inside the lab; each node takes a piece.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().pods)]
    pod_cidr: Dual,

    /// Cluster IPs.
    #[arg(long, value_name = "CIDR,CIDR", default_value_t = Ranges::default().services)]
    service_cidr: Dual,

    /// How long packets take from node to node, besides from zone to zone, and besides from region
    /// to region, where the kernel has netem: `node=100us,zone=2ms,region=30ms`.
    #[arg(long, value_name = "TIER=DURATION,…", default_value = "")]
    delay: Delays,

    /// Feature gates of the API server, the controller and the proxies.
    #[arg(long, value_name = "NAME=BOOL,…", value_parser = parse_gates, default_value = "")]
    feature_gates: String,

    /// Return when the lab is up; it goes on until `lab down`.
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

/// Runs until the lab ends.
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
    let guests = if args.no_taint { Guests::Welcome } else { Guests::KeptOut };
    let spec = Spec {
        name: state.name().to_owned(),
        state: state.path().to_owned(),
        program: std::env::current_exe().context("cannot find the program's own file")?,
        topology,
        controllers: match (args.controllers, &api) {
            (Which::All, _) | (Which::Auto, None) => Controllers::All,
            (Which::None, _) | (Which::Auto, Some(_)) => Controllers::None,
        },
        api: match api {
            Some(kubeconfig) => Api::Foreign { kubeconfig, guests },
            None => Api::Own { data: data(args.data_dir.map(absolute).transpose()?) },
        },
        listen: args.listen,
        gates: args.feature_gates,
        fixture,
    };
    supervisor::start(&spec, &[])
}

impl Args {
    /// The nodes, and the fixture that has more than nodes to say.
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
        // What cannot be created is said before anything is started.
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

/// Starts the same command in the background, and shows what it says until it says no more.
fn detach() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find the program's own file")?;
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--detach" && arg != "-d");
    let (mut said, their_end) = io::pipe().context("cannot make a pipe")?;
    let mut child = Command::new(program)
        .args(args)
        .env_remove("NEARHOP_DETACH")
        .env(supervisor::QUIET_WHEN_UP, "1")
        .stdin(Stdio::null())
        .stdout(their_end.try_clone()?)
        .stderr(their_end)
        .process_group(0)
        .spawn()
        .context("cannot start it in the background")?;
    let mut text = Vec::new();
    said.read_to_end(&mut text).context("cannot hear what it says")?;
    if let Some(text) = text.strip_suffix(supervisor::UP) {
        io::stdout().write_all(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    io::stderr().write_all(&text)?;
    let code = child.wait().context("cannot learn how it ended")?.code();
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn parse_gates(text: &str) -> Result<String, String> {
    Gates::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// It becomes the name of a directory.
fn parse_name(text: &str) -> Result<String, String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > 40 || !text.chars().all(sound) {
        return Err("expected up to 40 letters, digits, `-` and `_`".to_owned());
    }
    Ok(text.to_owned())
}
