//! `nearhop lab check`: checks a file for `lab up --config`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use nearhop_apiserver::{ApiServer, Options};
use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_lab::apply::apply_config;
use nearhop_lab::cluster::Cluster;
use nearhop_lab::config::{ConfigFile, text_of};
use nearhop_lab::ranges::Ranges;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Serialize;

use crate::daemon::block_on;
use crate::output::{Output, OutputArgs, print_json};

/// Checks a file for `nearhop lab up --config` without starting a lab.
///
/// Checks the syntax, what a lab supports, and the objects by the rules of the API server. Exit code
/// 0: a lab can start. 2: it cannot; the error names file, line and column.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  nearhop lab check shop.lab
  nearhop lab check shop.lab -o json
  nearhop lab export | nearhop lab check -")]
pub(crate) struct Args {
    /// The file; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    file: String,
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    zones: usize,
    nodes: usize,
    services: usize,
    pods: usize,
    warnings: Vec<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (name, text) = read_config(&args.file)?;
    match check(&name, &text) {
        Ok(summary) => {
            args.output.print(&summary, || describe(&summary))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            if args.output.output == Output::Json {
                let (file, warnings) = (name, Vec::new());
                let error = Some(crate::output::describe(&error));
                let (zones, nodes, services, pods) = (0, 0, 0, 0);
                let valid = false;
                let summary =
                    Summary { file, valid, error, zones, nodes, services, pods, warnings };
                print_json(&summary)?;
            }
            Err(error)
        }
    }
}

/// The name and text of a file of `--config`; `-` is standard input.
pub(super) fn read_config(path: &Path) -> anyhow::Result<(String, String)> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        let name = "standard input".to_owned();
        let text = text_of(&name, bytes)?;
        return Ok((name, text));
    }
    let name = path.display().to_string();
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let text = text_of(&name, bytes)?;
    Ok((name, text))
}

fn check(name: &str, text: &str) -> anyhow::Result<Summary> {
    let config = ConfigFile::parse(name, text)?;
    let topology = config.topology(Ranges::default())?;
    let objects = config.objects()?;
    let warnings = block_on(async {
        // An API server in memory applies the same rules as that of the lab.
        let services = Ranges::default().services.to_string();
        let services = ServiceCidrs::parse(&services).map_err(anyhow::Error::msg)?;
        let cluster = ClusterConfig::new(services);
        let server = ApiServer::start(Options { cluster, ..Options::default() }).await?;
        let (_memory, kubeconfig) =
            in_memory(&server.kubeconfig()).context("cannot make a file in memory")?;
        let client = Cluster::connect(&kubeconfig).await?;
        let warnings = apply_config(&client, &config, &objects, &[]).await?;
        server.stop().await;
        Ok(warnings)
    })?;
    let fixture = config.fixture();
    let zones: BTreeSet<&str> =
        topology.nodes.iter().map(|node| node.zone()).filter(|zone| !zone.is_empty()).collect();
    Ok(Summary {
        file: name.to_owned(),
        valid: true,
        error: None,
        zones: zones.len(),
        nodes: topology.nodes.len(),
        services: fixture.services.len(),
        pods: fixture.pods.len(),
        warnings: config.ignored().into_iter().chain(warnings).collect(),
    })
}

/// A file in memory and its path: however this command ends, no token remains on a disk.
fn in_memory(text: &str) -> io::Result<(File, PathBuf)> {
    let mut file = File::from(memfd_create(c"kubeconfig", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}

fn describe(summary: &Summary) -> String {
    let mut text = format!(
        "{}: valid: {} in {}, {}, {}\n",
        summary.file,
        super::counted(summary.nodes, "node"),
        super::counted(summary.zones, "zone"),
        super::counted(summary.services, "Service"),
        super::counted(summary.pods, "Pod"),
    );
    for warning in &summary.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}
