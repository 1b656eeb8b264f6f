//! The objects that every cluster has from the start.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::Api;
use crate::rest::{Ownership, Writer, create_object, name_of, shape};
use crate::store::Name;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates those that are missing.
pub(crate) async fn create_missing(api: &Arc<Api>, address: SocketAddr) -> Result<(), String> {
    for name in NAMESPACES {
        create(api, "", "v1", "namespaces", "", json!({"metadata": {"name": name}})).await?;
    }
    create(api, "", "v1", "services", "default", kubernetes_service(api, address)).await?;
    // A loopback address is of no use to Pods, and no EndpointSlice may hold one.
    if !address.ip().is_loopback() && !address.ip().is_unspecified() {
        let slice = kubernetes_slice(address);
        create(api, "discovery.k8s.io", "v1", "endpointslices", "default", slice).await?;
    }
    Ok(())
}

async fn create(
    api: &Arc<Api>,
    group: &str,
    version: &str,
    plural: &str,
    namespace: &str,
    mut object: Value,
) -> Result<(), String> {
    let registry = api.registry.load_full();
    let resource = registry.find(group, version, plural).expect("the kind is built in");
    let name = Name::new(namespace, name_of(&object));
    if api.store.get(&resource.storage, &name).is_some() {
        return Ok(());
    }
    object["kind"] = (*resource.kind).into();
    object["apiVersion"] = resource.api_version().into();
    shape(resource, &mut object)?;
    let (writer, mut warnings) = (Writer::server("kube-apiserver", None), Vec::new());
    let created =
        create_object(api, resource, namespace, object, &writer, Ownership::Track, &mut warnings);
    created.await.map(|_| ()).map_err(|error| error.message)
}

fn kubernetes_service(api: &Api, address: SocketAddr) -> Value {
    json!({
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": api.first_service_address(), "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": address.port()}],
            "sessionAffinity": "None", "type": "ClusterIP"
        }
    })
}

fn kubernetes_slice(address: SocketAddr) -> Value {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family,
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "protocol": "TCP", "port": address.port()}]
    })
}
