//! Configuration of the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use nearhop_runtime::health::Health;
use nearhop_runtime::pki::Pair;

/// A node's configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Node's name.
    pub node: String,
    /// The node's addresses, at most one per family, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// The ranges of Pod addresses, one per family.
    pub pod_cidrs: Vec<IpNet>,
    /// Labels of the Node.
    pub labels: BTreeMap<String, String>,
    /// Taints that the agent adds when it registers the Node.
    pub taints: Vec<Taint>,
    /// CPU capacity of the Node, as a quantity.
    pub cpu: String,
    /// Memory capacity of the Node, as a quantity.
    pub memory: String,
    /// The largest number of Pods.
    pub pods: u32,
    /// The port for logs and exec.
    pub port: u16,
    /// The serving certificate; by default the agent signs one itself.
    pub serving: Option<Pair>,
    /// The clients that may use the port; `None` rejects all.
    pub clients: Option<Clients>,
    /// The cluster DNS server.
    pub cluster_dns: Option<IpAddr>,
    /// The cluster domain.
    pub cluster_domain: String,
    /// The directory for logs and volumes.
    pub root_dir: PathBuf,
    /// How often the agent renews the Node's Lease.
    pub heartbeat: Duration,
    /// Where the loop reports that it is alive.
    pub health: Health,
}

/// Clients that may request logs and exec: those with a certificate of these CAs for one of these
/// names.
#[derive(Clone, Debug)]
pub struct Clients {
    /// CA certificates, as PEM.
    pub authorities: String,
    /// Accepted common names.
    pub names: Vec<String>,
}

impl Options {
    /// A node with the kubelet's defaults.
    #[must_use]
    pub fn new(node: &str, root_dir: PathBuf) -> Self {
        Self {
            node: node.to_owned(),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            cpu: "4".to_owned(),
            memory: "8Gi".to_owned(),
            pods: 110,
            port: 10250,
            serving: None,
            clients: None,
            cluster_dns: None,
            cluster_domain: "cluster.local".to_owned(),
            root_dir,
            heartbeat: Duration::from_secs(10),
            health: Health::new(),
        }
    }

    pub(crate) fn zone(&self) -> &str {
        self.labels.get("topology.kubernetes.io/zone").map_or("", String::as_str)
    }
}
