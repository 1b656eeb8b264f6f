//! Cluster IPs, IP families and node ports: who has which, and what a write gets.
//!
//! What a write takes is taken at once; what it gives back is given back when it has been stored
//! ([`Allocator::commit`]), so that nothing is ever held twice. The state holds nothing that the
//! stored Services do not say: [`Allocator::adopt`] rebuilds it from them.
//!
//! Deliberately not here: storage, and locks around it.

mod families;
mod operation;
mod pool;
mod ranges;

use std::fmt;
use std::net::IpAddr;

use nearhop_core::Family;
use nearhop_core::ip::parse_ip_sloppy;
use nearhop_object::FieldError;
use serde_json::Value;

use crate::config::ClusterConfig;
use crate::service::View;
use operation::{Mode, Operation};
use ranges::{AddressRange, PortRange};

/// Who has which address and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// One per family, the primary one first.
    addresses: Vec<AddressRange>,
    ports: PortRange,
}

/// What one write took, and what it gives back once it is stored.
#[must_use = "commit it when the write is stored, roll it back when it is not"]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    taken: Holdings,
    freed: Holdings,
}

/// Addresses and ports that somebody holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Holdings {
    ips: Vec<IpAddr>,
    ports: Vec<i64>,
}

/// Why a write gets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It asks for something impossible: 422.
    Invalid(Vec<FieldError>),
    /// It asks for nothing wrong, but there is nothing left: 500.
    Internal(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(errors) => {
                let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join(", "))
            }
            Self::Internal(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Vec<FieldError>> for Refusal {
    fn from(errors: Vec<FieldError>) -> Self {
        Self::Invalid(errors)
    }
}

impl Allocator {
    /// Nothing is taken yet.
    pub fn new(config: &ClusterConfig) -> Self {
        Self {
            addresses: config.service_cidrs.iter().map(AddressRange::new).collect(),
            ports: PortRange::new(config.node_ports.clone()),
        }
    }

    /// Fills in a defaulted Service: `clusterIP`, `clusterIPs`, `ipFamilies`, `ipFamilyPolicy`, node
    /// ports and the health check's port, and takes them. `random` gives a number below its
    /// argument.
    ///
    /// # Errors
    /// Why it cannot be; nothing is taken then, and the Service may be half filled in.
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

    /// As [`Self::allocate`] for a dry run: placeholders instead of free numbers, and nothing is
    /// taken.
    ///
    /// # Errors
    /// As far as that can be known without taking anything.
    pub fn dry_run(&self, new: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        Operation::new(Mode::DryRun(self)).run(new, old)
    }

    /// The write is stored: what the old object had and the new one has not is free again.
    pub fn commit(&mut self, reserved: Reserved) {
        self.free(reserved.freed);
    }

    /// The write was not stored: what it took is free again.
    pub fn rollback(&mut self, reserved: Reserved) {
        self.free(reserved.taken);
    }

    /// A Service is gone.
    pub fn release(&mut self, service: &Value) {
        self.free(Holdings::of(View::of(service)));
    }

    /// A Service was there before: takes what it has, as far as it lies in the ranges. Returns what
    /// another one has already, which only a damaged or restored store brings about.
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
    /// What a stored Service holds.
    fn of(view: View<'_>) -> Self {
        let mut ports = held_ports(view);
        if view.needs_health_check() {
            ports.push(view.number("healthCheckNodePort"));
        }
        Self { ips: addresses_of(view), ports }
    }
}

/// A number that a Service of another type drags along is not held.
fn held_ports(view: View<'_>) -> Vec<i64> {
    if view.has_node_ports() { view.node_ports() } else { Vec::new() }
}

/// `None` is no address, and drops out here.
fn addresses_of(view: View<'_>) -> Vec<IpAddr> {
    if view.is_external_name() {
        return Vec::new();
    }
    let ips = view.texts("clusterIPs").into_iter().filter_map(parse_ip_sloppy);
    ips.map(|ip| ip.to_canonical()).collect()
}
