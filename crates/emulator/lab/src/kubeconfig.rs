//! The kubeconfigs of a lab: one for whoever is outside, one for its own processes. They differ in
//! where the server is.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::Kubeconfig;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::LabError;

/// How long somebody else's server may take to be reached.
const PATIENCE: Duration = Duration::from_secs(3);

/// Somebody else's server, as its kubeconfig names it.
#[derive(Debug)]
pub(crate) struct Foreign {
    config: Kubeconfig,
    /// The name that its certificate has.
    host: String,
    /// Where on the server the API is; empty for most.
    path: String,
    /// Where it is.
    pub(crate) address: SocketAddr,
}

impl Foreign {
    /// Reads a kubeconfig and looks its server up.
    pub(crate) async fn read(path: &Path) -> Result<Self, LabError> {
        let unusable = |why: String| LabError::Kubeconfig { path: path.to_owned(), why };
        let config = Kubeconfig::read_from(path).map_err(|error| unusable(error.to_string()))?;
        let config = only_current(config).map_err(unusable)?;
        let server = config.clusters[0].cluster.as_ref().and_then(|c| c.server.clone());
        let server = server.ok_or_else(|| unusable("its cluster has no `server`".to_owned()))?;
        let uri: http::Uri =
            server.parse().map_err(|_| unusable(format!("server {server} is not a URL")))?;
        if uri.scheme_str() != Some("https") {
            return Err(unusable(format!("server {server} is not one of https")));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let found = tokio::net::lookup_host((host.as_str(), port)).await;
        let found =
            found.map_err(|error| unusable(format!("server {server} cannot be found: {error}")))?;
        let address = first_that_answers(found.collect()).await;
        let address =
            address.ok_or_else(|| unusable(format!("server {server} does not answer")))?;
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { config, host, path, address })
    }

    /// The kubeconfig itself, for whoever is outside.
    pub(crate) fn write(&self, out: &Path) -> Result<(), LabError> {
        write(&self.config, out)
    }

    /// The same server, reached by another address.
    pub(crate) fn write_at(mut self, address: SocketAddr, out: &Path) -> Result<(), LabError> {
        let (name, path) = (self.host, self.path);
        for cluster in self.config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(format!("https://{address}{path}"));
            cluster.tls_server_name.get_or_insert(name.clone());
            // The address is one of the lab's, which no proxy knows.
            cluster.proxy_url = None;
        }
        write(&self.config, out)
    }
}

/// A name may have addresses at which nobody listens, such as both of `localhost`.
async fn first_that_answers(addresses: Vec<SocketAddr>) -> Option<SocketAddr> {
    for address in addresses {
        let dialled = timeout(PATIENCE, TcpStream::connect(address)).await;
        if matches!(dialled, Ok(Ok(_))) {
            return Some(address);
        }
    }
    None
}

/// Kubeconfigs often name several clusters; a lab is part of one.
fn only_current(mut config: Kubeconfig) -> Result<Kubeconfig, String> {
    let current = config.current_context.clone().ok_or("it has no current-context")?;
    config.contexts.retain(|context| context.name == current);
    let context = config.contexts.first().and_then(|named| named.context.clone());
    let context = context.ok_or_else(|| format!("it has no context `{current}`"))?;
    config.clusters.retain(|cluster| cluster.name == context.cluster);
    config.auth_infos.retain(|user| Some(&user.name) == context.user.as_ref());
    if config.clusters.is_empty() {
        return Err(format!("it has no cluster `{}`", context.cluster));
    }
    Ok(config)
}

/// The lab's own server, as it is reached from the machine.
pub(crate) fn write_outer(inner: &Path, address: SocketAddr, out: &Path) -> Result<(), LabError> {
    let unusable = |error| LabError::Kubeconfig { path: inner.to_owned(), why: format!("{error}") };
    let mut config = Kubeconfig::read_from(inner).map_err(unusable)?;
    // Who listens everywhere is reached on loopback; and whatever the address is, it is not in the
    // certificate, but this name is.
    let here: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let ip = if address.ip().is_unspecified() { here } else { address.ip() };
    for cluster in config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.server = Some(format!("https://{}", SocketAddr::new(ip, address.port())));
        cluster.tls_server_name = Some("localhost".to_owned());
    }
    write(&config, out)
}

/// Only its owner may read it: it holds keys.
fn write(config: &Kubeconfig, out: &Path) -> Result<(), LabError> {
    let failed = |cause| LabError::File { path: PathBuf::from(out), cause };
    let text = serde_saphyr::to_string(config).map_err(|error| failed(io::Error::other(error)))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(out)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
