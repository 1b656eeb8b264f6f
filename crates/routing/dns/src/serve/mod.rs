//! The sockets: threads for UDP, tasks for TCP and for forwarded queries.

mod connections;
mod datagram;
mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nearhop_runtime::server::{Wildcard, bind};
use nearhop_runtime::{lock, supervise};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::answerer::{Answerer, Handled, Now, PendingQuery};
use crate::error::DnsError;
use crate::forward::{Cache, Forwarder};
use crate::metrics::{DnsMetrics, Tally};
use crate::options::{Listen, Options};
use crate::state::Shared;
use crate::wire::ReplyWriter;
use connections::Connections;

/// File descriptors reserved for upstream sockets, the API and logs.
const OTHER_FILES: u64 = 2048;
/// Interval at which the counters of TCP and forwarded queries are flushed.
const FLUSH: Duration = Duration::from_millis(250);
/// Attempts to find a port that is free for both UDP and TCP.
const TRIES: usize = 16;

/// Answers queries, by forwarding if needed.
pub(crate) struct Handler {
    pub(crate) answerer: Answerer,
    pub(crate) shared: Shared,
    pub(crate) metrics: DnsMetrics,
    forwarder: Option<Arc<Forwarder>>,
    /// Counters of TCP and of forwarded queries.
    tally: Mutex<Tally>,
}

impl Handler {
    fn new(options: &Options, shared: Shared, metrics: DnsMetrics) -> Self {
        let cache = Arc::new(Cache::new(options.cache_size, metrics.clone()));
        let upstreams = &options.upstreams;
        let forwarder = (!upstreams.is_empty())
            .then(|| Arc::new(Forwarder::new(upstreams, cache.clone(), metrics.clone())));
        let cache = forwarder.as_ref().map(|_| cache);
        let answerer = Answerer::new(options, cache, rand::random(), Instant::now());
        let answerer = answerer.with_loop_probes(forwarder.as_ref().map(|it| it.loops()));
        let tally = Mutex::new(metrics.tally());
        Self { answerer, shared, metrics, forwarder, tally }
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        // A count lost by a panic does not matter.
        lock(&self.tally)
    }

    /// Asks an upstream server and writes the reply; None if none is sent.
    pub(crate) async fn finish(&self, query: &PendingQuery) -> Option<ReplyWriter> {
        let permit = self.forwarder.as_ref().and_then(|forwarder| forwarder.permit());
        let cached = match (&self.forwarder, permit) {
            (Some(forwarder), Some(_permit)) => {
                forwarder.resolve(&query.target, &query.request).await
            }
            _ => None,
        };
        let mut out = ReplyWriter::default();
        let (now, tally) = (Instant::now(), &mut *self.tally());
        match self.answerer.finish(query, cached.as_deref(), now, &mut out, tally) {
            Handled::Reply => {
                tally.observe_duration(1, query.waited(now));
                Some(out)
            }
            Handled::Forward(_) | Handled::Drop => None,
        }
    }
}

/// The current time.
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix: since.as_secs() as u32 }
}

/// A running server. Dropping it stops it without waiting.
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
}

impl Server {
    /// Listens and answers from the state. Must be called within a tokio runtime. When this
    /// returns, the server answers. Fails if an address cannot be bound or a thread not started.
    pub fn start(options: &Options, shared: Shared, metrics: DnsMetrics) -> Result<Self, DnsError> {
        let most = raise_file_limit(options.tcp.connections);
        let handler = Arc::new(Handler::new(options, shared, metrics.clone()));
        let mut server = Self {
            addresses: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            tasks: JoinSet::new(),
        };
        let connections = Connections::new(most, metrics);
        for address in options.listen.addresses() {
            let bound = server.listen(address, options, &handler, &connections);
            match (bound, &options.listen) {
                (Err(DnsError::Bind { why, .. }), Listen::Everywhere(_)) if address.is_ipv6() => {
                    tracing::warn!(error = %why, "IPv6 not served");
                }
                (bound, _) => bound?,
            }
        }
        if let Some(forwarder) = handler.forwarder.clone().filter(|_| !options.loop_probe.is_zero())
        {
            let own = server.own_sockets(&options.answers.local_ips);
            let shared = handler.shared.clone();
            let watch = forwarder.watch_loops(shared, own, options.loop_probe);
            server.tasks.spawn(supervise::watched("loop probe".to_owned(), watch));
        }
        server.tasks.spawn(supervise::watched("metrics".to_owned(), flush_metrics(handler)));
        Ok(server)
    }

    /// The addresses it listens on, with the actual port if port 0 was requested.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where clients reach it: `addresses` at its ports, and the addresses it listens on.
    fn own_sockets(&self, addresses: &[IpAddr]) -> Vec<SocketAddr> {
        let at = |port: u16| addresses.iter().map(move |address| SocketAddr::new(*address, port));
        let mut own: Vec<SocketAddr> = self.addresses.clone();
        own.extend(self.addresses.iter().flat_map(|listen| at(listen.port())));
        own
    }

    /// Stops, and waits until all sockets are closed.
    pub async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.shutdown().await;
        let threads = std::mem::take(&mut self.threads);
        // They check the flag every READ_TIMEOUT.
        let joined =
            tokio::task::spawn_blocking(|| threads.into_iter().for_each(|t| drop(t.join())));
        let _panicked = joined.await;
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        options: &Options,
        handler: &Arc<Handler>,
        connections: &Connections,
    ) -> Result<(), DnsError> {
        let refused = |why| DnsError::Bind { address, why };
        let (address, first, listener) = bind_both(address).map_err(refused)?;
        let mut sockets = vec![first];
        for _ in 1..options.threads.max(1) {
            sockets.push(udp::bind(address).map_err(refused)?);
        }
        for socket in sockets {
            let socket = udp::ReplySocket::new(socket, address).map_err(refused)?;
            let worker = udp::Worker {
                socket: Arc::new(socket),
                handler: handler.clone(),
                runtime: Handle::current(),
                stop: self.stop.clone(),
            };
            let thread = supervise::thread("dns-udp", move || worker.run());
            self.threads.push(thread.map_err(DnsError::Thread)?);
        }
        let accept = tcp::accept(listener, handler.clone(), connections.clone(), options.tcp);
        self.tasks.spawn(supervise::watched("TCP listener".to_owned(), accept));
        self.addresses.push(address);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Binds UDP and TCP to one address; for port 0, to a port that is free for both.
fn bind_both(
    wanted: SocketAddr,
) -> std::io::Result<(SocketAddr, std::net::UdpSocket, TcpListener)> {
    let mut tries = 0;
    loop {
        let udp = udp::bind(wanted)?;
        let address = udp.local_addr()?;
        match bind(address, Wildcard::OwnFamily) {
            Ok(tcp) => return Ok((address, udp, tcp)),
            Err(_taken) if wanted.port() == 0 && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

async fn flush_metrics(handler: Arc<Handler>) {
    let mut every = tokio::time::interval(FLUSH);
    loop {
        every.tick().await;
        handler.tally().flush();
    }
}

/// Raises the open-file limit to the hard limit, and returns how many connections it allows.
fn raise_file_limit(wanted: usize) -> usize {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(hard, |(soft, _)| soft);
    let room = limit.saturating_sub(OTHER_FILES).max(limit / 2);
    let most = wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1);
    if most < wanted {
        let error = raised.err().map(|error| error.to_string()).unwrap_or_default();
        tracing::warn!(
            max_connections = most,
            limit,
            error,
            "TCP connections reduced: open-file limit too low"
        );
    }
    most
}
