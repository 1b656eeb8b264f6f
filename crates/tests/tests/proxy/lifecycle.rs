//! Start, end and cleanup: one proxy per table, and rules that stay when the proxy ends.

use std::net::IpAddr;
use std::process::Output;

use anyhow::{Result, ensure};
use nearhop_core::{Family, Name};
use nearhop_netfilter::object::{Batch, Op, Table};
use nearhop_proxy::kernel::Kernel;
use nearhop_tests::node::objects::{Endpoint, Frontends, Port};
use nearhop_tests::node::process::{ProxyProcess, output};
use nearhop_tests::node::{Api, NODE, Site, generation, run};
use serde_json::json;

/// The families of the tables with this name on the node.
fn tables(name: &str) -> Result<Vec<Family>> {
    let tables = Kernel::open()?.tables()?;
    let ours = tables.iter().map(|dumped| &dumped.table).filter(|table| table.name == name);
    let mut families: Vec<Family> = ours.map(|table| table.family).collect();
    families.sort_unstable();
    Ok(families)
}

const BOTH: [Family; 2] = [Family::Ipv4, Family::Ipv6];

async fn one_service(site: &mut Site) -> Result<(Frontends, IpAddr)> {
    let a = site.pod("10.244.1.1")?;
    site.create_node(NODE, None).await?;
    let service = site.create_cluster_ip("web", &json!({})).await?;
    site.create_slice("web", &[Endpoint::here(a)]).await?;
    Ok((service, a))
}

fn refused(output: &Output, words: &[&str]) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{}: {text}", output.status);
    let missing: Vec<&&str> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} is not in: {text}");
    Ok(())
}

#[test]
fn a_second_proxy_refuses_to_start() {
    run("lifecycle::a_second_proxy_refuses_to_start", Api::Memory, async |site| {
        let (service, a) = one_service(site).await?;
        let mut first = ProxyProcess::start(site, &[])?;
        first.until_programmed("web", &[a])?;
        let before = generation()?;
        // On other ports, so that only the table conflicts.
        let ports = ["--metrics-bind-address", "127.0.0.1:0"];
        refused(&output(site, &ports)?, &["another nearhop proxy", "table nearhop", "--table"])?;
        ensure!(generation()? == before && first.is_running()?);
        ensure!(site.connect(&site.client, service.cluster(Port::Web)?)? == a);
        // With another table it can run.
        let health = ["--table", "mine", "--service-proxy-name", "mine"];
        let second = ProxyProcess::launch(site, &health)?;
        second.until_ready()?;
        ensure!(tables("mine")? == BOTH && tables("nearhop")? == BOTH);
        Ok(())
    });
}

/// Neither a start nor `--cleanup` changes the table of another program.
#[test]
fn a_table_of_another_program_is_not_changed() {
    run("lifecycle::a_table_of_another_program_is_not_changed", Api::Memory, async |site| {
        let table = Table { family: Family::Ipv4, name: Name::from("theirs") };
        let ops = vec![Op::AddTable { comment: Name::from("not of nearhop") }];
        Kernel::open()?.apply(&Batch { table, ops })?;
        let before = Kernel::open()?.tables()?;
        for arguments in [&["--table", "theirs"][..], &["--table", "theirs", "--cleanup"]] {
            let words = ["table theirs", "another program", "--table"];
            refused(&output(site, arguments)?, &words)?;
        }
        ensure!(Kernel::open()?.tables()? == before && tables("theirs")? == [Family::Ipv4]);
        Ok(())
    });
}

#[test]
fn a_killed_proxy_is_replaced_at_once() {
    run("lifecycle::a_killed_proxy_is_replaced_at_once", Api::Memory, async |site| {
        let (_, a) = one_service(site).await?;
        for _ in 0..3 {
            let proxy = ProxyProcess::start(site, &[])?;
            proxy.until_programmed("web", &[a])?;
            proxy.kill()?;
        }
        Ok(())
    });
}

#[test]
fn rules_outlive_the_proxy_until_cleanup() {
    run("lifecycle::rules_outlive_the_proxy_until_cleanup", Api::Memory, async |site| {
        let (service, a) = one_service(site).await?;
        let nothing = output(site, &["--cleanup"])?;
        ensure!(nothing.status.success(), "{nothing:?}");
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a])?;
        refused(&output(site, &["--cleanup"])?, &["another nearhop proxy", "stop it first"])?;
        ensure!(tables("nearhop")? == BOTH, "the refused cleanup deleted a table");
        let before = generation()?;
        let status = proxy.terminate()?;
        ensure!(status.success(), "{status}");
        ensure!(generation()? == before && tables("nearhop")? == BOTH);
        let to = service.cluster(Port::Web)?;
        ensure!(site.connect(&site.client, to)? == a, "the rules do not work without the proxy");
        let cleaned = output(site, &["--cleanup"])?;
        ensure!(cleaned.status.success(), "{cleaned:?}");
        let stderr = String::from_utf8_lossy(&cleaned.stderr);
        let said = stderr.contains("deleted the nftables table nearhop");
        ensure!(said && tables("nearhop")?.is_empty(), "{cleaned:?}");
        ensure!(output(site, &["--cleanup"])?.status.success(), "a cleanup without a table fails");
        Ok(())
    });
}

/// Tables with other names stay.
#[test]
fn cleanup_deletes_only_its_own_table() {
    run("lifecycle::cleanup_deletes_only_its_own_table", Api::Memory, async |site| {
        let (_, a) = one_service(site).await?;
        let proxy = ProxyProcess::start(site, &["--table", "mine"])?;
        proxy.until_programmed("web", &[a])?;
        let cleaned = output(site, &["--cleanup"])?;
        ensure!(cleaned.status.success() && tables("mine")? == BOTH, "{cleaned:?}");
        ensure!(proxy.terminate()?.success());
        ensure!(output(site, &["--cleanup", "--table", "mine"])?.status.success());
        ensure!(tables("mine")?.is_empty());
        Ok(())
    });
}
