//! Repairs the Service `default/kubernetes`, its Endpoints and its EndpointSlice, which point to
//! this server.
//!
//! It polls, so that writes of other Services cost nothing more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::rewrite;
use crate::api::Api;
use crate::bootstrap;
use crate::http::until;
use crate::rest::Writer;
use crate::store::Name;

const PERIOD: Duration = Duration::from_secs(1);

pub(super) async fn run(api: Arc<Api>, address: SocketAddr) {
    let mut stop = api.stopping();
    let mut logged = None;
    loop {
        let failed = repair(&api, address).await.err();
        if failed != logged {
            if let Some(error) = &failed {
                tracing::warn!(error, "cannot repair the Service default/kubernetes");
            }
            logged = failed;
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = until(&mut stop) => return,
        }
    }
}

/// Creates missing objects, and corrects those that point elsewhere.
async fn repair(api: &Arc<Api>, address: SocketAddr) -> Result<(), String> {
    bootstrap::create_missing(api, address).await?;
    let writer = Writer::server("kube-apiserver", None);
    for (resource, wanted, fields) in bootstrap::endpoints(address) {
        let name = Name::new("default", "kubernetes");
        let Some(stored) = api.store.get(&resource.storage, &name) else { continue };
        let repaired = rewrite(api, resource, &stored, &writer, |object| {
            for field in fields {
                object[*field] = wanted[*field].clone();
            }
        });
        repaired.await.map_err(|error| format!("{error:?}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nearhop_kinds::Resource;
    use nearhop_kinds::options::DeleteOptions;
    use serde_json::Value;

    use super::*;
    use crate::builtin::{Builtin, ENDPOINT_SLICES, ENDPOINTS, SERVICES};
    use crate::rest::{ObjectKey, delete_object};
    use crate::{ApiServer, Options};

    static OBJECTS: [&Builtin; 3] = [&SERVICES, &ENDPOINTS, &ENDPOINT_SLICES];

    fn get(api: &Api, resource: &Resource) -> Option<Value> {
        let stored = api.store.get(&resource.storage, &Name::new("default", "kubernetes"))?;
        Some(stored.to_value(""))
    }

    #[tokio::test]
    async fn deleted_and_changed_endpoints_are_repaired() {
        let server = ApiServer::start(Options::default()).await.unwrap();
        let api = &server.api;
        let address: SocketAddr = "192.0.2.2:16443".parse().unwrap();
        // The server itself is on loopback, which Endpoints cannot name.
        let repairing = tokio::spawn(run(Arc::clone(api), address));
        let until_all = async || {
            while OBJECTS.into_iter().any(|object| get(api, object).is_none()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        until_all().await;
        let subset = &get(api, OBJECTS[1]).unwrap()["subsets"][0];
        assert_eq!(subset["addresses"][0]["ip"], "192.0.2.2");
        assert_eq!(subset["ports"][0]["port"], 16443);
        let label = "endpointslice.kubernetes.io/skip-mirror";
        assert_eq!(get(api, OBJECTS[1]).unwrap()["metadata"]["labels"][label], "true");
        for resource in OBJECTS {
            let key = ObjectKey { resource, namespace: "default", name: "kubernetes" };
            let before = get(api, resource).unwrap()["metadata"]["uid"].clone();
            delete_object(api, &key, &DeleteOptions::default()).await.unwrap();
            until_all().await;
            assert_ne!(get(api, resource).unwrap()["metadata"]["uid"], before);
        }
        assert_eq!(get(api, OBJECTS[0]).unwrap()["spec"]["clusterIP"], "10.96.0.1");
        repairing.abort();
        // A server with a new address.
        repair(api, "192.0.2.3:443".parse().unwrap()).await.unwrap();
        let slice = get(api, OBJECTS[2]).unwrap();
        assert_eq!(slice["endpoints"][0]["addresses"][0], "192.0.2.3");
        assert_eq!(slice["ports"][0]["port"], 443);
        let version = api.store.version();
        repair(api, "192.0.2.3:443".parse().unwrap()).await.unwrap();
        assert_eq!(api.store.version(), version, "correct objects are not written");
    }
}
