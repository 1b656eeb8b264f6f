//! The context that all Pods of a node share.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Client;
use nearhop_net::Namespace;
use nearhop_runtime::client::{ApiSender, Event, EventRecorder, EventType, EventWriter};
use nearhop_runtime::lock;

use super::log::LogReader;
use crate::addresses::AddressPool;
use crate::container::{ExecSpec, Identity};
use crate::options::Options;
use crate::spawn::Spawner;
use crate::status::StatusWriter;
use crate::users::PodUsers;

pub(crate) struct Context {
    pub(crate) options: Arc<Options>,
    /// For watches.
    pub(crate) client: Client,
    pub(crate) api: ApiSender,
    pub(crate) node: Namespace,
    pub(crate) spawner: Spawner,
    recorder: EventRecorder,
    pub(crate) writer: StatusWriter,
    pub(crate) registry: Registry,
    pub(crate) users: PodUsers,
    /// A copy of this binary, if Pods may not execute the original.
    pub(crate) binary: Option<PathBuf>,
    pool: Mutex<AddressPool>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(
        options: Arc<Options>,
        client: Client,
        node: Namespace,
        binary: Option<PathBuf>,
    ) -> Self {
        let api = ApiSender::new(client.clone(), "nearhop-agent");
        let events =
            EventWriter::new(api.clone(), "kubelet", &*options.node).with_host(&*options.node);
        Self {
            node,
            spawner: Spawner::start(),
            recorder: EventRecorder::start(events),
            writer: StatusWriter::start(api.clone()),
            registry: Registry::default(),
            users: PodUsers::here(),
            binary,
            pool: Mutex::new(AddressPool::new(options.pod_cidrs.clone())),
            client,
            api,
            options,
        }
    }

    /// Emits an Event about a Pod, or about one of its containers.
    pub(crate) fn emit_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) {
        let meta = &pod.metadata;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: container.map(|name| format!("spec.containers{{{name}}}")),
        };
        self.recorder.emit(Event::new(about, event_type, reason, message));
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, AddressPool> {
        lock(&self.pool)
    }

    /// The directory of a Pod's files.
    pub(crate) fn directory(&self, uid: &str) -> PathBuf {
        self.options.root_dir.join("pods").join(uid)
    }
}

/// Creates a directory that only the agent's user can enter: files and environments of Pods contain
/// Secrets.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))
}

/// How to run a command in a container.
#[derive(Clone, Debug)]
pub(crate) struct ExecTarget {
    pub(crate) pid: u32,
    pub(crate) identity: Identity,
    pub(crate) namespace: Namespace,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: Option<PathBuf>,
}

impl ExecTarget {
    /// The spec of a command without terminal and timeout.
    pub(crate) fn spec(&self, command: &[String]) -> ExecSpec {
        ExecSpec {
            pid: self.pid,
            identity: self.identity,
            command: command.to_owned(),
            env: self.env.clone(),
            directory: self.directory.clone(),
            terminal: false,
            timeout_ms: None,
        }
    }
}

/// The data of a container for the logs and exec server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerView {
    pub(crate) log: Option<LogReader>,
    pub(crate) previous: Option<LogReader>,
    /// The last run has ended and the next one has not started: the last run is the previous one.
    pub(crate) restarting: bool,
    /// `None` while it does not run.
    pub(crate) exec: Option<ExecTarget>,
}

/// The data of a Pod for the logs and exec server.
#[derive(Clone, Debug)]
pub(crate) struct PodView {
    pub(crate) pod: Arc<Pod>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) containers: BTreeMap<String, ContainerView>,
}

/// The Pods of the node by namespace and name, for the logs and exec server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Mutex<BTreeMap<(String, String), PodView>>>);

impl Registry {
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<PodView> {
        lock(&self.0).get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        lock(&self.0).values().map(|view| Arc::clone(&view.pod)).collect()
    }

    pub(crate) fn put(&self, pod: &Arc<Pod>, addresses: &[IpAddr]) {
        let mut all = lock(&self.0);
        let (pod, addresses) = (Arc::clone(pod), addresses.to_owned());
        match all.get_mut(&key(&pod)) {
            Some(view) if view.pod.metadata.uid == pod.metadata.uid => {
                (view.pod, view.addresses) = (pod, addresses);
            }
            _ => {
                let view = PodView { pod, addresses, containers: BTreeMap::new() };
                all.insert(key(&view.pod), view);
            }
        }
    }

    /// Updates the data of a container.
    pub(crate) fn update(
        &self,
        pod: &Pod,
        container: &str,
        change: impl FnOnce(&mut ContainerView),
    ) {
        let mut all = lock(&self.0);
        let view = all.get_mut(&key(pod));
        if let Some(view) = view.filter(|view| view.pod.metadata.uid == pod.metadata.uid) {
            change(view.containers.entry(container.to_owned()).or_default());
        }
    }

    pub(crate) fn remove(&self, pod: &Pod) {
        let mut all = lock(&self.0);
        if all.get(&key(pod)).is_some_and(|view| view.pod.metadata.uid == pod.metadata.uid) {
            all.remove(&key(pod));
        }
    }
}

fn key(pod: &Pod) -> (String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&pod.metadata.namespace), text(&pod.metadata.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_private_restricts_new_and_existing_directories() {
        let root = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let directory = root.path().join("pods/uid");
        make_private(&directory).unwrap();
        assert_eq!((mode(&root.path().join("pods")), mode(&directory)), (0o700, 0o700));
        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        make_private(&directory).unwrap();
        assert_eq!(mode(&directory), 0o700);
    }
}
