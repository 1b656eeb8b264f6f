//! Which endpoints of a frontend are eligible on this node: the input of the conntrack sweep for
//! UDP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nearhop_core::model::TrafficPolicy;
use nearhop_core::route::{Route, RouteTable};
use nearhop_core::{EndpointKey, Family, ServiceKey};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::conntrack::{Endpoints, FlowEligibility, Rehome, View};
use nearhop_netfilter::desired::DesiredTable;
use nearhop_netfilter::frontend::{At, Entry, Frontend, Path, Slots};

/// The endpoints of one frontend, as its clients see them.
#[derive(Clone, Debug)]
pub(crate) struct FrontendEndpoints {
    /// Which clients are on this node.
    near: Near,
    /// Endpoints for clients on this node, or for all clients.
    endpoints: BTreeSet<EndpointKey>,
    /// Endpoints for other clients, if they differ.
    local_only: Option<BTreeSet<EndpointKey>>,
    /// Endpoints that could take a connection, even if only another node would choose them.
    usable: BTreeSet<EndpointKey>,
    /// All endpoints of the port.
    known: BTreeSet<EndpointKey>,
    /// Whether the policy `Local` excludes endpoints on other nodes.
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

impl FrontendEndpoints {
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

impl Endpoints for FrontendEndpoints {
    fn eligibility(&self, client: IpAddr, endpoint: EndpointKey) -> FlowEligibility {
        if self.allowed(client).contains(&endpoint) {
            FlowEligibility::Allowed
        } else if self.usable.contains(&endpoint) && !self.is_barred(client) {
            FlowEligibility::Demoted
        } else if self.known.contains(&endpoint) {
            FlowEligibility::Barred
        } else {
            FlowEligibility::Gone
        }
    }

    fn any_allowed(&self, client: IpAddr) -> bool {
        !self.allowed(client).is_empty()
    }
}

/// Endpoints that frontends lost, by frontend.
pub(crate) type LostEndpoints = BTreeMap<Frontend, BTreeSet<EndpointKey>>;

/// The data to check the flows of these frontends against. `known` has the endpoints of each
/// frontend at its last sweep: flows may still use any of them, so all of them count as lost when
/// the frontend is removed.
pub(crate) fn view_of(
    lost: &mut LostEndpoints,
    known: &mut LostEndpoints,
    routes: &RouteTable,
    desired: &DesiredTable,
    node_addresses: &BTreeSet<IpAddr>,
    rehome: Rehome,
) -> View<FrontendEndpoints> {
    let mut view = View::new(rehome, node_addresses.clone());
    let near =
        Near { config: desired.config().clone(), node_addresses: Arc::new(node_addresses.clone()) };
    for (frontend, endpoints) in lost {
        match desired.frontend(frontend) {
            Some((service, entry)) => {
                let route = route_of(routes, service, near.config.family(), frontend);
                let found = endpoints_of(entry, route, near.clone());
                known.insert(*frontend, found.known.clone());
                view.insert(*frontend, found);
            }
            None => {
                endpoints.extend(known.remove(frontend).unwrap_or_default());
                view.insert_removed(*frontend, had(endpoints.clone(), near.clone()));
            }
        }
    }
    view
}

/// A removed frontend: the flows to its endpoints were ours.
fn had(endpoints: BTreeSet<EndpointKey>, near: Near) -> FrontendEndpoints {
    FrontendEndpoints {
        near,
        known: endpoints.clone(),
        usable: endpoints.clone(),
        endpoints,
        local_only: None,
        internal: TrafficPolicy::Cluster,
    }
}

fn endpoints_of(entry: &Entry, route: Option<&Route>, near: Near) -> FrontendEndpoints {
    let set = |slots: &Slots| slots.iter().copied().collect::<BTreeSet<EndpointKey>>();
    let mut found =
        FrontendEndpoints { endpoints: set(&entry.endpoints), ..had(BTreeSet::new(), near) };
    if let Path::LocalOnly(local) = &entry.path {
        found.local_only = Some(set(local));
    }
    if let Some(route) = route {
        if entry.path == Path::Direct {
            found.internal = route.decision.policy.internal;
        }
        for endpoint in route.endpoints.iter() {
            found.known.insert(endpoint.key);
            if endpoint.is_usable() {
                found.usable.insert(endpoint.key);
            }
        }
    }
    found
}

/// The route of the Service port that owns a frontend.
fn route_of<'a>(
    routes: &'a RouteTable,
    service: &'a ServiceKey,
    family: Family,
    frontend: &Frontend,
) -> Option<&'a Route> {
    let mut of_family = routes.of_service(service).filter(|(key, _)| key.family == family);
    let route = of_family.find(|(_, route)| {
        let port = route.service_port();
        let number = match frontend.at {
            At::Address(_) => port.port,
            At::Node => port.node_port,
        };
        port.protocol == frontend.protocol && number == frontend.port
    });
    route.map(|(_, route)| route)
}
