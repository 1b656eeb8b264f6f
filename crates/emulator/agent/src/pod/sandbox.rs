//! The sandbox of a Pod: network, addresses and files.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use nearhop_net::{Namespace, link, star};
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender};
use nearhop_runtime::lock;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use super::context::{Context, make_private};
use super::env::{Data, Facts, Source, Sources};
use super::volumes::{self, Content, SetupError};
use crate::container::{EtcFile, Identity};
use crate::etc_files::{Identity as Names, full_name, hostname, hosts, resolv_conf};
use crate::spawn::{PodNamespaces, PodNetwork, TmpfsVolume};

#[derive(Debug)]
pub(crate) struct PodSandbox {
    pub(crate) namespace: Namespace,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) directory: PathBuf,
    pub(crate) hostname: String,
    /// The host user of the Pod's root.
    pub(crate) identity: Identity,
    /// The user namespace, which this descriptor keeps alive.
    user: File,
    /// `None` for a Pod in the node's network.
    host_link: Mutex<Option<HostLink>>,
}

#[derive(Debug)]
struct HostLink {
    number: u32,
    device: String,
}

/// Creates a sandbox: the network, then the files.
pub(crate) async fn make(context: Arc<Context>, pod: Arc<Pod>) -> Result<PodSandbox, SetupError> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let sources = fetch(&context.api, &namespace, volumes::needs(&pod)).await;
    let sources = sources.map_err(SetupError::Retryable)?;
    let identity = context.users.take();
    let network = if is_on_host_network(&pod) { PodNetwork::Hosts } else { PodNetwork::Own };
    let namespaces = context.spawner.sandbox(network, identity).await;
    let namespaces = namespaces.map_err(|error| {
        SetupError::Retryable(format!("cannot create the pod's namespaces: {error}"))
    })?;
    let making = Arc::clone(&context);
    let made = spawn_blocking(move || {
        let sandbox =
            connect(&making, &pod, namespaces, identity).map_err(SetupError::Retryable)?;
        match sandbox.fill(&making, &pod, &sources) {
            Ok(memory) => Ok((sandbox, memory)),
            Err(trouble) => {
                sandbox.disconnect(&making);
                Err(trouble)
            }
        }
    });
    let made = made.await;
    let (sandbox, memory) = made.unwrap_or_else(|_| {
        Err(SetupError::Permanent("creating the sandbox panicked".to_owned()))
    })?;
    if let Err(error) = context.spawner.mount(memory).await {
        let _not_awaited = spawn_blocking(move || sandbox.disconnect(&context));
        return Err(SetupError::Retryable(format!("cannot mount the pod's emptyDirs: {error}")));
    }
    Ok(sandbox)
}

fn is_on_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

fn connect(
    context: &Context,
    pod: &Pod,
    namespaces: PodNamespaces,
    identity: Identity,
) -> Result<PodSandbox, String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let directory = context.directory(uid);
    let Some(network) = namespaces.network else {
        return Ok(PodSandbox {
            namespace: context.node.clone(),
            addresses: context.options.addresses.clone(),
            directory,
            hostname: context.options.node.clone(),
            identity,
            user: namespaces.user,
            host_link: Mutex::new(None),
        });
    };
    let hostname = hostname(pod);
    let taken = context.pool().take(Timestamp::now());
    let (number, addresses) = taken.ok_or("the node's pod CIDR has no free address")?;
    let device = format!("veth{number}");
    let attached = Namespace::adopt(&hostname, network).and_then(|namespace| {
        let attach = || star::attach(&context.node, &device, &namespace, &addresses);
        attach().or_else(|error| {
            // A leftover of an agent that was just killed.
            link::delete(&context.node, &device).map_err(|_| error)?;
            attach()
        })?;
        Ok(namespace)
    });
    match attached {
        Ok(namespace) => {
            let host_link = Mutex::new(Some(HostLink { number, device }));
            let user = namespaces.user;
            Ok(PodSandbox { namespace, addresses, directory, hostname, identity, user, host_link })
        }
        Err(error) => {
            context.pool().release(number, Timestamp::now());
            Err(error.to_string())
        }
    }
}

