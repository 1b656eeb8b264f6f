//! `nearhop dns`: the cluster's names, answered by where the asker stands.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args as ClapArgs, ValueEnum};
use http::StatusCode;
use nearhop_core::answer::{AskedName, Config, EmptyServices, EndpointNames, PodMode, Zone};
use nearhop_core::{Cidr, Gate, Gates, Name};
use nearhop_dns::client_location::TrustedForwarders;
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::options::{Listen, Options, TcpOptions};
use nearhop_dns::readiness::Readiness;
use nearhop_dns::resolv_conf::{UpstreamSource, name_servers, parse_server, without_loops};
use nearhop_dns::run::{Deps, run as serve_names};
use nearhop_runtime::client::connect;
use nearhop_runtime::health::Health;
use nearhop_runtime::log;
use nearhop_runtime::metrics::{CONTENT_TYPE_TEXT, Metrics};
use nearhop_runtime::server::{self, Answer, Route, Server, Setup};
use nearhop_runtime::shutdown::Shutdown;

use crate::daemon::supervised;
use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen};

/// How often upstream servers are probed for loops.
const LOOP_PROBE: Duration = Duration::from_secs(30);

/// Answers for the cluster's names: a Service's name with the endpoints that the asker's place
/// calls for, everything else as CoreDNS does.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Where questions are answered, UDP and TCP; without it everywhere at port 53.
    #[arg(long, value_name = "ADDRESS:PORT,…", value_delimiter = ',')]
    listen: Vec<SocketAddr>,

    /// The zone of Services and Pods.
    #[arg(long, value_name = "NAME", default_value = "cluster.local", value_parser = parse_zone)]
    cluster_domain: Zone,

    /// Zones of addresses.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "in-addr.arpa,ip6.arpa", value_parser = parse_reverse_zone)]
    reverse_zones: Vec<Zone>,

    /// Zones of ours whose unknown names are asked upstream; without it the reverse zones, empty
    /// for none.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    fallthrough: Option<Vec<String>>,

    /// How many seconds answers and denials may be kept by others.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=3600))]
    ttl: u32,

    /// Names of Pods by their address: none, any address, or those that PodLocators know.
    #[arg(long, value_name = "MODE", default_value = "insecure")]
    pods: Pods,

    /// Endpoints without a host name are called like their Pod, not by their address.
    #[arg(long)]
    endpoint_pod_names: bool,

    /// Services with a cluster IP have no name while nobody serves them.
    #[arg(long)]
    hide_empty_services: bool,

    /// Namespaces whose Services have names; without it all.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_namespace)]
    namespaces: Vec<String>,

    /// Feature gates: `PodLocator=true`.
    #[arg(long, value_name = "NAME=BOOL,…", value_parser = Gates::parse, default_value = "", overrides_with = "feature_gates")]
    feature_gates: Gates,

    /// Threads that answer UDP; without it one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// The largest UDP answer, whatever a client says it takes.
    #[arg(long, value_name = "OCTETS", default_value_t = 1232, value_parser = clap::value_parser!(u16).range(512..=65_000))]
    max_udp_size: u16,

    /// TCP connections at a time; one more closes the one that was silent for longest.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tcp_connections: u32,

    /// Error replies by UDP to one address in a second; 0 is no limit.
    #[arg(long, value_name = "N", default_value_t = 100)]
    error_rate: u32,

    /// Servers that ask for others, such as a node's cache: their EDNS options are believed.
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = parse_range)]
    trusted_forwarders: Vec<Cidr>,

    /// The EDNS option in which a trusted forwarder gives its client's address or node.
    #[arg(long, value_name = "CODE", default_value_t = 65001, value_parser = clap::value_parser!(u16).range(65001..=65534))]
    forwarder_option: u16,

    /// Servers for other names; without it those of --resolv-conf.
    #[arg(long, value_name = "ADDRESS[:PORT],…", value_delimiter = ',', value_parser = parse_upstream)]
    upstream: Vec<SocketAddr>,

    /// File whose nameservers are asked for other names; /dev/null for none.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,

    /// Answers of other servers that are kept; 0 keeps none.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    cache_size: u32,

    /// Not ready any more after so long without the API server; 0 is never, as with CoreDNS.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    max_staleness: Duration,

    /// How long it goes on answering after it was told to stop.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    lameduck: Duration,

    /// Where /health is served.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "0.0.0.0:8080")]
    health_bind_address: SocketAddr,

    /// Where /ready is served.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "0.0.0.0:8181")]
    ready_bind_address: SocketAddr,

    /// Where /metrics is served.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:9153")]
    metrics_bind_address: SocketAddr,

    #[command(flatten)]
    log: LogArgs,
}

