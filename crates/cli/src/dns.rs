//! `nearhop dns`: cluster DNS with topology-aware answers.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
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
use nearhop_runtime::metrics::{CONTENT_TYPE_TEXT, Metrics};
use nearhop_runtime::server::{self, Answer, Route, Server, Setup};
use nearhop_runtime::shutdown::Shutdown;

use crate::daemon;
use crate::output::announce;
use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen, parse_namespace};
use crate::version;

/// Interval of the loop probes to upstream servers.
const LOOP_PROBE: Duration = Duration::from_secs(30);

/// Serves cluster DNS: headless Services with the endpoints nearest to the client, all other names
/// as CoreDNS does.
///
/// Runs as a Deployment or a DaemonSet in place of CoreDNS. Only reads the API.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop dns
  nearhop dns --upstream 1.1.1.1,8.8.8.8 --cluster-domain cluster.local
  nearhop dns --listen 127.0.0.1:5353 --kubeconfig kubeconfig --resolv-conf /dev/null")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Addresses to listen on, UDP and TCP. Default: port 53 on all addresses.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT,…", value_delimiter = ',', value_parser = parse_address)]
    listen: Vec<SocketAddr>,

    /// Cluster domain: the zone of Services and Pods.
    #[arg(help_heading = "Names", long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = parse_zone)]
    cluster_domain: Zone,

    /// Reverse (PTR) zones.
    #[arg(help_heading = "Names", long, value_name = "NAME,…", value_delimiter = ',', default_value = "in-addr.arpa,ip6.arpa", value_parser = parse_reverse_zone)]
    reverse_zones: Vec<Zone>,

    /// Zones of this server whose unknown names are forwarded upstream. Default: the reverse zones;
    /// empty for none.
    #[arg(help_heading = "Names", long, value_name = "NAME,…", value_delimiter = ',')]
    fallthrough: Option<Vec<String>>,

    /// TTL of answers and negative answers, in seconds.
    #[arg(help_heading = "Names", long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=3600))]
    ttl: u32,

    /// Pod names such as 10-0-0-1.default.pod: disabled; insecure, for any address; or verified,
    /// for addresses of PodLocators.
    #[arg(help_heading = "Names", long, value_name = "MODE", default_value = "insecure")]
    pods: Pods,

    /// Name endpoints without a hostname after their Pod instead of their address.
    #[arg(help_heading = "Names", long)]
    endpoint_pod_names: bool,

    /// Answer NXDOMAIN for Services with a cluster IP but without ready endpoints.
    #[arg(help_heading = "Names", long)]
    hide_empty_services: bool,

    /// Serve only Services of these namespaces. Default: all.
    #[arg(help_heading = "Names", long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_namespace)]
    namespaces: Vec<String>,

    /// Feature gates, such as `PodLocator=true`.
    #[arg(help_heading = "Names", long, value_name = "NAME=BOOL,…", value_parser = Gates::parse, default_value = "", overrides_with = "feature_gates")]
    feature_gates: Gates,

    /// Threads for UDP. Default: one per core.
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Largest UDP reply in bytes, even if the client accepts more.
    #[arg(help_heading = "Limits", long, value_name = "BYTES", default_value_t = 1232, value_parser = clap::value_parser!(u16).range(512..=65_000))]
    max_udp_size: u16,

    /// Maximum number of open TCP connections; a new one closes the one that is idle for longest.
    #[arg(help_heading = "Limits", long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tcp_connections: u32,

    /// Maximum number of UDP error replies per second and client address; 0 for no limit.
    #[arg(help_heading = "Limits", long, value_name = "N", default_value_t = 100)]
    error_rate: u32,

    /// Forwarders, such as a node-local cache, whose EDNS options locate their clients.
    #[arg(help_heading = "Client location", long, value_name = "CIDR,…", value_delimiter = ',', value_parser = parse_range)]
    trusted_forwarders: Vec<Cidr>,

    /// Code of the EDNS option with which a trusted forwarder sends its client's address or node.
    #[arg(help_heading = "Client location", long, value_name = "CODE", default_value_t = 65001, value_parser = clap::value_parser!(u16).range(65001..=65534))]
    forwarder_option: u16,

    /// Upstream servers for names outside the cluster. Default: those of --resolv-conf.
    #[arg(help_heading = "Upstream servers", long, value_name = "ADDRESS[:PORT],…", value_delimiter = ',', value_parser = parse_upstream)]
    upstream: Vec<SocketAddr>,

    /// File with the nameservers for names outside the cluster; /dev/null for none.
    #[arg(
        help_heading = "Upstream servers",
        long,
        value_name = "FILE",
        default_value = "/etc/resolv.conf"
    )]
    resolv_conf: PathBuf,

    /// Maximum number of cached upstream responses; 0 disables the cache.
    #[arg(help_heading = "Upstream servers", long, value_name = "N", default_value_t = 10_000)]
    cache_size: u32,

    /// Report not-ready after this long without the API server; 0 for never, as with CoreDNS.
    #[arg(help_heading = "Limits", long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    max_staleness: Duration,

    /// How long to keep answering after a shutdown request.
    #[arg(help_heading = "Limits", long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    lameduck: Duration,

    /// Address of /health and /livez.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "0.0.0.0:8080")]
    health_bind_address: SocketAddr,

    /// Address of /ready.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "0.0.0.0:8181")]
    ready_bind_address: SocketAddr,

    /// Address of /metrics.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:9153")]
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

