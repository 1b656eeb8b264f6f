//! A running lab: its world, its processes, and what is done to them.
//!
//! It listens and dials in the machine's own network and keeps the lab's processes in theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use nearhop_net::delay::Delay;
use tokio::net::TcpListener;

use crate::cluster::{Cluster, name_of};
use crate::control::{Fault, LabPhase, Place, Status};
use crate::daemon::{Daemon, Done, Order, Phase, Recipe};
use crate::kubeconfig::{self, Foreign};
use crate::pki::KubeletPki;
use crate::relay::{self, Relay, Target};
use crate::spec::{APISERVER, Api, Spec};
use crate::world::{Cable, World};
use crate::{LabError, dns, objects};

/// How long the API server may take before the lab gives up on it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whoever renewed a Node's Lease since then is alive; an agent of a lab does so every second.
const ALIVE: SignedDuration = SignedDuration::from_secs(5);

/// A lab that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Lab {
    spec: Spec,
    world: World,
    daemons: BTreeMap<String, Daemon>,
    cut: BTreeSet<String>,
    phase: LabPhase,
    /// Held, not used.
    _relay: Relay,
}

impl Lab {
    /// Makes the world and starts the processes. Nodes and proxies may still be on their way.
    ///
    /// # Errors
    ///
    /// The port is in use, the kernel refuses something, or the API does not come.
    pub async fn start(spec: Spec) -> Result<Self, LabError> {
        // First what a user may have chosen badly: nothing is made by then.
        let api = Way::to(&spec).await?;
        let world = World::build(&spec.topology)?;
        let logs = spec.logs();
        fs::create_dir_all(&logs).map_err(|cause| LabError::File { path: logs, cause })?;
        if let Some(pki) = KubeletPki::of(&spec) {
            pki.create(&spec)?;
        }
        let mut daemons = BTreeMap::new();
        if let Some(recipe) = spec.api_server(&world) {
            start(&mut daemons, recipe)?;
        }
        let relay = api.open(&spec, &world, daemons.get(APISERVER)).await?;
        if let Api::Own { .. } = spec.api {
            prepare(&spec).await?;
        }
        for recipe in spec.others(&world)? {
            start(&mut daemons, recipe)?;
        }
        let (cut, phase) = (BTreeSet::new(), LabPhase::Starting);
        Ok(Self { spec, world, daemons, cut, phase, _relay: relay })
    }

    /// What it was started with.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its namespaces.
    #[must_use]
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// What it could not do as it was asked to, in plain words.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        match self.world.delays() {
            Delay::Set => Vec::new(),
            Delay::NotSupported => {
                vec!["this kernel has no netem: --delay has no effect".to_owned()]
            }
        }
    }

    /// Adds what processes that do not run have said last: most likely it is why.
    #[must_use]
    pub fn explain(&self, error: LabError) -> LabError {
        let LabError::NotReady(mut text) = error else { return error };
        for (name, daemon) in &self.daemons {
            if daemon.state().phase == Phase::Waiting {
                let said = last_lines(&self.spec.log(name));
                text += &format!("\n{name} does not run; its log ends with:\n{said}");
            }
        }
        LabError::NotReady(text)
    }

    /// From now on it is up.
    pub fn set_up(&mut self) {
        self.phase = LabPhase::Up;
    }

    /// A command that would run in one of its places.
    ///
    /// # Errors
    ///
    /// There is no such place.
    pub fn command(
        &self,
        place: &Place,
        program: &Path,
        args: &[String],
    ) -> Result<tokio::process::Command, LabError> {
        let namespace = match place {
            Place::Node(name) => self.world.node(name)?,
            Place::External => self.world.external(),
        };
        let mut command = namespace.command(program);
        command.args(args).stdin(Stdio::null());
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        Ok(command)
    }

    /// Disturbs or mends something.
    ///
    /// # Errors
    ///
    /// It names something that is not there.
    pub async fn obey(&mut self, fault: Fault) -> Result<(), LabError> {
        match fault {
            Fault::Process(name, order) => self.order(&name, order).await,
            Fault::Node(name, cable) => {
                self.world.set_node(&name, cable)?;
                self.remember(format!("node/{name}"), cable);
                Ok(())
            }
            Fault::Zone(name, cable) => {
                self.world.set_zone(&name, cable)?;
                self.remember(format!("zone/{name}"), cable);
                Ok(())
            }
            Fault::HealAll => self.heal_all().await,
        }
    }

    fn remember(&mut self, place: String, cable: Cable) {
        match cable {
            Cable::Cut => self.cut.insert(place),
            Cable::Healed => self.cut.remove(&place),
        };
    }

    async fn order(&mut self, name: &str, order: Order) -> Result<(), LabError> {
        let Some(daemon) = self.daemons.get_mut(name) else {
            let known: Vec<&str> = self.daemons.keys().map(String::as_str).collect();
            let (what, name, known) = ("process", name.to_owned(), known.join(", "));
            return Err(LabError::NoSuchPlace { what, name, known });
        };
        match daemon.order(order).await {
            Done::Obeyed => Ok(()),
            Done::NotRunning => Err(LabError::ProcessDown(name.to_owned())),
        }
    }

    async fn heal_all(&mut self) -> Result<(), LabError> {
        for place in std::mem::take(&mut self.cut) {
            match place.split_once('/') {
                Some(("node", name)) => self.world.set_node(name, Cable::Healed)?,
                Some((_, name)) => self.world.set_zone(name, Cable::Healed)?,
                None => {}
            }
        }
        for daemon in self.daemons.values_mut() {
            match daemon.state().phase {
                // What ended meanwhile is started again by itself.
                Phase::Paused => drop(daemon.order(Order::Resume).await),
                Phase::Killed => drop(daemon.order(Order::Start).await),
                Phase::Running | Phase::Waiting => {}
            }
        }
        Ok(())
    }

    /// What there is, and how it does.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut zones: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in &self.spec.topology.nodes {
            zones.entry(node.zone().to_owned()).or_default().push(node.name.clone());
        }
        let state = |(name, daemon): (&String, &Daemon)| (name.clone(), daemon.state());
        Status {
            name: self.spec.name.clone(),
            kubeconfig: self.spec.kubeconfig(),
            logs: self.spec.logs(),
            phase: self.phase,
            processes: self.daemons.iter().map(state).collect(),
            zones,
            cut: self.cut.iter().cloned().collect(),
        }
    }
}

