//! The fields of a Service by name. Absent, null and empty are the same.

use nearhop_core::model::ServiceType;
use serde_json::{Map, Value};

use crate::json::{at, int};

/// A Service's spec, read only. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    object: &'a Value,
    spec: &'a Value,
}

/// The spec, to be changed.
pub(crate) fn spec_mut(service: &mut Value) -> Option<&mut Map<String, Value>> {
    service.get_mut("spec")?.as_object_mut()
}

/// The `clusterIP` of a headless Service.
pub(crate) const NONE: &str = "None";

impl<'a> View<'a> {
    pub(crate) fn of(object: &'a Value) -> Self {
        Self { object, spec: object.get("spec").unwrap_or(&Value::Null) }
    }

    /// A field that is there: `""` and `false` are, `null` is not.
    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        at(self.spec, &[name])
    }

    /// The field in messages.
    pub(crate) fn shown(self, name: &str) -> Value {
        self.get(name).cloned().unwrap_or(Value::Null)
    }

    /// A string, empty where there is none.
    pub(crate) fn text(self, name: &str) -> &'a str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A string that may be absent, which is not the same as empty.
    pub(crate) fn optional(self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(Value::as_str)
    }

    /// A list, empty where there is none.
    pub(crate) fn list(self, name: &str) -> &'a [Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// A list of strings.
    pub(crate) fn texts(self, name: &str) -> Vec<&'a str> {
        self.list(name).iter().map(|item| item.as_str().unwrap_or_default()).collect()
    }

    /// A number, 0 where there is none.
    pub(crate) fn number(self, name: &str) -> i64 {
        self.get(name).and_then(Value::as_i64).unwrap_or_default()
    }

    /// `spec.type`; `None` if it is absent or unknown.
    pub(crate) fn kind(self) -> Option<ServiceType> {
        ServiceType::parse(self.text("type"))
    }

    pub(crate) fn is_cluster_ip(self) -> bool {
        self.kind() == Some(ServiceType::ClusterIp)
    }

    pub(crate) fn is_load_balancer(self) -> bool {
        self.kind() == Some(ServiceType::LoadBalancer)
    }

    pub(crate) fn is_external_name(self) -> bool {
        self.kind() == Some(ServiceType::ExternalName)
    }

    /// Of a type that has node ports.
    pub(crate) fn has_node_ports(self) -> bool {
        matches!(self.kind(), Some(ServiceType::NodePort | ServiceType::LoadBalancer))
    }

    /// Of a type that has cluster IPs.
    pub(crate) fn has_cluster_ips(self) -> bool {
        self.is_cluster_ip() || self.has_node_ports()
    }

    /// Whether missing node ports are allocated.
    pub(crate) fn fills_node_ports(self) -> bool {
        let wanted = || self.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false));
        self.has_node_ports() && (!self.is_load_balancer() || wanted())
    }

    /// `clusterIPs` is `[None]`.
    pub(crate) fn is_headless(self) -> bool {
        matches!(self.list("clusterIPs"), [one] if one == NONE)
    }

    /// Whether clients outside the cluster can reach it.
    pub(crate) fn is_externally_accessible(self) -> bool {
        self.has_node_ports() || (self.is_cluster_ip() && !self.list("externalIPs").is_empty())
    }

    /// Whether it needs a health check node port.
    pub(crate) fn needs_health_check(self) -> bool {
        self.is_load_balancer() && self.text("externalTrafficPolicy") == "Local"
    }

    pub(crate) fn has_selector(self) -> bool {
        self.get("selector").and_then(Value::as_object).is_some_and(|map| !map.is_empty())
    }

    /// The numbers of all node ports.
    pub(crate) fn node_ports(self) -> Vec<i64> {
        let ports =
            self.list("ports").iter().map(|port| int(port, &["nodePort"]).unwrap_or_default());
        ports.filter(|port| *port != 0).collect()
    }

    /// `metadata.name`.
    pub(crate) fn name(self) -> &'a str {
        self.metadata("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// One annotation.
    pub(crate) fn annotation(self, key: &str) -> Option<&'a str> {
        self.metadata("annotations")?.get(key)?.as_str()
    }

    fn metadata(self, name: &str) -> Option<&'a Value> {
        self.object.get("metadata")?.get(name)
    }
}
