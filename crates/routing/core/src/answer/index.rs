//! The index for DNS answers: each Service with its published endpoints in order, and a map from
//! addresses to Services.
//!
//! Updates are incremental, and the result equals an index built from scratch; `Affected` only
//! reduces the work. All sorting happens here, so that a question needs no sorting.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::key::{Family, Name, Protocol, ServiceKey};
use crate::model::{AddressType, ClusterIps, Endpoint, Service, ServicePort, Slice};
use crate::routing::SliceRouting;
use crate::world::{Affected, World};

/// Why a Service has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    ClusterIp,
    Endpoint,
}

/// Services by name, and by address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    /// By namespace and name, so that the labels of a question are the lookup keys.
    services: BTreeMap<Name, BTreeMap<Name, Filed>>,
    by_address: BTreeSet<(IpAddr, Role, ServiceKey)>,
}

/// A Service, prepared for answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filed {
    pub(super) service: Arc<Service>,
    slices: Box<[Arc<Slice>]>,
    /// Sorted by address, IPv4 first. An address may occur several times.
    published: Box<[Place]>,
    /// Whether its slices have neither hints nor routing annotations, so that no choice is needed.
    pub(super) unrouted: bool,
}

/// The position of an endpoint in the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    address: IpAddr,
    slice: u32,
    endpoint: u32,
}

/// An address of a published endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) slice: &'a Slice,
    pub(super) endpoint: &'a Endpoint,
    pub(super) address: IpAddr,
    /// Its weight among the picked endpoints.
    pub(super) weight: u32,
}

impl Entry<'_> {
    /// Whether its slice has this port; always true if no port is given.
    fn has(&self, port: Option<(&str, Protocol)>) -> bool {
        port.is_none_or(|(name, protocol)| {
            self.slice.ports.iter().any(|p| p.name == *name && p.protocol == protocol)
        })
    }
}

/// Whether an endpoint is published in DNS: an unset `ready` counts as ready.
pub(super) fn is_published(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready.unwrap_or(true)
}

impl Filed {
    fn new(world: &World, service: &Arc<Service>) -> Self {
        let slices: Box<[Arc<Slice>]> = world.routed_slices_shared(&service.key).cloned().collect();
        let mut published = Vec::new();
        for (at, slice) in slices.iter().enumerate() {
            let endpoints = slice.endpoints.iter().enumerate();
            for (number, endpoint) in endpoints.filter(|(_, endpoint)| is_published(endpoint)) {
                let addresses = endpoint.addresses.as_slice().iter();
                let fitting = addresses.filter(|address| fits(slice, **address));
                published.extend(fitting.map(|address| Place {
                    address: *address,
                    slice: at as u32,
                    endpoint: number as u32,
                }));
            }
        }
        published.sort_unstable();
        let asks = |slice: &Arc<Slice>| {
            slice.routing != SliceRouting::Absent
                || slice.endpoints.iter().any(|endpoint| endpoint.hints.is_some())
        };
        let unrouted = !slices.iter().any(asks);
        let (service, published) = (service.clone(), published.into_boxed_slice());
        Self { service, slices, published, unrouted }
    }

    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> + Clone {
        self.slices.iter().map(Arc::as_ref)
    }

    /// Whether it has any published endpoints.
    pub(super) fn has_published(&self) -> bool {
        !self.published.is_empty()
    }

    /// Published endpoints of both families; only those with the port, if one is given.
    pub(super) fn published<'a, 'q>(
        &'a self,
        port: Option<(&'q str, Protocol)>,
    ) -> impl Iterator<Item = Entry<'a>> + use<'a, 'q> {
        self.entries(&self.published).filter(move |entry| entry.has(port))
    }

    /// The same for one family.
    pub(super) fn published_in<'a, 'q>(
        &'a self,
        family: Family,
        port: Option<(&'q str, Protocol)>,
    ) -> impl Iterator<Item = Entry<'a>> + use<'a, 'q> {
        let split = self.published.partition_point(|place| place.address.is_ipv4());
        let (v4, v6) = self.published.split_at(split);
        let places = if family == Family::Ipv4 { v4 } else { v6 };
        self.entries(places).filter(move |entry| entry.has(port))
    }