/// How the API will be reached from the other side.
enum Way {
    /// The lab's own, through a port of the machine.
    In(TcpListener),
    /// Somebody else's, through an address of the control plane.
    Out(Box<Foreign>),
}

impl Way {
    async fn to(spec: &Spec) -> Result<Self, LabError> {
        match &spec.api {
            Api::Own { .. } => {
                let listening = TcpListener::bind(spec.listen).await;
                listening
                    .map(Self::In)
                    .map_err(|cause| LabError::Listen { address: spec.listen, cause })
            }
            Api::Joined { kubeconfig, .. } => {
                let foreign = Foreign::read(kubeconfig).await?;
                check_names_free(spec, kubeconfig).await?;
                Ok(Self::Out(Box::new(foreign)))
            }
        }
    }

    /// Opens it, and writes both kubeconfigs.
    async fn open(
        self,
        spec: &Spec,
        world: &World,
        server: Option<&Daemon>,
    ) -> Result<Relay, LabError> {
        let inside = spec.inner_address();
        let refused = |address| move |cause| LabError::Listen { address, cause };
        match self {
            Self::In(listener) => {
                let namespace = Some(world.control_plane().clone());
                let target = Target { namespace, address: inside };
                wait_for_api(spec, &target, server).await?;
                let address = listener.local_addr().map_err(refused(spec.listen))?;
                let (inner, outer) = (spec.inner_kubeconfig(), spec.kubeconfig());
                kubeconfig::write_outer(&inner, address, &outer)?;
                Ok(relay::relay(listener, target))
            }
            Self::Out(foreign) => {
                let target = Target { namespace: None, address: foreign.address };
                let listener = relay::listen_in(world.control_plane(), inside).await;
                let relay = relay::relay(listener.map_err(refused(inside))?, target);
                foreign.write(&spec.kubeconfig())?;
                foreign.write_at(inside, &spec.inner_kubeconfig())?;
                Ok(relay)
            }
        }
    }
}

/// Creates what the lab's own processes rely on.
async fn prepare(spec: &Spec) -> Result<(), LabError> {
    let cluster = Cluster::connect(&spec.kubeconfig()).await?;
    let mut all = vec![nearhop_api::locator::definition()];
    all.extend(dns::objects(spec));
    objects::put_all(&cluster, &all).await
}

/// Two agents for one Node would both run its Pods. One that lives has just said so.
async fn check_names_free(spec: &Spec, kubeconfig: &Path) -> Result<(), LabError> {
    let cluster = Cluster::connect(kubeconfig).await?;
    let leases = cluster.list("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases");
    let leases = leases.await?;
    for node in &spec.topology.nodes {
        let lease = leases.iter().find(|lease| name_of(lease) == node.name);
        let renewed = lease.and_then(|lease| lease["spec"]["renewTime"].as_str()?.parse().ok());
        let age = renewed.map(|time: Timestamp| Timestamp::now().duration_since(time));
        if age.is_some_and(|age| age < ALIVE) {
            return Err(LabError::NodeTaken(node.name.clone()));
        }
    }
    Ok(())
}

fn start(daemons: &mut BTreeMap<String, Daemon>, recipe: Recipe) -> Result<(), LabError> {
    let name = recipe.name.clone();
    let path = recipe.program.clone();
    let daemon = Daemon::start(recipe).map_err(|cause| LabError::File { path, cause })?;
    daemons.insert(name, daemon);
    Ok(())
}

/// The API server has written its kubeconfig when it answers.
async fn wait_for_api(
    spec: &Spec,
    target: &Target,
    server: Option<&Daemon>,
) -> Result<(), LabError> {
    let deadline = Instant::now() + PATIENCE;
    while !spec.inner_kubeconfig().exists() || target.connect().await.is_err() {
        let ended = server.is_some_and(|server| server.state().last_end.is_some());
        if ended || Instant::now() > deadline {
            return Err(LabError::NoApi { why: complaint(&spec.log(APISERVER)) });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// The last error that a process told of.
fn complaint(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    last.unwrap_or("it does not say why").to_owned()
}

/// The end of a log, for whoever has no time to look for it.
fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
