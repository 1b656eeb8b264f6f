//! The API server is down for a while: the rules in the kernel work, and the proxy applies the changes
//! when the server is back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nearhop_tests::node::objects::{Endpoint, Port};
use nearhop_tests::node::process::{ProxyProcess, probe};
use nearhop_tests::node::{Api, NODE, run};
use serde_json::json;

#[test]
fn traffic_continues_and_changes_apply_when_the_server_is_back() {
    let name = "without_api::traffic_continues_and_changes_apply_when_the_server_is_back";
    run(name, Api::Disk, async |site| -> Result<()> {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let service = site.create_cluster_ip("web", &json!({})).await?;
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

/// Before the first sync the proxy does not verify its table, however long that takes.
#[test]
fn the_proxy_syncs_when_a_late_server_starts() {
    run("without_api::the_proxy_syncs_when_a_late_server_starts", Api::Disk, async |site| {
        let a = site.pod("10.244.1.1")?;
        site.create_node(NODE, None).await?;
        let service = site.create_cluster_ip("web", &json!({})).await?;
        site.create_slice("web", &[Endpoint::here(a)]).await?;
        site.stop_api();
        let proxy = ProxyProcess::launch(site, &["--verify-period", "100ms"])?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        ensure!(proxy.get("/readyz")?.0 != 200, "ready without any data");
        site.start_api()?;
        proxy.until_ready()?;
        ensure!(site.connect(&site.client, service.cluster(Port::Web)?)? == a);
        Ok(())
    });
}

/// The API server is killed repeatedly while slices change; at the end the kernel has the last state.
#[test]
fn the_proxy_syncs_after_repeated_server_restarts() {
    run("without_api::the_proxy_syncs_after_repeated_server_restarts", Api::Disk, async |site| {
        let (a, b) = (site.pod("10.244.1.1")?, site.pod("10.244.1.2")?);
        site.create_node(NODE, None).await?;
        let service = site.create_cluster_ip("web", &json!({})).await?;
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
