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
    #[error("a lab needs at least one node. Cure: --nodes-per-zone 1 or more")]
    NoNodes,
    #[error("{nodes} nodes are too many for a lab. Cure: at most {max}")]
    TooManyNodes { nodes: usize, max: usize },
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
    #[error(
        "the API server does not answer ({what}: {message}). Cure: `nearhop lab status` shows \
         whether it runs"
    )]
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
    #[error("{place}: {why}")]
    Config { place: String, why: String },
    #[error(
        "XDG_RUNTIME_DIR {} {why}. Cure: set it to a directory of this user, or unset it; labs are \
         then kept in {}", path.display(), fallback.display()
    )]
    RuntimeDir { path: PathBuf, why: String, fallback: PathBuf },
    #[error(
        "--data-dir {} has Services with cluster IPs such as {kept}, which are not of \
         --service-cidr {wanted}. Cure: the --service-cidr of its first start, or another --data-dir",
        path.display()
    )]
    OtherServices { path: PathBuf, kept: String, wanted: String },
    #[error("nodes not ready after {seconds} s: {}{why}", missing.join(", "))]
    NodesMissing { seconds: u64, missing: Vec<String>, why: String },
    #[error("{0}")]
    NotReady(String),
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    #[error(
        "cannot change {}: {why}. Cure: {cure}", path.display()
    )]
    Merge { path: PathBuf, why: String, cure: &'static str },
    #[error("{}: {cause}{}", path.display(), cure(cause))]
    File { path: PathBuf, cause: io::Error },
}

/// How to make a file writable.
fn cure(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ". Cure: free space there, or set XDG_RUNTIME_DIR to a directory with more"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            ". Cure: allow this user to write there, or set XDG_RUNTIME_DIR to another directory"
        }
        _ => "",
    }
}

impl From<ApiFailure> for LabError {
    fn from(failure: ApiFailure) -> Self {
        match failure {
            ApiFailure::Unreachable { what, message } => Self::Unreachable { what, message },
            failure => Self::Api(failure),
        }
    }
}
