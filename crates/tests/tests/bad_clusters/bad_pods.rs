//! Pods without addresses, with a shared address, and with addresses of one or two families.

use anyhow::{Context, Result};
use nearhop_core::Family;
use nearhop_tests::scene::{Scene, TIMEOUT};
use nearhop_tests::server::Options;
use serde_json::{Value, json};

use crate::{Bad, addresses_of};

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_addresses_are_left_out_until_they_have_one() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    bad.scene.service("web", json!({})).await?;
    for i in 0..5 {
        bad.scene.pending_pod(&format!("p{i}"), "n1", &json!({"app": "web"})).await?;
    }
    bad.settled().await?;
    let slices = bad.scene.slices("web").await?;
    assert_eq!((slices.len(), slices[0].endpoints.len()), (1, 0));
    bad.scene.report_pod("p3", "10.1.0.3", true).await?;
    bad.settled().await?;
    assert_eq!(bad.addresses("web", Family::Ipv4).await?, ["10.1.0.3"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_the_host_network_may_share_an_address() -> Result<()> {
    let bad = Bad::new().await?;
    bad.scene.node("n1", Some("a")).await?;
    bad.scene.service("web", json!({})).await?;
    for name in ["first", "second"] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "hostNetwork": true,
                "containers": [{"name": "main", "image": "nearhop/echo"}]},
        });
        bad.scene.cluster.create("pods", &pod).await?;
        bad.scene.report_pod(name, "192.168.0.1", true).await?;
    }
    bad.settled().await?;
    let targets = || async {
        let slices = bad.scene.slices("web").await?;
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter());
        let targets = endpoints.filter_map(|endpoint| endpoint.target.as_ref());
        let mut names: Vec<String> = targets.map(|target| target.name.to_string()).collect();
        names.sort();
        anyhow::Ok(names)
    };
    assert_eq!(targets().await?, ["first", "second"], "both, as upstream publishes them");
    assert_eq!(bad.scene.reached_from("web", "n1").await?, ["192.168.0.1"], "one backend");
    bad.scene.remove_pod("first").await?;
    bad.settled().await?;
    assert_eq!(targets().await?, ["second"]);
    Ok(())
}

/// Writes the status of a ready Pod with these addresses.
async fn report(scene: &Scene, name: &str, ips: &[&str]) -> Result<()> {
    let all: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    let status = json!({"status": {
        "phase": "Running", "podIP": ips.first(), "podIPs": all,
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let path = scene.cluster.core(&format!("pods/{name}/status"));
    scene.cluster.admin.merge(&path, &status).await?.ok()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_of_a_family_list_the_pods_with_such_an_address() -> Result<()> {
    let cidr = Some("10.96.0.0/16,fd00:96::/112".to_owned());
    let dual = Options { service_cidr: cidr, ..Options::default() };
    let scene = Scene::with(&dual).await?;
    let bad = Bad::on(scene).await?;
    bad.scene.node("n1", Some("a")).await?;
    let select = |rest: Value| {
        let mut spec = json!({"selector": {"app": "web"}, "trafficDistribution": "PreferSameZone"});
        rest.as_object().into_iter().flatten().for_each(|(k, v)| spec[k] = v.clone());
        spec
    };
    let four = json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]});
    let six = json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]});
    let headless = json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "None"});
    bad.scene.service("four", select(four)).await?;
    bad.scene.service("six", select(six)).await?;
    bad.scene.service("both", select(json!({"ipFamilyPolicy": "PreferDualStack"}))).await?;
    bad.scene.service("headless", select(headless)).await?;
    for (name, ips) in [
        ("p4", &["10.1.0.4"][..]),
        ("p6", &["fd00:1::6"][..]),
        ("p46", &["10.1.0.46", "fd00:1::46"][..]),
        ("p64", &["fd00:1::64", "10.1.0.64"][..]),
    ] {
        bad.scene.pending_pod(name, "n1", &json!({"app": "web"})).await?;
        report(&bad.scene, name, ips).await?;
    }
    let v4: &[&str] = &["10.1.0.4", "10.1.0.46", "10.1.0.64"];
    let v6: &[&str] = &["fd00:1::46", "fd00:1::6", "fd00:1::64"];
    for (service, in_v4, in_v6) in
        [("four", v4, &[][..]), ("six", &[][..], v6), ("both", v4, v6), ("headless", v4, v6)]
    {
        let look = || async {
            let found = (
                bad.addresses(service, Family::Ipv4).await?,
                bad.addresses(service, Family::Ipv6).await?,
            );
            Ok(if found.0 == in_v4 && found.1 == in_v6 {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            })
        };
        bad.scene.until(service, TIMEOUT, look).await?;
        bad.condition(service, "Programmed", "True", "HintsWritten").await?;
    }
    bad.settled().await?;
    // A Service that drops a family loses the slices of that family.
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"],
        "clusterIPs": [first_cluster_ip(&bad.scene, "both").await?]}});
    bad.scene.patch_service("both", &single).await?;
    bad.settled().await?;
    let slices = bad.scene.slices("both").await?;
    let all: Vec<String> = slices.iter().flat_map(addresses_of).collect();
    assert_eq!(all.len(), 3, "{all:?}");
    Ok(())
}

async fn first_cluster_ip(scene: &Scene, service: &str) -> Result<String> {
    let found = scene.cluster.read(&format!("services/{service}")).await?.ok()?.json();
    found["spec"]["clusterIP"].as_str().map(str::to_owned).context("no cluster IP")
}
