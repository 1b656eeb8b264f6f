//! The agent's loop: it starts a worker for each Pod of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use nearhop_feed::watch::{self, Event, Target};
use nearhop_net::{Namespace, NetError, sysctl};
use nearhop_runtime::shutdown::Shutdown;
use nearhop_runtime::supervise;
use tokio::sync::mpsc;

use crate::options::Options;
use crate::pod::context::Context;
use crate::pod::event::Event as PodEvent;
use crate::pod::worker;
use crate::status::PodKey;
use crate::{node, root_dir, server};

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The node's network is not usable.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The root directory is not usable.
    #[error("--root-dir {path}: {cause}")]
    Root {
        /// The directory.
        path: String,
        /// The system error.
        #[source]
        cause: io::Error,
    },
    /// The server for logs and exec cannot start.
    #[error("cannot serve logs and exec: {0}")]
    Serve(#[from] server::ServeError),
}

/// Runs the agent in the current network namespace until shutdown. Its containers stop with it; its
/// Node object stays.
///
/// # Errors
///
/// The node's network or the root directory is not usable.
pub async fn run(options: Options, client: Client, shutdown: Shutdown) -> Result<(), AgentError> {
    let mut options = options;
    let (root, binary) = prepare_root(&options)?;
    options.root_dir = root;
    let options = Arc::new(options);
    let current = Namespace::current()?;
    if let Err(error) = sysctl::forwarding(&current) {
        tracing::warn!(%error, "IP forwarding not enabled; pods reach only this node");
    }
    let context = Arc::new(Context::new(Arc::clone(&options), client, current, binary));
    server::start(&context)?;
    tokio::select! {
        () = node::register(&context.api, &options) => {}
        () = shutdown.wait() => return Ok(()),
    }
    tracing::info!(node = %options.node, "node registered");
    supervise::spawn("Node and Lease", node::keep(context.api.clone(), Arc::clone(&options)));
    watch_pods(&context, shutdown).await;
    Ok(())
}

/// The agent's directory, and the copy of this binary in it if one is needed.
fn prepare_root(options: &Options) -> Result<(PathBuf, Option<PathBuf>), AgentError> {
    let root = &options.root_dir;
    let failed = |cause| AgentError::Root { path: root.display().to_string(), cause };
    let root = root_dir::prepare(root).map_err(failed)?;
    let binary = root_dir::copy_binary(&root).map_err(failed)?;
    Ok((root, binary))
}

async fn watch_pods(context: &Arc<Context>, shutdown: Shutdown) {
    let target = Target::of::<Pod>().fields(format!("spec.nodeName={}", context.options.node));
    // Short pauses, so that a lab recovers soon after a fault.
    let options =
        watch::Options { backoff_cap: Duration::from_secs(2), ..watch::Options::default() };
    let mut pods = watch::start::<Pod>(context.client.clone(), target, options);
    let heartbeat = context.options.health.heartbeat("loop");
    let mut workers =
        PodWorkers { context: Arc::clone(context), all: BTreeMap::new(), listed: None };
    loop {
        let next = async {
            tokio::select! {
                batch = pods.recv() => batch,
                () = shutdown.wait() => None,
            }
        };
        let Some(batch) = heartbeat.turn(next).await else { return };
        batch.into_iter().for_each(|event| workers.take(event));
    }
}

/// The workers of the node's Pods.
struct PodWorkers {
    context: Arc<Context>,
    all: BTreeMap<PodKey, mpsc::UnboundedSender<PodEvent>>,
    /// Pods in the list in progress.
    listed: Option<BTreeSet<PodKey>>,
}

impl PodWorkers {
    fn take(&mut self, event: Event<Pod>) {
        match event {
            Event::ListStarted => self.listed = Some(BTreeSet::new()),
            Event::Put(pod) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(PodKey::of(&pod));
                }
                self.put(pod);
            }
            Event::Gone(pod) => self.remove(&PodKey::of(&pod)),
            Event::Listed(_) => {
                let listed = self.listed.take().unwrap_or_default();
                let gone = self.all.keys().filter(|key| !listed.contains(key));
                for key in gone.cloned().collect::<Vec<_>>() {
                    self.remove(&key);
                }
            }
            // The watch logs its errors and retries.
            Event::Failed => {}
        }
    }

    fn put(&mut self, pod: Pod) {
        let (key, pod) = (PodKey::of(&pod), Arc::new(pod));
        // A Pod of the same name and another uid: the deletion of the old Pod was missed.
        let same = |it: &&PodKey| it.namespace == key.namespace && it.name == key.name;
        let replaced = self.all.keys().filter(same).find(|it| it.uid != key.uid).cloned();
        if let Some(replaced) = replaced {
            self.remove(&replaced);
        }
        match self.all.get(&key) {
            Some(worker) => drop(worker.send(PodEvent::Changed(pod))),
            None => {
                let worker = worker::start(Arc::clone(&self.context), pod);
                self.all.insert(key, worker);
            }
        }
    }

    fn remove(&mut self, key: &PodKey) {
        if let Some(worker) = self.all.remove(key) {
            let _ended = worker.send(PodEvent::Gone);
        }
    }
}
