//! Errors of a lab: what failed, and the cure.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use nearhop_net::NetError;
use nearhop_runtime::client::ApiFailure;

/// The lab cannot start, or a request to it failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum LabError {
    #[error("a lab needs at least one zone. Cure: --zones 1 or more")]
    NoZones,
    #[error(
        "a lab needs at least one node. Cure: --nodes-per-zone 1 or more, or a `node` line in --config"
    )]
    NoNodes,
    #[error("{nodes} nodes are too many for a lab. Cure: at most {max}")]
    TooManyNodes { nodes: usize, max: usize },
    #[error("two nodes have the name `{0}`. Cure: give each node its own name")]
    DuplicateNode(String),
    #[error(
        "`{0}` is not a valid node name. Cure: up to 63 lower case letters, digits, `-` and `.`, a \
         letter or digit at both ends"
    )]
    NodeName(String),
    #[error(
        "node {node}: a lab does not support {what}. Cure: omit it; the lab assigns addresses, and \
         `nearhop lab fault` injects faults"
    )]
    NodeOption { node: String, what: &'static str },
    #[error("{flag} {range} overlaps {other} {taken}. Cure: give one of them another range")]
    RangeInUse { flag: &'static str, range: IpNet, other: &'static str, taken: IpNet },
    #[error("{flag} is too small for {nodes} nodes. Cure: a larger range, or fewer nodes")]
    RangeTooSmall { flag: &'static str, nodes: usize },
    #[error(
        "{flag} {range} is loopback, link-local or multicast. Cure: a private range such as 10.0.0.0/8"
    )]
    RangeUnusable { flag: &'static str, range: IpNet },
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("the lab has no {what} `{name}`; it has {known}")]
    NotFound { what: &'static str, name: String, known: String },
    #[error(
        "a lab `{0}` runs already. Cure: another --name, or stop it with `nearhop lab down --name {0}`"
    )]
    Runs(String),
    #[error(
        "a lab needs root or user namespaces, and this machine refuses both ({direct}; user \
         namespace: {nested}). Cure: run it with sudo, or allow user namespaces: sysctl \
         kernel.unprivileged_userns_clone=1, user.max_user_namespaces=1000 or \
         kernel.apparmor_restrict_unprivileged_userns=0, depending on the system"
    )]
    Forbidden { direct: io::Error, nested: io::Error },
    #[error("this kernel has no PID and mount namespaces: {0}. Cure: a kernel with CONFIG_PID_NS")]
    Unshare(io::Error),
    #[error(
        "cannot listen on {address}: {cause}. Cure: another --listen, or `:0` for any free port"
    )]
    Listen { address: SocketAddr, cause: io::Error },
    #[error("the API server does not start: {why}")]
    NoApi { why: String },
    #[error("{0} is not running. Cure: `nearhop lab fault start {0}`")]
    ProcessDown(String),
    #[error("{what}: {message}. Cure: `nearhop lab status` shows whether the API server runs")]
    Unreachable { what: String, message: String },
    #[error(transparent)]
    Api(ApiFailure),
    #[error("cannot {what}: {cause}")]
    Exec { what: &'static str, cause: io::Error },
    #[error("{0}")]
    ExecRefused(String),
    #[error(
        "the lab has ended, and the command with it. Cure: `nearhop lab up`, then run the command again"
    )]
    Ended,
    #[error("{what}: {why}")]
    Drive { what: String, why: String },
    #[error(
        "the cluster has a live node `{0}`. Cure: other node names in --config, or stop the agent of \
         that node"
    )]
    NodeTaken(String),
    #[error("kubeconfig {}: {why}. Cure: a kubeconfig that kubectl accepts", path.display())]
    Kubeconfig { path: PathBuf, why: String },
    #[error("--config: {0}")]
    Config(String),
    #[error("{0}")]
    NotReady(String),
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
}

impl From<ApiFailure> for LabError {
    fn from(failure: ApiFailure) -> Self {
        match failure {
            ApiFailure::Unreachable { what, message } => Self::Unreachable { what, message },
            failure => Self::Api(failure),
        }
    }
}
