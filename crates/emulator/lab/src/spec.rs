//! What a lab is started with, and which processes that means.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use nearhop_core::Gate;
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::daemon::Recipe;
use crate::pki::KubeletPki;
use crate::topology::{LabNode, Topology};
use crate::world::World;

/// Where the API server listens inside the lab.
pub const API_PORT: u16 = 6443;

/// The name of the process that is the API server.
pub const APISERVER: &str = "apiserver";

/// Where a node's agent answers the API server.
const AGENT_PORT: u16 = 10250;

/// Where a proxy says what it does, on its node's loopback.
pub const PROXY_ADMIN: u16 = 10249;

/// Where a name server answers.
const DNS_PORT: u16 = 53;

/// The place of the name servers' Service among the cluster IPs, as everywhere.
const DNS_PLACE: u32 = 10;

/// One is enough here, and a killed one is missed for as long as its lease lasts.
const CONTROLLER: &str = "controller --mode replace --leader-elect=false";

/// A lab to be. Written to a file, and read by the process that becomes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub state: PathBuf,
    /// The `nearhop` command.
    pub program: PathBuf,
    /// Its nodes.
    pub topology: Topology,
    /// Whose API.
    pub api: Api,
    /// Where the API is reached from the machine.
    pub listen: SocketAddr,
    /// Which controllers run.
    pub controllers: Controllers,
    /// `--feature-gates` of the API server, the controller and the proxies.
    pub gates: String,
    /// Objects to create when it is up: a fixture's text.
    pub fixture: Option<String>,
}

/// Whose API server it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Api {
    /// The lab's own; its objects are here.
    Own {
        /// A directory, made if it is not there.
        data: PathBuf,
    },
    /// That of the cluster that the lab joins.
    Joined {
        /// The cluster's kubeconfig.
        kubeconfig: PathBuf,
        /// The taint of the lab's nodes.
        taint: Taint,
    },
}

/// The taint of the nodes of a lab that joins a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Taint {
    /// None: the cluster's own Pods can run on the lab's nodes.
    None,
    /// `nearhop.dev/lab:NoSchedule`.
    NoSchedule,
}

pub(crate) const TAINT_KEY: &str = "nearhop.dev/lab";
pub(crate) const TAINT_EFFECT: &str = "NoSchedule";

/// Which controllers the lab runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Controllers {
    /// nearhop's, and those for Deployments, scheduling and nodes.
    All,
    /// None: the cluster has its own.
    None,
}

