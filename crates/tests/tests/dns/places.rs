//! Two clients in different zones ask one server: each gets only the answer for its own zone.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use nearhop_tests::dns::{Client, DnsProcess};
use nearhop_tests::server::{Options, Server, start_process};
use serde_json::{Value, json};

const LOCATORS: &str = "/apis/nearhop.dev/v1alpha1/namespaces/default/podlocators";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// A client's address, its zone, and the endpoint there.
const CLIENTS: [(&str, &str, &str); 2] =
    [("127.0.1.1", "zone-a", "10.244.1.1"), ("127.0.2.1", "zone-b", "10.244.2.1")];

const QUESTIONS: usize = 10_000;

/// A cluster whose client Pods have addresses of this machine.
async fn cluster() -> Result<Server> {
    let server = start_process(&Options::default())?;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.admin.post(definitions, &nearhop_api::locator::definition()).await?.expect(201)?;
    let service = json!({
        "metadata": {"name": "db"},
        "spec": {
            "clusterIP": "None",
            "topologyKeys": ["topology.kubernetes.io/zone"],
            "ports": [{"name": "pg", "port": 5432}],
        },
    });
    server.admin.post("/api/v1/namespaces/default/services", &service).await?.expect(201)?;
    let keys = json!({"v": 1, "keys": ["topology.kubernetes.io/zone"], "nodes": {
        "node-zone-a": ["zone-a"], "node-zone-b": ["zone-b"],
    }});
    let endpoint = |(_, zone, address): (&str, &str, &str)| {
        json!({
            "addresses": [address], "conditions": {"ready": true},
            "nodeName": format!("node-{zone}"), "zone": zone,
        })
    };
    let slice = json!({
        "metadata": {
            "name": "db-1",
            "labels": {"kubernetes.io/service-name": "db"},
            "annotations": {"nearhop.dev/routing": keys.to_string()},
        },
        "addressType": "IPv4",
        "ports": [{"name": "pg", "port": 5432}],
        "endpoints": CLIENTS.map(endpoint),
    });
    server.admin.post(SLICES, &slice).await?.expect(201)?;
    for (address, zone, _) in CLIENTS {
        create_locator(&server, address, zone).await?;
    }
    Ok(server)
}

/// Creates a PodLocator as the controller does: its Pod owns it.
async fn create_locator(server: &Server, address: &str, zone: &str) -> Result<()> {
    let name = format!("client-{zone}");
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "nearhop/pause"}]},
    });
    let pods = "/api/v1/namespaces/default/pods";
    let pod = server.admin.post(pods, &pod).await?.expect(201)?.json();
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"],
    });
    let locator: Value = json!({
        "apiVersion": "nearhop.dev/v1alpha1", "kind": "PodLocator",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "ips": [{"ip": address}],
        "nodeName": format!("node-{zone}"),
        "nodeLabels": {"topology.kubernetes.io/zone": zone},
    });
    server.admin.post(LOCATORS, &locator).await?.expect(201)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_never_get_the_answer_for_another_zone() {
    let done: Result<()> = async {
        let server = cluster().await?;
        let dns = DnsProcess::start(&server, &["--feature-gates", "PodLocator=true"])?;
        let clients: Vec<(Client, IpAddr)> = CLIENTS
            .iter()
            .map(|(from, _, near)| Ok((Client::at(from.parse()?, dns.address)?, near.parse()?)))
            .collect::<Result<_>>()?;
        for turn in 0..QUESTIONS {
            let (client, near) = &clients[turn % clients.len()];
            let found = client.addresses("db.default.svc.cluster.local.")?;
            ensure!(found == [*near], "question {turn}: {found:?} instead of {near}");
        }
        let unknown = Client::at("127.0.3.1".parse()?, dns.address)?;
        let all = unknown.addresses("db.default.svc.cluster.local.")?;
        ensure!(all.len() == CLIENTS.len(), "a client of unknown location gets all: {all:?}");
        Ok(())
    }
    .await;
    done.unwrap();
}
