//! The objects of every cluster: system Namespaces and the Service `kubernetes`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nearhop_kinds::Resource;
use nearhop_runtime::interfaces;
use serde_json::{Value, json};

use crate::api::Api;
use crate::builtin::{Builtin, ENDPOINT_SLICES, ENDPOINTS, NAMESPACES, SERVICES};
use crate::rest::{ObjectKey, Writer, create_object, name_of, shape};
use crate::store::Name;

const SYSTEM: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

pub(crate) async fn create_missing(api: &Arc<Api>, address: SocketAddr) -> Result<(), String> {
    for name in SYSTEM {
        create(api, &NAMESPACES, "", json!({"metadata": {"name": name}})).await?;
    }
    create(api, &SERVICES, "default", kubernetes_service(api, address)).await?;
    for (resource, object, _) in endpoints(address) {
        create(api, resource, "default", object).await?;
    }
    Ok(())
}

/// An object that points to the server, and the fields that the server owns.
type ServerEndpoint = (&'static Builtin, Value, &'static [&'static str]);

/// The Endpoints and the EndpointSlice of the Service `kubernetes`; none if Pods cannot reach the
/// listen address.
pub(crate) fn endpoints(address: SocketAddr) -> Vec<ServerEndpoint> {
    let Some(address) = advertised(address) else { return Vec::new() };
    vec![
        (&ENDPOINTS, kubernetes_endpoints(address), &["subsets"]),
        (&ENDPOINT_SLICES, kubernetes_slice(address), &["addressType", "endpoints", "ports"]),
    ]
}

/// The address for Pods. EndpointSlices cannot hold a loopback address; for a wildcard it is one of
/// the machine's addresses.
fn advertised(address: SocketAddr) -> Option<SocketAddr> {
    let usable = |ip: &IpAddr| {
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        !ip.is_loopback() && !link_local && ip.is_ipv4() == address.is_ipv4()
    };
    let ip = match address.ip() {
        ip if ip.is_unspecified() => interfaces::addresses().into_iter().find(usable)?,
        ip => ip,
    };
    usable(&ip).then(|| SocketAddr::new(ip, address.port()))
}

async fn create(
    api: &Arc<Api>,
    resource: &Arc<Resource>,
    namespace: &str,
    mut object: Value,
) -> Result<(), String> {
    let name = Name::new(namespace, name_of(&object));
    if api.store.get(&resource.storage, &name).is_some() {
        return Ok(());
    }
    object["kind"] = (*resource.kind).into();
    object["apiVersion"] = resource.api_version().into();
    shape(resource, &mut object)?;
    let (writer, mut warnings) = (Writer::server("kube-apiserver", None), Vec::new());
    let key = ObjectKey { resource, namespace, name: "" };
    let created = create_object(api, &key, object, &writer, &mut warnings);
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

fn kubernetes_endpoints(address: SocketAddr) -> Value {
    json!({
        "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": [{"ip": address.ip().to_string()}],
            "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}]
        }]
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
