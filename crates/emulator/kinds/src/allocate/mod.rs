//! Allocation of cluster IPs, IP families and node ports.
//!
//! A write reserves its values at once and releases old ones when it is stored
//! ([`Allocator::commit`]), so no value is held twice. [`Allocator::adopt`] rebuilds the state from
//! the stored Services.

mod families;
mod operation;
mod pool;
mod ranges;

use std::net::IpAddr;

use nearhop_core::Family;
use nearhop_core::ip::parse_ip_sloppy;
use serde_json::Value;

use crate::config::ClusterConfig;
use crate::errors::Errors;
use crate::service::View;
use operation::{Mode, Operation};
use ranges::{AddressRange, PortRange};

/// The allocated addresses and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// One per family, the primary first.
    addresses: Vec<AddressRange>,
    ports: PortRange,
}

/// The values that a write reserved, and those that it releases once it is stored.
#[must_use = "commit it when the write is stored, roll it back when it is not"]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    taken: Holdings,
    freed: Holdings,
}

/// Addresses and ports of a Service.
#[derive(Debug, Default, PartialEq, Eq)]
struct Holdings {
    ips: Vec<IpAddr>,
    ports: Vec<i64>,
}

/// Why an allocation fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An invalid request: 422.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Invalid(Errors),
    /// No free value: 500.
    #[error("{0}")]
    Internal(String),
}

impl From<Errors> for Refusal {
    fn from(errors: Errors) -> Self {
        Self::Invalid(errors)
    }
}

impl Allocator {
    /// An allocator without allocations.
    pub fn new(config: &ClusterConfig) -> Self {
        Self {
            addresses: config.service_cidrs.iter().map(AddressRange::new).collect(),
            ports: PortRange::new(config.node_ports.clone()),
        }
    }

    /// Allocates and sets `clusterIP`, `clusterIPs`, `ipFamilies`, `ipFamilyPolicy`, node ports and the
    /// health check's port of a Service that has its defaults. `random` returns a number below its
    /// argument.
    ///
    /// # Errors
    /// Nothing is reserved then, and the Service may be set in part.
    pub fn allocate(
        &mut self,
        new: &mut Value,
        old: Option<&Value>,
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Reserved, Refusal> {
        let mut operation = Operation::new(Mode::Real(self, random));
        let result = operation.run(new, old);
        let reserved = operation.into_reserved();
        match result {
            Ok(()) => Ok(reserved),
            Err(refusal) => {
                self.rollback(reserved);
                Err(refusal)
            }
        }
    }

    /// [`Self::allocate`] for a dry run: sets placeholders and reserves nothing.
    ///
    /// # Errors
    /// Errors that are known without a reservation.
    pub fn dry_run(&self, new: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        Operation::new(Mode::DryRun(self)).run(new, old)
    }

    /// The write is stored: releases the values that only the old object had.
    pub fn commit(&mut self, reserved: Reserved) {
        self.free(reserved.freed);
    }

    /// The write is not stored: releases its reservation.
    pub fn rollback(&mut self, reserved: Reserved) {
        self.free(reserved.taken);
    }

    /// Releases the values of a deleted Service.
    pub fn release(&mut self, service: &Value) {
        self.free(Holdings::of(View::of(service)));
    }

    /// Reserves the values of a stored Service that are in the ranges. Returns those that another
    /// Service holds, which happens only in a damaged or restored store.
    pub fn adopt(&mut self, service: &Value) -> Vec<String> {
        let Holdings { ips, mut ports } = Holdings::of(View::of(service));
        // One Service may use a port number for several protocols.
        ports.sort_unstable();
        ports.dedup();
        let mut twice = Vec::new();
        for ip in ips {
            if let Some(range) = self.range_mut(Family::of(ip))
                && range.take(ip) == Err(ranges::Unavailable::Taken)
            {
                twice.push(ip.to_string());
            }
        }
        for port in ports {
            if self.ports.take(port) == Err(ranges::Unavailable::Taken) {
                twice.push(port.to_string());
            }
        }
        twice
    }

    fn free(&mut self, holdings: Holdings) {
        for ip in holdings.ips {
            if let Some(range) = self.range_mut(Family::of(ip)) {
                range.free(ip);
            }
        }
        for port in holdings.ports {
            self.ports.free(port);
        }
    }

    fn range_mut(&mut self, family: Family) -> Option<&mut AddressRange> {
        self.addresses.iter_mut().find(|range| range.family() == family)
    }
}

impl Holdings {
    /// The values of a stored Service.
    fn of(view: View<'_>) -> Self {
        let mut ports = held_ports(view);
        if view.needs_health_check() {
            ports.push(view.number("healthCheckNodePort"));
        }
        Self { ips: addresses_of(view), ports }
    }
}

/// A Service of another type does not hold its node ports.
fn held_ports(view: View<'_>) -> Vec<i64> {
    if view.has_node_ports() { view.node_ports() } else { Vec::new() }
}

/// `None` is not an address.
fn addresses_of(view: View<'_>) -> Vec<IpAddr> {
    if view.is_external_name() {
        return Vec::new();
    }
    let ips = view.texts("clusterIPs").into_iter().filter_map(parse_ip_sloppy);
    ips.map(|ip| ip.to_canonical()).collect()
}
