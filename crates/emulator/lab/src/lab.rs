//! A running lab: its namespaces, its processes and their faults.
//!
//! The supervisor listens and connects in the machine's network; the lab's processes run in the lab's
//! namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use nearhop_net::Namespace;
use nearhop_net::delay::Delay;
use tokio::net::TcpListener;

use crate::admin::AdminPort;
use crate::cluster::{Cluster, name_of};
use crate::control::{Fault, LabPhase, Place, Status};
use crate::daemon::{Daemon, Done, Order, Phase, ProcessSpec, State};
use crate::kubeconfig::{self, JoinedApi};
use crate::log_limit::LogLimit;
use crate::pki::KubeletPki;
use crate::relay::{self, Relay, Target};
use crate::spec::{APISERVER, Api, Controllers, Spec};
use crate::world::{Cable, World};
use crate::{LabError, apply, dns, exec, leftovers};

/// How long the API server may take to start.
const API_TIMEOUT: Duration = Duration::from_secs(20);

/// A node whose Lease was renewed within this time is alive; agents of a lab renew every second.
const ALIVE: SignedDuration = SignedDuration::from_secs(5);

/// Where the port for metrics listens.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A running lab. It ends when this is dropped.
#[derive(Debug)]
pub struct Lab {
    spec: Spec,
    world: World,
    daemons: BTreeMap<String, Daemon>,
    cut: BTreeSet<Link>,
    phase: LabPhase,
    begun: Instant,
    admin: AdminPort,
    /// What the user should know about the start.
    warnings: Vec<String>,
    _relay: Relay,
    _log_limit: LogLimit,
}

/// A link that a fault can cut.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    Node(String),
    Zone(String),
}

impl Lab {
    /// Makes the namespaces and starts the processes. Nodes may not be ready yet.
    pub async fn start(spec: Spec) -> Result<Self, LabError> {
        // Checks the user's choices before anything is made.
        let api = ApiAccess::prepare(&spec).await?;
        let begun = Instant::now();
        let world = World::build(&spec.topology)?;
        if let Some(pki) = KubeletPki::of(&spec) {
            pki.create(&spec)?;
        }
        let mut daemons = BTreeMap::new();
        if let Some(process) = spec.api_server(&world) {
            start(&mut daemons, process)?;
        }
        let relay = api.open(&spec, &world, daemons.get(APISERVER)).await?;
        let mut warnings = Vec::new();
        if world.delays() == Delay::NotSupported {
            warnings.push("this kernel has no netem: --delay has no effect".to_owned());
        }
        if let Api::Own { .. } = spec.api {
            warnings.extend(prepare_api(&spec).await?);
        }
        for process in spec.others(&world)? {
            start(&mut daemons, process)?;
        }
        let opened = AdminPort::open(spec.admin_ports(&world)?).await;
        let admin = opened.map_err(|cause| LabError::Listen { address: LOOPBACK, cause })?;
        let log_limit = LogLimit::start(daemons.keys().map(|name| spec.log(name)).collect());
        Ok(Self {
            spec,
            world,
            daemons,
            cut: BTreeSet::new(),
            phase: LabPhase::Starting,
            begun,
            admin,
            warnings,
            _relay: relay,
            _log_limit: log_limit,
        })
    }

    /// The spec that it was started with.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What the user should know about the start: flags without effect, removed objects, values
    /// that were kept.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Adds to an error the last log lines of processes that do not run, and of the agent of a node
    /// that is not ready.
    pub fn explain(&self, error: LabError) -> LabError {
        let mut text = error.to_string();
        // One agent is enough: what stops several is the same as a rule.
        let agent = match &error {
            LabError::NodesMissing { missing, .. } => {
                missing.first().map(|node| format!("agent/{node}"))
            }
            LabError::NotReady(_) => None,
            _ => return error,
        };
        for (name, daemon) in &self.daemons {
            let phase = daemon.state().phase;
            if agent.as_ref() == Some(name) && phase != Phase::Waiting {
                let end = last_lines(&self.spec.log(name));
                text += &format!("\n{name} is {phase}; its log ends with:\n{end}");
            }
            if phase == Phase::Waiting {
                let end = last_lines(&self.spec.log(name));
                text += &format!("\n{name} does not run; its log ends with:\n{end}");
            }
        }
        LabError::NotReady(text)
    }

    pub(crate) fn set_up(&mut self, warnings: Vec<String>) {
        self.phase = LabPhase::Up;
        self.warnings.extend(warnings);
    }