/// `--pods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pods {
    Disabled,
    Insecure,
    Verified,
}

/// Runs until it is told to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    log::init(args.log.verbosity, args.log.log_format);
    let options = args.options()?;
    // Questions have threads of their own; this is for TCP, other servers and the API.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().context("cannot start threads")?;
    runtime.block_on(supervised(serve(args, options)))
}

async fn serve(args: &Args, options: Options) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let registry = Metrics::of_process();
    let metrics = DnsMetrics::new(&registry, &options.listen.label());
    let readiness = Readiness::new(options.max_staleness);
    let _ports = [
        listen("health", args.health_bind_address, health_routes(readiness.health()))?,
        listen("ready", args.ready_bind_address, vec![ready_route(readiness.clone())])?,
        listen("metrics", args.metrics_bind_address, vec![metrics_route(registry.clone())])?,
    ];
    let client = connect(&args.cluster.client("dns"), Some(&registry)).await?;
    if options.upstreams.is_empty() {
        tracing::warn!("there is no upstream server: other names are refused");
    }
    let on_listening = Box::new(|addresses: &[SocketAddr]| {
        // Whoever started it on a free port reads it here.
        for address in addresses {
            say(&format!("answering on {address}"));
        }
    });
    let deps = Deps { client, metrics, readiness, shutdown, on_listening };
    serve_names(options, deps).await?;
    Ok(ExitCode::SUCCESS)
}

fn listen(name: &str, address: SocketAddr, routes: Vec<Route>) -> anyhow::Result<Server> {
    let path = name.to_owned();
    let server = server::serve(Setup::new(name, address), routes)?;
    if let Some(address) = server.address() {
        say(&format!("serving /{path} on http://{address}"));
    }
    Ok(server)
}

/// Tells whoever started it; if nobody listens, no harm is done.
fn say(line: &str) {
    let _unread = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{line}\n"));
}

fn ok() -> Answer {
    Answer::text(StatusCode::OK, "OK")
}

/// CoreDNS' path, and Kubernetes' own: both fail when the loop has not turned for 30 s.
fn health_routes(health: &Health) -> Vec<Route> {
    let route = |path| {
        let health = health.clone();
        Route::at(path, move |_| match health.live() {
            Ok(()) => ok(),
            Err(why) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, why),
        })
    };
    vec![route("/health"), route("/livez")]
}

fn ready_route(readiness: Readiness) -> Route {
    Route::at("/ready", move |_| match readiness.report(Instant::now()) {
        Ok(()) => ok(),
        Err(why) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    })
}

fn metrics_route(registry: Metrics) -> Route {
    Route::at("/metrics", move |_| {
        Answer::new(StatusCode::OK, CONTENT_TYPE_TEXT, registry.encode())
    })
}

impl Args {
    fn options(&self) -> anyhow::Result<Options> {
        if self.pods == Pods::Verified && !self.feature_gates.on(Gate::PodLocator) {
            bail!("--pods verified needs PodLocators: give --feature-gates PodLocator=true, too");
        }
        let listen = match self.listen.is_empty() {
            true => Listen::Everywhere(53),
            false => Listen::At(self.listen.clone()),
        };
        let cores = || available_parallelism().map_or(1, usize::from);
        Ok(Options {
            gates: self.feature_gates.clone(),
            threads: self.threads.map_or_else(cores, usize::from),
            max_udp_size: self.max_udp_size,
            error_rate: self.error_rate,
            forwarders: TrustedForwarders {
                trusted: self.trusted_forwarders.clone(),
                option: self.forwarder_option,
            },
            upstreams: self.upstreams(&listen)?,
            loop_probe: LOOP_PROBE,
            cache_size: self.cache_size as usize,
            tcp: TcpOptions {
                connections: self.max_tcp_connections as usize,
                ..TcpOptions::default()
            },
            max_staleness: self.max_staleness,
            lameduck: self.lameduck,
            listen,
            ..Options::new(self.answers()?)
        })
    }