impl PodSandbox {
    /// Writes the Pod's files; returns the volumes to mount in memory.
    fn fill(
        &self,
        context: &Context,
        pod: &Pod,
        sources: &Sources,
    ) -> Result<Vec<TmpfsVolume>, SetupError> {
        let facts = Facts {
            pod,
            pod_addresses: &self.addresses,
            node_addresses: &context.options.addresses,
        };
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut contents = Vec::new();
        for volume in volumes {
            contents.push((&volume.name, volumes::content(volume, facts, sources)?));
        }
        volumes::check_room(contents.iter().map(|(_, content)| content))?;
        let failed =
            |what: &str, error: io::Error| SetupError::Retryable(format!("{what}: {error}"));
        make_private(&self.directory).map_err(|error| failed("the pod's directory", error))?;
        let mut memory = Vec::new();
        for (name, content) in contents {
            let place = self.volumes().join(name);
            volumes::write(&place, &content, self.identity)
                .map_err(|error| failed(&format!("volume {name:?}"), error))?;
            if let Content::Empty { size } = content {
                memory.push(TmpfsVolume { place, size, owner: self.identity });
            }
        }
        self.write_names(context, pod).map_err(|error| failed("the pod's own files", error))?;
        Ok(memory)
    }

    fn write_names(&self, context: &Context, pod: &Pod) -> io::Result<()> {
        fs::create_dir_all(self.directory.join("root"))?;
        let options = &context.options;
        let host = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let text = resolv_conf(pod, options.cluster_dns, &options.cluster_domain, &host);
        fs::write(self.directory.join("resolv.conf"), text)?;
        fs::write(self.directory.join("hostname"), format!("{}\n", self.hostname))?;
        let aliases = pod.spec.as_ref().and_then(|spec| spec.host_aliases.clone());
        let aliases = aliases.unwrap_or_default();
        let names = Names {
            addresses: &self.addresses,
            hostname: &self.hostname,
            full_name: full_name(pod, &options.cluster_domain),
            aliases: &aliases,
        };
        fs::write(self.directory.join("hosts"), hosts(&names))
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.directory.join("volumes")
    }

    /// Files in the `/etc` of every container.
    pub(crate) fn own_files(&self) -> Vec<EtcFile> {
        let file =
            |name: &str| EtcFile { source: self.directory.join(name), name: name.to_owned() };
        ["hosts", "hostname", "resolv.conf"].map(file).into()
    }

    /// The path of the user namespace, for processes with the same `/proc`.
    pub(crate) fn user_namespace(&self) -> io::Result<PathBuf> {
        // The process id in `/proc` may differ from `getpid`.
        let agent = fs::read_link("/proc/self")?;
        Ok(PathBuf::from("/proc").join(agent).join("fd").join(self.user.as_raw_fd().to_string()))
    }

    /// Releases the network and the addresses. The namespace ends with the last container.
    pub(crate) fn disconnect(&self, context: &Context) {
        let Some(host_link) = lock(&self.host_link).take() else { return };
        if let Err(error) = link::delete(&context.node, &host_link.device) {
            tracing::debug!(device = host_link.device, %error, "link not deleted");
        }
        context.pool().release(host_link.number, Timestamp::now());
    }
}

/// Fetches ConfigMaps and Secrets; missing ones are left out.
pub(crate) async fn fetch(
    api: &ApiSender,
    namespace: &str,
    needed: Vec<Source>,
) -> Result<Sources, String> {
    let mut sources = Sources::default();
    for source in needed {
        let found = match &source {
            Source::ConfigMap(name) => {
                get(api, namespace, "configmaps", name).await?.map(config_map_data)
            }
            Source::Secret(name) => get(api, namespace, "secrets", name).await?.map(secret_data),
        };
        sources.0.extend(found.map(|data| (source, data)));
    }
    Ok(sources)
}

fn config_map_data(map: ConfigMap) -> Data {
    let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
    let bytes = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
    text.chain(bytes).collect()
}

fn secret_data(secret: Secret) -> Data {
    secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect()
}

async fn get<K: DeserializeOwned>(
    api: &ApiSender,
    namespace: &str,
    resource: &str,
    name: &str,
) -> Result<Option<K>, String> {
    let path = format!("/api/v1/namespaces/{namespace}/{resource}/{name}");
    match api.send_json(ApiCall::get(path, format!("get {name:?}"))).await {
        Err(ApiFailure::NotFound { .. }) => Ok(None),
        found => found.map(Some).map_err(|error| error.to_string()),
    }
}
