//! Objects that the tests write to the API: Nodes, Services, and slices, since no controller runs.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::{Value, json};

use super::{BALANCER_IP, NAMESPACE, NODE, NODE_IP, OTHER_NODE, Site};

/// An endpoint of a slice.
#[derive(Clone, Debug)]
pub struct Endpoint(Value);

impl Endpoint {
    /// Ready, on this node.
    pub fn here(ip: impl ToString) -> Self {
        Self::on(ip, NODE)
    }

    /// Ready, on the other node.
    pub fn elsewhere(ip: impl ToString) -> Self {
        Self::on(ip, OTHER_NODE)
    }

    fn on(ip: impl ToString, node: &str) -> Self {
        let conditions = json!({"ready": true, "serving": true, "terminating": false});
        Self(json!({
            "addresses": [ip.to_string()], "nodeName": node, "conditions": conditions,
        }))
    }

    /// In this zone, and hinted for it.
    #[must_use]
    pub fn zone(mut self, zone: &str) -> Self {
        self.0["zone"] = zone.into();
        self.0["hints"] = json!({"forZones": [{"name": zone}]});
        self
    }

    /// Terminating: it still serves, but is not ready.
    #[must_use]
    pub fn terminating(mut self) -> Self {
        self.0["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        self
    }

    /// Not ready.
    #[must_use]
    pub fn not_ready(mut self) -> Self {
        self.0["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
        self
    }
}

/// A Service with three ports, and its addresses.
#[derive(Clone, Debug)]
pub struct Frontends {
    /// Its name.
    pub name: String,
    /// The object that the API returned.
    pub object: Value,
}

/// One of a Service's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// TCP; the server answers.
    Web,
    /// UDP; the server answers.
    Dns,
    /// UDP; the server does not answer.
    Log,
}

impl Port {
    fn number(self) -> u16 {
        match self {
            Self::Web => 80,
            Self::Dns => 53,
            Self::Log => 514,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Web => 0,
            Self::Dns => 1,
            Self::Log => 2,
        }
    }
}

impl Frontends {
    /// The port at its cluster IP.
    pub fn cluster(&self, port: Port) -> Result<SocketAddr> {
        let ip = self.object["spec"]["clusterIP"].as_str().unwrap_or_default();
        Ok(SocketAddr::new(ip.parse()?, port.number()))
    }

    /// The port at the load balancer's address.
    pub fn balancer(&self, port: Port) -> SocketAddr {
        SocketAddr::new(BALANCER_IP.into(), port.number())
    }

