//! The Node object says which addresses the machine has. The machine outlives its object.

use anyhow::{Result, ensure};
use nearhop_tests::node::objects::{Endpoint, Port};
use nearhop_tests::node::process::{ProxyProcess, probe};
use nearhop_tests::node::{Api, NODE, run, until};
use serde_json::{Value, json};

#[test]
fn node_ports_outlive_the_node_object() {
    run(
        "node_object::node_ports_outlive_the_node_object",
        Api::Forgets,
        async |site| -> Result<()> {
            let a = site.pod("10.244.1.1")?;
            site.create_node(NODE, None).await?;
            let service = site.balanced("web", &json!({})).await?;
            site.create_slice("web", &[Endpoint::here(a)]).await?;
            let proxy = ProxyProcess::start(site, &[])?;
            proxy.until_programmed("web", &[a])?;
            let to = service.node(Port::Web);
            ensure!(site.connect(&site.outside, to)? == a);
            site.api.delete(&format!("/api/v1/nodes/{NODE}")).await?.ok()?;
            until("the proxy knows that the Node is gone", || {
                let body: Value = serde_json::from_str(&probe("/healthz")?.1)?;
                Ok(if body["nodeEligible"] == false { Ok(()) } else { Err(body.to_string()) })
            })?;
            // Whatever is written next is written with the Node that was.
            let b = site.pod("10.244.1.2")?;
            site.write_slice("web", &[Endpoint::here(b)]).await?;
            proxy.until_programmed("web", &[b])?;
            ensure!(site.connect(&site.outside, to)? == b);
            Ok(())
        },
    );
}
