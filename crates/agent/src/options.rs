//! What an agent is told about itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

/// A node, and how it is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Node's name.
    pub node: String,
    /// The node's addresses, at most one of each family, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Where pods' addresses come from, one range for each family.
    pub pod_cidrs: Vec<IpNet>,
    /// Labels that the Node is to have.
    pub labels: BTreeMap<String, String>,
    /// How much CPU the Node says it has, as a quantity.
    pub cpu: String,
    /// How much memory the Node says it has, as a quantity.
    pub memory: String,
    /// How many pods the Node takes.
    pub pods: u32,
    /// Where logs and exec are served.
    pub port: u16,
    /// The cluster's name server.
    pub cluster_dns: Option<IpAddr>,
    /// The domain that Services' names end in.
    pub cluster_domain: String,
    /// Where logs and volumes live.
    pub root_dir: PathBuf,
    /// How often the Node's Lease is renewed.
    pub heartbeat: Duration,
}

impl Options {
    /// A node with kubelet's defaults.
    #[must_use]
    pub fn new(node: &str, root_dir: PathBuf) -> Self {
        Self {
            node: node.to_owned(),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            labels: BTreeMap::new(),
            cpu: "4".to_owned(),
            memory: "8Gi".to_owned(),
            pods: 110,
            port: 10250,
            cluster_dns: None,
            cluster_domain: "cluster.local".to_owned(),
            root_dir,
            heartbeat: Duration::from_secs(10),
        }
    }

    /// The zone that the Node's labels name.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.labels.get("topology.kubernetes.io/zone").map_or("", String::as_str)
    }
}
