//! Where endpoints stand with a frontend on this node: what the flows of UDP are judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::model::{Service, ServicePort, TrafficPolicy};
use nearhop_core::route::port_endpoints;
use nearhop_core::world::World;
use nearhop_core::{EndpointKey, Family, Name, ServiceKey};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::conntrack::{Endpoints, Rehome, Standing, View};
use nearhop_netfilter::frontend::{At, Entry, Frontend, Path, Slots};
use nearhop_netfilter::image::Image;

/// The endpoints of one frontend, for those who connect to it.
#[derive(Clone, Debug)]
pub(crate) struct Standings {
    /// Which clients are on this node.
    near: Near,
    /// What clients on this node, or all, are sent to.
    endpoints: BTreeSet<EndpointKey>,
    /// What others are sent to, where that is not the same.
    local_only: Option<BTreeSet<EndpointKey>>,
    /// Endpoints that could take a connection, by whether another node would send it there.
    usable: BTreeSet<EndpointKey>,
    /// All endpoints of the port.
    known: BTreeSet<EndpointKey>,
    /// Whether the policy bars whatever is not on this node.
    internal: TrafficPolicy,
}

#[derive(Clone, Debug)]
struct Near {
    config: Arc<Config>,
    node_addresses: Arc<BTreeSet<IpAddr>>,
}

impl Near {
    fn holds(&self, client: IpAddr) -> bool {
        self.config.is_near(client, &self.node_addresses)
    }
}

impl Standings {
    fn allowed(&self, client: IpAddr) -> &BTreeSet<EndpointKey> {
        match &self.local_only {
            Some(local) if !self.near.holds(client) => local,
            _ => &self.endpoints,
        }
    }

    fn is_barred(&self, client: IpAddr) -> bool {
        let far = self.local_only.is_some() && !self.near.holds(client);
        far || self.internal == TrafficPolicy::Local
    }
}

impl Endpoints for Standings {
    fn standing(&self, client: IpAddr, endpoint: EndpointKey) -> Standing {
        if self.allowed(client).contains(&endpoint) {
            Standing::Allowed
        } else if self.usable.contains(&endpoint) && !self.is_barred(client) {
            Standing::Demoted
        } else if self.known.contains(&endpoint) {
            Standing::Barred
        } else {
            Standing::Gone
        }
    }

    fn any_allowed(&self, client: IpAddr) -> bool {
        !self.allowed(client).is_empty()
    }
}

/// Endpoints that frontends lost, by frontend.
pub(crate) type LostEndpoints = BTreeMap<Frontend, BTreeSet<EndpointKey>>;

/// What the flows to these frontends are judged by. `known` is what each frontend had when it was
/// last judged: flows may have stayed with any of it, which counts when the frontend itself goes,
/// and so is lost with it.
pub(crate) fn view_of(
    lost: &mut LostEndpoints,
    known: &mut LostEndpoints,
    world: &World,
    image: &Image,
    node: &Name,
    node_addresses: &BTreeSet<IpAddr>,
    rehome: Rehome,
) -> View<Standings> {
    let mut view = View::new(rehome, node_addresses.clone());
    let near =
        Near { config: image.config().clone(), node_addresses: Arc::new(node_addresses.clone()) };
    for (frontend, endpoints) in lost {
        match image.frontend(frontend) {
            Some((service, entry)) => {
                let standings = standings(frontend, service, entry, world, node, near.clone());
                known.insert(*frontend, standings.known.clone());
                view.insert(*frontend, standings);
            }
            None => {
                endpoints.extend(known.remove(frontend).unwrap_or_default());
                view.insert_removed(*frontend, had(endpoints.clone(), near.clone()));
            }
        }
    }
    view
}

/// A frontend that is gone: what led to its endpoints was ours.
fn had(endpoints: BTreeSet<EndpointKey>, near: Near) -> Standings {
    Standings {
        near,
        known: endpoints.clone(),
        usable: endpoints.clone(),
        endpoints,
        local_only: None,
        internal: TrafficPolicy::Cluster,
    }
}

fn standings(
    frontend: &Frontend,
    key: &ServiceKey,
    entry: &Entry,
    world: &World,
    node: &Name,
    near: Near,
) -> Standings {
    let set = |slots: &Slots| slots.iter().copied().collect::<BTreeSet<EndpointKey>>();
    let family = near.config.family();
    let mut standings = had(BTreeSet::new(), near);
    standings.endpoints = set(&entry.endpoints);
    if let Path::LocalOnly(local) = &entry.path {
        standings.local_only = Some(set(local));
    }
    let Some(service) = world.service(key) else { return standings };
    if entry.path == Path::Direct {
        standings.internal = service.internal_traffic_policy;
    }
    let Some(port) = port_of(service, frontend) else { return standings };
    let (known, usable) = candidates(world, service, port, family, node);
    Standings { known, usable, ..standings }
}

fn candidates(
    world: &World,
    service: &Service,
    port: &ServicePort,
    family: Family,
    node: &Name,
) -> (BTreeSet<EndpointKey>, BTreeSet<EndpointKey>) {
    let slices = world.routed_slices(&service.key);
    let all = port_endpoints(slices, family, (&port.name, port.protocol), Some(node));
    let usable = all.iter().filter(|endpoint| endpoint.is_usable()).map(|endpoint| endpoint.key);
    let usable = usable.collect();
    (all.iter().map(|endpoint| endpoint.key).collect(), usable)
}

fn port_of<'a>(service: &'a Service, frontend: &Frontend) -> Option<&'a ServicePort> {
    service.ports.iter().find(|port| {
        let number = match frontend.at {
            At::Address(_) => port.port,
            At::Node => port.node_port,
        };
        port.protocol == frontend.protocol && number == frontend.port
    })
}
