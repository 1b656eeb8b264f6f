//! Helpers: zones, slices of other controllers, and counts of writes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use nearhop_core::labels::well_known;
use nearhop_core::model::Slice;
use nearhop_tests::cluster::version;
use nearhop_tests::scene::{RunningController, Scene, SliceWrites, TIMEOUT};
use serde_json::{Value, json};

/// Creates nodes `n-a`, `n-b` and `n-c`, each in the zone of that letter.
pub(crate) async fn three_zones(scene: &Scene) -> Result<()> {
    for zone in ["a", "b", "c"] {
        scene.node(&format!("n-{zone}"), Some(zone)).await?;
    }
    Ok(())
}

/// Creates a Pod for each letter of `zones`, on that zone's node of [`three_zones`], with
/// addresses `NETWORK.1`, `NETWORK.2` and so on.
pub(crate) async fn pods_in(scene: &Scene, app: &str, network: &str, zones: &str) -> Result<()> {
    for (i, zone) in (1..).zip(zones.chars()) {
        let (name, node) = (format!("{app}-{i}"), format!("n-{zone}"));
        scene.pod(&name, &node, &format!("{network}.{i}"), app).await?;
    }
    Ok(())
}

/// Sets the annotation `topology-mode: Auto` of a Service.
pub(crate) async fn ask_for_auto(scene: &Scene, service: &str) -> Result<()> {
    let annotations = json!({"service.kubernetes.io/topology-mode": "Auto"});
    scene.patch_service(service, &json!({"metadata": {"annotations": annotations}})).await
}

/// Sets or removes `trafficDistribution` of a Service.
pub(crate) async fn set_distribution(
    scene: &Scene,
    service: &str,
    value: Option<&str>,
) -> Result<()> {
    scene.patch_service(service, &json!({"spec": {"trafficDistribution": value}})).await
}

/// Asserts what clients on each node reach.
pub(crate) async fn assert_reached(
    scene: &Scene,
    service: &str,
    wanted: &[(&str, &[&str])],
) -> Result<()> {
    for (node, servers) in wanted {
        let reached = scene.reached_from(service, node).await?;
        assert_eq!(reached, *servers, "from {node}");
    }
    Ok(())
}

/// Version of each slice of a Service, by name.
pub(crate) async fn versions(scene: &Scene, service: &str) -> Result<BTreeMap<String, String>> {
    let slices = scene.slice_objects(service).await?;
    let named = |slice: &Value| slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(slices.iter().map(|slice| (named(slice), version(slice))).collect())
}

/// Version of an object.
pub(crate) async fn version_of(scene: &Scene, rest: &str) -> Result<String> {
    Ok(version(&scene.cluster.read(rest).await?.ok()?.json()))
}

/// How many writes each Service's slices saw, by the Service's name.
pub(crate) fn by_service(writes: &SliceWrites) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, slice) in &writes.events {
        let service = slice["metadata"]["labels"][well_known::SERVICE_NAME].as_str();
        *counts.entry(service.unwrap_or_default().to_owned()).or_default() += 1;
    }
    counts
}

/// Number of Services that were added to the queue so far.
pub(crate) fn adds(controller: &RunningController) -> f64 {
    controller.metric("workqueue_adds_total{name=\"endpoint_slice\"}")
}

/// Waits until a new controller has synced every Service.
pub(crate) async fn until_all_synced(scene: &Scene, controller: &RunningController) -> Result<()> {
    let least = scene.world().await?.services().count() as f64;
    let what = format!("{least} syncs");
    scene
        .until(&what, TIMEOUT, || async {
            let done = controller.metric("endpoint_slice_controller_syncs{result=\"success\"}");
            Ok(if done >= least { Ok(()) } else { Err(format!("there were {done}")) })
        })
        .await
}

/// A slice as another controller may have written it: the Service's current endpoints as the core
/// would publish them, under another name and manager, without hints.
pub(crate) async fn foreign_slice(
    scene: &Scene,
    service: &str,
    name: &str,
    manager: Option<&str>,
    pods: &[&str],
) -> Result<Value> {
    let owner = scene.cluster.read(&format!("services/{service}")).await?.ok()?.json();
    let mut endpoints = Vec::new();
    for pod in pods {
        endpoints.push(endpoint_of(scene, pod).await?);
    }
    let mut labels = json!({well_known::SERVICE_NAME: service});
    if let Some(manager) = manager {
        labels[well_known::MANAGED_BY] = manager.into();
    }
    let ports = owner["spec"]["ports"].as_array().context("the Service has no ports")?;
    // In reverse: the order of ports has no meaning.
    let ports = ports
        .iter()
        .rev()
        .map(|port| json!({"name": port["name"], "port": port["targetPort"], "protocol": "TCP"}));
    Ok(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "labels": labels, "annotations": {"example.com/by": "another-controller"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": service,
                "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": "IPv4",
        "ports": ports.collect::<Vec<_>>(),
        "endpoints": endpoints,
    }))
}

async fn endpoint_of(scene: &Scene, pod: &str) -> Result<Value> {
    let pod = scene.cluster.read(&format!("pods/{pod}")).await?.ok()?.json();
    let node = pod["spec"]["nodeName"].as_str().context("the Pod has no node")?;
    let node = scene.cluster.admin.get(&format!("/api/v1/nodes/{node}")).await?.ok()?.json();
    let meta = &pod["metadata"];
    Ok(json!({
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": pod["spec"]["nodeName"],
        "zone": node["metadata"]["labels"][well_known::ZONE],
        "targetRef": {
            "kind": "Pod", "namespace": meta["namespace"], "name": meta["name"],
            "uid": meta["uid"],
        },
    }))
}

/// Creates a slice.
pub(crate) async fn create_slice(scene: &Scene, slice: &Value) -> Result<()> {
    let path = scene.cluster.group("discovery.k8s.io/v1", "endpointslices");
    scene.cluster.admin.post(&path, slice).await?.expect(201)?;
    Ok(())
}

/// How many endpoints there are in slices.
pub(crate) fn count_endpoints(slices: &[Slice]) -> usize {
    slices.iter().map(|slice| slice.endpoints.len()).sum()
}
