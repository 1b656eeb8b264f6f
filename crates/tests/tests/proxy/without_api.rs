//! The API server is gone for a while: what is in the kernel goes on working, and what changed is
//! taken in when it is back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nearhop_tests::node::objects::{Endpoint, Port};
use nearhop_tests::node::process::{ProxyProcess, probe};
use nearhop_tests::node::{Api, NODE, run};
use serde_json::json;

#[test]
fn traffic_goes_on_and_changes_come_with_the_server() {
    let name = "without_api::traffic_goes_on_and_changes_come_with_the_server";
    run(name, Api::Remembers, async |site| -> Result<()> {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let service = site.clustered("web", &json!({})).await?;
        site.create_slice("web", &[Endpoint::here(a)]).await?;
        let mut proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &[a])?;
        let to = service.cluster(Port::Web)?;
        site.stop_api();
        let end = Instant::now() + Duration::from_secs(2);
        let mut connections = 0;
        while Instant::now() < end {
            ensure!(site.connect(&site.client, to)? == a);
            connections += 1;
            if connections % 50 == 0 {
                ensure!(proxy.get("/readyz")?.0 == 200, "not ready without the API server");
                ensure!(probe("/healthz")?.0 == 200 && probe("/livez")?.0 == 200);
            }
        }
        ensure!(proxy.is_running()? && connections > 0);
        site.start_api()?;
        site.write_slice("web", &[Endpoint::here(b)]).await?;
        proxy.until_programmed("web", &[b])?;
        ensure!(site.connect(&site.client, to)? == b);
        Ok(())
    });
}

/// Nothing else is due before the first sync, however long that takes.
#[test]
fn a_server_that_comes_late_is_followed() {
    run("without_api::a_server_that_comes_late_is_followed", Api::Remembers, async |site| {
        let a = site.pod("10.244.1.1")?;
        site.create_node(NODE, None).await?;
        let service = site.clustered("web", &json!({})).await?;
        site.create_slice("web", &[Endpoint::here(a)]).await?;
        site.stop_api();
        let proxy = ProxyProcess::launch(site, &["--verify-period", "100ms"])?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        ensure!(proxy.get("/readyz")?.0 != 200, "ready without having seen anything");
        site.start_api()?;
        proxy.until_ready()?;
        ensure!(site.connect(&site.client, service.cluster(Port::Web)?)? == a);
        Ok(())
    });
}

/// It is killed again and again while slices change; in the end the kernel holds the last state.
#[test]
fn a_server_that_comes_and_goes_is_followed() {
    run("without_api::a_server_that_comes_and_goes_is_followed", Api::Remembers, async |site| {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let service = site.clustered("web", &json!({})).await?;
        site.create_slice("web", &[Endpoint::here(a)]).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        for round in 0..3 {
            let next = if round % 2 == 0 { b } else { a };
            site.write_slice("web", &[Endpoint::here(next)]).await?;
            site.stop_api();
            site.connect(&site.client, service.cluster(Port::Web)?)?;
            site.start_api()?;
        }
        proxy.until_programmed("web", &[b])?;
        ensure!(site.connect(&site.client, service.cluster(Port::Web)?)? == b);
        Ok(())
    });
}
