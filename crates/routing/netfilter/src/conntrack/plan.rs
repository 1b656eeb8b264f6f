//! Decides which conntrack flows are stale.
//!
//! A UDP flow lives as long as the client sends, so a flow to a wrong endpoint would never end: it
//! is deleted, and the rules handle the next packet. An SCTP association has state at its peer; it
//! is deleted only if the peer is no longer an endpoint. TCP flows and flows that did not pass one
//! of our frontends are never deleted.

use nearhop_core::Protocol;

use super::flow::Flow;
use super::view::{Endpoints, FlowEligibility, Found, Rehome, View};

/// Why a flow is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Its endpoint is no longer an endpoint of the frontend.
    EndpointGone,
    /// Its endpoint must no longer be used from this node.
    EndpointBarred,
    /// Its endpoint is no longer preferred, and flows must follow the preference at once.
    EndpointDemoted,
    /// It started while the frontend had no endpoints; now it has some.
    NeverTranslated,
    /// The frontend was removed.
    FrontendRemoved,
}

/// The decision about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Delete it.
    Stale(Why),
    /// Keep it: it belongs to a frontend, though a new flow may go elsewhere.
    Kept,
    /// Ignore it: it does not belong to our frontends.
    Foreign,
}

/// A flow to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The flow.
    pub flow: Flow,
    /// The reason.
    pub why: Why,
}

/// The stale flows, and how many others there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The flows to delete.
    pub stale: Vec<Stale>,
    /// Number of our flows that stay.
    pub kept: u64,
    /// Number of flows that are not ours.
    pub foreign: u64,
}

impl Plan {
    /// Adds a flow, for flows that arrive one by one from a dump.
    pub fn add<E: Endpoints>(&mut self, flow: &Flow, view: &View<E>) {
        match judge(flow, view) {
            Judgement::Stale(why) => self.stale.push(Stale { flow: *flow, why }),
            Judgement::Kept => self.kept += 1,
            Judgement::Foreign => self.foreign += 1,
        }
    }
}

/// Judges one flow.
pub fn judge<E: Endpoints>(flow: &Flow, view: &View<E>) -> Judgement {
    if flow.protocol == Protocol::Tcp {
        return Judgement::Foreign;
    }
    match view.find(flow.protocol, flow.original.destination) {
        Some(Found::Present(endpoints)) => judge_present(flow, endpoints, view.rehome()),
        Some(Found::Removed(endpoints)) => judge_removed(flow, endpoints),
        None => Judgement::Foreign,
    }
}

fn judge_present<E: Endpoints>(flow: &Flow, endpoints: &E, rehome: Rehome) -> Judgement {
    use Judgement::{Kept, Stale};
    let client = flow.original.source.ip();
    match (endpoints.eligibility(client, flow.endpoint()), flow.protocol) {
        (FlowEligibility::Allowed, _) => Kept,
        // It was not translated: the frontend had no endpoints.
        (_, protocol) if !flow.translated() => {
            let lost = protocol == Protocol::Udp && endpoints.any_allowed(client);
            if lost { Stale(Why::NeverTranslated) } else { Kept }
        }
        (FlowEligibility::Gone, _) => Stale(Why::EndpointGone),
        (_, Protocol::Sctp) => Kept,
        (FlowEligibility::Barred, _) => Stale(Why::EndpointBarred),
        (FlowEligibility::Demoted, _) => match rehome {
            Rehome::NewOnly => Kept,
            Rehome::Immediate => Stale(Why::EndpointDemoted),
        },
    }
}

/// After a frontend is removed, only flows to its endpoints were ours: another program may have
/// taken the port. SCTP flows stay, like TCP flows: the endpoint may still serve.
fn judge_removed<E: Endpoints>(flow: &Flow, endpoints: &E) -> Judgement {
    let client = flow.original.source.ip();
    let ours = flow.translated()
        && endpoints.eligibility(client, flow.endpoint()) != FlowEligibility::Gone;
    match (ours, flow.protocol) {
        (false, _) => Judgement::Foreign,
        (true, Protocol::Udp) => Judgement::Stale(Why::FrontendRemoved),
        (true, _) => Judgement::Kept,
    }
}
