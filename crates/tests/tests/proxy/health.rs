//! Health of the proxy: `/healthz`, `/livez`, `/readyz`, and the health check ports of Services.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result, ensure};
use nearhop_tests::node::objects::{Endpoint, Frontends, core};
use nearhop_tests::node::process::{ProxyProcess, get_from, probe};
use nearhop_tests::node::{Api, NODE, NODE_IP, Site, run, until};
use serde_json::{Value, json};

/// Waits until `/healthz` has this code and this `nodeEligible`; `/livez` always returns 200.
fn until_healthz(code: u16, eligible: bool) -> Result<()> {
    until(&format!("/healthz {code}"), || {
        let (status, body) = probe("/healthz")?;
        let live = probe("/livez")?;
        ensure!(live.0 == 200, "/livez: {live:?}");
        let body: Value = serde_json::from_str(&body)?;
        let there = status == code && body["nodeEligible"] == eligible;
        Ok(if there { Ok(()) } else { Err(format!("it is {status} {body}")) })
    })
}

#[test]
fn health_checks_fail_on_a_deleted_node() {
    run("health::health_checks_fail_on_a_deleted_node", Api::Memory, async |site| {
        let proxy = ProxyProcess::start(site, &[])?;
        until_healthz(503, false)?;
        site.create_node(NODE, None).await?;
        until_healthz(200, true)?;
        let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
        site.patch_node(NODE, &json!({"spec": {"taints": [taint]}})).await?;
        until_healthz(503, false)?;
        let other = json!({"key": "busy", "effect": "NoSchedule"});
        site.patch_node(NODE, &json!({"spec": {"taints": [other]}})).await?;
        until_healthz(200, true)?;
        site.patch_node(NODE, &json!({"metadata": {"finalizers": ["nearhop.dev/test"]}})).await?;
        let path = format!("/api/v1/nodes/{NODE}");
        site.api.delete(&path).await?.ok()?;
        until_healthz(503, false)?;
        site.patch_node(NODE, &json!({"metadata": {"finalizers": null}})).await?;
        ensure!(site.api.get(&path).await?.status == 404, "the Node still exists");
        until_healthz(503, false)?;
        ensure!(proxy.get("/readyz")?.0 == 200, "a deleted Node must not make the proxy unready");
        ensure!(proxy.metric("kubeproxy_proxy_healthz_total{code=\"503\"}")? > 0.0);
        ensure!(proxy.metric("kubeproxy_proxy_livez_total{code=\"503\"}")? == 0.0);
        Ok(())
    });
}

async fn local_service(site: &Site, health_port: u16) -> Result<Frontends> {
    let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": health_port});
    site.create_load_balancer("web", &spec).await
}

/// Waits until the health check port reports `endpoints` local endpoints, with the correct code.
fn until_reported(site: &Site, port: u16, endpoints: u64) -> Result<()> {
    let at = SocketAddr::new(NODE_IP.into(), port);
    until(&format!("{endpoints} endpoints at {at}"), || {
        let Ok((status, body)) = get_from(&site.outside, at, "/", "") else {
            return Ok(Err("the port is closed".to_owned()));
        };
        let body: Value = serde_json::from_str(&body)?;
        let code = if endpoints > 0 { 200 } else { 503 };
        let right = status == code && body["localEndpoints"] == endpoints;
        ensure!(body["service"]["name"] == "web" && body["serviceProxyHealthy"] == true, "{body}");
        Ok(if right { Ok(()) } else { Err(format!("it is {status} {body}")) })
    })
}

#[test]
fn health_check_ports_report_local_endpoints() {
    run("health::health_check_ports_report_local_endpoints", Api::Memory, async |site| {
        site.create_node(NODE, None).await?;
        local_service(site, 31500).await?;
        let [a, b, c] = ["10.244.1.1", "10.244.1.2", "10.244.1.3"];
        site.create_slice("web", &[Endpoint::elsewhere(c)]).await?;
        let _proxy = ProxyProcess::start(site, &[])?;
        until_reported(site, 31500, 0)?;
        site.write_slice("web", &[Endpoint::here(a), Endpoint::elsewhere(c)]).await?;
        until_reported(site, 31500, 1)?;
        site.write_slice("web", &[Endpoint::here(a), Endpoint::here(b)]).await?;
        until_reported(site, 31500, 2)?;
        // Terminating endpoints get no new connections from outside.
        let ends = Endpoint::here(b).terminating();
        site.write_slice("web", &[Endpoint::here(a).not_ready(), ends]).await?;
        until_reported(site, 31500, 0)?;
        site.patch_service("web", &json!({"spec": {"externalTrafficPolicy": "Cluster"}})).await?;
        let at = SocketAddr::new(NODE_IP.into(), 31500);
        until("the port is closed", || {
            let answer = get_from(&site.outside, at, "/", "");
            Ok(if answer.is_err() { Ok(()) } else { Err(format!("{answer:?}")) })
        })
    });
}

#[test]
fn a_health_port_in_use_is_reported_and_retried() {
    let name = "health::a_health_port_in_use_is_reported_and_retried";
    run(name, Api::Memory, async |site| -> Result<()> {
        let taken = TcpListener::bind((NODE_IP, 31500))?;
        site.create_node(NODE, None).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let service = local_service(site, 31500).await?;
        site.create_slice("web", &[Endpoint::here("10.244.1.1")]).await?;
        let found = until_event(site).await?;
        let note = found["note"].as_str().unwrap_or_default();
        ensure!(note.contains(NODE) && note.contains("31500"), "{note}");
        ensure!(found["type"] == "Warning", "{found}");
        ensure!(found["regarding"]["uid"] == service.object["metadata"]["uid"], "{found}");
        drop(taken);
        // The proxy retries at the next change.
        site.write_slice("web", &[Endpoint::here("10.244.1.1"), Endpoint::here("10.244.1.2")])
            .await?;
        until_reported(site, 31500, 2)?;
        ensure!(proxy.get("/readyz")?.0 == 200);
        Ok(())
    });
}

/// Waits for the event about the Service.
async fn until_event(site: &Site) -> Result<Value> {
    let path = core("events").replace("/api/v1/", "/apis/events.k8s.io/v1/");
    for _ in 0..500 {
        let list = site.api.get(&path).await?.ok()?.json();
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let about = |event: &&Value| event["reason"] == "FailedToStartServiceHealthcheck";
        if let Some(event) = events.iter().find(about) {
            return Ok(event.clone());
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    None.context("no event about the Service")
}

#[test]
fn the_proxy_is_ready_only_after_the_first_sync() {
    let name = "health::the_proxy_is_ready_only_after_the_first_sync";
    run(name, Api::Disk, async |site| -> Result<()> {
        let a = site.pod("10.244.1.1")?;
        site.create_node(NODE, None).await?;
        site.create_cluster_ip("web", &json!({})).await?;
        site.create_slice("web", &[Endpoint::here(a)]).await?;
        site.stop_api();
        let proxy = ProxyProcess::launch(site, &[])?;
        let (status, body) = proxy.get("/readyz")?;
        ensure!(status == 500 || status == 503, "ready without the API server: {body}");
        ensure!(proxy.get("/livez")?.0 == 200 && probe("/livez")?.0 == 200);
        let (status, body) = proxy.get("/debug/services")?;
        ensure!(status == 200 && body.contains("\"lastSync\": null"), "{status} {body}");
        site.start_api()?;
        proxy.until_ready()?;
        // A ready proxy has the endpoints in the kernel.
        ensure!(proxy.programmed("web")?.is_some_and(|all| all.values().all(|at| at.contains(&a))));
        Ok(())
    });
}
