//! The listener: TCP, TLS, HTTP/1.1 and HTTP/2, with the limits that keep one client from hurting
//! the others.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Body;
use super::patient::Patient;

/// A client that takes longer for its handshake or its headers is not served.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections beyond this wait until another ends.
const MOST_CONNECTIONS: usize = 4096;
/// Streams per HTTP/2 connection: client-go puts many watches on one.
const MOST_STREAMS: u32 = 1000;

/// A bound socket.
pub(crate) struct Listener {
    socket: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }
}

/// Serves until told to stop. Connections that are open then are closed gracefully.
pub(crate) async fn serve<H, F>(
    listener: Listener,
    tls: Arc<ServerConfig>,
    stop: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(http::Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = http::Response<Body>> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(tls);
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut stopped = stop.clone();
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.socket.accept() => accepted,
            () = until(&mut stopped) => return,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, most likely: others must end first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (acceptor, stop, handler) = (acceptor.clone(), stop.clone(), handler.clone());
        tokio::spawn(async move {
            connection(stream, acceptor, stop, handler).await;
            drop(slot);
        });
    }
}

/// Returns when the flag is set, or nobody is left to set it.
pub(crate) async fn until(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}

async fn connection<H, F>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    mut stop: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(http::Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = http::Response<Body>> + Send + 'static,
{
    // Small frames must leave at once; an answer is written in one piece anyway.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = timeout(PATIENCE, acceptor.accept(stream)).await else { return };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20));
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served =
        builder.serve_connection_with_upgrades(TokioIo::new(Patient::new(stream)), service);
    tokio::pin!(served);
    tokio::select! {
        _ = served.as_mut() => {}
        () = until(&mut stop) => {
            served.as_mut().graceful_shutdown();
            // Watches end by themselves when the server stops; nobody else takes this long.
            let _ = timeout(Duration::from_secs(2), served).await;
        }
    }
}
