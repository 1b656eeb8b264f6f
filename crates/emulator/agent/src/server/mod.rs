//! Logs and exec as a kubelet serves them to the API server: HTTPS on the node's addresses.
//!
//! ```text
//!   /containerLogs/{namespace}/{pod}/{container}    logs      a container's log
//!   /exec/{namespace}/{pod}/{container}             exec      a command in a container, over WebSocket
//!   /pods   /healthz
//! ```
//!
//! Pods can reach these addresses too. So `auth` accepts only clients with the API server's client
//! certificate; `/healthz` is open to all. Attach and port-forward are not implemented.

mod auth;
mod exec;
mod logs;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nearhop_runtime::pki::PkiError;
use nearhop_runtime::server::{Connection, Wildcard, accept_loop, bind_with_retries};
use nearhop_runtime::supervise;
use nearhop_runtime::tls::TlsError;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use self::auth::Client;
use crate::pod::context::{ContainerView, Context, PodView};

/// The pause between attempts to bind an address.
const PAUSE: Duration = Duration::from_secs(1);

/// Timeout of the TLS handshake and of the request headers.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest number of connections without accepted certificate; further ones wait.
const MAX_UNAUTHORIZED: usize = 256;

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// An error response in the form of Kubernetes.
#[derive(Debug)]
struct RequestError {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl RequestError {
    fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    fn not_found(message: impl Into<String>) -> Self {
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message: message.into() }
    }

    fn reply(&self) -> Reply {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        respond(self.code, "application/json", status.to_string())
    }
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The given certificate is not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The agent cannot create a certificate.
    #[error("cannot create a certificate: {0}")]
    Pki(#[from] PkiError),
}

/// Serves on each of the node's addresses, as soon as it exists.
pub(crate) fn start(context: &Arc<Context>) -> Result<(), ServeError> {
    let tls = TlsAcceptor::from(Arc::new(auth::tls(&context.options)?));
    for address in context.options.addresses.clone() {
        let address = SocketAddr::new(address, context.options.port);
        let (context, tls) = (Arc::clone(context), tls.clone());
        supervise::spawn("logs and exec server", async move {
            let wildcard = Wildcard::OwnFamily;
            let listener = bind_with_retries("logs and exec", address, wildcard, PAUSE).await;
            let serve = |connection| serve(Arc::clone(&context), tls.clone(), connection);
            accept_loop(&listener, MAX_UNAUTHORIZED, serve).await;
        });
    }
    Ok(())
}

async fn serve(context: Arc<Context>, tls: TlsAcceptor, connection: Connection) {
    let Connection { stream, slot, .. } = connection;
    let Ok(Ok(stream)) = timeout(PATIENCE, tls.accept(stream)).await else { return };
    let shown = stream.get_ref().1.peer_certificates();
    let client = Arc::new(auth::authorize(context.options.clients.as_ref(), shown));
    let known = matches!(*client, Client::Allowed);
    if known {
        slot.release();
    }
    let service = service_fn(move |request| {
        let (context, client) = (Arc::clone(&context), Arc::clone(&client));
        async move { Ok::<_, Infallible>(admit(context, &client, request).await) }
    });
    let mut builder = http1::Builder::new();
    // One request per connection for clients without certificate.
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(known);
    // The API server may disconnect at any time.
    let _gone = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn admit(context: Arc<Context>, client: &Client, request: Request<Incoming>) -> Reply {
    if request.method() == Method::GET && request.uri().path() == "/healthz" {
        return respond(StatusCode::OK, "text/plain", "ok".to_owned());
    }
    match client {
        Client::Allowed => answer(context, request).await,
        Client::Refused(refusal) => refusal.reply(),
    }
}

async fn answer(context: Arc<Context>, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let reply = match (request.method(), parts.as_slice()) {
        (&Method::GET, ["pods"]) => Ok(pods(&context)),
        (&Method::GET, ["containerLogs", namespace, pod, container]) => {
            match find(&context, namespace, pod, container) {
                Ok((pod, view)) => logs::answer(&pod, container, &view, request.uri().query()),
                Err(refusal) => Err(refusal),
            }
        }
        (_, ["exec", namespace, pod, container]) => {
            match find(&context, namespace, pod, container) {
                Ok((_, view)) => exec::answer(context, container, view, request),
                Err(refusal) => Err(refusal),
            }
        }
        (_, ["attach" | "portForward", ..]) => Err(RequestError {
            code: StatusCode::NOT_IMPLEMENTED,
            reason: "NotImplemented",
            message: format!(
                "this agent does not support {}: use logs, exec or a Service",
                parts[0]
            ),
        }),
        _ => Err(RequestError::not_found(format!("no such path: {path}"))),
    };
    reply.unwrap_or_else(|refusal| refusal.reply())
}

fn find(
    context: &Context,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<(PodView, ContainerView), RequestError> {
    let view = context.registry.get(namespace, pod);
    let view = view.ok_or_else(|| RequestError::not_found(format!("pod \"{pod}\" not found")))?;
    let spec = view.pod.spec.as_ref();
    let mut containers = spec
        .into_iter()
        .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    if !containers.any(|it| it.name == container) {
        let what = format!("container {container} is not valid for pod {pod}");
        return Err(RequestError::bad_request(what));
    }
    let known = view.containers.get(container).cloned().unwrap_or_default();
    Ok((view, known))
}

fn pods(context: &Context) -> Reply {
    let items: Vec<Value> = context
        .registry
        .pods()
        .iter()
        .map(|pod| serde_json::to_value(&**pod).expect("a pod is JSON"))
        .collect();
    let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items });
    respond(StatusCode::OK, "application/json", list.to_string())
}

fn respond(code: StatusCode, content_type: &'static str, text: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    *reply.status_mut() = code;
    let value = http::HeaderValue::from_static(content_type);
    reply.headers_mut().insert(http::header::CONTENT_TYPE, value);
    reply
}