/// Runs until shutdown.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    let options = args.options()?;
    // UDP has its own threads; these serve TCP, upstream servers and the API.
    daemon::run(2, serve(args, options))
}

async fn serve(args: &Args, options: Options) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let registry = version::metrics();
    let metrics = DnsMetrics::new(&registry, &options.listen.label());
    let readiness = Readiness::new(options.max_staleness);
    // Sends nothing yet, but reads the kubeconfig: a wrong one is reported before ports are open.
    let client = connect(&args.cluster.client("dns"), Some(&registry)).await?;
    let _ports = [
        listen("health", args.health_bind_address, health_routes(readiness.health()))?,
        listen("ready", args.ready_bind_address, vec![ready_route(readiness.clone())])?,
        listen("metrics", args.metrics_bind_address, vec![metrics_route(registry.clone())])?,
    ];
    if options.upstreams.is_empty() {
        tracing::warn!("no upstream servers: names outside the cluster are refused");
    }
    let on_listening = Box::new(|addresses: &[SocketAddr]| {
        for address in addresses {
            announce(&format!("answering on {address}"));
        }
    });
    let deps = Deps { client, metrics, readiness, shutdown, on_listening };
    serve_names(options, deps).await?;
    Ok(ExitCode::SUCCESS)
}

fn listen(name: &str, address: SocketAddr, routes: Vec<Route>) -> anyhow::Result<Server> {
    let server = server::serve(Setup::new(name, address), routes)?;
    if let Some(address) = server.address() {
        announce(&format!("serving /{name} on http://{address}"));
    }
    Ok(server)
}

fn ok() -> Answer {
    Answer::text(StatusCode::OK, "OK")
}

/// CoreDNS' path and Kubernetes' own: both fail when the main loop hangs for 30 s.
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
            bail!("--pods verified needs PodLocators: add --feature-gates PodLocator=true");
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
        let text = fs::read_to_string(&self.resolv_conf).map_err(|why| {
            anyhow!(
                "cannot read --resolv-conf {file}: {why}; set --upstream, or --resolv-conf /dev/null \
                 for no upstream servers"
            )
        })?;
        Ok(without_loops(name_servers(&text), UpstreamSource::ResolvConf, &own)?)
    }
}

fn parse_zone(text: &str) -> Result<Zone, String> {
    let zone = Zone::parse(text).map_err(|error| error.to_string())?;
    if zone.is_reverse() || zone.name().is_empty() {
        return Err("expected a zone such as cluster.local; for reverse zones use --reverse-zones"
            .to_owned());
    }
    Ok(zone)
}

/// Names outside the server's zones are always forwarded.
fn check_fallthrough(names: &[AskedName], zones: &[Zone]) -> anyhow::Result<()> {
    for name in names {
        let near =
            |zone: &Zone| name.below(zone.name()).is_some() || zone.name().below(name).is_some();
        if !zones.iter().any(near) {
            bail!("--fallthrough {name}: not in a zone of this server, so it is always forwarded");
        }
    }
    Ok(())
}

fn parse_reverse_zone(text: &str) -> Result<Zone, String> {
    let zone = Zone::parse(text).map_err(|error| error.to_string())?;
    if !zone.is_reverse() {
        return Err("expected a zone in in-addr.arpa or ip6.arpa".to_owned());
    }
    Ok(zone)
}

/// Reads a CIDR or one address.
fn parse_range(text: &str) -> Result<Cidr, String> {
    let whole = |text: &str| {
        let address: std::net::IpAddr = text.parse().ok()?;
        Some(Cidr::new(address, if address.is_ipv4() { 32 } else { 128 }))
    };
    let range = Cidr::parse(text.trim()).or_else(|| whole(text.trim()));
    range.ok_or_else(|| "expected a range such as 10.244.0.0/16, or an address".to_owned())
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected ADDRESS:PORT such as 10.96.0.10:53".to_owned())
}

fn parse_upstream(text: &str) -> Result<SocketAddr, String> {
    parse_server(text.trim()).ok_or_else(|| "expected ADDRESS or ADDRESS:PORT".to_owned())
}
