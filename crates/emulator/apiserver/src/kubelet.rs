//! Forwards log, exec, attach and portforward to the kubelet of the Pod's node, by mutual TLS, at
//! the address and port in the status of the Node. Proxies of the environment are not used.
//!
//! When a request switches protocols (WebSocket) and the kubelet agrees, bytes are copied in both
//! directions.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use nearhop_kinds::Subresource;
use nearhop_runtime::pki::Pair;
use nearhop_runtime::tls::{TlsError, Trust, client_config};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::KubeletOptions;
use crate::api::Api;
use crate::builtin::NODES;
use crate::http::{Query, Reply};
use crate::status::ApiError;
use crate::store::Name;

const TIMEOUT: Duration = Duration::from_secs(10);
/// The size limit of a kubelet's error body.
const MAX_ERROR: usize = 16 * 1024;

/// The TLS client for kubelets.
pub(crate) struct Kubelets(TlsConnector);

impl Kubelets {
    /// `own` is the client certificate if the options have none.
    pub(crate) fn new(options: &KubeletOptions, own: &Pair) -> Result<Self, TlsError> {
        let trust = options.authorities.clone().map_or(Trust::AnyServer, Trust::Authorities);
        let config = client_config(Some(options.client.as_ref().unwrap_or(own)), &trust)?;
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        // Keystrokes must leave at once.
        let _ = stream.set_nodelay(true);
        let name = ServerName::IpAddress(address.ip().into());
        self.0.connect(name, stream).await.map_err(|error| {
            let cure = "set --kubelet-certificate-authority to the CA of the agent";
            io::Error::other(format!("TLS: {error} ({cure})"))
        })
    }
}

/// Forwards a request for a subresource of a Pod to the kubelet of its node.
pub(crate) async fn forward(
    api: &Arc<Api>,
    request: http::Request<Incoming>,
    pod: &Value,
    subresource: Subresource,
) -> Result<Reply, ApiError> {
    let query = Query::parse(request.uri().query());
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let container = choose_container(pod, query.get("container"))?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let address = address_of(api, node)?;
    let path = node_path(pod, subresource, &container, request.uri().query());
    let failed = |why: &str| ApiError::internal(format!("node {node} at {address}: {why}"));
    let stream = match timeout(TIMEOUT, api.identity.kubelets.connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(&error.to_string())),
        Err(_) => return Err(failed("connect: timed out")),
    };
    exchange(request, stream, &path, address).await.map_err(|why| failed(&why))
}

/// The requested container, or the only one.
fn choose_container(pod: &Value, requested: Option<&str>) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<&str> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str()).collect()
    };
    let main = names("containers");
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let why = match (requested, main.as_slice()) {
        (None, [only]) => return Ok((*only).to_owned()),
        (None, _) => format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{}]",
            main.join(" ")
        ),
        (Some(requested), _) => {
            let all = [main, names("initContainers"), names("ephemeralContainers")].concat();
            if all.contains(&requested) {
                return Ok(requested.to_owned());
            }
            format!("container {requested} is not valid for pod {pod_name}")
        }
    };
    Err(ApiError::bad_request(why))
}

fn address_of(api: &Api, node: &str) -> Result<SocketAddr, ApiError> {
    let stored = api.store.get(&NODES.storage, &Name::new("", node));
    let object = stored.map(|stored| stored.to_value("")).unwrap_or_default();
    let status = &object["status"];
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    let addresses = status["addresses"].as_array().into_iter().flatten();
    let internal = addresses
        .filter(|entry| entry["type"] == "InternalIP")
        .find_map(|entry| entry["address"].as_str()?.parse::<IpAddr>().ok());
    match (internal, port) {
        (Some(address), 1..) => Ok(SocketAddr::new(address, port)),
        _ => Err(ApiError::internal(format!(
            "node {node} has no InternalIP and kubeletEndpoint port in its status; logs and exec need a node agent"
        ))),
    }
}

fn node_path(
    pod: &Value,
    subresource: Subresource,
    container: &str,
    query: Option<&str>,
) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    let root = match subresource {
        Subresource::Log => "containerLogs",
        Subresource::PortForward => "portForward",
        other => other.as_str(),
    };
    let attached = matches!(subresource, Subresource::Exec | Subresource::Attach);
    let mut kept = form_urlencoded::Serializer::new(String::new());
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        // A kubelet names exec's parameters differently from the API.
        let key = match &*key {
            "container" => continue,
            "stdin" if attached => "input",
            "stdout" if attached => "output",
            "stderr" if attached => "error",
            other => other,
        };
        kept.append_pair(key, &value);
    }
    let query = kept.finish();
    let mut path = format!("/{root}/{}/{}", text("namespace"), text("name"));
    if subresource != Subresource::PortForward {
        path += &format!("/{container}");
    }
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

async fn exchange(
    mut request: http::Request<Incoming>,
    stream: TlsStream<TcpStream>,
    path: &str,
    address: SocketAddr,
) -> Result<Reply, String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection.with_upgrades());
    let upgrading = request.headers().contains_key(UPGRADE);
    let client = upgrading.then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    parts.uri = path.parse::<Uri>().map_err(|error| error.to_string())?;
    parts.version = http::Version::HTTP_11;
    // The token is for this server, not for nodes.
    parts.headers.remove(AUTHORIZATION);
    let host = address.to_string().parse().expect("an address is a header's value");
    parts.headers.insert(HOST, host);
    let answer = timeout(TIMEOUT, sender.send_request(http::Request::from_parts(parts, body)));
    let mut answer =
        answer.await.map_err(|_| "no answer".to_owned())?.map_err(|e| e.to_string())?;
    // The client would take it for an error of its own token.
    if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(refusal(answer).await);
    }
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let node = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(node)) = (client.await, node.await) else { return };
            let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
            // Either side may close.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut node).await;
        });
    }
    let (parts, body) = answer.into_parts();
    Ok(Reply {
        code: parts.status.as_u16(),
        content_type: "",
        headers: kept_headers(&parts.headers, upgrading),
        body: body.map_err(io::Error::other).boxed_unsync(),
    })
}

/// The error of a kubelet that refuses the client certificate.
async fn refusal(answer: http::Response<Incoming>) -> String {
    let code = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_ERROR).collect();
    let body = timeout(TIMEOUT, body).await.ok().and_then(Result::ok);
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let status: Value = serde_json::from_slice(&body).unwrap_or_default();
    let message = status["message"].as_str().map(str::to_owned);
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
    format!(
        "the kubelet refuses this API server's client certificate (--kubelet-client-certificate) with {code}: {message}"
    )
}

/// All headers but those of one connection, unless the connection itself is forwarded.
fn kept_headers(
    headers: &HeaderMap,
    upgrading: bool,
) -> Vec<(http::HeaderName, http::HeaderValue)> {
    let single = [CONNECTION, UPGRADE, TRANSFER_ENCODING];
    let kept = headers.iter().filter(|(name, _)| upgrading || !single.contains(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}
