//! An embedded Kubernetes API: stock kubectl and client libraries work against it.
//!
//! ```text
//!   http         connections, paths, Accept headers, replies
//!   rest         one file per verb
//!   store        objects, versions, watch log, disk
//!   controllers  Namespaces, garbage collection, definitions
//! ```
//!
//! `nearhop-kinds` has the rules of each kind, `nearhop-object` patches and selectors. There is no
//! admission, no RBAC beyond two tokens, and no workload controller (see `nearhop-manager`).

mod api;
mod bootstrap;
mod builtin;
mod controllers;
mod fault;
mod http;
mod identity;
mod kubelet;
mod metrics;
mod rest;
mod service_account;
mod status;
mod store;
mod user;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_kinds::strategy::selectable;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::pki::Pair;
use nearhop_runtime::server::{Wildcard, bind, bind_with_retries};
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::Api;
pub use crate::controllers::Controllers;
use crate::http::{serve, until};
pub use crate::identity::IdentityError;
use crate::identity::{Identity, write_private};
use crate::service_account::TokenKey;
use crate::store::Store;
pub use crate::store::{Durability, OpenError};

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The listen address; port 0 picks a free port.
    pub listen: SocketAddr,
    /// Where objects are stored.
    pub durability: Durability,
    /// Service addresses, node ports, feature gates.
    pub cluster: ClusterConfig,
    /// The number of changes of each resource in the watch log.
    pub history: usize,
    /// Which controllers run.
    pub controllers: Controllers,
    /// Whether `/nearhop/faults` is served.
    pub faults: Faults,
    /// The TLS options for kubelets.
    pub kubelets: KubeletOptions,
    /// Where `/metrics` is read from: a daemon has the metrics of its process here already.
    pub metrics: Metrics,
}

/// TLS between the API server and kubelets.
#[derive(Clone, Debug, Default)]
pub struct KubeletOptions {
    /// The CA of the kubelets' serving certificates, as PEM. Without it they are not verified, as in
    /// kube-apiserver.
    pub authorities: Option<String>,
    /// The client certificate for kubelets; without it, one of the server's own CA.
    pub client: Option<Pair>,
}

/// Whether clients can inject faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faults {
    /// No.
    #[default]
    Refused,
    /// With the admin token.
    OnDemand,
}

/// The default size of the watch log of each resource.
pub const DEFAULT_HISTORY: usize = 10_000;

impl Default for Options {
    /// In memory, on a free loopback port, with the Service addresses of most clusters.
    fn default() -> Self {
        let services = ServiceCidrs::parse("10.96.0.0/16").expect("the range is valid");
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            durability: Durability::Ephemeral,
            cluster: ClusterConfig::new(services),
            history: DEFAULT_HISTORY,
            controllers: Controllers::All,
            faults: Faults::Refused,
            kubelets: KubeletOptions::default(),
            metrics: Metrics::new(),
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Certificates and tokens.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The socket.
    #[error("cannot listen on {0}: {1}; choose another address, or stop the process that uses it")]
    Listen(SocketAddr, io::Error),
    /// The objects of every cluster.
    #[error("cannot create the objects of every cluster: {0}")]
    Bootstrap(String),
}

/// A running server.
pub struct ApiServer {
    api: Arc<Api>,
    address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl ApiServer {
    /// Starts a server; it accepts requests when this returns.
    ///
    /// # Errors
    /// The store, the certificates or the socket cannot be opened.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let listen = |why| StartError::Listen(options.listen, why);
        let listener = bind(options.listen, Wildcard::BothFamilies).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let store = Store::open(&options.durability, options.history, selectable_in)?;
        let keep: Option<&Path> = match &options.durability {
            Durability::Ephemeral => None,
            Durability::Directory(directory) => Some(directory),
        };
        let services = api::first_addresses(&options.cluster);
        let identity = Identity::load(keep, address, &services, &options.kubelets)?;
        let token_key = TokenKey::load(keep)?;
        let tls = Arc::new(identity.tls()?);
        let registry = controllers::load_definitions(&store);
        let faults = options.faults == Faults::OnDemand;
        let api = Api::new(store, registry, identity, token_key, options.cluster, address, faults);
        let api = Arc::new(api.measured_in(options.metrics));
        bootstrap::create_missing(&api, address).await.map_err(StartError::Bootstrap)?;
        let mut tasks = controllers::start(&api, options.controllers, address);
        let listening = listen_until_stopped(Arc::clone(&api), listener, address, tls);
        tasks.push(api.spawn("listener", listening));
        Ok(Self { api, address, tasks })
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://127.0.0.1:6443`. For a wildcard it has the loopback address.
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let v4 = address.is_ipv4();
            address.set_ip(if v4 {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        format!("https://{address}")
    }

    /// A kubeconfig with the contexts `nearhop` (all rights) and `read-only`.
    pub fn kubeconfig(&self) -> String {
        self.api.identity.kubeconfig(&self.url())
    }

    /// Writes the kubeconfig, readable by its owner only.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> io::Result<()> {
        write_private(path, &self.kubeconfig())
    }

    /// Stops: ends watches, finishes running requests, accepts no new ones.
    pub async fn stop(self) {
        self.api.stop();
        for task in self.tasks {
            // A task that panicked has ended, too.
            let _ = task.await;
        }
    }
}

/// The values that field selectors read of an object from disk.
fn selectable_in(storage: &str, object: &Value) -> Vec<(&'static str, String)> {
    let resource = nearhop_kinds::builtin::registry().of_storage(storage);
    resource.map(|resource| selectable(resource.strategy, object)).unwrap_or_default()
}

/// Serves until the server stops. A restart closes all connections, drops the watch log as a new
/// process would, and listens again.
async fn listen_until_stopped(
    api: Arc<Api>,
    mut listener: TcpListener,
    address: SocketAddr,
    tls: Arc<ServerConfig>,
) {
    let (mut stop, mut restart) = (api.stopping(), api.restarts());
    loop {
        let (end, ended) = watch::channel(false);
        let handler = {
            let api = Arc::clone(&api);
            move |request| rest::handle(Arc::clone(&api), request)
        };
        let mut serving = tokio::spawn(serve(listener, Arc::clone(&tls), ended, handler));
        let restarting = tokio::select! {
            () = until(&mut stop) => false,
            changed = restart.changed() => changed.is_ok(),
            ended = &mut serving => {
                // The task ends before `end` is set only if it panicked.
                let error = ended.err().map(|error| error.to_string());
                tracing::error!(error, "listener panicked; will listen again");
                listener = listen_again(address).await;
                continue;
            }
        };
        end.send_replace(true);
        let _ = serving.await;
        if !restarting {
            return;
        }
        api.store.compact();
        api.faults.drop_watches();
        listener = listen_again(address).await;
    }
}

async fn listen_again(address: SocketAddr) -> TcpListener {
    let retry = Duration::from_millis(100);
    bind_with_retries("apiserver", address, Wildcard::BothFamilies, retry).await
}
