//! What can go wrong with a lab: what, and the cure.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use nearhop_net::NetError;

/// Why there is no lab, or why it could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A cluster without nodes.
    #[error("a lab needs at least one zone. Cure: --zones 1 or more")]
    NoZones,
    /// A cluster without nodes.
    #[error(
        "a lab needs at least one node. Cure: --nodes-per-zone 1 or more, or a `node` line in --config"
    )]
    NoNodes,
    /// More than a machine carries.
    #[error("{nodes} nodes are more than a lab takes. Cure: at most {most}")]
    TooManyNodes {
        /// How many were asked for.
        nodes: usize,
        /// How many are allowed.
        most: usize,
    },
    /// Two nodes of one name.
    #[error("there are two nodes `{0}`. Cure: give each a name of its own")]
    DuplicateNode(String),
    /// Not a name of a node.
    #[error(
        "`{0}` cannot be the name of a node. Cure: up to 63 lower case letters, digits, `-` and \
         `.`, a letter or digit at both ends"
    )]
    NodeName(String),
    /// Something that core can imagine and a lab cannot make.
    #[error(
        "node {node}: a lab cannot do {what}. Cure: leave it out; addresses are the lab's to give, and faults come by `nearhop lab fault`"
    )]
    NodeOption {
        /// Which node.
        node: String,
        /// The options.
        what: &'static str,
    },
    /// Two ranges share addresses.
    #[error("{flag} {range} is in use: {other} has {taken}. Cure: give one of them another range")]
    RangeInUse {
        /// The flag.
        flag: &'static str,
        /// Its value.
        range: IpNet,
        /// The flag that has it already.
        other: &'static str,
        /// Its value.
        taken: IpNet,
    },
    /// Not enough addresses.
    #[error("{flag} has no room for {nodes} nodes. Cure: a larger range, or fewer nodes")]
    RangeTooSmall {
        /// The flag.
        flag: &'static str,
        /// How many nodes there are.
        nodes: usize,
    },
    /// The kernel refused a part of the network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A place that the lab does not have.
    #[error("the lab has no {what} `{name}`; it has {known}")]
    NoSuchPlace {
        /// Node or zone.
        what: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Another lab has the name.
    #[error(
        "a lab `{0}` runs already. Cure: another --name, or end it with `nearhop lab down --name {0}`"
    )]
    Runs(String),
    /// Neither root nor a user namespace.
    #[error(
        "a lab needs to be root, or user namespaces, and this machine refuses both ({direct}; user \
         namespace: {nested}). Cure: run it with sudo, or allow them: sysctl \
         kernel.unprivileged_userns_clone=1, user.max_user_namespaces=1000 or \
         kernel.apparmor_restrict_unprivileged_userns=0, whichever this system has"
    )]
    Forbidden {
        /// Why not as we are.
        direct: io::Error,
        /// Why not in a user namespace.
        nested: io::Error,
    },
    /// The kernel cannot.
    #[error(
        "this kernel makes no PID and mount namespaces: {0}. Cure: a kernel with CONFIG_PID_NS"
    )]
    Unshare(io::Error),
    /// The port is in use, most likely.
    #[error(
        "cannot listen on {address}: {cause}. Cure: another --listen, or `:0` for any free port"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
    /// The API server did not come.
    #[error("the API server does not start: {why}")]
    NoApi {
        /// What it said.
        why: String,
    },
    /// A process that is down can be neither paused nor resumed.
    #[error("{0} does not run. Cure: `nearhop lab fault start {0}`")]
    ProcessDown(String),
    /// Addresses that no node and no Pod can have.
    #[error(
        "{flag} {range} is loopback, link-local or multicast. Cure: a private range such as 10.0.0.0/8"
    )]
    RangeUnusable {
        /// The flag.
        flag: &'static str,
        /// Its value.
        range: IpNet,
    },
    /// The API refuses something.
    #[error("{what}: {why}")]
    Api {
        /// What was asked.
        what: String,
        /// What it said.
        why: String,
    },
    /// Another agent speaks for the Node.
    #[error(
        "the cluster has a node `{0}` that lives. Cure: other names for the lab's, by --config, or \
         end the one that is there"
    )]
    NodeTaken(String),
    /// A kubeconfig that cannot be used.
    #[error("kubeconfig {}: {why}. Cure: one that kubectl works with", path.display())]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A fixture that cannot be read or made.
    #[error("--config: {0}")]
    Config(String),
    /// Nodes or Pods that do not become ready.
    #[error("{0}")]
    NotReady(String),
    /// A file or directory of the lab's own.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}