    /// The port at the node.
    pub fn node(&self, port: Port) -> SocketAddr {
        let number = self.object["spec"]["ports"][port.index()]["nodePort"].as_u64();
        SocketAddr::new(NODE_IP.into(), number.unwrap_or_default() as u16)
    }
}

impl Site {
    /// Creates a Node with the node's address.
    pub async fn create_node(&self, name: &str, zone: Option<&str>) -> Result<()> {
        let mut labels = json!({"kubernetes.io/hostname": name});
        if let Some(zone) = zone {
            labels["topology.kubernetes.io/zone"] = zone.into();
        }
        let address = if name == NODE { NODE_IP.to_string() } else { "192.0.2.11".to_owned() };
        let node = json!({
            "metadata": {"name": name, "labels": labels},
            "status": {
                "addresses": [{"type": "InternalIP", "address": address}],
                "allocatable": {"cpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.api.post("/api/v1/nodes", &node).await?.expect(201)?;
        Ok(())
    }

    /// Merges a patch into a Node.
    pub async fn patch_node(&self, name: &str, patch: &Value) -> Result<()> {
        self.api.merge(&format!("/api/v1/nodes/{name}"), patch).await?.ok()?;
        Ok(())
    }

    /// Sets or removes the zone of a Node.
    pub async fn move_node(&self, name: &str, zone: Option<&str>) -> Result<()> {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        self.patch_node(name, &json!({"metadata": {"labels": labels}})).await
    }

    /// Creates a Service with cluster IP, node ports and the load balancer's address; `spec` is
    /// merged in.
    pub async fn create_load_balancer(&self, name: &str, spec: &Value) -> Result<Frontends> {
        self.create_service(name, &json!({}), "LoadBalancer", spec).await?;
        let ingress = json!({"status": {"loadBalancer": {"ingress": [
            {"ip": BALANCER_IP.to_string(), "ipMode": "VIP"},
        ]}}});
        let path = core(&format!("services/{name}/status"));
        let object = self.api.merge(&path, &ingress).await?.ok()?.json();
        Ok(Frontends { name: name.to_owned(), object })
    }

    /// Creates a Service with a cluster IP only; `spec` is merged in.
    pub async fn create_cluster_ip(&self, name: &str, spec: &Value) -> Result<Frontends> {
        self.create_service(name, &json!({}), "ClusterIP", spec).await
    }

    /// Creates a Service of a type, with labels and annotations in `metadata`.
    pub async fn create_service(
        &self,
        name: &str,
        metadata: &Value,
        kind: &str,
        spec: &Value,
    ) -> Result<Frontends> {
        let mut service = json!({
            "metadata": metadata,
            "spec": {"type": kind, "ports": [
                {"name": "web", "port": 80, "targetPort": 8080},
                {"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"},
                {"name": "log", "port": 514, "targetPort": 5140, "protocol": "UDP"},
            ]},
        });
        service["metadata"]["name"] = name.into();
        for (field, value) in spec.as_object().into_iter().flatten() {
            service["spec"][field] = value.clone();
        }
        let object = self.api.post(&core("services"), &service).await?.expect(201)?.json();
        Ok(Frontends { name: name.to_owned(), object })
    }

    /// Merges a patch into a Service.
    pub async fn patch_service(&self, name: &str, patch: &Value) -> Result<Frontends> {
        let path = core(&format!("services/{name}"));
        let object = self.api.merge(&path, patch).await?.ok()?.json();
        Ok(Frontends { name: name.to_owned(), object })
    }

    /// Deletes a Service and, as a controller does, its slice.
    pub async fn delete_service(&self, name: &str) -> Result<()> {
        self.api.delete(&core(&format!("services/{name}"))).await?.ok()?;
        self.api.delete(&slice_path(name)).await?;
        Ok(())
    }

    /// Creates a Service's slice.
    pub async fn create_slice(&self, service: &str, endpoints: &[Endpoint]) -> Result<()> {
        let slice = slice(service, endpoints);
        self.api.post(&slices_path(), &slice).await?.expect(201)?;
        Ok(())
    }

    /// Replaces the endpoints of a Service's slice.
    pub async fn write_slice(&self, service: &str, endpoints: &[Endpoint]) -> Result<()> {
        let endpoints: Vec<&Value> = endpoints.iter().map(|endpoint| &endpoint.0).collect();
        let patch = json!({"endpoints": endpoints});
        self.api.merge(&slice_path(service), &patch).await?.ok()?;
        Ok(())
    }
}

/// The slice of a Service, with all of its ports.
pub fn slice(service: &str, endpoints: &[Endpoint]) -> Value {
    let endpoints: Vec<&Value> = endpoints.iter().map(|endpoint| &endpoint.0).collect();
    json!({
        "metadata": {
            "name": service,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "web", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 5353, "protocol": "UDP"},
            {"name": "log", "port": 5140, "protocol": "UDP"},
        ],
        "endpoints": endpoints,
    })
}

/// Path of a core collection or object of the tests' namespace.
pub fn core(rest: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{rest}")
}

/// Path of the tests' slices.
pub fn slices_path() -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices")
}

/// Path of a Service's slice.
pub fn slice_path(service: &str) -> String {
    format!("{}/{service}", slices_path())
}
