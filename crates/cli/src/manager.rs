//! `nearhop manager`: the controllers and the scheduler that a lab needs, on the embedded API.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_manager::{Controllers, Options, pem, run as manage};
use nearhop_runtime::client::{authorities, connect};
use nearhop_runtime::health::Health;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::Shutdown;

use crate::daemon::{serve_admin, supervised};
use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen};

/// Runs Deployments, ReplicaSets and DaemonSets, finds nodes for pods, and judges nodes.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Controllers that run: `*` for all, `name` for one, `-name` for all but one.
    #[arg(long, value_name = "NAME,…", default_value = "*", allow_hyphen_values = true)]
    controllers: Controllers,

    /// How long a node may be silent before it counts as lost.
    #[arg(long, value_name = "DURATION", value_parser = parse_grace, default_value = "40s")]
    node_monitor_grace_period: Duration,

    /// How long a node that never reported may take to do so.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "60s")]
    node_startup_grace_period: Duration,

    /// Where /livez, /readyz and /metrics are served; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:10272")]
    bind_address: SocketAddr,

    #[command(flatten)]
    log: LogArgs,
}

/// Reads how patient to be with nodes. With no patience every node is lost before it is heard.
fn parse_grace(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("nodes cannot be heard all the time: give them more than 0, \
                               such as 40s"
            .to_owned()),
        grace => Ok(grace),
    }
}

/// Runs until it is told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    // One thread: decisions are made one after the other, and the rest is waiting.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(supervised(manage_cluster(args)))
}

async fn manage_cluster(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let client_options = args.cluster.client("manager");
    let (metrics, health) = (Metrics::of_process(), Health::new());
    let client = connect(&client_options, Some(&metrics)).await?;
    let _admin = serve_admin(args.bind_address, metrics, health.clone())?;
    let options = Options {
        controllers: args.controllers,
        node_monitor_grace_period: args.node_monitor_grace_period,
        node_startup_grace_period: args.node_startup_grace_period,
        health,
        root_ca: pem(&authorities(&client_options).await?),
    };
    manage(options, client, shutdown).await;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_given_some_time() {
        assert_eq!(parse_grace("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0", "0s", "fast"] {
            assert!(parse_grace(bad).is_err(), "{bad}");
        }
    }
}
