//! `nearhop proxy`: the node's choice in the kernel.

mod args;
mod debug;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use http::StatusCode;
use nearhop_proxy::Lock;
use nearhop_proxy::health::serve::BindFailure;
use nearhop_proxy::health::{SharedHealth, serve as serve_health};
use nearhop_proxy::metrics::ProxyMetrics;
use nearhop_proxy::options::Options;
use nearhop_proxy::run::{Deps, run as proxy};
use nearhop_proxy::sysctl::{ConntrackLimits, Restored, Sysctls, restore};
use nearhop_runtime::admin;
use nearhop_runtime::client::connect;
use nearhop_runtime::health::{Health, Purpose};
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::server::{Answer, Route, Server};
use nearhop_runtime::shutdown::Shutdown;
use tokio::sync::mpsc;

pub(crate) use args::Args;

use crate::complain;
use crate::daemon;
use crate::version;

/// Questions that may wait for the loop.
const QUESTIONS: usize = 16;

/// Runs until shutdown.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    let options = args.options()?;
    if args.cleanup {
        return cleanup(&args, &options);
    }
    // Two threads: one may be in the kernel while the other answers probes.
    daemon::run(2, serve(args, options))
}

async fn serve(args: Args, options: Options) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let lock = Lock::take(&options.table)?;
    let metrics = version::metrics();
    let client = connect(&args.cluster.client("proxy"), Some(&metrics)).await?;
    let sysctls = Some(Sysctls::new(&limits(&args), &args.state_dir, &options.table));
    let health = SharedHealth::new(options.sync_period);
    let proxy_metrics = ProxyMetrics::new(&metrics, &options.families);
    let on_failure =
        if args.bind_address_hard_fail { BindFailure::Fatal } else { BindFailure::Retry };
    let _health_port =
        serve_health::serve(args.health_address(), on_failure, &health, &proxy_metrics)?;
    let checks = Health::new();
    let synced = checks.check("first-sync", Purpose::Ready);
    let (ask, questions) = mpsc::channel(QUESTIONS);
    let _admin = serve_admin(&args, &options, on_failure, metrics, checks, ask)?;
    tracing::info!(node = %options.node, table = %options.table, "proxy started");
    let metrics = proxy_metrics;
    let deps = Deps { lock, client, metrics, health, synced, questions, sysctls, shutdown };
    proxy(options, deps).await?;
    Ok(ExitCode::SUCCESS)
}

fn cleanup(args: &Args, options: &Options) -> anyhow::Result<ExitCode> {
    nearhop_proxy::cleanup::cleanup(options)?;
    complain(&format!("deleted the nftables table {}", options.table));
    let restored = restore(&args.state_dir, &options.table).context("cannot restore sysctls")?;
    restored.iter().for_each(|one| complain(&one.to_string()));
    let failed = restored.iter().any(|one| matches!(one, Restored::Failed { .. }));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn limits(args: &Args) -> ConntrackLimits {
    ConntrackLimits {
        max_per_core: args.conntrack_max_per_core,
        min: args.conntrack_min,
        tcp_established: args.conntrack_tcp_timeout_established,
        tcp_close_wait: args.conntrack_tcp_timeout_close_wait,
        tcp_be_liberal: args.conntrack_tcp_be_liberal,
        udp: args.conntrack_udp_timeout,
        udp_stream: args.conntrack_udp_timeout_stream,
    }
}

fn serve_admin(
    args: &Args,
    options: &Options,
    on_failure: BindFailure,
    metrics: Metrics,
    checks: Health,
    ask: mpsc::Sender<nearhop_proxy::run::Question>,
) -> anyhow::Result<Server> {
    let token = match &args.admin_token_file {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("--admin-token-file {}", path.display()))?;
            anyhow::ensure!(!text.trim().is_empty(), "--admin-token-file contains no token");
            Some(text.trim().to_owned())
        }
    };
    let config: Arc<str> = Arc::from(debug::configz(options).to_string());
    let mut routes = admin::routes(metrics, checks);
    routes.push(Route::at("/proxyMode", |_| Answer::text(StatusCode::OK, "nftables")));
    routes.push(Route::at("/configz", move |_| Answer::json(StatusCode::OK, &*config)));
    routes.push(debug::route(ask, token));
    daemon::serve_admin(args.metrics_address(), on_failure.into(), routes)
}
