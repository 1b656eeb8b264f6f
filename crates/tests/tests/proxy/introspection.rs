//! `/debug/services`: the routes of a Service with their reasons, and access control.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use nearhop_tests::node::objects::Endpoint;
use nearhop_tests::node::process::{ProxyProcess, get, get_from};
use nearhop_tests::node::{Api, NODE, NODE_IP, run};
use serde_json::{Value, json};

fn texts(list: &Value, field: &str) -> Vec<String> {
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().map(|one| one[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_unused_endpoint_has_a_reason() {
    run("introspection::every_unused_endpoint_has_a_reason", Api::Memory, async |site| {
        site.create_node(NODE, Some("a")).await?;
        let service = site.create_load_balancer("web", &json!({})).await?;
        let endpoints = [
            Endpoint::here("10.244.1.1").zone("a"),
            Endpoint::here("10.244.1.2").zone("a").not_ready(),
            Endpoint::here("10.244.1.3").zone("a").terminating(),
            Endpoint::elsewhere("10.244.1.4").zone("b"),
        ];
        site.create_slice("web", &endpoints).await?;
        let proxy = ProxyProcess::start(site, &[])?;
        proxy.until_programmed("web", &["10.244.1.1".parse()?])?;
        let described = proxy.describe("web")?.context("the proxy does not serve web")?;
        ensure!(described["zone"] == "a" && described["node"] == NODE, "{described:#}");
        ensure!(described["waiting"] == false, "{described:#}");
        let ports = described["ports"].as_array().context("no ports")?;
        ensure!(ports.len() == 3, "{described:#}");
        let web = ports.iter().find(|port| port["protocol"] == "TCP").context("no TCP port")?;
        let set = &web["cluster"];
        ensure!(set["tier"] == "same-zone", "{set:#}");
        ensure!(texts(&set["desired"], "endpoint") == ["10.244.1.1:8080"], "{set:#}");
        let excluded: Vec<(String, String)> = texts(&set["excluded"], "endpoint")
            .into_iter()
            .zip(texts(&set["excluded"], "why"))
            .collect();
        let expected = [
            ("10.244.1.2:8080", "it is not ready"),
            ("10.244.1.3:8080", "it terminates, and others are ready"),
            ("10.244.1.4:8080", "it is hinted for zone b"),
        ];
        let expected = expected.map(|(at, why)| (at.to_owned(), why.to_owned()));
        ensure!(excluded == expected, "{excluded:?}");
        let at = texts(&web["frontends"], "at");
        let node_port = service.object["spec"]["ports"][0]["nodePort"].to_string();
        ensure!(at.iter().any(|at| *at == format!("node:{node_port}")), "{at:?}");
        ensure!(at.iter().any(|at| at == "203.0.113.5:80") && at.len() == 3, "{at:?}");
        for frontend in web["frontends"].as_array().into_iter().flatten() {
            let programmed = &frontend["programmed"];
            ensure!(*programmed == json!({"10.244.1.1:8080": 1}), "{frontend:#}");
            ensure!(frontend["missing"] == json!([]) && frontend["surplus"] == json!([]));
        }
        Ok(())
    });
}

#[test]
fn only_served_services_are_listed() {
    let name = "introspection::only_served_services_are_listed";
    run(name, Api::Memory, async |site| -> Result<()> {
        site.create_node(NODE, None).await?;
        site.create_cluster_ip("web", &json!({})).await?;
        site.create_slice("web", &[Endpoint::here("10.244.1.1")]).await?;
        site.create_service("headless", &json!({}), "ClusterIP", &json!({"clusterIP": "None"}))
            .await?;
        let proxy = ProxyProcess::start(site, &[])?;
        let (status, body) = proxy.get("/debug/services")?;
        let all: Value = serde_json::from_str(&body)?;
        let listed = texts(&all["services"], "service");
        ensure!(status == 200 && listed.contains(&"site/web".to_owned()), "{all:#}");
        ensure!(!listed.contains(&"site/headless".to_owned()), "{all:#}");
        let (status, body) = proxy.get("/debug/services/site/headless")?;
        ensure!(status == 404 && body.contains("headless"), "{status} {body}");
        ensure!(proxy.get("/debug/services/site")?.0 == 404);
        ensure!(proxy.get("/proxyMode")?.1.trim() == "nftables");
        let (status, config) = proxy.get("/configz")?;
        let config: Value = serde_json::from_str(&config)?;
        ensure!(status == 200 && config["node"] == NODE && config["table"] == "nearhop");
        Ok(())
    });
}

#[test]
fn access_needs_loopback_or_the_token() {
    run("introspection::access_needs_loopback_or_the_token", Api::Memory, async |site| {
        site.create_node(NODE, None).await?;
        let token = site.scratch("token");
        std::fs::write(&token, "s3cret\n")?;
        let token = token.to_str().context("the path is not UTF-8")?;
        let address = format!("{NODE_IP}:10249");
        let flags = ["--metrics-bind-address", &address, "--admin-token-file", token];
        let proxy = ProxyProcess::start(site, &flags)?;
        let (at, path) = (SocketAddr::new(NODE_IP.into(), 10249), "/debug/services");
        ensure!(proxy.admin == at);
        let outside = |headers: &str| get_from(&site.outside, at, path, headers);
        let (status, body) = outside("")?;
        ensure!(status == 403 && body.contains("--admin-token-file"), "{status} {body}");
        ensure!(outside("Authorization: Bearer wrong\r\n")?.0 == 403);
        ensure!(outside("Authorization: Basic s3cret\r\n")?.0 == 403);
        ensure!(outside("Authorization: Bearer s3cret\r\n")?.0 == 200);
        // A request from the node to its own address does not come from loopback.
        ensure!(get(at, path, "")?.0 == 403);
        ensure!(get_from(&site.outside, at, "/metrics", "")?.0 == 200);
        proxy.kill()?;
        let flags = ["--metrics-bind-address", &address];
        let _proxy = ProxyProcess::start(site, &flags)?;
        // Without `--admin-token-file` no header gives access.
        for headers in ["", "Authorization: Bearer \r\n", "Authorization: Bearer s3cret\r\n"] {
            ensure!(outside(headers)?.0 == 403, "{headers:?}");
        }
        Ok(())
    });
}
