//! The Node object has the addresses of the machine. The proxy keeps them when the object is deleted.

use anyhow::{Result, ensure};
use nearhop_tests::node::objects::{Endpoint, Port};
use nearhop_tests::node::process::{ProxyProcess, probe};
use nearhop_tests::node::{Api, NODE, run, until};
use serde_json::{Value, json};

#[test]
fn node_ports_work_after_the_node_object_is_deleted() {
    run(
        "node_object::node_ports_work_after_the_node_object_is_deleted",
        Api::Memory,
        async |site| -> Result<()> {
            let a = site.pod("10.244.1.1")?;
            site.create_node(NODE, None).await?;
            let service = site.create_load_balancer("web", &json!({})).await?;
            site.create_slice("web", &[Endpoint::here(a)]).await?;
            let proxy = ProxyProcess::start(site, &[])?;
            proxy.until_programmed("web", &[a])?;
            let to = service.node(Port::Web);
            ensure!(site.connect(&site.outside, to)? == a);
            site.api.delete(&format!("/api/v1/nodes/{NODE}")).await?.ok()?;
            until("the deleted Node in /healthz", || {
                let body: Value = serde_json::from_str(&probe("/healthz")?.1)?;
                Ok(if body["nodeEligible"] == false { Ok(()) } else { Err(body.to_string()) })
            })?;
            // The next sync still uses the addresses of the deleted Node.
            let b = site.pod("10.244.1.2")?;
            site.write_slice("web", &[Endpoint::here(b)]).await?;
            proxy.until_programmed("web", &[b])?;
            ensure!(site.connect(&site.outside, to)? == b);
            Ok(())
        },
    );
}
