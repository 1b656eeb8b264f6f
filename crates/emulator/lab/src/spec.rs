//! The spec of a lab, and the flags of its processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearhop_core::Gate;
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::daemon::ProcessSpec;
use crate::pki::KubeletPki;
use crate::relay::Target;
use crate::topology::{LabNode, Topology};
use crate::world::World;

/// Port of the API server inside the lab.
const API_PORT: u16 = 6443;

/// The process name of the API server.
pub(crate) const APISERVER: &str = "apiserver";

/// Port of agents, for logs and exec.
const AGENT_PORT: u16 = 10250;

/// Admin port of proxies, on the node's loopback.
const PROXY_ADMIN: u16 = 10249;

/// Ports of the metrics, on the loopback of the control plane or the node.
const CONTROLLER_ADMIN: u16 = 10271;
const MANAGER_ADMIN: u16 = 10272;
const DNS_ADMIN: u16 = 9153;
const AGENT_ADMIN: u16 = 10273;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// Offset of cluster DNS in the range of cluster IPs, as in most clusters.
const DNS_OFFSET: u32 = 10;

/// Without leader election: a killed controller would block its successor until its lease expires.
const CONTROLLER: &str = "controller --mode replace --leader-elect=false";

/// The spec of a lab, passed to the supervisor as a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Name of the lab.
    pub name: String,
    /// Directory of the lab.
    pub state: PathBuf,
    /// Path of the `nearhop` binary.
    pub program: PathBuf,
    /// Nodes.
    pub topology: Topology,
    /// API server.
    pub api: Api,
    /// Address of the API server on the machine.
    pub listen: SocketAddr,
    /// Controllers to run.
    pub controllers: Controllers,
    /// How long a node may miss heartbeats before the manager marks it as not ready.
    pub node_grace: Duration,
    /// `--feature-gates` of the API server, the controller and the proxies.
    pub gates: String,
    /// `--config`: its objects are created when the nodes are ready.
    pub config: Option<ConfigText>,
}

/// A file of the fixture language.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConfigText {
    /// Its name, for errors.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The API server of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Api {
    /// The lab's own.
    Own {
        /// Directory of its objects.
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

/// The controllers that a lab runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Controllers {
    /// nearhop's, and those for Deployments, scheduling and nodes.
    All,
    /// None: the cluster has its own.
    None,
}

impl Spec {
    /// The kubeconfig for processes in the lab.
    pub(crate) fn inner_kubeconfig(&self) -> PathBuf {
        self.memory().join("kubeconfig.lab")
    }

