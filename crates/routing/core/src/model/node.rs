//! Nodes and Namespaces.

use std::net::IpAddr;

use super::{is_zone_name, zone_problem};
use crate::cidr::Cidr;
use crate::key::Name;
use crate::labels::{Labels, well_known};
use crate::object::ObjectRef;
use crate::problem::Problem;

/// The zone in a Node's labels, if it is valid in a hint.
pub fn zone_of(labels: &Labels) -> Option<&Name> {
    labels.get(well_known::ZONE).filter(|zone| is_zone_name(zone))
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: Name,
    /// Labels; zone and region are among them.
    pub labels: Labels,
    /// Whether the Ready condition is True.
    pub ready: bool,
    /// Allocatable CPU in thousandths of a core, if the node reports it.
    pub cpu_milli: Option<u64>,
    /// `status.addresses`: internal addresses, then external ones.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`: the ranges of its Pods' addresses.
    pub pod_cidrs: Vec<Cidr>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether the cluster autoscaler has tainted it for deletion.
    pub tainted_for_deletion: bool,
}

impl Node {
    /// A ready Node without labels, CPU or addresses. The caller sets the other fields.
    pub fn new(name: impl Into<Name>) -> Self {
        Self {
            name: name.into(),
            labels: Labels::default(),
            ready: true,
            cpu_milli: None,
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            deleting: false,
            tainted_for_deletion: false,
        }
    }

    /// Its zone, if the label exists and is valid in a hint.
    pub fn zone(&self) -> Option<&Name> {
        zone_of(&self.labels)
    }

    /// Its region.
    pub fn region(&self) -> Option<&Name> {
        self.labels.get(well_known::REGION).filter(|region| !region.is_empty())
    }

    /// Whether it counts as capacity: ready, and not a control-plane node.
    pub(crate) fn counts_as_capacity(&self) -> bool {
        self.ready
            && self.labels.get(well_known::CONTROL_PLANE).is_none()
            && self.labels.get(well_known::MASTER).is_none()
    }

    /// The problems of the Node.
    pub fn problems(&self) -> Vec<Problem> {
        let zone = self.labels.get(well_known::ZONE);
        zone.filter(|zone| !is_zone_name(zone))
            .map(|zone| {
                let field = format!("metadata.labels[{}]", well_known::ZONE);
                zone_problem(ObjectRef::Node(self.name.clone()), field, zone)
            })
            .into_iter()
            .collect()
    }
}

/// A Namespace, with only its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Name.
    pub name: Name,
    /// Annotation `nearhop.dev/traffic-distribution`.
    pub traffic_distribution: Option<Name>,
}
