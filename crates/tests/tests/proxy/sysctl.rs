//! The sysctls that the proxy changes: when, what it logs, and what `--cleanup` restores. Only values
//! that each network namespace has for itself change here.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use nearhop_net::Namespace;
use nearhop_net::sysctl::{set_sysctl, sysctl};
use nearhop_tests::node::process::{ProxyProcess, output};
use nearhop_tests::node::{Api, NODE, Site, run, until};

const UDP: &str = "net/netfilter/nf_conntrack_udp_timeout";
const FLAGS: [&str; 2] = ["--conntrack-udp-timeout", "77s"];

fn udp() -> Result<String> {
    Ok(sysctl(&Namespace::current()?, UDP)?)
}

/// The proxy sets sysctls beside its rules, so a ready proxy may not have set them yet.
fn until_udp(value: &str) -> Result<()> {
    until("the timeout of UDP", || Ok(if udp()? == value { Ok(()) } else { Err(udp()?) }))
}

/// Runs `--cleanup`; returns what it prints.
fn clean_up(site: &Site) -> Result<String> {
    let cleaned = output(site, &["--cleanup"])?;
    let said = String::from_utf8_lossy(&cleaned.stderr).into_owned();
    ensure!(cleaned.status.success(), "{said}");
    Ok(said)
}

/// Point 16 of a new user's list.
#[test]
fn the_proxy_logs_sysctls_before_it_changes_them_and_only_after_it_reached_the_api() {
    let name =
        "sysctl::the_proxy_logs_sysctls_before_it_changes_them_and_only_after_it_reached_the_api";
    run(name, Api::Disk, async |site| -> Result<()> {
        site.create_node(NODE, None).await?;
        let before = udp()?;
        let log = site.kubeconfig.with_file_name("log");
        site.stop_api();
        let proxy = ProxyProcess::launch_with_log(site, &FLAGS, &log)?;
        until("the failed requests of the proxy", || {
            let said = std::fs::read_to_string(&log)?;
            Ok(if said.contains("watch failed; will retry") { Ok(()) } else { Err(said) })
        })?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        ensure!(udp()? == before, "a proxy without an API changed a sysctl");
        ensure!(!std::fs::read_to_string(&log)?.contains("sysctl"), "it has changed nothing yet");
        site.start_api()?;
        proxy.until_ready()?;
        until_udp("77")?;
        let said = std::fs::read_to_string(&log)?;
        let line =
            said.lines().find(|line| line.contains("changing sysctl") && line.contains("udp"));
        let line = line.unwrap_or_default();
        let fields = format!("name=\"net.netfilter.nf_conntrack_udp_timeout\" from={before} to=77");
        ensure!(line.contains(&fields), "{line}\n{said}");
        Ok(())
    });
}

/// After a crash and a restart, the values are those from before the first start.
#[test]
fn cleanup_restores_the_sysctls_that_a_killed_and_restarted_proxy_changed() {
    let name = "sysctl::cleanup_restores_the_sysctls_that_a_killed_and_restarted_proxy_changed";
    run(name, Api::Memory, async |site| -> Result<()> {
        site.create_node(NODE, None).await?;
        let established = "net/netfilter/nf_conntrack_tcp_timeout_established";
        let here = Namespace::current()?;
        set_sysctl(&here, UDP, "31")?;
        set_sysctl(&here, established, "432000")?;
        let proxy = ProxyProcess::start(site, &FLAGS)?;
        until_udp("77")?;
        ensure!(sysctl(&here, established)? == "86400");
        proxy.kill()?;
        ensure!(ProxyProcess::start(site, &FLAGS)?.terminate()?.success());
        let said = clean_up(site)?;
        ensure!(said.contains(&format!("restored /proc/sys/{UDP} from 77 to 31")), "{said}");
        ensure!(udp()? == "31" && sysctl(&here, established)? == "432000");
        let again = clean_up(site)?;
        ensure!(!again.contains("restored"), "{again}");
        Ok(())
    });
}

#[test]
fn cleanup_keeps_a_sysctl_that_an_administrator_changed_since() {
    let name = "sysctl::cleanup_keeps_a_sysctl_that_an_administrator_changed_since";
    run(name, Api::Memory, async |site| -> Result<()> {
        site.create_node(NODE, None).await?;
        let before = udp()?;
        let proxy = ProxyProcess::start(site, &FLAGS)?;
        until_udp("77")?;
        set_sysctl(&Namespace::current()?, UDP, "55")?;
        ensure!(proxy.terminate()?.success());
        let said = clean_up(site)?;
        let wanted = format!(
            "kept /proc/sys/{UDP} at 55: it was changed after nearhop set it to 77 (before: {before})"
        );
        ensure!(said.contains(&wanted) && udp()? == "55", "{said}");
        Ok(())
    });
}

/// The proxy serves, and says what `--cleanup` cannot do.
#[test]
fn a_state_directory_that_cannot_be_written_is_a_warning() {
    let name = "sysctl::a_state_directory_that_cannot_be_written_is_a_warning";
    run(name, Api::Memory, async |site| -> Result<()> {
        site.create_node(NODE, None).await?;
        let log = site.kubeconfig.with_file_name("log");
        let flags = [&FLAGS[..], &["--state-dir", "/proc/none"]].concat();
        let proxy = ProxyProcess::launch_with_log(site, &flags, &log)?;
        proxy.until_ready()?;
        until_udp("77")?;
        let said = std::fs::read_to_string(&log)?;
        let warnings = said.lines().filter(|line| line.contains("cannot remember sysctls"));
        let warnings: Vec<&str> = warnings.collect();
        ensure!(warnings.len() == 1 && warnings[0].contains("--state-dir"), "{said}");
        Ok(())
    });
}

#[test]
fn rules_are_programmed_while_another_process_has_locked_the_state_directory() {
    let name = "sysctl::rules_are_programmed_while_another_process_has_locked_the_state_directory";
    run(name, Api::Memory, async |site| -> Result<()> {
        site.create_node(NODE, None).await?;
        let before = udp()?;
        let state = site.kubeconfig.with_file_name("proxy-state");
        DirBuilder::new().mode(0o700).create(&state)?;
        let lock = std::fs::File::create(state.join("lock"))?;
        lock.lock()?;
        let log = site.kubeconfig.with_file_name("log");
        let proxy = ProxyProcess::launch_with_log(site, &FLAGS, &log)?;
        proxy.until_ready()?;
        ensure!(udp()? == before, "the proxy was ready only after it gave up the lock");
        until_udp("77")?;
        let said = std::fs::read_to_string(&log)?;
        let warning = said.lines().find(|line| line.contains("cannot remember sysctls"));
        ensure!(warning.is_some_and(|line| line.contains("another process has locked")), "{said}");
        Ok(())
    });
}
