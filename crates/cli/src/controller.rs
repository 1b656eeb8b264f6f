//! `nearhop controller`: EndpointSlices, hints, conditions and events, on any Kubernetes API.

use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{ArgAction, Args as ClapArgs};
use nearhop_controller::{
    CleanUp, Deps, DryRun, Ended, Ending, Mode, Options, Removed, Until, clean_up, dry_run,
    run as control,
};
use nearhop_core::Gates;
use nearhop_core::hint::capacity::MaxUnzonedShare;
use nearhop_core::intent::check_distribution;
use nearhop_core::locate::LocatorLabels;
use nearhop_runtime::admin;
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::client::{Client, connect, describe_failure};
use nearhop_runtime::health::{Health, Purpose};
use nearhop_runtime::lease::LeaseOptions;
use nearhop_runtime::server::BindFailure;
use nearhop_runtime::shutdown::Shutdown;
use serde_json::json;

use crate::daemon::{self, serve_admin};
use crate::output::{Output, complain, print, print_json};
use crate::parse::{
    ClusterArgs, LogArgs, parse_domain, parse_duration, parse_listen, parse_namespace, parse_share,
};
use crate::version;

/// Exit code of `--dry-run` where something would be written, as of `kubectl diff`.
const DIFFERENT: u8 = 1;
/// Exit code of `--once` and `--cleanup` where something could not be written.
const FAILED: u8 = 1;

/// Keeps EndpointSlices with hints, conditions and events for Services.
///
/// Runs as a Deployment, on any Kubernetes API. Exit code 1: --dry-run found changes, or --once or
/// --cleanup could not write all of them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop controller --kubeconfig kubeconfig --dry-run
  nearhop controller --kubeconfig kubeconfig
  nearhop controller --mode replace --feature-gates PodLocator=true
  nearhop controller --cleanup")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,

    /// labelled: Services labelled service.kubernetes.io/service-proxy-name: nearhop, beside the
    /// cluster's own controller. replace: all Services with a selector, instead of it. Default:
    /// replace on the embedded API, labelled elsewhere.
    #[arg(help_heading = "Services", long, value_name = "labelled|replace")]
    mode: Option<Mode>,

    /// Feature gates: `ServiceTopology=false,ServiceRoutingPreference=true`. `PodLocator=true`
    /// keeps a PodLocator for every Pod; their definition must be installed (nearhop manifests).
    #[arg(help_heading = "Services", long, value_name = "NAME=BOOL,…", value_parser = Gates::parse, default_value = "", overrides_with = "feature_gates")]
    feature_gates: Gates,

    /// Node labels that are copied into PodLocators: keys, or * for all. They replace the
    /// default: hostname, zone, region, and every key that some Service's topologyKeys name.
    #[arg(help_heading = "Services", long, value_name = "KEY,…|*", value_parser = LocatorLabels::parse)]
    locator_labels: Option<LocatorLabels>,

    /// trafficDistribution of Services that request no topology.
    #[arg(help_heading = "Services", long, value_name = "VALUE")]
    default_traffic_distribution: Option<String>,

    /// Share of the CPU on nodes without a zone above which Auto writes no hints.
    #[arg(help_heading = "Services", long, value_name = "PERCENT", value_parser = parse_share, default_value = "10%")]
    max_unzoned_share: MaxUnzonedShare,

    /// Maximum number of endpoints in one EndpointSlice.
    #[arg(help_heading = "EndpointSlices", long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_endpoints_per_slice: u16,

    /// Number of Services whose slices are written at the same time.
    #[arg(help_heading = "EndpointSlices", long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=128))]
    concurrent_service_endpoint_syncs: u8,

    /// How long the controller collects Pod changes before it writes them.
    #[arg(help_heading = "EndpointSlices", long, alias = "endpointslice-updates-batch-period", value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    endpoint_updates_batch_period: Duration,

    /// Domain of the conditions on Services; empty where nearhop is the cluster's own controller.
    #[arg(help_heading = "Services", long, value_name = "DOMAIN", value_parser = parse_domain, default_value = "nearhop.dev")]
    condition_domain: String,

    /// Write only while holding a Lease, so that several controllers can run.
    #[arg(help_heading = "Leader election", long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true, num_args = 0..=1, default_missing_value = "true")]
    leader_elect: bool,

    /// How long other controllers wait before they take over the Lease.
    #[arg(help_heading = "Leader election", long, value_name = "DURATION", value_parser = parse_duration, default_value = "15s")]
    leader_elect_lease_duration: Duration,

    /// How long the leader keeps writing when it cannot renew the Lease.
    #[arg(help_heading = "Leader election", long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    leader_elect_renew_deadline: Duration,

    /// How often the leader renews the Lease, and the others try to get it.
    #[arg(help_heading = "Leader election", long, value_name = "DURATION", value_parser = parse_duration, default_value = "2s")]
    leader_elect_retry_period: Duration,

    /// Namespace of the Lease.
    #[arg(help_heading = "Leader election", long, value_name = "NAMESPACE", default_value = "kube-system", value_parser = parse_namespace)]
    leader_elect_resource_namespace: String,

    /// Name of the Lease.
    #[arg(
        help_heading = "Leader election",
        long,
        value_name = "NAME",
        default_value = "nearhop-controller"
    )]
    leader_elect_resource_name: String,

    /// Address for /healthz, /readyz and /metrics; port 0 selects a free port.
    #[arg(help_heading = "Ports", long, value_name = "ADDRESS:PORT", value_parser = parse_listen, default_value = "127.0.0.1:10271")]
    bind_address: SocketAddr,

    /// Reconcile once and exit: 0 if everything is written, 1 if not.
    #[arg(help_heading = "Run once and exit", long)]
    once: bool,

    /// Print the pending changes as a diff, write nothing, and exit: 0 if there are none, 1 if there
    /// are.
    #[arg(help_heading = "Run once and exit", long)]
    dry_run: bool,

    /// Output format of --dry-run: text, or json, a list of writes with their bodies.
    #[arg(
        help_heading = "Run once and exit",
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        requires = "dry_run"
    )]
    output: Output,

    /// Remove everything that nearhop wrote to the cluster, and exit: 0 if everything is removed, 1
    /// if not. Stop the other controllers first. EndpointSlices of the cluster's own
    /// controller stay, without nearhop's annotation.
    #[arg(help_heading = "Run once and exit", long)]
    cleanup: bool,

    #[command(flatten)]
    log: LogArgs,
}