    /// The kubeconfig for the machine.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        control_socket(&self.state)
    }

    /// The API server's address inside the lab.
    pub(crate) fn inner_address(&self) -> SocketAddr {
        SocketAddr::new(self.topology.control_plane[0], API_PORT)
    }

    /// The directory in memory, which only processes of the lab see.
    fn memory(&self) -> PathBuf {
        memory_of(&self.state)
    }

    /// The directory of an API server that keeps its objects only while the lab runs.
    pub fn data_in_memory(state: &Path) -> PathBuf {
        memory_of(state).join("data")
    }

    /// Where the lab's processes find the logs.
    pub(crate) fn logs(&self) -> PathBuf {
        logs_of(&self.state)
    }

    /// Where other processes of the machine find the logs.
    pub(crate) fn logs_link(&self) -> PathBuf {
        logs_link(&self.state)
    }

    /// The directory of the certificates.
    pub(crate) fn pki(&self) -> PathBuf {
        self.memory().join("pki")
    }

    pub(crate) fn log(&self, process: &str) -> PathBuf {
        self.logs().join(log_file(process))
    }

    /// The API server, if the lab has its own.
    pub(crate) fn api_server(&self, world: &World) -> Option<ProcessSpec> {
        let Api::Own { data } = &self.api else { return None };
        let mut args = words("apiserver --enable-faults --private-network");
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
        Some(self.process(APISERVER, args, world.control_plane()))
    }

    /// The other processes, which need the API.
    pub(crate) fn others(&self, world: &World) -> Result<Vec<ProcessSpec>, LabError> {
        let mut processes = Vec::new();
        if self.controllers == Controllers::All {
            let controller = self.with_gates(words(CONTROLLER));
            processes.push(self.process(
                "controller",
                self.with_api(controller),
                world.control_plane(),
            ));
            let mut manager = words("manager");
            let grace = format!("{}ms", self.node_grace.as_millis());
            manager.extend(flag("--node-monitor-grace-period", grace));
            processes.push(self.process("manager", self.with_api(manager), world.control_plane()));
        }
        for node in &self.topology.nodes {
            let namespace = world.node(&node.name)?;
            let each =
                [("agent", self.agent(node)), ("dns", self.dns(node)), ("proxy", self.proxy(node))];
            for (what, args) in each {
                processes.push(self.process(&format!("{what}/{}", node.name), args, namespace));
            }
        }
        Ok(processes)
    }

    /// The processes that serve metrics, and where.
    pub(crate) fn admin_ports(&self, world: &World) -> Result<Vec<(String, Target)>, LabError> {
        let target = |namespace: &nearhop_net::Namespace, port| Target {
            namespace: Some(namespace.clone()),
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        };
        let mut ports = Vec::new();
        if self.controllers == Controllers::All {
            let plane = world.control_plane();
            ports.push(("controller".to_owned(), target(plane, CONTROLLER_ADMIN)));
            ports.push(("manager".to_owned(), target(plane, MANAGER_ADMIN)));
        }
        for node in &self.topology.nodes {
            let namespace = world.node(&node.name)?;
            for (what, port) in [("agent", AGENT_ADMIN), ("dns", DNS_ADMIN), ("proxy", PROXY_ADMIN)]
            {
                ports.push((format!("{what}/{}", node.name), target(namespace, port)));
            }
        }
        Ok(ports)
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
        args.extend(flag("--root-dir", self.memory().join("nodes").join(&node.name).display()));
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

    /// The directory that keeps the objects when the lab ends.
    pub(crate) fn kept_data(&self) -> Option<PathBuf> {
        match &self.api {
            Api::Own { data } if *data != Self::data_in_memory(&self.state) => Some(data.clone()),
            _ => None,
        }
    }

    /// Whether the objects are kept when the lab ends.
    pub(crate) fn keeps_objects(&self) -> bool {
        self.kept_data().is_some()
    }

    /// Whether nodes have the lab's taint.
    pub(crate) fn has_tainted_nodes(&self) -> bool {
        matches!(self.api, Api::Joined { taint: Taint::NoSchedule, .. })
    }

    /// The DNS server of a node's Pods: the cluster IP of kube-dns, or in a joined cluster the node's
    /// own server.
    fn name_server(&self, node: &LabNode) -> IpAddr {
        self.dns_addresses().map_or(node.addresses[0], |addresses| addresses[0])
    }

    /// The cluster IPs of kube-dns, if the lab has its own.
    pub(crate) fn dns_addresses(&self) -> Option<[IpAddr; 2]> {
        match self.api {
            Api::Own { .. } => self.topology.ranges.services.at(DNS_OFFSET),
            Api::Joined { .. } => None,
        }
    }

    fn dns(&self, node: &LabNode) -> Vec<String> {
        let at = |address: &IpAddr| SocketAddr::new(*address, DNS_PORT);
        let mut args = self.with_gates(self.with_api(words("dns --threads 1")));
        // The lab has no route to upstream servers.
        args.extend(flag("--resolv-conf", "/dev/null"));
        args.extend(flag("--listen", join(&node.addresses.each_ref().map(at))));
        args.extend(flag("--health-bind-address", "127.0.0.1:8080"));
        args.extend(flag("--ready-bind-address", "127.0.0.1:8181"));
        args.extend(flag("--metrics-bind-address", format!("127.0.0.1:{DNS_ADMIN}")));
        args
    }

    fn proxy(&self, node: &LabNode) -> Vec<String> {
        let mut args = self.with_gates(self.with_api(words("proxy")));
        args.extend(flag("--hostname-override", &node.name));
        args.extend(flag("--cluster-cidr", self.topology.ranges.pods));
        args.extend(flag("--state-dir", self.state.join("proxy").display()));
        args.extend(flag("--metrics-bind-address", format!("127.0.0.1:{PROXY_ADMIN}")));
        args
    }

    /// Enables PodLocators by default: of two entries the later one wins.
    fn with_gates(&self, mut args: Vec<String>) -> Vec<String> {
        args.extend(flag("--feature-gates", self.all_gates()));
        args
    }

    /// The gates of the user, and those that the lab sets.
    pub(crate) fn all_gates(&self) -> String {
        let own = format!("{}=true", Gate::PodLocator);
        if self.gates.is_empty() { own } else { format!("{own},{}", self.gates) }
    }

    fn with_api(&self, mut args: Vec<String>) -> Vec<String> {
        args.extend(flag("--kubeconfig", self.inner_kubeconfig().display()));
        args
    }

    fn process(
        &self,
        name: &str,
        args: Vec<String>,
        namespace: &nearhop_net::Namespace,
    ) -> ProcessSpec {
        let (program, namespace) = (self.program.clone(), namespace.clone());
        ProcessSpec { name: name.to_owned(), program, args, namespace, log: self.log(name) }
    }
}

/// The directory in memory below a lab's directory.
pub(crate) fn memory_of(state: &Path) -> PathBuf {
    state.join("memory")
}

/// The directory of the logs in memory.
pub(crate) fn logs_of(state: &Path) -> PathBuf {
    memory_of(state).join("log")
}

/// The link to the logs for processes outside of the lab.
pub(crate) fn logs_link(state: &Path) -> PathBuf {
    state.join("log")
}

/// The file of a process's log in the directory of the logs.
pub(crate) fn log_file(process: &str) -> String {
    format!("{}.log", process.replace('/', "-"))
}

/// The control socket in a lab's directory.
pub(crate) fn control_socket(state: &Path) -> PathBuf {
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
