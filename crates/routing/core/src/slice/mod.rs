//! From a Service and its Pods to the desired EndpointSlices.
//!
//! [`plan_slices`] collects the endpoints to publish, packs them into slices with few changes, sets
//! the hints by the intent, and returns the slices to create, update and delete. It writes nothing;
//! the controller writes exactly what the plan contains.

mod desired;
mod metadata;
mod pack;
mod trigger;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

pub use desired::{PodOnNode, endpoint_ports, find_port, pod_to_endpoint};
pub use metadata::{labels_changed, new_slice, same_placeholder, slice_labels};
pub use pack::{PackCounts, SliceLists};
pub use trigger::TriggerTimes;

use crate::hint::{HintContext, HintEvent, HintOutcome, HintState, hint_slices};
use crate::intent::IntentDecision;
use crate::key::{Family, Name};
use crate::labels::Labels;
use crate::model::{AddressType, Service, Slice};
use crate::problem::Problem;

/// The input of [`plan_slices`].
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The Service.
    pub service: &'a Service,
    /// What it requests.
    pub intent: &'a IntentDecision,
    /// The Pods that it selects, with their Nodes.
    pub pods: &'a [PodOnNode<'a>],
    /// Its slices that this controller manages.
    pub existing: &'a [Arc<Slice>],
    /// The hint state of the last plan.
    pub state: &'a HintState,
    /// Zones, demand and time, for the hints.
    pub hints: HintContext<'a>,
    /// Value of the managed-by label.
    pub controller: &'a Name,
    /// `--max-endpoints-per-slice`, at least 1.
    pub max_endpoints_per_slice: usize,
    /// Time of the change that caused this plan.
    pub trigger_time: Option<Timestamp>,
}

/// The writes for one Service, and their reasons.
#[derive(Debug, Default)]
pub struct SlicePlan {
    /// Slices to create, without names. Empty while the Service is being deleted.
    pub create: Vec<Slice>,
    /// Slices to update, by name.
    pub update: Vec<Slice>,
    /// Slices to delete.
    pub delete: Vec<Arc<Slice>>,
    /// Slices that do not change.
    pub unchanged: Vec<Arc<Slice>>,
    /// The hint state for the next plan.
    pub state: HintState,
    /// The outcome of the hints, by family.
    pub outcome: BTreeMap<Family, HintOutcome>,
    /// The slices that carry the request, if it is possible.
    pub hinted: HintedSlices,
    /// Events to raise on the Service: transitions only.
    pub events: Vec<HintEvent>,
    /// Pods that are left out because their Node is unknown. The Service must be planned again
    /// later.
    pub missing_nodes: Vec<Problem>,
    /// Other problems.
    pub problems: Vec<Problem>,
    /// For metrics, by family.
    pub counts: BTreeMap<Family, PackCounts>,
    /// When to plan again without a change (for a change of weights that has to wait).
    pub again_at: Option<Timestamp>,
}

/// How many slices carry the hints or the routing of a Service, and for how many endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintedSlices {
    /// Slices with ready endpoints.
    pub slices: usize,
    /// Their ready endpoints.
    pub endpoints: usize,
}

impl HintedSlices {
    fn count(&mut self, lists: &SliceLists) {
        let slices = lists.create.iter().chain(&lists.update);
        for slice in slices.chain(lists.unchanged.iter().map(Arc::as_ref)) {
            let ready = slice.endpoints.iter().filter(|endpoint| endpoint.is_ready()).count();
            self.slices += usize::from(ready > 0);
            self.endpoints += ready;
        }
    }
}

impl SlicePlan {
    /// Whether there is nothing to write.
    pub fn is_noop(&self) -> bool {
        self.create.is_empty() && self.update.is_empty() && self.delete.is_empty()
    }
}

/// Plans the slices of one Service.
pub fn plan_slices(input: PlanInput<'_>) -> SlicePlan {
    let mut plan = SlicePlan { problems: input.intent.problems.clone(), ..SlicePlan::default() };
    if !input.service.wants_slices() {
        plan.unchanged = input.existing.to_vec();
        return plan;
    }
    plan.state = input.state.clone();
    let labels = slice_labels(input.service, input.controller);
    let families = input.service.families();
    for family in &families {
        plan_family(&input, &labels, *family, &mut plan);
    }
    let unsupported = |slice: &&Arc<Slice>| {
        let family = slice.address_type.family();
        !slice.deleting && family.is_none_or(|family| !families.contains(&family))
    };
    plan.delete.extend(input.existing.iter().filter(unsupported).cloned());
    plan.state.finish(&families);
    plan
}

fn plan_family(input: &PlanInput<'_>, labels: &Labels, family: Family, plan: &mut SlicePlan) {
    let existing: Vec<Arc<Slice>> = (input.existing.iter())
        .filter(|slice| slice.address_type == AddressType::Ip(family) && !slice.deleting)
        .cloned()
        .collect();
    let desired = desired::desired_endpoints(input.service, input.pods, family);
    // The same Pods are missing in each family: report them once.
    if plan.counts.is_empty() {
        plan.missing_nodes.extend(desired.missing_nodes.iter().cloned());
    }
    let max = input.max_endpoints_per_slice.max(1);
    let context = pack::PackContext { service: input.service, labels, max };
    let pack::Packed { mut lists, delete, counts } =
        pack::pack(context, family, &existing, desired);
    let hinted = hint_slices(&mut lists, input, family, &mut plan.state);
    if hinted.outcome == HintOutcome::Written {
        plan.hinted.count(&lists);
    }
    plan.outcome.insert(family, hinted.outcome);
    plan.events.extend(hinted.events);
    plan.problems.extend(hinted.problems);
    plan.again_at = [plan.again_at, hinted.again_at].into_iter().flatten().min();
    plan.counts.insert(family, counts);
    finish(input, lists, delete, plan);
}

/// Reuses slices, sets their trigger time and adds the slices of one family to the plan.
fn finish(
    input: &PlanInput<'_>,
    mut lists: SliceLists,
    mut delete: Vec<Arc<Slice>>,
    plan: &mut SlicePlan,
) {
    recycle(&mut lists, &mut delete, &input.service.uid);
    if input.service.deleting {
        lists.create.clear();
    }
    let stamp = input.trigger_time.map(|time| Name::from(time.to_string()));
    for slice in lists.create.iter_mut().chain(&mut lists.update) {
        slice.trigger_time = stamp.clone();
    }
    plan.create.append(&mut lists.create);
    plan.update.append(&mut lists.update);
    plan.unchanged.append(&mut lists.unchanged);
    plan.delete.append(&mut delete);
}

/// Replaces creates by updates of slices that would be deleted: one write instead of two. Only
/// slices of the same address type that the Service owns are reused.
fn recycle(lists: &mut SliceLists, delete: &mut Vec<Arc<Slice>>, owner: &Name) {
    delete.retain(|doomed| {
        let fits = |new: &&Slice| new.address_type == doomed.address_type;
        let recyclable =
            doomed.owners.contains(owner) && lists.create.last().as_ref().is_some_and(fits);
        if recyclable && let Some(new) = lists.create.pop() {
            lists.update.push(Slice { name: doomed.name.clone(), ..new });
        }
        !recyclable
    });
}