    /// Published endpoints with an address.
    pub(super) fn published_at(&self, address: IpAddr) -> impl Iterator<Item = Entry<'_>> {
        let from = self.published.partition_point(|place| place.address < address);
        let there = self.published[from..].iter().take_while(move |it| it.address == address);
        there.map(|place| self.entry(place))
    }

    /// Endpoints with an address, published or not.
    pub(super) fn endpoints_at(&self, address: IpAddr) -> impl Iterator<Item = &Endpoint> {
        let endpoints = self.slices.iter().flat_map(|slice| &slice.endpoints);
        endpoints.filter(move |endpoint| endpoint.addresses.as_slice().contains(&address))
    }

    /// Whether its UDP port with this number has one of these sockets as its endpoint.
    pub(super) fn leads_to(&self, number: u16, own: &[SocketAddr]) -> bool {
        let asked = |port: &&ServicePort| port.port == number && port.protocol == Protocol::Udp;
        let names: Vec<&Name> =
            self.service.ports.iter().filter(asked).map(|port| &port.name).collect();
        self.slices.iter().any(|slice| {
            let ports = slice
                .ports
                .iter()
                .filter(|port| port.protocol == Protocol::Udp && names.contains(&&port.name));
            let numbers: Vec<u16> = ports.filter_map(|port| port.port).collect();
            let addresses =
                slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.as_slice());
            addresses
                .into_iter()
                .any(|ip| own.iter().any(|own| own.ip() == *ip && numbers.contains(&own.port())))
        })
    }

    fn entries<'a>(&'a self, places: &'a [Place]) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        places.iter().map(|place| self.entry(place))
    }

    fn entry(&self, place: &Place) -> Entry<'_> {
        let slice = &self.slices[place.slice as usize];
        let endpoint = &slice.endpoints[place.endpoint as usize];
        Entry { slice, endpoint, address: place.address, weight: 1 }
    }

    /// Its addresses, sorted, without duplicates. Endpoints that are not published count too,
    /// because a client may look up its own address.
    fn addresses(&self) -> Vec<(IpAddr, Role)> {
        let mut all: Vec<(IpAddr, Role)> = Vec::new();
        if let ClusterIps::Addresses(addresses) = &self.service.cluster_ips {
            all.extend(addresses.iter().map(|address| (*address, Role::ClusterIp)));
        }
        let endpoints = self.slices.iter().flat_map(|slice| &slice.endpoints);
        let addresses = endpoints.flat_map(|endpoint| endpoint.addresses.as_slice());
        all.extend(addresses.map(|address| (*address, Role::Endpoint)));
        all.sort_unstable();
        all.dedup();
        all
    }
}

pub(super) fn fits(slice: &Slice, address: IpAddr) -> bool {
    slice.address_type == AddressType::Ip(Family::of(address))
}

impl Index {
    /// Builds the index from scratch.
    pub fn build(world: &World) -> Self {
        let mut index = Self::default();
        for service in world.services() {
            index.file(&service.key, Some(Filed::new(world, service)));
        }
        index
    }

    /// Updates the index for the affected Services.
    pub fn refresh(&mut self, world: &World, touched: &Affected) {
        for key in &touched.routes {
            let now = world.service(key).map(|service| Filed::new(world, service));
            self.file(key, now);
        }
    }

    /// A Service by its name.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Filed> {
        self.services.get(namespace)?.get(name)
    }

    /// Services with this cluster IP.
    pub(super) fn cluster_ip(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.at(address, Role::ClusterIp)
    }

    /// Services with an endpoint at this address, published or not.
    pub(super) fn endpoints_at(&self, address: IpAddr) -> impl Iterator<Item = &Filed> {
        let keys = self.at(address, Role::Endpoint);
        keys.filter_map(|key| self.get(&key.namespace, &key.name))
    }

    /// Whether an object has an address from `first` to `last`, inclusive.
    pub(super) fn has_between(&self, first: IpAddr, last: IpAddr) -> bool {
        let from = (first, Role::ClusterIp, smallest());
        self.by_address.range(from..).next().is_some_and(|(address, ..)| *address <= last)
    }

    fn at(&self, address: IpAddr, role: Role) -> impl Iterator<Item = &ServiceKey> {
        let from = self.by_address.range((address, role, smallest())..);
        from.take_while(move |(at, as_, _)| *at == address && *as_ == role).map(|(.., key)| key)
    }

    /// Replaces or removes a Service. Only the addresses that differ are updated: a large Service
    /// has thousands, and a change usually concerns one.
    fn file(&mut self, key: &ServiceKey, now: Option<Filed>) {
        let before = self.get(&key.namespace, &key.name).map_or_else(Vec::new, Filed::addresses);
        let after = now.as_ref().map_or_else(Vec::new, Filed::addresses);
        for (address, role) in without(&before, &after) {
            self.by_address.remove(&(address, role, key.clone()));
        }
        for (address, role) in without(&after, &before) {
            self.by_address.insert((address, role, key.clone()));
        }
        match now {
            Some(filed) => {
                let namespace = self.services.entry(key.namespace.clone()).or_default();
                namespace.insert(key.name.clone(), filed);
            }
            None => {
                let Some(namespace) = self.services.get_mut(&key.namespace) else { return };
                namespace.remove(&key.name);
                if namespace.is_empty() {
                    self.services.remove(&key.namespace);
                }
            }
        }
    }
}

/// The elements of the first sorted list that are not in the second.
fn without(these: &[(IpAddr, Role)], those: &[(IpAddr, Role)]) -> Vec<(IpAddr, Role)> {
    these.iter().filter(|it| those.binary_search(it).is_err()).copied().collect()
}

fn smallest() -> ServiceKey {
    ServiceKey::new("", "")
}
