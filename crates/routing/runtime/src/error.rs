//! Errors while a process starts, with cause and fix.
//!
//! Later failures are not here: a running daemon reports them in logs, checks and metrics, and
//! continues.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};

/// Why a part of the process could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The kubeconfig of `--kubeconfig` or `KUBECONFIG` cannot be used.
    #[error("cannot use the kubeconfig {}: {why}; name another with --kubeconfig or KUBECONFIG", show(.files))]
    Kubeconfig {
        /// The files.
        files: Vec<PathBuf>,
        /// The reason.
        #[source]
        why: KubeconfigError,
    },
    /// `KUBECONFIG` names files, and none of them exists.
    #[error("none of the files in KUBECONFIG is there: {}; correct or unset it", show(.files))]
    NoSuchKubeconfig {
        /// The files.
        files: Vec<PathBuf>,
    },
    /// The process runs in a Pod, but without a service account.
    #[error(
        "KUBERNETES_SERVICE_HOST is set, but the Pod's service account cannot be used: {0}; \
         mount its token (automountServiceAccountToken: true) or name a kubeconfig with --kubeconfig"
    )]
    InCluster(#[source] InClusterError),
    /// There is no kubeconfig, and the process does not run in a Pod.
    #[error(
        "there is no cluster to talk to: no --kubeconfig, no KUBECONFIG, no KUBERNETES_SERVICE_HOST, \
         and no HOME to look for .kube/config in; name a kubeconfig with --kubeconfig"
    )]
    NoCluster,
    /// The user agent is not a valid header value.
    #[error("the user agent {0:?} cannot be sent; use printable ASCII without line breaks")]
    UserAgent(String),
    /// The certificates or the credentials in the configuration cannot be used.
    #[error(
        "cannot make a client for {url}: {why}; correct the certificates or the credentials of the \
         context in use"
    )]
    Client {
        /// The URL of the server.
        url: String,
        /// The reason.
        #[source]
        why: Box<kube::Error>,
    },
    /// A proxy setting is not valid. It may contain a password, so the message does not repeat it.
    #[error(
        "{setting} does not name a proxy; write it as http://HOST:PORT, https://HOST:PORT or \
         socks5://HOST:PORT, unset it, or name the API server in NO_PROXY"
    )]
    Proxy {
        /// The environment variable, or the field of the kubeconfig.
        setting: String,
    },
    /// The address of the admin port cannot be bound.
    #[error("cannot listen on {address}: {why}; choose another address or end who has it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        #[source]
        why: io::Error,
    },
    /// Two options of the leader election contradict each other.
    #[error("the leader election cannot work like this: {0}")]
    LeaseOptions(String),
    /// The log format does not exist.
    #[error("unknown log format {0:?}; use text or json")]
    LogFormat(String),
    /// The process cannot receive signals.
    #[error("cannot receive signals: {0}; is the process out of file descriptors?")]
    Signals(#[source] io::Error),
}

fn show(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}
