//! `nearhop version`: this build, and the version of the API server.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args as ClapArgs;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::version::Info;
use nearhop_runtime::client::{Client, connect, describe_failure};
use nearhop_runtime::metrics::Metrics;
use serde::Serialize;

use crate::daemon::block_on;
use crate::output::{OutputArgs, describe};
use crate::parse::ClusterArgs;

/// How long the API server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Exit code if a cluster was named and its version cannot be read.
const NO_SERVER: u8 = 1;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What `--version` prints behind the name: `0.1.0 (0123456789ab)`.
pub(crate) const SHORT: &str = env!("NEARHOP_BUILD_SHORT");

/// Prints the version of nearhop, how it was built, and the version of the API server.
///
/// Exit code 0 also where no API server answers, because that is no failure of this command; 1 if
/// --kubeconfig or --context names a cluster, and its version cannot be read.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  nearhop version
  nearhop version --client -o json
  nearhop version --kubeconfig kubeconfig")]
pub(crate) struct Args {
    /// Do not ask the API server.
    #[arg(long)]
    client: bool,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// This build. Values that the build did not know are none.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Build {
    version: &'static str,
    commit: Option<&'static str>,
    /// Of the commit, or `SOURCE_DATE_EPOCH`: no clock, so that builds can be reproduced.
    build_date: Option<String>,
    profile: &'static str,
    target: &'static str,
    rustc: &'static str,
}

/// The answer of the API server to `/version`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    git_version: String,
    git_commit: String,
    platform: String,
    compiler: String,
}

/// The result of the command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    client_version: Build,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<Server>,
    /// Why there is no version of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_error: Option<String>,
}

/// Prints the versions.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut report = Report { client_version: build(), server_version: None, server_error: None };
    if !args.client {
        match block_on(ask_server(args)) {
            Ok(server) => report.server_version = Some(server),
            Err(error) => report.server_error = Some(describe(&error)),
        }
    }
    args.output.print(&report, || render(&report))?;
    let failed = report.server_error.is_some() && args.cluster.is_named();
    Ok(ExitCode::from(if failed { NO_SERVER } else { 0 }))
}

async fn ask_server(args: &Args) -> anyhow::Result<Server> {
    let client = connect(&args.cluster.client("version"), None).await?;
    let info = ask_api_server(&client).await?;
    Ok(Server {
        git_version: info.git_version,
        git_commit: info.git_commit,
        platform: info.platform,
        compiler: info.compiler,
    })
}

/// The version of the API server. Commands that print a result call it first, so that a server that
/// cannot be reached is an error at once.
pub(crate) async fn ask_api_server(client: &Client) -> anyhow::Result<Info> {
    let answer = tokio::time::timeout(TIMEOUT, client.apiserver_version()).await;
    let silent = || anyhow!("the API server does not answer within {} s", TIMEOUT.as_secs());
    let answer = answer.map_err(|_| silent())?;
    answer.map_err(|error| anyhow!(describe_failure(&error)))
}

fn render(report: &Report) -> String {
    let build = &report.client_version;
    let unknown = || "unknown".to_owned();
    let commit = build.commit.map_or_else(unknown, str::to_owned);
    let date = build.build_date.clone().unwrap_or_else(unknown);
    let mut text = format!(
        "nearhop {}\n  commit  {commit}\n  date    {date}\n  build   {} for {}, rustc {}\n",
        build.version, build.profile, build.target, build.rustc
    );
    if let Some(server) = &report.server_version {
        let kind = if server.compiler == "rustc" { ", nearhop apiserver" } else { "" };
        let _ = writeln!(text, "server  {} ({}{kind})", server.git_version, server.platform);
    }
    if let Some(why) = &report.server_error {
        let _ = writeln!(text, "server  unknown: {why}");
    }
    text
}

fn build() -> Build {
    let date = env!("NEARHOP_BUILD_EPOCH").parse().ok();
    let date = date.and_then(|seconds| Timestamp::from_second(seconds).ok());
    Build {
        version: VERSION,
        commit: commit(),
        build_date: date.map(|date| date.to_string()),
        profile: env!("NEARHOP_BUILD_PROFILE"),
        target: env!("NEARHOP_BUILD_TARGET"),
        rustc: env!("NEARHOP_BUILD_RUSTC"),
    }
}

fn commit() -> Option<&'static str> {
    Some(env!("NEARHOP_BUILD_COMMIT")).filter(|commit| !commit.is_empty())
}

/// The metrics of a daemon's process, with the build in `nearhop_build_info`.
pub(crate) fn metrics() -> Metrics {
    let metrics = Metrics::of_process();
    let build = build();
    metrics.build_info(build.version, build.commit.unwrap_or("unknown"), build.rustc);
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_daemon_reports_its_build() {
        let text = metrics().encode();
        let line = text.lines().find(|line| line.starts_with("nearhop_build_info{")).unwrap();
        assert!(
            line.contains(&format!("version=\"{VERSION}\"")) && line.ends_with("} 1"),
            "{line}"
        );
        assert!(line.contains("commit=\""), "{line}");
    }

    #[test]
    fn a_server_that_does_not_answer_is_named_with_the_reason() {
        let why = Some("the API server does not answer within 3 s".to_owned());
        let report = Report { client_version: build(), server_version: None, server_error: why };
        let text = render(&report);
        assert!(text.ends_with("server  unknown: the API server does not answer within 3 s\n"));
    }
}
