//! The frontends of a node, for judging conntrack flows.
//!
//! Only frontends of UDP and SCTP are needed. Endpoints are queried through a trait, so that
//! 100,000 of them are not copied.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nearhop_core::{EndpointKey, Protocol};

use crate::frontend::{At, Frontend};

/// Whether a frontend on this node may currently send flows to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowEligibility {
    /// New connections may go to the endpoint.
    Allowed,
    /// The endpoint serves and could be used, but other endpoints are preferred here: by hints,
    /// keys or weights, or because it is terminating and they are not.
    Demoted,
    /// It is an endpoint of the port, but must not be used from this node: it is not ready, or on
    /// another node under a policy `Local`.
    Barred,
    /// It is not an endpoint of the port.
    Gone,
}

/// The endpoints of one frontend. `client` is the source of the connection: under
/// `externalTrafficPolicy: Local` clients on the node may use other endpoints than clients outside.
pub trait Endpoints {
    /// Whether a client's flows may go to an endpoint.
    fn eligibility(&self, client: IpAddr, endpoint: EndpointKey) -> FlowEligibility;
    /// Whether any endpoint is allowed.
    fn any_allowed(&self, client: IpAddr) -> bool;
}

/// What happens to UDP flows to an endpoint that became [`FlowEligibility::Demoted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rehome {
    /// They stay; only new flows follow the preference.
    #[default]
    NewOnly,
    /// They are deleted, so that the next packet follows the preference.
    Immediate,
}

/// The frontends of a node.
#[derive(Clone, Debug)]
pub struct View<E> {
    rehome: Rehome,
    node: BTreeSet<IpAddr>,
    present: BTreeMap<Frontend, E>,
    removed: BTreeMap<Frontend, E>,
}

/// The result of a search for a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a, E> {
    /// The frontend exists, with these endpoints.
    Present(&'a E),
    /// The frontend was removed, and had these endpoints.
    Removed(&'a E),
}

impl<E> View<E> {
    /// Creates a view without frontends. `node` are the addresses that serve node ports: the same
    /// port at another address is not ours.
    pub fn new(rehome: Rehome, node: BTreeSet<IpAddr>) -> Self {
        Self { rehome, node, present: BTreeMap::new(), removed: BTreeMap::new() }
    }

    /// Adds an existing frontend, with or without endpoints.
    pub fn insert(&mut self, frontend: Frontend, endpoints: E) {
        self.present.insert(frontend, endpoints);
    }

    /// Adds a removed frontend, with its last endpoints. An existing frontend has precedence.
    pub fn insert_removed(&mut self, frontend: Frontend, endpoints: E) {
        self.removed.insert(frontend, endpoints);
    }

    /// What happens to flows whose endpoint is no longer preferred.
    pub fn rehome(&self) -> Rehome {
        self.rehome
    }

    /// Whether the view has frontends of a protocol.
    pub fn has(&self, protocol: Protocol) -> bool {
        self.present.keys().chain(self.removed.keys()).any(|frontend| frontend.protocol == protocol)
    }

    pub(super) fn find(&self, protocol: Protocol, at: SocketAddr) -> Option<Found<'_, E>> {
        let present = self.find_in(&self.present, protocol, at).map(Found::Present);
        present.or_else(|| self.find_in(&self.removed, protocol, at).map(Found::Removed))
    }

    /// An address has precedence over a node port, as in the rules.
    fn find_in<'a>(
        &self,
        frontends: &'a BTreeMap<Frontend, E>,
        protocol: Protocol,
        at: SocketAddr,
    ) -> Option<&'a E> {
        let get = |at: At, port| frontends.get(&Frontend { at, protocol, port });
        get(At::Address(at.ip()), at.port())
            .or_else(|| get(At::Node, at.port()).filter(|_| self.node.contains(&at.ip())))
    }
}
