//! The life of the process: list all objects, listen, follow changes until shutdown.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use nearhop_feed::{Event as FeedEvent, Feed, Selectors};
use nearhop_runtime::client::Client;
use nearhop_runtime::interfaces;
use nearhop_runtime::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::error::DnsError;
use crate::metrics::DnsMetrics;
use crate::options::Options;
use crate::readiness::Readiness;
use crate::serve::Server;
use crate::state::{Shared, State};
use crate::update::StateUpdater;

/// Batches of the feed that one state change combines.
const BATCHES: usize = 16;

/// Called with the addresses that the server listens on.
pub(crate) type OnListening = Box<dyn FnOnce(&[SocketAddr]) + Send>;

/// What the server needs from the process.
pub struct Deps {
    /// Client of the API server.
    pub client: Client,
    /// Metrics.
    pub metrics: DnsMetrics,
    /// Readiness, updated by [`run`].
    pub readiness: Readiness,
    /// Shutdown request.
    pub shutdown: Shutdown,
    /// Called once the server listens.
    pub on_listening: OnListening,
}

enum Event {
    Feed(Vec<FeedEvent>),
    ShutdownRequested,
    Stop,
}

/// Runs until shutdown. Fails if the server cannot listen.
pub async fn run(mut options: Options, deps: Deps) -> Result<(), DnsError> {
    let Deps { client, metrics, readiness, shutdown, on_listening } = deps;
    if options.answers.local_ips.is_empty() {
        options.answers.local_ips = own_addresses(&options.listen.addresses());
    }
    let shared = Shared::new(State::new(options.settings()));
    let kinds = options.kinds();
    let mut updater = StateUpdater::new(shared.clone(), &kinds, Timestamp::now(), metrics.clone());
    let watches = kinds.iter().map(|kind| (*kind, Selectors::default())).collect();
    let (feed, mut events) =
        Feed::start(client, nearhop_feed::Options { watches, ..Default::default() });
    let feed = Arc::new(feed);
    readiness.set_listing(&feed);
    let mut on_listening = Some(on_listening);
    let mut server = None;
    let mut end = None;
    let heartbeat = readiness.health().heartbeat("loop");
    loop {
        match heartbeat.turn(next(&mut events, &shutdown, end)).await {
            Event::Feed(events) => updater.on_feed(events, Timestamp::now()),
            Event::ShutdownRequested => {
                readiness.set_stopping();
                end = Some(Instant::now() + options.lameduck);
                continue;
            }
            Event::Stop => break,
        }
        // The server never answers from incomplete lists.
        if updater.is_listed() && server.is_none() {
            let started = Server::start(&options, shared.clone(), metrics.clone())?;
            readiness.set_serving(&feed);
            tracing::info!(addresses = ?started.addresses(), upstreams = ?options.upstreams, "listening");
            if let Some(on_listening) = on_listening.take() {
                on_listening(started.addresses());
            }
            server = Some(started);
        }
    }
    if let Some(server) = server {
        server.stop().await;
    }
    Ok(())
}

async fn next(
    feed: &mut mpsc::Receiver<Vec<FeedEvent>>,
    shutdown: &Shutdown,
    end: Option<Instant>,
) -> Event {
    let mut batches = Vec::new();
    tokio::select! {
        biased;
        () = shutdown.wait(), if end.is_none() => Event::ShutdownRequested,
        () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => Event::Stop,
        taken = feed.recv_many(&mut batches, BATCHES) => {
            if taken == 0 { Event::Stop } else { Event::Feed(batches.into_iter().flatten().collect()) }
        }
    }
}

/// The addresses at which clients reach this server: where it listens, or all addresses of this
/// machine if it listens on the unspecified address.
fn own_addresses(listen: &[SocketAddr]) -> Vec<IpAddr> {
    let here = interfaces::addresses();
    let mut own: Vec<_> = listen
        .iter()
        .flat_map(|address| {
            let all = address.ip().is_unspecified();
            let family = address.is_ipv4();
            let mine = here.iter().copied().filter(move |ip| all && ip.is_ipv4() == family);
            mine.chain((!all).then_some(address.ip()))
        })
        .filter(|ip| !ip.is_loopback() && !is_link_local(*ip))
        .collect();
    own.sort_unstable();
    own.dedup();
    own
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
