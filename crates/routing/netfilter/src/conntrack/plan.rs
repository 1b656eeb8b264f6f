//! Which flows must go.
//!
//! A UDP flow lives as long as the client sends, so one that leads to the wrong place leads there for
//! ever: it is deleted, and the next packet finds the rules. An SCTP association knows its peer;
//! it is deleted only when that is no endpoint at all any more. TCP is never touched, nor is
//! anything that did not come through a frontend of ours.

use nearhop_core::Protocol;

use super::flow::Flow;
use super::view::{Endpoints, FlowEligibility, Found, Rehome, View};

/// Why a flow is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Its endpoint is no endpoint of the frontend any more, or the last one went.
    EndpointGone,
    /// Its endpoint must not be used from here any more.
    EndpointBarred,
    /// Its endpoint is no longer preferred, and flows are to follow at once.
    EndpointDemoted,
    /// It began while the frontend had no endpoints; now it has some.
    NeverTranslated,
    /// The frontend was taken away.
    FrontendRemoved,
}

/// What is to become of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It must go.
    Stale(Why),
    /// It is a frontend's, and stays, though a new one may go elsewhere.
    Kept,
    /// It is none of ours.
    Foreign,
}

/// A flow that must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The flow.
    pub flow: Flow,
    /// Why.
    pub why: Why,
}

/// Which flows must go, and how many stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// These must go.
    pub stale: Vec<Stale>,
    /// So many are ours and stay.
    pub kept: u64,
    /// So many are none of ours.
    pub foreign: u64,
}

impl Plan {
    /// Adds a flow: for flows that come one by one from a dump.
    pub fn add<E: Endpoints>(&mut self, flow: &Flow, view: &View<E>) {
        match judge(flow, view) {
            Judgement::Stale(why) => self.stale.push(Stale { flow: *flow, why }),
            Judgement::Kept => self.kept += 1,
            Judgement::Foreign => self.foreign += 1,
        }
    }
}

/// Judges many flows.
pub fn plan_deletions<'a, E: Endpoints>(
    flows: impl IntoIterator<Item = &'a Flow>,
    view: &View<E>,
) -> Plan {
    let mut plan = Plan::default();
    for flow in flows {
        plan.add(flow, view);
    }
    plan
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

/// Where no frontend is any more, only what leads to its endpoints was ours: a neighbour may have
/// taken the port. SCTP stays, as TCP does: the endpoint may be well.
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
