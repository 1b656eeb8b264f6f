//! Errors while a process starts, with cause and fix.
//!
//! Later failures are not here: a running daemon reports them in logs, checks and metrics, and
//! continues.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};

/// Why a part of the process could not be set up.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum RuntimeError {
    #[error("kubeconfig {} does not exist; pass --kubeconfig or set KUBECONFIG", .file.display())]
    MissingKubeconfig { file: PathBuf },
    #[error("cannot read kubeconfig {}: {why}; pass --kubeconfig or set KUBECONFIG", .file.display())]
    UnreadableKubeconfig { file: PathBuf, why: io::Error },
    #[error("kubeconfig {} has no context {context}; {}", show(.files), .known)]
    NoSuchContext { files: Vec<PathBuf>, context: String, known: KnownContexts },
    #[error("kubeconfig {} sets no current context; {}", show(.files), .known)]
    NoCurrentContext { files: Vec<PathBuf>, known: KnownContexts },
    #[error("kubeconfig {} is not valid: {}", show(.files), one_line(.why))]
    Kubeconfig { files: Vec<PathBuf>, why: KubeconfigError },
    #[error("none of the files in KUBECONFIG exists: {}; correct or unset KUBECONFIG", show(.files))]
    NoSuchKubeconfig { files: Vec<PathBuf> },
    #[error(
        "KUBERNETES_SERVICE_HOST is set, but the Pod's service account cannot be used: {0}; \
         mount its token (automountServiceAccountToken: true) or name a kubeconfig with --kubeconfig"
    )]
    InCluster(#[source] InClusterError),
    #[error(
        "no cluster is configured: no --kubeconfig, no KUBECONFIG, no KUBERNETES_SERVICE_HOST, \
         and no HOME to look for .kube/config in; name a kubeconfig with --kubeconfig"
    )]
    NoCluster,
    #[error("the user agent {0:?} cannot be sent; use printable ASCII without line breaks")]
    UserAgent(String),
    #[error(
        "cannot make a client for {url}: {why}; correct the certificates or the credentials of the \
         context in use"
    )]
    Client {
        url: String,
        #[source]
        why: Box<kube::Error>,
    },
    // The value may contain a password, so the message does not repeat it.
    #[error(
        "{setting} does not name a proxy; write it as http://HOST:PORT, https://HOST:PORT or \
         socks5://HOST:PORT, unset it, or name the API server in NO_PROXY"
    )]
    Proxy { setting: String },
    #[error(
        "cannot listen on {address}: {why}; choose another address, or stop the process that uses it"
    )]
    Listen {
        address: SocketAddr,
        #[source]
        why: io::Error,
    },
    #[error("invalid leader election settings: {0}")]
    LeaseOptions(String),
    #[error("unknown log format {0:?}; use text or json")]
    LogFormat(String),
    #[error("cannot receive signals: {0}; raise the limit of open files (ulimit -n)")]
    Signals(#[source] io::Error),
}

/// The contexts of a kubeconfig, as the cure of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownContexts(pub Vec<String>);

impl fmt::Display for KnownContexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("it has no contexts: pass another file with --kubeconfig"),
            names => write!(f, "pass --context with one of: {}", names.join(", ")),
        }
    }
}

/// The message of kube without the lines of the file that its YAML parser shows.
fn one_line(why: &KubeconfigError) -> String {
    let text = why.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.replace("failed to parse kubeconfig YAML: error: ", "")
}

fn show(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}
