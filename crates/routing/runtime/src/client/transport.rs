//! The connection of a client: sockets that detect a lost peer, a proxy if one is configured, TLS,
//! and kube's own layers around it.
//!
//! kube's own connector keeps the kernel's socket defaults. If a peer disappears without closing
//! the connection (a node loses power, a NAT drops its state), a writer then notices it after about
//! 15 minutes, and a reader never does. kube uses HTTP/1.1, which has no pings, so this module
//! enables TCP keepalive for all requests, watches and writes.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::util::{BoxService, ServiceExt as _, option_layer};
use tower::{BoxError, Layer as _};

use super::proxy::{Protocol, Proxy};

/// The kernel sends the first probe after this time without traffic.
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// The kernel repeats the probe at this interval until the peer answers.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// A peer that acknowledges neither data nor probes for this long is lost. With the time to the
/// next probe, a lost connection is detected within 25 s.
const GONE: Duration = Duration::from_secs(20);

/// Sends requests to the server and returns its replies.
pub(super) type Transport = BoxService<Request<Body>, Response<Incoming>, BoxError>;

/// A client that reaches its server through this proxy, or directly.
pub(super) fn build(
    config: &Config,
    proxy: Option<&Proxy>,
) -> kube::Result<ClientBuilder<Transport>> {
    let socket = socket();
    let Some(proxy) = proxy else { return over(config, socket) };
    let address = proxy.uri().clone();
    match proxy.protocol() {
        Protocol::Http => over(config, tunnel(proxy, Tunnel::new(address, socket))),
        Protocol::Https => {
            let secure = config.rustls_https_connector_with_connector(socket)?;
            over(config, tunnel(proxy, Tunnel::new(address, secure)))
        }
        Protocol::Socks5 => {
            let mut socks = SocksV5::new(address, socket);
            if let Some((user, password)) = proxy.credentials() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            over(config, socks)
        }
    }
}

fn tunnel<C>(proxy: &Proxy, tunnel: Tunnel<C>) -> Tunnel<C> {
    match proxy.authorization() {
        Some(authorization) => tunnel.with_auth(authorization),
        None => tunnel,
    }
}

fn socket() -> HttpConnector {
    let mut socket = HttpConnector::new();
    // TLS is added later.
    socket.enforce_http(false);
    socket.set_nodelay(true);
    socket.set_keepalive(Some(PROBE_AFTER));
    socket.set_keepalive_interval(Some(PROBE_EVERY));
    // Applies to unacknowledged data and, instead of a number of probes, to keepalive probes.
    socket.set_tcp_user_timeout(Some(GONE));
    socket
}

fn over<C>(config: &Config, connector: C) -> kube::Result<ClientBuilder<Transport>>
where
    C: tower::Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: hyper::rt::Read + hyper::rt::Write + Connection + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let mut connector =
        TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    let client: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);
    // kube's order of layers: the last one here handles a request first.
    let service = config.extra_headers_layer()?.layer(client.map_err(BoxError::from));
    let service = option_layer(config.auth_layer()?).layer(service);
    let service = config.base_uri_layer().layer(service);
    Ok(ClientBuilder::new(BoxService::new(service), config.default_namespace.clone()))
}