    /// A command in a namespace of the lab.
    pub(crate) fn command(
        &self,
        place: &Place,
        program: &Path,
        args: &[String],
    ) -> Result<tokio::process::Command, LabError> {
        let mut command = self.namespace(place)?.command(program);
        command.args(args).stdin(Stdio::null());
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        Ok(command)
    }

    /// The process that runs another command for `lab exec`.
    pub(crate) fn exec(&self, place: &Place) -> Result<std::process::Command, LabError> {
        Ok(exec::shim::prepare(self.namespace(place)?.command(&self.spec.program)))
    }

    fn namespace(&self, place: &Place) -> Result<&Namespace, LabError> {
        Ok(match place {
            Place::Node(name) => self.world.node(name)?,
            Place::External => self.world.external(),
            Place::ControlPlane => self.world.control_plane(),
        })
    }

    /// Injects or heals a fault.
    pub(crate) async fn inject(&mut self, fault: Fault) -> Result<(), LabError> {
        match fault {
            Fault::Process(name, order) => self.order(&name, order).await,
            Fault::Node(name, cable) => self.set_link(Link::Node(name), cable),
            Fault::Zone(name, cable) => self.set_link(Link::Zone(name), cable),
            Fault::HealAll => self.heal_all().await,
        }
    }

    fn set_link(&mut self, link: Link, cable: Cable) -> Result<(), LabError> {
        match &link {
            Link::Node(name) => self.world.set_node(name, cable)?,
            Link::Zone(name) => self.world.set_zone(name, cable)?,
        }
        match cable {
            Cable::Cut => self.cut.insert(link),
            Cable::Healed => self.cut.remove(&link),
        };
        Ok(())
    }

    async fn order(&mut self, name: &str, order: Order) -> Result<(), LabError> {
        let Some(daemon) = self.daemons.get_mut(name) else {
            let known: Vec<&str> = self.daemons.keys().map(String::as_str).collect();
            let (what, name, known) = ("process", name.to_owned(), known.join(", "));
            return Err(LabError::NotFound { what, name, known });
        };
        match daemon.order(order).await {
            Done::Obeyed => Ok(()),
            Done::NotRunning => Err(LabError::ProcessDown(name.to_owned())),
        }
    }

    async fn heal_all(&mut self) -> Result<(), LabError> {
        for link in std::mem::take(&mut self.cut) {
            self.set_link(link, Cable::Healed)?;
        }
        for daemon in self.daemons.values_mut() {
            match daemon.state().phase {
                // A process that exited is restarted anyway.
                Phase::Paused => drop(daemon.order(Order::Resume).await),
                Phase::Killed => drop(daemon.order(Order::Start).await),
                Phase::Running | Phase::Waiting => {}
            }
        }
        Ok(())
    }

    /// The status of its processes and links.
    pub fn status(&self) -> Status {
        let mut zones: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in &self.spec.topology.nodes {
            zones.entry(node.zone().to_owned()).or_default().push(node.name.clone());
        }
        let cut = self.cut.iter().map(|link| match link {
            Link::Node(name) => format!("node/{name}"),
            Link::Zone(name) => format!("zone/{name}"),
        });
        let url = |name: &str| self.admin.serves(name).then(|| self.admin.url(name));
        let state = |(name, daemon): (&String, &Daemon)| {
            (name.clone(), State { url: url(name), ..daemon.state() })
        };
        let grace = (self.spec.controllers == Controllers::All).then_some(self.spec.node_grace);
        Status {
            name: self.spec.name.clone(),
            kubeconfig: self.spec.kubeconfig(),
            data_dir: self.spec.kept_data(),
            server: kubeconfig::server_of(&self.spec.kubeconfig()).unwrap_or_default(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            node_monitor_grace_period_seconds: grace.map(|grace| grace.as_secs_f64()),
            feature_gates: self.spec.all_gates(),
            logs: self.spec.logs_link(),
            phase: self.phase,
            processes: self.daemons.iter().map(state).collect(),
            zones,
            cut: cut.collect(),
        }
    }
}

/// Access to the API from the other side of the lab's border.
enum ApiAccess {
    /// To the lab's own server, through a port of the machine.
    Own(TcpListener),
    /// To the joined cluster's server, through an address of the control plane.
    Joined(Box<JoinedApi>),
}

impl ApiAccess {
    async fn prepare(spec: &Spec) -> Result<Self, LabError> {
        match &spec.api {
            Api::Own { .. } => {
                let listening = TcpListener::bind(spec.listen).await;
                listening
                    .map(Self::Own)
                    .map_err(|cause| LabError::Listen { address: spec.listen, cause })
            }
            Api::Joined { kubeconfig, .. } => {
                let joined = JoinedApi::read(kubeconfig).await?;
                check_names_free(spec, kubeconfig).await?;
                Ok(Self::Joined(Box::new(joined)))
            }
        }
    }

