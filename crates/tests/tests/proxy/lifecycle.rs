//! Start, end and cleaning up: one proxy for a table, and rules that outlive it.

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

/// The families of nearhop's tables on the node.
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
    let service = site.clustered("web", &json!({})).await?;
    site.create_slice("web", &[Endpoint::here(a)]).await?;
    Ok((service, a))
}

fn refused(output: &Output, words: &[&str]) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{}: {text}", output.status);
    let missing: Vec<&&str> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} is not said in: {text}");
    Ok(())
}

#[test]
fn a_second_proxy_refuses() {
    run("lifecycle::a_second_proxy_refuses", Api::Forgets, async |site| {
        let (service, a) = one_service(site).await?;
        let mut first = ProxyProcess::start(site, &[])?;
        first.until_programmed("web", &[a])?;
        let before = generation()?;
        // On other ports, so that nothing but the table is in its way.
        let ports = ["--metrics-bind-address", "127.0.0.1:0"];
        refused(&output(site, &ports)?, &["another nearhop proxy", "table nearhop", "--table"])?;
        ensure!(generation()? == before && first.is_running()?);
        ensure!(site.connect(&site.client, service.cluster(Port::Web)?)? == a);
        // With a table of its own it may run.
        let health = ["--table", "mine", "--service-proxy-name", "mine"];
        let second = ProxyProcess::launch(site, &health)?;
        second.until_ready()?;
        ensure!(tables("mine")? == BOTH && tables("nearhop")? == BOTH);
        Ok(())
    });
}

/// Neither to run nor to clean up is a reason to touch what others made.
#[test]
fn a_table_of_another_program_is_left_alone() {
    run("lifecycle::a_table_of_another_program_is_left_alone", Api::Forgets, async |site| {
        let table = Table { family: Family::Ipv4, name: Name::from("theirs") };
        let ops = vec![Op::AddTable { comment: Name::from("somebody else's") }];
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
    run("lifecycle::a_killed_proxy_is_replaced_at_once", Api::Forgets, async |site| {
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
    run("lifecycle::rules_outlive_the_proxy_until_cleanup", Api::Forgets, async |site| {
        let (service, a) = one_service(site).await?;
        let nothing = output(site, &["--cleanup"])?;
        ensure!(nothing.status.success(), "{nothing:?}");
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a])?;
        refused(&output(site, &["--cleanup"])?, &["another nearhop proxy", "stop it first"])?;
        ensure!(tables("nearhop")? == BOTH, "a cleanup that was refused deleted something");
        let before = generation()?;
        let status = proxy.terminate()?;
        ensure!(status.success(), "{status}");
        ensure!(generation()? == before && tables("nearhop")? == BOTH);
        let to = service.cluster(Port::Web)?;
        ensure!(site.connect(&site.client, to)? == a, "the rules do not work any more");
        let cleaned = output(site, &["--cleanup"])?;
        ensure!(cleaned.status.success(), "{cleaned:?}");
        let stderr = String::from_utf8_lossy(&cleaned.stderr);
        let said = stderr.contains("deleted the nftables table nearhop");
        ensure!(said && tables("nearhop")?.is_empty(), "{cleaned:?}");
        ensure!(output(site, &["--cleanup"])?.status.success(), "nothing to clean up is fine");
        Ok(())
    });
}

/// Tables of other names are left alone.
#[test]
fn only_its_own_table_is_cleaned_up() {
    run("lifecycle::only_its_own_table_is_cleaned_up", Api::Forgets, async |site| {
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
