//! What can go wrong while a process is set up: the cause, and the cure.
//!
//! Not what goes wrong later: a daemon that runs reports through logs, checks and metrics, and
//! carries on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};

/// Why a piece of the process could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The kubeconfig that was asked for, or that `KUBECONFIG` names.
    #[error("cannot use the kubeconfig {}: {why}; name another with --kubeconfig or KUBECONFIG", show(.files))]
    Kubeconfig {
        /// Which files.
        files: Vec<PathBuf>,
        /// Why not.
        #[source]
        why: KubeconfigError,
    },
    /// `KUBECONFIG` names files, and none of them is there.
    #[error("none of the files in KUBECONFIG is there: {}; correct or unset it", show(.files))]
    NoSuchKubeconfig {
        /// Which files.
        files: Vec<PathBuf>,
    },
    /// The process runs in a Pod, but without a service account.
    #[error(
        "KUBERNETES_SERVICE_HOST is set, but the Pod's service account cannot be used: {0}; \
         mount its token (automountServiceAccountToken: true) or name a kubeconfig with --kubeconfig"
    )]
    InCluster(#[source] InClusterError),
    /// There is neither a kubeconfig nor a Pod around the process.
    #[error(
        "there is no cluster to talk to: no --kubeconfig, no KUBECONFIG, no KUBERNETES_SERVICE_HOST, \
         and no HOME to look for .kube/config in; name a kubeconfig with --kubeconfig"
    )]
    NoCluster,
    /// The user agent is not a header's value.
    #[error("the user agent {0:?} cannot be sent; use printable ASCII without line breaks")]
    UserAgent(String),
    /// Certificates or credentials of the configuration.
    #[error(
        "cannot make a client for {url}: {why}; correct the certificates or the credentials of the \
         context in use"
    )]
    Client {
        /// Which server.
        url: String,
        /// Why not.
        #[source]
        why: Box<kube::Error>,
    },
    /// What is said of a proxy cannot be understood. It may hold a password, so it is not repeated.
    #[error(
        "{setting} does not name a proxy; write it as http://HOST:PORT, https://HOST:PORT or \
         socks5://HOST:PORT, unset it, or name the API server in NO_PROXY"
    )]
    Proxy {
        /// The variable, or the field of the kubeconfig.
        setting: String,
    },
    /// The admin port.
    #[error("cannot listen on {address}: {why}; choose another address or end who has it")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        why: io::Error,
    },
    /// What an election was given contradicts itself.
    #[error("the leader election cannot work like this: {0}")]
    LeaseOptions(String),
    /// The name of a log format.
    #[error("unknown log format {0:?}; use text or json")]
    LogFormat(String),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}; is the process out of file descriptors?")]
    Signals(#[source] io::Error),
}

fn show(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}
