//! `nearhop manager`: the workload controllers and the scheduler for a lab.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use nearhop_manager::{Controllers, Options, pem, run as manage};
use nearhop_runtime::admin;
use nearhop_runtime::client::{authorities, connect};
use nearhop_runtime::health::Health;
use nearhop_runtime::shutdown::Shutdown;

use crate::daemon::{self, RETRY, serve_admin};
use crate::parse::{ClusterArgs, LogArgs, parse_duration, parse_listen};
use crate::version;

/// Runs the workload controllers, the scheduler and the node controller.
///
/// For the embedded API server, which has none of them. A real cluster runs
/// kube-controller-manager and kube-scheduler instead.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop manager --kubeconfig kubeconfig
  nearhop manager --controllers '*,-scheduler'
  nearhop manager --node-monitor-grace-period 8s")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// Controllers to enable: `*` for all, `name` to enable, `-name` to disable.
    #[arg(
        help_heading = "Controllers",
        long,
        value_name = "NAME,…",
        default_value = "*",
        allow_hyphen_values = true
    )]
    controllers: Controllers,

    /// How long a node may miss heartbeats before its Ready condition becomes Unknown.
    #[arg(help_heading = "Controllers", long, value_name = "DURATION", value_parser = parse_grace, default_value = "50s")]
    node_monitor_grace_period: Duration,

    /// How long a new node may take to send its first heartbeat before its Ready condition becomes
    /// Unknown.
    #[arg(help_heading = "Controllers", long, value_name = "DURATION", value_parser = parse_duration, default_value = "60s")]
    node_startup_grace_period: Duration,

    /// Address for /livez, /readyz and /metrics; port 0 selects a free port.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:10272")]
    bind_address: SocketAddr,

    #[command(flatten)]
    log: LogArgs,
}

/// Parses a grace period. With zero every node would be lost before its first heartbeat.
pub(crate) fn parse_grace(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("the grace period must be longer than 0, such as 50s".to_owned()),
        grace => Ok(grace),
    }
}

/// Runs until shutdown.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    // One thread: the manager makes one decision at a time, and mostly waits.
    daemon::run(1, manage_cluster(args))
}

async fn manage_cluster(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::on_signals()?;
    let client_options = args.cluster.client("manager");
    let (metrics, health) = (version::metrics(), Health::new());
    let client = connect(&client_options, Some(&metrics)).await?;
    let _admin = serve_admin(args.bind_address, RETRY, admin::routes(metrics, health.clone()))?;
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
    fn a_grace_period_of_zero_is_rejected() {
        assert_eq!(parse_grace("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0", "0s", "fast"] {
            assert!(parse_grace(bad).is_err(), "{bad}");
        }
    }
}
