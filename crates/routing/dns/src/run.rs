//! The life of the process: learn everything, then listen, then go on learning until it is told to
//! stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nearhop_feed::{Event as FeedEvent, Feed, Selectors};
use nearhop_runtime::interfaces;
use nearhop_runtime::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::control::Control;
use crate::error::DnsError;
use crate::metrics::DnsMetrics;
use crate::options::Options;
use crate::readiness::Readiness;
use crate::serve::Server;
use crate::state::{Shared, State};

/// Batches of the feed that are taken in at once.
const BATCHES: usize = 16;

/// Told where the server listens, once it does.
pub type Listening = Box<dyn FnOnce(&[SocketAddr]) + Send>;

/// What the process gives the server to work with.
pub struct Surroundings {
    /// The API.
    pub client: kube::Client,
    /// Where it counts.
    pub metrics: DnsMetrics,
    /// Where it says whether it is ready.
    pub readiness: Readiness,
    /// When to stop.
    pub shutdown: Shutdown,
    /// Told where it listens.
    pub listening: Listening,
}

/// Something happened.
enum Event {
    Fed(Vec<FeedEvent>),
    Stop,
    Stopped,
}

/// Runs until it is told to stop.
///
/// # Errors
/// It cannot listen.
pub async fn run(mut options: Options, surroundings: Surroundings) -> Result<(), DnsError> {
    let Surroundings { client, metrics, readiness, shutdown, listening } = surroundings;
    if options.answers.local_ips.is_empty() {
        options.answers.local_ips = own_addresses(&options.listen.addresses());
    }
    let shared = Shared::new(State::new(options.settings()));
    let kinds = options.kinds();
    let mut control = Control::new(shared.clone(), &kinds, Timestamp::now(), metrics.clone());
    let watches = kinds.iter().map(|kind| (*kind, Selectors::default())).collect();
    let (feed, mut fed) =
        Feed::start(client, nearhop_feed::Options { watches, ..Default::default() });
    let feed = Arc::new(feed);
    readiness.listing(&feed);
    let mut listening = Some(listening);
    let mut server = None;
    let mut end = None;
    let heartbeat = readiness.health().heartbeat("loop");
    loop {
        match heartbeat.turn(next(&mut fed, &shutdown, end)).await {
            Event::Fed(events) => control.fed(events, Timestamp::now()),
            Event::Stop => {
                readiness.stopping();
                end = Some(Instant::now() + options.lameduck);
                continue;
            }
            Event::Stopped => break,
        }
        // Nobody is answered from half of what there is.
        if control.is_listed() && server.is_none() {
            let started = Server::start(&options, shared.clone(), metrics.clone())?;
            readiness.serving(&feed);
            tracing::info!(addresses = ?started.addresses(), upstreams = ?options.upstreams, "answering");
            if let Some(tell) = listening.take() {
                tell(started.addresses());
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
    fed: &mut mpsc::Receiver<Vec<FeedEvent>>,
    shutdown: &Shutdown,
    end: Option<Instant>,
) -> Event {
    let mut batches = Vec::new();
    let far = Instant::now() + Duration::from_secs(86_400);
    tokio::select! {
        biased;
        () = shutdown.wait(), if end.is_none() => Event::Stop,
        () = sleep_until(end.unwrap_or(far)), if end.is_some() => Event::Stopped,
        taken = fed.recv_many(&mut batches, BATCHES) => {
            if taken == 0 { Event::Stopped } else { Event::Fed(batches.into_iter().flatten().collect()) }
        }
    }
}

/// The addresses by which others reach this server: where it listens, or, where that is
/// everywhere, this machine's.
fn own_addresses(listen: &[SocketAddr]) -> Vec<std::net::IpAddr> {
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

/// Nobody reaches those by a name.
fn is_link_local(ip: std::net::IpAddr) -> bool {
    match ip {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