/// Runs until shutdown, or until it is done.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    // One thread: waking another costs more than what is done on it. A cold start takes a third
    // less CPU so, and on two cores shared with the API server no longer.
    daemon::run(1, control_cluster(args))
}

async fn control_cluster(args: Args) -> anyhow::Result<ExitCode> {
    if [args.once, args.dry_run, args.cleanup].into_iter().filter(|chosen| *chosen).count() > 1 {
        bail!("--once, --dry-run and --cleanup exclude each other: give one of them");
    }
    if let Some(value) = &args.default_traffic_distribution {
        check_distribution(value, &args.feature_gates)
            .map_err(|why| anyhow!("--default-traffic-distribution: {why}"))?;
    }
    // Checked before anything is sent.
    let lease = args.leader_elect.then(|| args.lease()).transpose()?;
    let shutdown = Shutdown::on_signals()?;
    let metrics = version::metrics();
    let client = connect(&args.cluster.client("controller"), Some(&metrics)).await?;
    let mode = match args.mode {
        Some(mode) => mode,
        // It removes what either mode has written.
        None if args.cleanup => Mode::Labelled,
        None => usual_mode(&client, &args, &shutdown).await?,
    };
    let options = args.options(mode, lease);
    let health = Health::new();
    let synced = health.check("informer-sync", Purpose::Ready);
    let deps = Deps { client, metrics: metrics.clone(), synced, shutdown };
    if args.dry_run {
        let result = dry_run(options, deps).await;
        return print_dry_run(args.output, result.context("stopped before everything was read")?);
    }
    if args.cleanup {
        return Ok(judge_cleanup(&clean_up(options, deps).await?));
    }
    // Not with --once: another controller may use the port.
    let serve =
        || serve_admin(args.bind_address, BindFailure::Fatal, admin::routes(metrics, health));
    let _admin = (!args.once).then(serve).transpose()?;
    tracing::info!(%mode, "controller started");
    let ended = control(options, deps).await?;
    Ok(if args.once { judge_once(&ended) } else { ExitCode::SUCCESS })
}

