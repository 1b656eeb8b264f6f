//! The connection below a client: sockets that notice when their peer is gone, a proxy where there
//! is one, TLS, and kube's own layers around it.
//!
//! Made here, and not by kube, because kube leaves sockets as the kernel makes them: a peer that is
//! gone without a word (a node that lost its power, a NAT that forgot) is then noticed when the
//! kernel gives up, after a quarter of an hour, or never by who only reads. kube speaks HTTP/1.1,
//! which has no pings; the kernel's probes find out for every request, watches and writes alike.

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

/// A connection without traffic for so long is probed.
const PROBE_AFTER: Duration = Duration::from_secs(10);

/// And again after this, until the peer answers.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// A peer that acknowledges nothing for so long, neither data nor probes, is gone. With the time to
/// the next probe a lost connection is noticed within 25 s.
const GONE: Duration = Duration::from_secs(20);

/// Sends requests to the server, and answers with what it says.
pub(super) type Transport = BoxService<Request<Body>, Response<Incoming>, BoxError>;

/// A client that reaches its server by this proxy, or directly.
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
    // TLS is added around it.
    socket.enforce_http(false);
    socket.set_nodelay(true);
    socket.set_keepalive(Some(PROBE_AFTER));
    socket.set_keepalive_interval(Some(PROBE_EVERY));
    // Counts for data that is not acknowledged and, in place of a number of probes, for those.
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
    // kube's order: the last one here is the first to see a request.
    let service = config.extra_headers_layer()?.layer(client.map_err(BoxError::from));
    let service = option_layer(config.auth_layer()?).layer(service);
    let service = config.base_uri_layer().layer(service);
    Ok(ClientBuilder::new(BoxService::new(service), config.default_namespace.clone()))
}