    fn answers(&self) -> anyhow::Result<Config> {
        let mut zones = vec![self.cluster_domain.clone()];
        zones.extend(self.reverse_zones.iter().cloned());
        let fallthrough = match &self.fallthrough {
            None => self.reverse_zones.iter().map(|zone| zone.name().clone()).collect(),
            Some(names) => {
                let names = names.iter().filter(|name| !name.is_empty());
                let read = |name: &String| {
                    AskedName::parse(name).with_context(|| format!("--fallthrough {name:?}"))
                };
                let names = names.map(read).collect::<anyhow::Result<Vec<_>>>()?;
                check_fallthrough(&names, &zones)?;
                names
            }
        };
        let shown = self.namespaces.iter().map(|name| Name::from(name.as_str())).collect();
        Ok(Config {
            zones,
            ttl: self.ttl,
            pods: match self.pods {
                Pods::Disabled => PodMode::Disabled,
                Pods::Insecure => PodMode::Insecure,
                Pods::Verified => PodMode::Verified,
            },
            namespaces: (!self.namespaces.is_empty()).then_some(shown),
            endpoint_names: match self.endpoint_pod_names {
                true => EndpointNames::Pod,
                false => EndpointNames::Address,
            },
            empty_services: match self.hide_empty_services {
                true => EmptyServices::Hidden,
                false => EmptyServices::Shown,
            },
            fallthrough,
            ..Config::new(self.cluster_domain.clone())
        })
    }

    fn upstreams(&self, listen: &Listen) -> anyhow::Result<Vec<SocketAddr>> {
        let own = listen.addresses();
        if !self.upstream.is_empty() {
            return Ok(without_loops(self.upstream.clone(), UpstreamSource::Flag, &own)?);
        }
        let file = self.resolv_conf.display();
        let text = fs::read_to_string(&self.resolv_conf).with_context(|| {
            format!("--resolv-conf {file}: give --upstream, or /dev/null for no other servers")
        })?;
        Ok(without_loops(name_servers(&text), UpstreamSource::ResolvConf, &own)?)
    }
}

fn parse_zone(text: &str) -> Result<Zone, String> {
    let zone = Zone::parse(text).map_err(|error| error.to_string())?;
    if zone.is_reverse() || zone.name().is_empty() {
        return Err(
            "expected a zone such as cluster.local; those of addresses are --reverse-zones"
                .to_owned(),
        );
    }
    Ok(zone)
}

/// What is in none of our zones is asked upstream anyway.
fn check_fallthrough(names: &[AskedName], zones: &[Zone]) -> anyhow::Result<()> {
    for name in names {
        let near =
            |zone: &Zone| name.below(zone.name()).is_some() || zone.name().below(name).is_some();
        if !zones.iter().any(near) {
            bail!("--fallthrough {name}: is in no zone of ours, so it is asked upstream anyway");
        }
    }
    Ok(())
}

/// A name that a Namespace can have.
fn parse_namespace(text: &str) -> Result<String, String> {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let sound = (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if sound { Ok(text.to_owned()) } else { Err("no Namespace can have this name".to_owned()) }
}

fn parse_reverse_zone(text: &str) -> Result<Zone, String> {
    let zone = Zone::parse(text).map_err(|error| error.to_string())?;
    if !zone.is_reverse() {
        return Err("expected a zone in in-addr.arpa or ip6.arpa".to_owned());
    }
    Ok(zone)
}

/// A range, or one address.
fn parse_range(text: &str) -> Result<Cidr, String> {
    let whole = |text: &str| {
        let address: std::net::IpAddr = text.parse().ok()?;
        Some(Cidr::new(address, if address.is_ipv4() { 32 } else { 128 }))
    };
    let range = Cidr::parse(text.trim()).or_else(|| whole(text.trim()));
    range.ok_or_else(|| "expected a range such as 10.244.0.0/16, or an address".to_owned())
}

fn parse_upstream(text: &str) -> Result<SocketAddr, String> {
    parse_server(text.trim())
        .ok_or_else(|| "expected an address, with or without a port".to_owned())
}
