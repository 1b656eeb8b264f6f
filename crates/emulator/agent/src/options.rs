//! What an agent is told about itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use nearhop_runtime::health::Health;
use nearhop_runtime::pki::{KUBELET_CLIENT, Pair};

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
    /// Taints that the Node is to have when the agent registers it.
    pub taints: Vec<Taint>,
    /// How much CPU the Node says it has, as a quantity.
    pub cpu: String,
    /// How much memory the Node says it has, as a quantity.
    pub memory: String,
    /// How many pods the Node takes.
    pub pods: u32,
    /// Where logs and exec are served.
    pub port: u16,
    /// What the agent shows there; without it a certificate that it makes itself.
    pub serving: Option<Pair>,
    /// Who may ask there; without it nobody.
    pub clients: Option<Clients>,
    /// The cluster's name server.
    pub cluster_dns: Option<IpAddr>,
    /// The domain that Services' names end in.
    pub cluster_domain: String,
    /// Where logs and volumes live.
    pub root_dir: PathBuf,
    /// How often the Node's Lease is renewed.
    pub heartbeat: Duration,
    /// Where its loop says that it turns.
    pub health: Health,
}

/// Who may ask for logs and exec: whoever shows a certificate of these authorities for one of these
/// names.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The authorities' certificates, as PEM.
    pub authorities: String,
    /// Common names.
    pub names: Vec<String>,
}

impl Clients {
    /// API servers with a certificate as kubeadm makes it.
    #[must_use]
    pub fn api_servers(authorities: String) -> Self {
        Self { authorities, names: vec![KUBELET_CLIENT.to_owned()] }
    }
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

    /// The zone that the Node's labels name.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.labels.get("topology.kubernetes.io/zone").map_or("", String::as_str)
    }
}
