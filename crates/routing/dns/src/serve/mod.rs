//! The sockets: threads for UDP, tasks for TCP, and whoever waits for other servers.

mod connections;
mod datagram;
mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nearhop_runtime::supervise;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::answerer::{Answerer, Handled, Job, Now};
use crate::error::DnsError;
use crate::forward::{Cache, Forwarder};
use crate::metrics::{DnsMetrics, Tally};
use crate::options::{Listen, Options};
use crate::state::Shared;
use crate::wire::ReplyWriter;
use connections::Connections;

/// Files that are open beside TCP connections: sockets to other servers, to the API, logs.
const OTHER_FILES: u64 = 2048;
/// How often the counters of what is not hot are shown.
const FLUSH: Duration = Duration::from_millis(250);
/// How often a free port is looked for that both UDP and TCP can have.
const TRIES: usize = 16;

/// Everything that an answer needs.
pub(crate) struct Service {
    pub(crate) answerer: Answerer,
    pub(crate) shared: Shared,
    pub(crate) metrics: DnsMetrics,
    forwarder: Option<Arc<Forwarder>>,
    /// Counters of TCP and of whoever waited.
    tally: Mutex<Tally>,
}

impl Service {
    fn new(options: &Options, shared: Shared, metrics: DnsMetrics) -> Self {
        let cache = Arc::new(Cache::new(options.cache_size, metrics.clone()));
        let upstreams = &options.upstreams;
        let forwarder = (!upstreams.is_empty())
            .then(|| Arc::new(Forwarder::new(upstreams, cache.clone(), metrics.clone())));
        let cache = forwarder.as_ref().map(|_| cache);
        let answerer = Answerer::new(options, cache, rand::random(), Instant::now());
        let answerer = answerer.knowing_loops(forwarder.as_ref().map(|it| it.loops()));
        let tally = Mutex::new(metrics.tally());
        Self { answerer, shared, metrics, forwarder, tally }
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        // A count that a panic left out is no reason to count no more.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks another server and writes what is to be said then; nothing, if nothing is.
    pub(crate) async fn finish(&self, job: &Job) -> Option<ReplyWriter> {
        let kept = match &self.forwarder {
            None => None,
            Some(forwarder) => match forwarder.enter() {
                None => None,
                Some(_place) => forwarder.resolve(&job.target, &job.request).await,
            },
        };
        let mut out = ReplyWriter::default();
        let (now, tally) = (Instant::now(), &mut *self.tally());
        match self.answerer.finish(job, kept.as_deref(), now, &mut out, tally) {
            Handled::Reply => {
                tally.took(1, job.waited(now));
                Some(out)
            }
            Handled::Later(_) | Handled::Silence => None,
        }
    }
}

/// What time it is.
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix: since.as_secs() as u32 }
}

/// A running server. Dropping it stops it, too, but does not wait.
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
}

impl Server {
    /// Listens and answers from the state; must be called within a tokio runtime. When this
    /// returns, it answers.
    ///
    /// # Errors
    /// An address cannot be had, or a thread.
    pub fn start(options: &Options, shared: Shared, metrics: DnsMetrics) -> Result<Self, DnsError> {
        let most = raise_file_limit(options.tcp.connections);
        let service = Arc::new(Service::new(options, shared, metrics.clone()));
        let mut server = Self {
            addresses: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            tasks: JoinSet::new(),
        };
        let connections = Connections::new(most, metrics);
        for address in options.listen.addresses() {
            let bound = server.listen(address, options, &service, &connections);
            match (bound, &options.listen) {
                (Err(DnsError::Bind { why, .. }), Listen::Everywhere(_)) if address.is_ipv6() => {
                    tracing::warn!("IPv6 is not served: {why}");
                }
                (bound, _) => bound?,
            }
        }
        if let Some(forwarder) = service.forwarder.clone().filter(|_| !options.loop_probe.is_zero())
        {
            let own = server.own_sockets(&options.answers.local_ips);
            let shared = service.shared.clone();
            let watch = forwarder.watch_loops(shared, own, options.loop_probe);
            server.tasks.spawn(supervise::watched("loop probe".to_owned(), watch));
        }
        server.tasks.spawn(supervise::watched("counters".to_owned(), show_counts(service)));
        Ok(server)
    }

    /// Where it listens, with the ports that were taken for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where others reach it: these addresses at its ports, and where it listens.
    fn own_sockets(&self, addresses: &[IpAddr]) -> Vec<SocketAddr> {
        let at = |port: u16| addresses.iter().map(move |address| SocketAddr::new(*address, port));
        let mut own: Vec<SocketAddr> = self.addresses.clone();
        own.extend(self.addresses.iter().flat_map(|listen| at(listen.port())));
        own
    }

    /// Stops, and waits until no socket is left.
    pub async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.shutdown().await;
        let threads = std::mem::take(&mut self.threads);
        // They look at the flag several times in a second.
        let joined =
            tokio::task::spawn_blocking(|| threads.into_iter().for_each(|t| drop(t.join())));
        let _panicked = joined.await;
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        options: &Options,
        service: &Arc<Service>,
        connections: &Connections,
    ) -> Result<(), DnsError> {
        let refused = |why| DnsError::Bind { address, why };
        let (address, first, listener) = bind_both(address).map_err(refused)?;
        let mut sockets = vec![first];
        for _ in 1..options.threads.max(1) {
            sockets.push(udp::bind(address).map_err(refused)?);
        }
        for socket in sockets {
            let end = udp::UdpEnd::new(socket, address).map_err(refused)?;
            let worker = udp::Worker {
                end: Arc::new(end),
                service: service.clone(),
                runtime: Handle::current(),
                stop: self.stop.clone(),
            };
            let thread = supervise::thread("dns-udp", move || worker.run());
            self.threads.push(thread.map_err(DnsError::Thread)?);
        }
        let listener = tokio::net::TcpListener::from_std(listener).map_err(refused)?;
        let accept = tcp::accept(listener, service.clone(), connections.clone(), options.tcp);
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

/// UDP and TCP at one address. For port 0 a port must be found that is free for both.
fn bind_both(
    wanted: SocketAddr,
) -> std::io::Result<(SocketAddr, std::net::UdpSocket, std::net::TcpListener)> {
    let mut tries = 0;
    loop {
        let udp = udp::bind(wanted)?;
        let address = udp.local_addr()?;
        match tcp::bind(address) {
            Ok(tcp) => return Ok((address, udp, tcp)),
            Err(_taken) if wanted.port() == 0 && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

async fn show_counts(service: Arc<Service>) {
    let mut every = tokio::time::interval(FLUSH);
    loop {
        every.tick().await;
        service.tally().flush();
    }
}

/// Lets the process have as many files as it may, and says how many connections that is enough
/// for.
fn raise_file_limit(wanted: usize) -> usize {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(hard, |(soft, _)| soft);
    let room = limit.saturating_sub(OTHER_FILES).max(limit / 2);
    let most = wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1);
    if most < wanted {
        let error = raised.err().map(|error| error.to_string()).unwrap_or_default();
        tracing::warn!(most, limit, error, "fewer TCP connections than asked for: too few files");
    }
    most
}
