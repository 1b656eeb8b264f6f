//! A pod's place on the node: its network, its addresses, its files.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::{Api, Client, Resource};
use nearhop_net::{Namespace, link, star};
use tokio::task::spawn_blocking;

use super::context::{Context, make_private};
use super::env::{Facts, Sources};
use super::volumes::{self, Trouble};
use crate::container::{Access, Mount};
use crate::names::{Identity, full_name, hostname, hosts, resolv_conf};

/// Where a pod lives.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) namespace: Namespace,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) directory: PathBuf,
    pub(crate) hostname: String,
    /// None for a pod in the node's own network.
    cable: Mutex<Option<Cable>>,
}

#[derive(Debug)]
struct Cable {
    number: u32,
    device: String,
}

/// Makes a place: network first, then files.
pub(crate) async fn make(context: Arc<Context>, pod: Arc<Pod>) -> Result<Place, Trouble> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let (maps, secrets) = volumes::needs(&pod);
    let sources = fetch(&context.client, &namespace, &maps, &secrets).await;
    let sources = sources.map_err(Trouble::Missing)?;
    let made = spawn_blocking(move || {
        let place = connect(&context, &pod).map_err(Trouble::Missing)?;
        match place.fill(&context, &pod, &sources) {
            Ok(()) => Ok(place),
            Err(trouble) => {
                place.disconnect(&context);
                Err(trouble)
            }
        }
    });
    made.await.unwrap_or_else(|_| Err(Trouble::Refused("the pod's place: panic".to_owned())))
}

fn connect(context: &Context, pod: &Pod) -> Result<Place, String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let directory = context.directory(uid);
    if pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false) {
        return Ok(Place {
            namespace: context.node.clone(),
            addresses: context.options.addresses.clone(),
            directory,
            hostname: context.options.node.clone(),
            cable: Mutex::new(None),
        });
    }
    let hostname = hostname(pod);
    let taken = context.pool().take(Timestamp::now());
    let (number, addresses) = taken.ok_or("the node's range has no address left")?;
    let device = format!("veth{number}");
    let attached = Namespace::new(&hostname).and_then(|namespace| {
        let attach = || star::attach(&context.node, &device, &namespace, &addresses);
        attach().or_else(|error| {
            // Left over from an agent that was killed a moment ago.
            link::delete(&context.node, &device).map_err(|_| error)?;
            attach()
        })?;
        Ok(namespace)
    });
    match attached {
        Ok(namespace) => {
            let cable = Mutex::new(Some(Cable { number, device }));
            Ok(Place { namespace, addresses, directory, hostname, cable })
        }
        Err(error) => {
            context.pool().give_back(number, Timestamp::now());
            Err(error.to_string())
        }
    }
}

impl Place {
    fn fill(&self, context: &Context, pod: &Pod, sources: &Sources) -> Result<(), Trouble> {
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
        let told = |what: &str, error: io::Error| Trouble::Missing(format!("{what}: {error}"));
        make_private(&self.directory).map_err(|error| told("the pod's directory", error))?;
        for (name, content) in contents {
            volumes::write(&self.volumes().join(name), &content)
                .map_err(|error| told(&format!("volume {name:?}"), error))?;
        }
        self.write_names(context, pod).map_err(|error| told("the pod's own files", error))
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
        let identity = Identity {
            addresses: &self.addresses,
            hostname: &self.hostname,
            full_name: full_name(pod, &options.cluster_domain),
            aliases: &aliases,
        };
        fs::write(self.directory.join("hosts"), hosts(&identity))
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.directory.join("volumes")
    }

    /// What every container of the pod sees in its `/etc`.
    pub(crate) fn own_files(&self) -> Vec<Mount> {
        let file = |name: &str| Mount {
            source: self.directory.join(name),
            target: Path::new("/etc").join(name),
            access: Access::Write,
        };
        ["hosts", "hostname", "resolv.conf"].map(file).into()
    }

    /// Gives network and addresses back. Without containers the namespace is gone with this.
    pub(crate) fn disconnect(&self, context: &Context) {
        let cable = self.cable.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(cable) = cable else { return };
        if let Err(error) = link::delete(&context.node, &cable.device) {
            tracing::debug!("{error}");
        }
        context.pool().give_back(cable.number, Timestamp::now());
    }
}

/// Gets what is named; what is not there is none.
pub(crate) async fn fetch(
    client: &Client,
    namespace: &str,
    maps: &[String],
    secrets: &[String],
) -> Result<Sources, String> {
    let mut sources = Sources::default();
    for name in maps {
        let found: Option<ConfigMap> = get(client, namespace, name).await?;
        sources.config_maps.insert(name.clone(), found);
    }
    for name in secrets {
        let found: Option<Secret> = get(client, namespace, name).await?;
        sources.secrets.insert(name.clone(), found);
    }
    Ok(sources)
}

async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, String>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.get_opt(name).await.map_err(|error| format!("get {name:?}: {error}"))
}