impl Spec {
    /// The kubeconfig for processes in the lab.
    #[must_use]
    pub fn inner_kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig.lab")
    }

    /// The kubeconfig for everybody else.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// Where `lab status` and the like ask.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.state)
    }

    /// Where the API is reached from inside.
    #[must_use]
    pub fn inner_address(&self) -> SocketAddr {
        SocketAddr::new(self.topology.control_plane[0], API_PORT)
    }

    /// Where the processes' logs are.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.state.join("log")
    }

    /// Where the log of a process is.
    #[must_use]
    pub fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{}.log", process.replace('/', "-")))
    }

    /// The API server, if the lab has its own.
    #[must_use]
    pub fn api_server(&self, world: &World) -> Option<Recipe> {
        let Api::Own { data } = &self.api else { return None };
        let mut args = words("apiserver --enable-faults");
        args.extend(flag("--listen", self.inner_address()));
        args.extend(flag("--data-dir", data.display()));
        args.extend(flag("--service-cidr", self.topology.ranges.services));
        args.extend(flag("--kubeconfig-out", self.inner_kubeconfig().display()));
        if let Some(pki) = KubeletPki::of(self) {
            let client = pki.client();
            args.extend(flag("--kubelet-certificate-authority", pki.authority().display()));
            args.extend(flag("--kubelet-client-certificate", client.certificate.display()));
            args.extend(flag("--kubelet-client-key", client.key.display()));
        }
        let args = self.with_gates(args);
        Some(self.recipe(APISERVER, args, world.control_plane()))
    }

    /// Everything else, for when the API is there.
    ///
    /// # Errors
    ///
    /// Never for the world of this topology.
    pub fn others(&self, world: &World) -> Result<Vec<Recipe>, LabError> {
        let mut recipes = Vec::new();
        if self.controllers == Controllers::All {
            let controller = self.with_gates(words(CONTROLLER));
            recipes.push(self.recipe(
                "controller",
                self.with_api(controller),
                world.control_plane(),
            ));
            let manager = words("manager --node-monitor-grace-period 8s");
            recipes.push(self.recipe("manager", self.with_api(manager), world.control_plane()));
        }
        for node in &self.topology.nodes {
            let namespace = world.node(&node.name)?;
            let each =
                [("agent", self.agent(node)), ("dns", self.dns(node)), ("proxy", self.proxy(node))];
            for (what, args) in each {
                recipes.push(self.recipe(&format!("{what}/{}", node.name), args, namespace));
            }
        }
        Ok(recipes)
    }

    fn agent(&self, node: &LabNode) -> Vec<String> {
        let labels: Vec<String> =
            node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut args = self.with_api(words("agent --heartbeat 1s --memory 16Gi"));
        args.extend(flag("--node-name", &node.name));
        args.extend(flag("--node-ip", join(&node.addresses)));
        args.extend(flag("--pod-cidr", join(&node.pod_cidrs)));
        args.extend(flag("--labels", labels.join(",")));
        args.extend(flag("--cpu", format!("{}m", node.cpu_milli)));
        args.extend(flag("--port", AGENT_PORT));
        args.extend(flag("--cluster-dns", self.name_server(node)));
        args.extend(flag("--root-dir", self.state.join("nodes").join(&node.name).display()));
        if let Some(pki) = KubeletPki::of(self) {
            let own = pki.agent(&node.name);
            args.extend(flag("--tls-cert-file", own.certificate.display()));
            args.extend(flag("--tls-private-key-file", own.key.display()));
            args.extend(flag("--client-ca-file", pki.authority().display()));
        }
        if self.has_tainted_nodes() {
            args.extend(flag("--register-with-taints", format!("{TAINT_KEY}:{TAINT_EFFECT}")));
        }
        args
    }

    /// Whether nodes have the lab's taint, so that its own Pods must tolerate it.
    #[must_use]
    pub fn has_tainted_nodes(&self) -> bool {
        matches!(self.api, Api::Joined { taint: Taint::NoSchedule, .. })
    }

    /// Whom the Pods of a node ask: the name servers' Service, which the proxies send to the node's
    /// own; in somebody else's cluster the node's own directly.
    #[must_use]
    pub fn name_server(&self, node: &LabNode) -> IpAddr {
        self.dns_addresses().map_or(node.addresses[0], |addresses| addresses[0])
    }

    /// The cluster IPs of the name servers' Service, if the lab has one.
    #[must_use]
    pub fn dns_addresses(&self) -> Option<[IpAddr; 2]> {
        match self.api {
            Api::Own { .. } => self.topology.ranges.services.at(DNS_PLACE),
            Api::Joined { .. } => None,
        }
    }

    fn dns(&self, node: &LabNode) -> Vec<String> {
        let at = |address: &IpAddr| SocketAddr::new(*address, DNS_PORT);
        let mut args = self.with_gates(self.with_api(words("dns --threads 1")));
        // Nobody outside of the lab can be reached from it.
        args.extend(flag("--resolv-conf", "/dev/null"));
        args.extend(flag("--listen", join(&node.addresses.each_ref().map(at))));
        args.extend(flag("--health-bind-address", "127.0.0.1:8080"));
        args.extend(flag("--ready-bind-address", "127.0.0.1:8181"));
        args.extend(flag("--metrics-bind-address", "127.0.0.1:9153"));
        args
    }

    fn proxy(&self, node: &LabNode) -> Vec<String> {
        let mut args = self.with_gates(self.with_api(words("proxy")));
        args.extend(flag("--hostname-override", &node.name));
        args.extend(flag("--cluster-cidr", self.topology.ranges.pods));
        args.extend(flag("--metrics-bind-address", format!("127.0.0.1:{PROXY_ADMIN}")));
        args
    }

    /// PodLocators are on, unless the user says otherwise: the later entry wins.
    fn with_gates(&self, mut args: Vec<String>) -> Vec<String> {
        args.extend(flag("--feature-gates", format!("{}=true,{}", Gate::PodLocator, self.gates)));
        args
    }

    fn with_api(&self, mut args: Vec<String>) -> Vec<String> {
        args.extend(flag("--kubeconfig", self.inner_kubeconfig().display()));
        args
    }

    fn recipe(&self, name: &str, args: Vec<String>, namespace: &nearhop_net::Namespace) -> Recipe {
        let (program, namespace) = (self.program.clone(), namespace.clone());
        Recipe { name: name.to_owned(), program, args, namespace, log: self.log(name) }
    }
}

/// Where a lab's socket is in its directory.
#[must_use]
pub fn control_socket(state: &Path) -> PathBuf {
    state.join("control.sock")
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn flag(name: &str, value: impl ToString) -> [String; 2] {
    [name.to_owned(), value.to_string()]
}

fn join(values: &[impl ToString; 2]) -> String {
    format!("{},{}", values[0].to_string(), values[1].to_string())
}