/// Prints what was removed.
fn judge_cleanup(ended: &CleanUp) -> ExitCode {
    match ended {
        CleanUp::Done(Removed { slices, annotations, conditions, locators }) => {
            complain(&format!(
                "removed {slices} EndpointSlices, {annotations} annotations on EndpointSlices of the \
                 cluster's own controller, the conditions of {conditions} Services, {locators} \
                 PodLocators"
            ));
            return ExitCode::SUCCESS;
        }
        CleanUp::NoLease => complain(
            "error: another controller holds the lease and would write everything again, so nothing \
             was removed: stop it first",
        ),
        CleanUp::Stopped => complain("error: stopped before everything was removed"),
        CleanUp::Failed(why) => complain(&format!("error: not everything was removed: {why}")),
    }
    ExitCode::from(FAILED)
}

/// Whether everything is in order now.
fn judge_once(ended: &Ended) -> ExitCode {
    match ended.why {
        Ending::Settled => {}
        Ending::Stopped => complain("error: stopped before everything was written"),
        Ending::NoLease => complain(
            "error: cannot get the lease, so nothing was written: another controller holds it, or \
             the log has the reason; --leader-elect=false writes without a lease",
        ),
    }
    for service in &ended.failed_slices {
        complain(&format!(
            "error: Service {service}: not all EndpointSlices were written; see the log"
        ));
    }
    for service in &ended.failed_status {
        complain(&format!(
            "error: Service {service}: its status could not be written; see the log"
        ));
    }
    complain_about_locators(ended);
    let written = ended.failed_slices.is_empty()
        && ended.failed_status.is_empty()
        && ended.failed_locators.is_empty();
    let done = ended.why == Ending::Settled && written;
    ExitCode::from(if done { 0 } else { FAILED })
}

/// One line for all: there are as many as there are Pods, and mostly one reason.
fn complain_about_locators(ended: &Ended) {
    let [first, rest @ ..] = ended.failed_locators.as_slice() else { return };
    let others = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    complain(&format!(
        "error: Pod {first}{others}: PodLocator not written; see the log, and install the \
         CustomResourceDefinition if it is missing: nearhop manifests | kubectl apply -f -"
    ));
}

/// The embedded API has no controller of its own; a real cluster has one. A daemon waits for an API
/// server that is not there yet.
async fn usual_mode(client: &Client, args: &Args, shutdown: &Shutdown) -> anyhow::Result<Mode> {
    let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    for attempt in 0.. {
        let failed = match client.apiserver_version().await {
            Ok(version) if version.compiler == "rustc" => return Ok(Mode::Replace),
            Ok(_) => return Ok(Mode::Labelled),
            Err(error) => anyhow!(describe_failure(&error)),
        };
        if args.once || args.dry_run || shutdown.is_requested() {
            return Err(failed);
        }
        tracing::warn!(error = %format_args!("{failed:#}"), "API server does not answer; will retry");
        tokio::select! {
            () = shutdown.wait() => {}
            () = tokio::time::sleep(backoff.delay(attempt, 0.0)) => {}
        }
    }
    unreachable!("attempts do not run out")
}

fn print_dry_run(output: Output, result: DryRun) -> anyhow::Result<ExitCode> {
    match output {
        Output::Text => print(&(result.diffs.concat() + &result.locators.concat()))?,
        Output::Json => {
            print_json(&json!({"services": result.services, "writes": result.writes}))?;
        }
    }
    complain(&format!("{} of {} Services would change", result.diffs.len(), result.services));
    if !result.locators.is_empty() {
        complain(&format!("{} PodLocators would change", result.locators.len()));
    }
    let same = result.diffs.is_empty() && result.locators.is_empty();
    Ok(ExitCode::from(if same { 0 } else { DIFFERENT }))
}

impl Args {
    fn options(&self, mode: Mode, lease: Option<LeaseOptions>) -> Options {
        Options {
            gates: self.feature_gates.clone(),
            default_traffic_distribution: self.default_traffic_distribution.clone(),
            max_unzoned: self.max_unzoned_share,
            max_endpoints_per_slice: usize::from(self.max_endpoints_per_slice),
            workers: usize::from(self.concurrent_service_endpoint_syncs),
            batch_period: self.endpoint_updates_batch_period,
            condition_domain: self.condition_domain.clone(),
            locator_labels: self.locator_labels.clone().unwrap_or_default(),
            lease,
            until: if self.once { Until::Settled } else { Until::Stopped },
            ..Options::new(mode)
        }
    }

    fn lease(&self) -> anyhow::Result<LeaseOptions> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (namespace, name) =
            (&self.leader_elect_resource_namespace, &self.leader_elect_resource_name);
        let lease = LeaseOptions {
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            ..LeaseOptions::new(namespace, name, host.trim())
        };
        lease.validate()?;
        Ok(lease)
    }
}
