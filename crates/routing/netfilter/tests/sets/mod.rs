//! Endpoints as plain sets, for the conntrack tests of netfilter and proxy.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nearhop_core::EndpointKey;
use nearhop_netfilter::conntrack::{Endpoints, Flow, FlowEligibility, Plan, View};

/// Endpoints as plain sets, the same for all clients; one that is in no set is
/// [`FlowEligibility::Gone`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    /// See [`FlowEligibility::Allowed`].
    pub(crate) allowed: BTreeSet<EndpointKey>,
    /// See [`FlowEligibility::Demoted`].
    pub(crate) demoted: BTreeSet<EndpointKey>,
    /// See [`FlowEligibility::Barred`].
    pub(crate) barred: BTreeSet<EndpointKey>,
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

/// Judges many flows.
pub(crate) fn plan_deletions<'a, E: Endpoints>(
    flows: impl IntoIterator<Item = &'a Flow>,
    view: &View<E>,
) -> Plan {
    let mut plan = Plan::default();
    for flow in flows {
        plan.add(flow, view);
    }
    plan
}
