//! An embedded Kubernetes API: stock kubectl and client libraries work against it.
//!
//! ```text
//!   http      listener, paths, Accept, answers          (what bytes mean)
//!   rest      verbs: read, watch, create, update, ...   (what a request means)
//!   store     objects, versions, log, disk              (what is true)
//!   controllers  what happens by itself after a write
//! ```
//!
//! What a kind is and which rules it has, `nearhop-kinds` says; what a patch or a selector does,
//! `nearhop-object`. Deliberately not here: admission, RBAC beyond two tokens, kinds' own
//! controllers (Deployments and the like live in the lab).

mod api;
mod bootstrap;
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
use nearhop_runtime::pki::Pair;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::Api;
pub use crate::controllers::Controllers;
use crate::http::{Listener, serve, until};
pub use crate::identity::IdentityError;
use crate::identity::{Identity, write_private};
use crate::service_account::TokenKey;
use crate::store::Store;
pub use crate::store::{Durability, OpenError};

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where objects live.
    pub durability: Durability,
    /// Service addresses, node ports, feature gates.
    pub cluster: ClusterConfig,
    /// How many changes of each resource are remembered for watchers.
    pub history: usize,
    /// What happens by itself.
    pub controllers: Controllers,
    /// Whether `/nearhop/faults` is there.
    pub faults: Faults,
    /// How nodes are asked for logs and exec.
    pub kubelets: KubeletOptions,
}

/// How an API server and the kubelets of nodes know each other.
#[derive(Clone, Debug, Default)]
pub struct KubeletOptions {
    /// Who signed the kubelets' serving certificates, as PEM. Without it none is verified, as
    /// kube-apiserver does.
    pub authorities: Option<String>,
    /// What the server shows to kubelets; without it a certificate of its own CA.
    pub client: Option<Pair>,
}

/// Whether the server takes orders to misbehave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faults {
    /// It does not.
    #[default]
    Refused,
    /// It does, from the admin token.
    OnDemand,
}

/// Changes of each resource that are remembered, unless told otherwise.
pub const DEFAULT_HISTORY: usize = 10_000;

/// `10.96.0.0/16`, as in most clusters.
pub fn default_service_cidrs() -> ServiceCidrs {
    ServiceCidrs::parse("10.96.0.0/16").expect("it is a range")
}

impl Default for Options {
    /// In memory, on a free loopback port.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            durability: Durability::Ephemeral,
            cluster: ClusterConfig::new(default_service_cidrs()),
            history: DEFAULT_HISTORY,
            controllers: Controllers::All,
            faults: Faults::Refused,
            kubelets: KubeletOptions::default(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Certificates and tokens.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The socket.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        why: io::Error,
    },
    /// The objects that every cluster has.
    #[error("cannot make the objects that every cluster has: {0}")]
    Bootstrap(String),
}

/// A running server.
pub struct ApiServer {
    api: Arc<Api>,
    address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl ApiServer {
    /// Starts a server; when this returns, it answers.
    ///
    /// # Errors
    /// The store, the certificates or the socket cannot be had.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let listen = |why| StartError::Listen { address: options.listen, why };
        let listener = Listener::bind(options.listen).await.map_err(listen)?;
        let address = listener.address;
        let builtin = nearhop_kinds::builtin::registry();
        let store = Store::open(&options.durability, options.history, selectable_in)?;
        let keep: Option<&Path> = match &options.durability {
            Durability::Ephemeral => None,
            Durability::Directory(directory) => Some(directory),
        };
        let services = api::first_addresses(&options.cluster);
        let identity = Identity::load(keep, address, &services, &options.kubelets)?;
        let token_key = TokenKey::load(keep)?;
        let tls = Arc::new(identity.tls()?);
        let registry = controllers::load_definitions(&builtin, &store);
        let faults = options.faults == Faults::OnDemand;
        let api = Arc::new(Api::new(
            store,
            registry,
            identity,
            token_key,
            options.cluster,
            address,
            faults,
        ));
        bootstrap::create_missing(&api, address).await.map_err(StartError::Bootstrap)?;
        let mut tasks = controllers::start(&api, options.controllers, address);
        let listening = listen_until_stopped(Arc::clone(&api), listener, tls);
        tasks.push(api.spawn("listener", listening));
        Ok(Self { api, address, tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://127.0.0.1:6443`. A server that listens on all addresses is reached on loopback.
    pub fn url(&self) -> String {
        let mut address = self.address;
        match address {
            SocketAddr::V4(it) if it.ip().is_unspecified() => {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            SocketAddr::V6(it) if it.ip().is_unspecified() => {
                address.set_ip(Ipv6Addr::LOCALHOST.into());
            }
            _ => {}
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

    /// The token that may do everything.
    pub fn admin_token(&self) -> &str {
        &self.api.identity.admin_token
    }

    /// The token that may look.
    pub fn read_only_token(&self) -> &str {
        &self.api.identity.read_only_token
    }

    /// The CA's certificate as PEM.
    pub fn ca_pem(&self) -> &str {
        self.api.identity.ca_pem()
    }

    /// Stops: watches end, requests that run are answered, nothing new is taken.
    pub async fn stop(self) {
        self.api.stop();
        for task in self.tasks {
            // A task that panicked has stopped as well.
            let _ = task.await;
        }
    }
}

/// The values of field selectors of an object that is read back from disk.
fn selectable_in(storage: &str, object: &Value) -> Vec<(&'static str, String)> {
    let registry = nearhop_kinds::builtin::registry();
    let resource = registry.resources().iter().find(|resource| &*resource.storage == storage);
    resource.map(|resource| selectable(resource.strategy, object)).unwrap_or_default()
}

/// Serves until the server stops. A restart that was asked for closes all connections, forgets the
/// log as a new process would, and listens again.
async fn listen_until_stopped(api: Arc<Api>, first: Listener, tls: Arc<ServerConfig>) {
    let (mut stop, mut restart) = (api.stopping(), api.restarts());
    let address = first.address;
    let mut listener = first;
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
                // It only ends by itself if it panicked.
                let error = ended.err().map(|error| error.to_string());
                tracing::error!(error, "the listener ended; listening again");
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

async fn listen_again(address: SocketAddr) -> Listener {
    loop {
        match Listener::bind(address).await {
            Ok(listener) => return listener,
            // Somebody took the port meanwhile; it may come back.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