    /// Starts the relay and writes both kubeconfigs.
    async fn open(
        self,
        spec: &Spec,
        world: &World,
        server: Option<&Daemon>,
    ) -> Result<Relay, LabError> {
        let inside = spec.inner_address();
        let refused = |address| move |cause| LabError::Listen { address, cause };
        match self {
            Self::Own(listener) => {
                let namespace = Some(world.control_plane().clone());
                let target = Target { namespace, address: inside };
                wait_for_api(spec, &target, server).await?;
                let address = listener.local_addr().map_err(refused(spec.listen))?;
                let (inner, outer) = (spec.inner_kubeconfig(), spec.kubeconfig());
                kubeconfig::write_outer(&inner, address, &outer)?;
                Ok(relay::relay(listener, target))
            }
            Self::Joined(joined) => {
                let target = Target { namespace: None, address: joined.address };
                let listener = relay::listen_in(world.control_plane(), inside).await;
                let relay = relay::relay(listener.map_err(refused(inside))?, target);
                joined.write(&spec.kubeconfig())?;
                joined.write_at(inside, &spec.inner_kubeconfig())?;
                Ok(relay)
            }
        }
    }
}

/// Removes what does not belong to this lab, and creates the objects that its processes need.
async fn prepare_api(spec: &Spec) -> Result<Vec<String>, LabError> {
    let cluster = Cluster::connect(&spec.kubeconfig()).await?;
    let mut said = leftovers::remove(&cluster, spec).await?;
    let mut all = vec![nearhop_api::locator::definition()];
    all.extend(dns::objects(spec));
    said.extend(apply::apply_all(&cluster, &all, &[]).await?);
    Ok(said)
}

/// Refuses names of live Nodes: two agents of one Node would both run its Pods.
async fn check_names_free(spec: &Spec, kubeconfig: &Path) -> Result<(), LabError> {
    let cluster = Cluster::connect(kubeconfig).await?;
    let leases = cluster.list("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases");
    let leases = leases.await?;
    for node in &spec.topology.nodes {
        let lease = leases.iter().find(|lease| name_of(lease) == node.name);
        let renewed = lease.and_then(|lease| lease["spec"]["renewTime"].as_str()?.parse().ok());
        if renewed.is_some_and(|renewed| is_alive(renewed, Timestamp::now())) {
            return Err(LabError::NodeTaken(node.name.clone()));
        }
    }
    Ok(())
}

/// Whether an agent renewed its Lease a moment ago. A time in the future is of a clock that was set
/// back, or of another machine: far in the future it says nothing, so it must not refuse a lab.
fn is_alive(renewed: Timestamp, now: Timestamp) -> bool {
    now.duration_since(renewed).abs() < ALIVE
}

fn start(daemons: &mut BTreeMap<String, Daemon>, process: ProcessSpec) -> Result<(), LabError> {
    let name = process.name.clone();
    let path = process.program.clone();
    let daemon = Daemon::start(process).map_err(|cause| LabError::File { path, cause })?;
    daemons.insert(name, daemon);
    Ok(())
}

/// Waits until the API server answers and has written its kubeconfig.
async fn wait_for_api(
    spec: &Spec,
    target: &Target,
    server: Option<&Daemon>,
) -> Result<(), LabError> {
    let deadline = Instant::now() + API_TIMEOUT;
    while !spec.inner_kubeconfig().exists() || target.connect().await.is_err() {
        let ended = server.is_some_and(|server| server.state().last_end.is_some());
        if ended || Instant::now() > deadline {
            return Err(LabError::NoApi { why: last_error(&spec.log(APISERVER)) });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// The last error in a process's log.
fn last_error(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    last.unwrap_or("the log has no error").to_owned()
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_from_the_future_does_not_count_as_alive() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24);
        for (seconds, alive) in [(0, true), (-4, true), (-6, false), (4, true), (3600, false)] {
            let renewed = now + SignedDuration::from_secs(seconds);
            assert_eq!(is_alive(renewed, now), alive, "{seconds}");
        }
    }
}
