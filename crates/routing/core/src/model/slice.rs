//! EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Addresses, is_zone_name, zone_problem};
use crate::key::{Family, Name, Protocol, ServiceKey};
use crate::labels::{Labels, well_known};
use crate::object::ObjectRef;
use crate::problem::{Problem, quote};
use crate::routing::SliceRouting;

/// `addressType` of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressType {
    /// IPv4 or IPv6.
    Ip(Family),
    /// Another type (`FQDN`, or the obsolete `IP`): never routed, never written.
    Other(Name),
}

impl AddressType {
    /// Parses the value in the API.
    pub fn parse(text: &str) -> Self {
        Family::parse(text).map_or_else(|| Self::Other(Name::from(text)), Self::Ip)
    }

    /// The value in the API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ip(family) => family.as_str(),
            Self::Other(text) => text,
        }
    }

    /// The IP family, if the type has one.
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::Ip(family) => Some(*family),
            Self::Other(_) => None,
        }
    }
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlicePort {
    /// The Service port's name.
    pub name: Name,
    /// Protocol.
    pub protocol: Protocol,
    /// Number on the Pods; unset means "all ports" and is not routed.
    pub port: Option<u16>,
    /// `appProtocol`.
    pub app_protocol: Option<Name>,
}

/// Conditions of an endpoint. Unset and false are different: the controller reads an unset `ready`
/// as not ready, a proxy as ready (both as upstream does).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Conditions {
    /// `ready`.
    pub ready: Option<bool>,
    /// `serving`.
    pub serving: Option<bool>,
    /// `terminating`.
    pub terminating: Option<bool>,
}

/// The Pod behind an endpoint. nearhop ignores `targetRef`s of other kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
    /// UID.
    pub uid: Name,
}

/// `hints` of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Hints {
    /// `forZones[].name`.
    pub zones: Vec<Name>,
    /// `forNodes[].name`.
    pub nodes: Vec<Name>,
}

impl Hints {
    /// Hints for zones only.
    pub fn for_zones(zones: Vec<Name>) -> Self {
        Self { zones, nodes: Vec::new() }
    }
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Addresses; proxies use the first.
    pub addresses: Addresses,
    /// Conditions.
    pub conditions: Conditions,
    /// Host name for DNS.
    pub hostname: Option<Name>,
    /// Node it runs on.
    pub node: Option<Name>,
    /// Zone it runs in.
    pub zone: Option<Name>,
    /// The Pod behind it.
    pub target: Option<PodRef>,
    /// The zones and nodes that should use it. Shared: endpoints of a zone usually have the same
    /// hints.
    pub hints: Option<Arc<Hints>>,
}

impl Endpoint {
    /// A ready endpoint at an address. The caller sets the other fields.
    pub fn at(address: IpAddr) -> Self {
        Self {
            addresses: Addresses::One(address),
            conditions: Conditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            },
            hostname: None,
            node: None,
            zone: None,
            target: None,
            hints: None,
        }
    }

    /// Whether `ready` is explicitly true, as the controller reads it.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready == Some(true)
    }

    /// Zones that it is hinted for.
    pub fn hint_zones(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |hints| &hints.zones)
    }

    /// Nodes that it is hinted for.
    pub fn hint_nodes(&self) -> &[Name] {
        self.hints.as_deref().map_or(&[], |hints| &hints.nodes)
    }
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace.
    pub namespace: Name,
    /// Name; empty until the API server generates one.
    pub name: Name,
    /// Labels.
    pub labels: Labels,
    /// UIDs of the Services (v1) that own it.
    pub owners: Vec<Name>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// `addressType`.
    pub address_type: AddressType,
    /// Ports, shared between the slices of a Service.
    pub ports: Arc<[SlicePort]>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub trigger_time: Option<Name>,
    /// Annotation `nearhop.dev/routing`.
    pub routing: SliceRouting,
}

impl Slice {
    /// A slice without labels, ports and endpoints. The caller sets the other fields.
    pub fn new(namespace: impl Into<Name>, name: impl Into<Name>, kind: AddressType) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            labels: Labels::default(),
            owners: Vec::new(),
            deleting: false,
            address_type: kind,
            ports: [].into(),
            endpoints: Vec::new(),
            trigger_time: None,
            routing: SliceRouting::Absent,
        }
    }

    /// A reference to it.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef::Slice(self.namespace.clone(), self.name.clone())
    }

    /// The Service that it belongs to, by its label.
    pub fn service(&self) -> Option<ServiceKey> {
        let name = self.labels.get(well_known::SERVICE_NAME).filter(|name| !name.is_empty())?;
        Some(ServiceKey { namespace: self.namespace.clone(), name: name.clone() })
    }

    /// The controller that writes it, by its managed-by label.
    pub fn managed_by(&self) -> Option<&Name> {
        self.labels.get(well_known::MANAGED_BY)
    }

    /// The problems of the slice. Decisions ignore the endpoints that a problem names.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.service().is_none() {
            problems.push(Problem::new(
                self.reference(),
                format!("metadata.labels[{}]", well_known::SERVICE_NAME),
                "missing or empty, so the slice belongs to no Service",
                "label it with its Service's name; it is ignored until then",
            ));
        }
        if let AddressType::Other(other) = &self.address_type {
            problems.push(Problem::new(
                self.reference(),
                "addressType",
                format!("{} is not routed", quote(other)),
                "use IPv4 or IPv6; the slice is ignored until then",
            ));
        }
        if let SliceRouting::Broken(cause) = &self.routing {
            problems.push(Problem::new(
                self.reference(),
                format!("metadata.annotations[{}]", crate::routing::ANNOTATION),
                cause.to_string(),
                "remove it, so that the controller writes it again; hints are used until then",
            ));
        }
        for (i, port) in self.ports.iter().enumerate().filter(|(_, port)| port.port == Some(0)) {
            problems.push(Problem::new(
                self.reference(),
                format!("ports[{i}].port"),
                format!("0 is not a port (port name {})", quote(&port.name)),
                "give a port from 1 to 65535; this port is not routed until then",
            ));
        }
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            self.endpoint_problems(i, endpoint, &mut problems);
        }
        problems
    }

    fn endpoint_problems(&self, i: usize, endpoint: &Endpoint, problems: &mut Vec<Problem>) {
        let family = self.address_type.family();
        for address in endpoint.addresses.as_slice() {
            if family.is_some_and(|family| family != Family::of(*address)) {
                problems.push(Problem::new(
                    self.reference(),
                    format!("endpoints[{i}].addresses"),
                    format!("{address} is not an {} address", self.address_type.as_str()),
                    "move it to a slice of its own family; this endpoint is ignored until then",
                ));
            }
        }
        if let Some(zone) = endpoint.zone.as_ref().filter(|zone| !is_zone_name(zone)) {
            problems.push(zone_problem(self.reference(), format!("endpoints[{i}].zone"), zone));
        }
        for (j, zone) in endpoint.hint_zones().iter().enumerate() {
            if !is_zone_name(zone) {
                let field = format!("endpoints[{i}].hints.forZones[{j}].name");
                problems.push(zone_problem(self.reference(), field, zone));
            }
        }
    }
}
