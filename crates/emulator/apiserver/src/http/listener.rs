//! Connections: TLS, HTTP/1.1 and HTTP/2, with limits on what one client can use.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use nearhop_runtime::server::accept_loop;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Body;
use super::timeouts::TimeoutStream;

/// The time limit of the TLS handshake, and of the headers of a request.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// More connections wait until another ends.
const MAX_CONNECTIONS: usize = 4096;
/// Streams per HTTP/2 connection: client-go puts many watches on one.
const MAX_STREAMS: u32 = 1000;

/// Serves until `stop` is set. Connections that are open then are closed gracefully.
pub(crate) async fn serve<H, F>(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    mut stop: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(http::Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = http::Response<Body>> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(tls);
    let ended = stop.clone();
    let accepting = accept_loop(&listener, MAX_CONNECTIONS, |accepted| {
        serve_connection(accepted.stream, acceptor.clone(), ended.clone(), handler.clone())
    });
    tokio::select! {
        () = accepting => {}
        () = until(&mut stop) => {}
    }
}

/// Returns when the flag is set, or its sender is dropped.
pub(crate) async fn until(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}

async fn serve_connection<H, F>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    mut stop: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(http::Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = http::Response<Body>> + Send + 'static,
{
    let Ok(Ok(stream)) = timeout(OPENING_TIMEOUT, acceptor.accept(stream)).await else { return };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(OPENING_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20));
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served =
        builder.serve_connection_with_upgrades(TokioIo::new(TimeoutStream::new(stream)), service);
    tokio::pin!(served);
    tokio::select! {
        _ = served.as_mut() => {}
        () = until(&mut stop) => {
            served.as_mut().graceful_shutdown();
            // Watches end when the server stops; other requests take less time.
            let _ = timeout(Duration::from_secs(2), served).await;
        }
    }
}
