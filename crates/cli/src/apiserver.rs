//! `nearhop apiserver`: an embedded Kubernetes API for a laptop, the lab and tests.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_apiserver::{
    ApiServer, Controllers, DEFAULT_HISTORY, Durability, Faults, KubeletOptions, Options,
};
use nearhop_core::Gates;
use nearhop_kinds::config::{ClusterConfig, ServiceCidrs, parse_port_range};
use nearhop_runtime::supervise;
use nearhop_runtime::tls::read_file;
use tokio::signal::unix::{SignalKind, signal};

use crate::daemon::read_pair;
use crate::output::{announce, complain};
use crate::parse::{LogArgs, parse_listen};
use crate::version;

/// Serves a Kubernetes API that stock kubectl and client libraries work against.
///
/// For laptops and tests. Give --ephemeral or --data-dir.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop apiserver --ephemeral --kubeconfig-out kubeconfig
  nearhop apiserver --data-dir /var/lib/nearhop --listen 127.0.0.1:6443
  nearhop apiserver --ephemeral --service-cidr 10.96.0.0/16,fd00:10:96::/112")]
#[command(group = clap::ArgGroup::new("storage").required(true).args(["data_dir", "ephemeral"]))]
pub(crate) struct Args {
    /// Listen address and port; port 0, or only `:0`, picks a free port.
    #[arg(help_heading = "Server", long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443", value_parser = parse_listen)]
    listen: SocketAddr,

    /// Store objects, keys and tokens in this directory.
    #[arg(help_heading = "Storage", long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Keep everything in memory; it is lost when the server stops.
    #[arg(help_heading = "Storage", long)]
    ephemeral: bool,

    /// Write a kubeconfig to this file (mode 0600) when the server is ready.
    #[arg(help_heading = "Server", long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,

    /// Range of cluster IPs, or one range per family, the primary one first.
    #[arg(help_heading = "Services", long, value_name = "CIDR[,CIDR]", value_parser = ServiceCidrs::parse, default_value = "10.96.0.0/16")]
    service_cidr: ServiceCidrs,

    /// Range of node ports.
    #[arg(help_heading = "Services", long, value_name = "FIRST-LAST", value_parser = parse_port_range, default_value = "30000-32767")]
    service_node_port_range: RangeInclusive<u16>,

    /// Feature gates, of nearhop's own Service fields and of Kubernetes:
    /// `ServiceTopology=false,ServiceRoutingPreference=true`.
    #[arg(help_heading = "Services", long, value_name = "NAME=BOOL,…", value_parser = Gates::parse, default_value = "", overrides_with = "feature_gates")]
    feature_gates: Gates,

    /// Number of changes of each resource in the watch log.
    #[arg(help_heading = "Storage", long, value_name = "N", default_value_t = DEFAULT_HISTORY, value_parser = parse_history)]
    watch_history: usize,

    /// Run without the namespace, garbage collection and event controllers, as kube-apiserver does.
    #[arg(help_heading = "Controllers and faults", long)]
    bare: bool,

    /// Serve /nearhop/faults, where the admin token can inject faults.
    #[arg(help_heading = "Controllers and faults", long)]
    enable_faults: bool,

    /// Omit the warning about an address that other machines reach: --listen is of a network that
    /// exists only on this machine, such as that of a lab.
    #[arg(long, hide = true)]
    private_network: bool,

    /// CA of the kubelets' serving certificates (PEM). Without it they are not verified.
    #[arg(help_heading = "Kubelets", long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,

    /// Client certificate for logs and exec on kubelets (PEM); default: one of the server's own CA
    /// (`ca.crt` in --data-dir) for `kube-apiserver-kubelet-client`.
    #[arg(help_heading = "Kubelets", long, value_name = "FILE", requires = "kubelet_client_key")]
    kubelet_client_certificate: Option<PathBuf>,

    /// The private key of --kubelet-client-certificate (PEM).
    #[arg(
        help_heading = "Kubelets",
        long,
        value_name = "FILE",
        requires = "kubelet_client_certificate"
    )]
    kubelet_client_key: Option<PathBuf>,

    #[command(flatten)]
    log: LogArgs,
}

/// Runs until a signal stops it.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.log.init();
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() && !args.private_network {
        complain(&format!(
            "warning: {} is reachable from other machines; only the tokens in the kubeconfig protect it",
            args.listen.ip()
        ));
    }
    let kubelets = args.kubelets()?;
    let mut terminated = signal(SignalKind::terminate())?;
    let server = ApiServer::start(Options {
        listen: args.listen,
        durability: args.data_dir.map_or(Durability::Ephemeral, Durability::Directory),
        cluster: ClusterConfig {
            service_cidrs: args.service_cidr,
            node_ports: args.service_node_port_range,
            gates: args.feature_gates,
        },
        history: args.watch_history,
        controllers: if args.bare { Controllers::Bare } else { Controllers::All },
        faults: if args.enable_faults { Faults::OnDemand } else { Faults::Refused },
        kubelets,
        metrics: version::metrics(),
    })
    .await?;
    if let Some(path) = &args.kubeconfig_out {
        server
            .write_kubeconfig(path)
            .with_context(|| format!("cannot write --kubeconfig-out {}", path.display()))?;
    }
    announce(&format!("listening on {}", server.url()));
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
        // The process ends, so that its supervisor starts a new one.
        panicked = supervise::failure() => return Err(panicked.into()),
    }
    server.stop().await;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn kubelets(&self) -> anyhow::Result<KubeletOptions> {
        let authority = self.kubelet_certificate_authority.as_deref();
        let authorities = authority.map(|path| read_file("--kubelet-certificate-authority", path));
        let client = read_pair(
            ("--kubelet-client-certificate", self.kubelet_client_certificate.as_ref()),
            ("--kubelet-client-key", self.kubelet_client_key.as_ref()),
        )?;
        Ok(KubeletOptions { authorities: authorities.transpose()?, client })
    }
}

fn parse_history(text: &str) -> Result<usize, String> {
    let expected = || "expected a whole number from 1".to_owned();
    text.parse().ok().filter(|number| *number > 0).ok_or_else(expected)
}
