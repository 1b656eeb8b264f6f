//! What a node knows of its frontends, for judging flows.
//!
//! Only frontends of UDP and SCTP need to be put in. Endpoints stay where they are and are asked
//! about, so that a hundred thousand of them are not copied.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nearhop_core::{EndpointKey, Protocol};

use crate::frontend::{At, Frontend};

/// Whether a frontend may send flows to an endpoint, on this node, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowEligibility {
    /// New connections may go there.
    Allowed,
    /// It serves and could be used, but others are preferred here: by hints, keys or weights, or
    /// because it is terminating and they are not.
    Demoted,
    /// It is an endpoint of the port, but must not be used from here: not ready, or elsewhere
    /// under a policy `Local`.
    Barred,
    /// It is no endpoint of the port.
    Gone,
}

/// The endpoints of one frontend. `client` is who connects: under `externalTrafficPolicy: Local`
/// clients on the node may use what others may not.
pub trait Endpoints {
    /// Whether a client's flows may go to an endpoint.
    fn eligibility(&self, client: IpAddr, endpoint: EndpointKey) -> FlowEligibility;
    /// Whether any is allowed.
    fn any_allowed(&self, client: IpAddr) -> bool;
}

/// Endpoints as plain sets, alike for all clients; one that is in none is [`FlowEligibility::Gone`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sets {
    /// See [`FlowEligibility::Allowed`].
    pub allowed: BTreeSet<EndpointKey>,
    /// See [`FlowEligibility::Demoted`].
    pub demoted: BTreeSet<EndpointKey>,
    /// See [`FlowEligibility::Barred`].
    pub barred: BTreeSet<EndpointKey>,
}

impl Endpoints for Sets {
    fn eligibility(&self, _: IpAddr, endpoint: EndpointKey) -> FlowEligibility {
        if self.allowed.contains(&endpoint) {
            FlowEligibility::Allowed
        } else if self.demoted.contains(&endpoint) {
            FlowEligibility::Demoted
        } else if self.barred.contains(&endpoint) {
            FlowEligibility::Barred
        } else {
            FlowEligibility::Gone
        }
    }

    fn any_allowed(&self, _: IpAddr) -> bool {
        !self.allowed.is_empty()
    }
}

/// What happens to UDP flows to an endpoint that became [`FlowEligibility::Demoted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rehome {
    /// They stay; only new flows follow the preference.
    #[default]
    NewOnly,
    /// They are deleted, so that the next packet follows it.
    Immediate,
}

/// What a node knows of its frontends.
#[derive(Clone, Debug)]
pub struct View<E> {
    rehome: Rehome,
    node: BTreeSet<IpAddr>,
    present: BTreeMap<Frontend, E>,
    removed: BTreeMap<Frontend, E>,
}

/// A frontend as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a, E> {
    /// It is there, with these endpoints.
    Present(&'a E),
    /// It was taken away, and had these.
    Removed(&'a E),
}

impl<E> View<E> {
    /// A view without frontends. `node` are the addresses that take node ports: the same port at
    /// another address belongs to other rules.
    pub fn new(rehome: Rehome, node: BTreeSet<IpAddr>) -> Self {
        Self { rehome, node, present: BTreeMap::new(), removed: BTreeMap::new() }
    }

    /// Adds a frontend that is there, with or without endpoints.
    pub fn insert(&mut self, frontend: Frontend, endpoints: E) {
        self.present.insert(frontend, endpoints);
    }

    /// Adds a frontend that was there until now, with the endpoints it had last. What is there
    /// again has precedence.
    pub fn insert_removed(&mut self, frontend: Frontend, endpoints: E) {
        self.removed.insert(frontend, endpoints);
    }

    /// What happens to flows whose endpoint is no longer preferred.
    pub fn rehome(&self) -> Rehome {
        self.rehome
    }

    /// Whether flows of a protocol can be found in it at all.
    pub fn has(&self, protocol: Protocol) -> bool {
        self.present.keys().chain(self.removed.keys()).any(|frontend| frontend.protocol == protocol)
    }

    pub(super) fn find(&self, protocol: Protocol, at: SocketAddr) -> Option<Found<'_, E>> {
        let present = self.find_in(&self.present, protocol, at).map(Found::Present);
        present.or_else(|| self.find_in(&self.removed, protocol, at).map(Found::Removed))
    }

    /// An address goes before a node port, as in the rules.
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
