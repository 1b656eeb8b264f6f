//! From addresses to the Services that have them, for reverse names and for finding oneself.
//!
//! Kept incrementally and equal to one built from scratch; `Touched` only narrows the work.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::key::ServiceKey;
use crate::model::ClusterIps;
use crate::world::{Touched, World};

/// How a Service has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    ClusterIp,
    Endpoint,
}

/// Addresses to Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    by_address: BTreeSet<(IpAddr, Role, ServiceKey)>,
    /// What is filed for each Service, so that it can be taken out again.
    of_service: BTreeMap<ServiceKey, Box<[(IpAddr, Role)]>>,
}

impl Index {
    /// Builds it from scratch.
    pub fn build(world: &World) -> Self {
        let mut index = Self::default();
        for service in world.services() {
            index.insert(world, &service.key);
        }
        index
    }

    /// Brings it up to date with what was touched.
    pub fn refresh(&mut self, world: &World, touched: &Touched) {
        for key in &touched.routes {
            self.remove(key);
            self.insert(world, key);
        }
    }

    /// The first Service with this cluster address.
    pub(super) fn cluster_ip(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.at(address, Role::ClusterIp)
    }

    /// Services with an endpoint of this address, ready or not.
    pub(super) fn endpoints_at(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.at(address, Role::Endpoint)
    }

    /// Whether anybody has an address from `first` to `last`.
    pub(super) fn has_between(&self, first: IpAddr, last: IpAddr) -> bool {
        let from = (first, Role::ClusterIp, smallest());
        self.by_address.range(from..).next().is_some_and(|(address, ..)| *address <= last)
    }

    fn at(&self, address: IpAddr, role: Role) -> impl Iterator<Item = &ServiceKey> {
        let from = self.by_address.range((address, role, smallest())..);
        from.take_while(move |(at, as_, _)| *at == address && *as_ == role).map(|(.., key)| key)
    }

    fn insert(&mut self, world: &World, key: &ServiceKey) {
        let Some(service) = world.service(key) else { return };
        let mut filed: Vec<(IpAddr, Role)> = Vec::new();
        if let ClusterIps::Addresses(addresses) = &service.cluster_ips {
            filed.extend(addresses.iter().map(|address| (*address, Role::ClusterIp)));
        }
        let endpoints = world.routed_slices(key).flat_map(|slice| &slice.endpoints);
        let addresses = endpoints.flat_map(|endpoint| endpoint.addresses.as_slice());
        filed.extend(addresses.map(|address| (*address, Role::Endpoint)));
        filed.sort_unstable();
        filed.dedup();
        if filed.is_empty() {
            return;
        }
        let key = service.key.clone();
        self.by_address.extend(filed.iter().map(|(address, role)| (*address, *role, key.clone())));
        self.of_service.insert(key, filed.into_boxed_slice());
    }

    fn remove(&mut self, key: &ServiceKey) {
        for (address, role) in self.of_service.remove(key).unwrap_or_default() {
            self.by_address.remove(&(address, role, key.clone()));
        }
    }
}

fn smallest() -> ServiceKey {
    ServiceKey::new("", "")
}
