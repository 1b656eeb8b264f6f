//! The kubeconfigs of a lab: one for the machine, one for the lab's processes. They differ in the
//! server's address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use kube::config::Kubeconfig;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::LabError;
use crate::state::write_private;

/// How long connecting to the server of a joined cluster may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The API server of the cluster that the lab joins.
#[derive(Debug)]
pub(crate) struct JoinedApi {
    config: Kubeconfig,
    /// The name in its certificate.
    host: String,
    /// Path of the API on the server; usually empty.
    path: String,
    pub(crate) address: SocketAddr,
}

impl JoinedApi {
    /// Reads a kubeconfig and finds an address of its server that answers.
    pub(crate) async fn read(path: &Path) -> Result<Self, LabError> {
        let unusable = |why: String| LabError::Kubeconfig { path: path.to_owned(), why };
        let config = Kubeconfig::read_from(path).map_err(|error| unusable(error.to_string()))?;
        let config = only_current(config).map_err(unusable)?;
        let server = config.clusters[0].cluster.as_ref().and_then(|c| c.server.clone());
        let server = server.ok_or_else(|| unusable("its cluster has no `server`".to_owned()))?;
        let uri: http::Uri =
            server.parse().map_err(|_| unusable(format!("server {server} is not a URL")))?;
        if uri.scheme_str() != Some("https") {
            return Err(unusable(format!("server {server} is not an https URL")));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let found = tokio::net::lookup_host((host.as_str(), port)).await;
        let found = found
            .map_err(|error| unusable(format!("server {server} cannot be resolved: {error}")))?;
        let address = first_that_answers(found.collect()).await;
        let address =
            address.ok_or_else(|| unusable(format!("server {server} does not answer")))?;
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { config, host, path, address })
    }

    /// Writes the kubeconfig for the machine.
    pub(crate) fn write(&self, out: &Path) -> Result<(), LabError> {
        write(&self.config, out)
    }

    /// Writes a kubeconfig with another address of the server.
    pub(crate) fn write_at(mut self, address: SocketAddr, out: &Path) -> Result<(), LabError> {
        let (name, path) = (self.host, self.path);
        for cluster in self.config.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(format!("https://{address}{path}"));
            cluster.tls_server_name.get_or_insert(name.clone());
            // An HTTP proxy cannot reach an address of the lab.
            cluster.proxy_url = None;
        }
        write(&self.config, out)
    }
}

/// A name may have several addresses, such as `localhost`, and the server listen on one only.
async fn first_that_answers(addresses: Vec<SocketAddr>) -> Option<SocketAddr> {
    for address in addresses {
        let dialled = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        if matches!(dialled, Ok(Ok(_))) {
            return Some(address);
        }
    }
    None
}

/// Removes all contexts but the current one.
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

/// Writes the kubeconfig of the lab's own server for the machine.
pub(crate) fn write_outer(inner: &Path, address: SocketAddr, out: &Path) -> Result<(), LabError> {
    let unusable = |error| LabError::Kubeconfig { path: inner.to_owned(), why: format!("{error}") };
    let mut config = Kubeconfig::read_from(inner).map_err(unusable)?;
    // A server on the unspecified address is reached on loopback. The certificate has the name
    // localhost, but not the address.
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

/// The URL of the server in a kubeconfig with one cluster.
pub(crate) fn server_of(path: &Path) -> Option<String> {
    let config = Kubeconfig::read_from(path).ok()?;
    config.clusters.first()?.cluster.as_ref()?.server.clone()
}

fn write(config: &Kubeconfig, out: &Path) -> Result<(), LabError> {
    let failed = |error| LabError::File { path: out.to_owned(), cause: io::Error::other(error) };
    write_private(out, &serde_saphyr::to_string(config).map_err(failed)?)
}
