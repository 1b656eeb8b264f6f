//! The status of a DaemonSet. Pure.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};

use super::{DaemonPods, Placement};
use crate::action::{Action, Plan};
use crate::object::unless_zero;
use crate::pod::{self, Availability};

/// Adds the status update to a plan, if the status changes.
pub(super) fn write(daemons: &DaemonPods<'_>, plan: &mut Plan) {
    let old = daemons.set.status.clone().unwrap_or_default();
    let mut status = DaemonSetStatus {
        observed_generation: daemons.set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions.clone(),
        ..DaemonSetStatus::default()
    };
    let (mut available, mut updated) = (0, 0);
    for (node, place) in &daemons.nodes {
        let here = daemons.on(node);
        if *place != Placement::Create {
            status.number_misscheduled += i32::from(!here.is_empty());
            continue;
        }
        status.desired_number_scheduled += 1;
        let Some(oldest) = here.first() else { continue };
        status.current_number_scheduled += 1;
        updated += i32::from(daemons.is_new(oldest));
        match pod::availability(oldest, daemons.min_ready, daemons.now) {
            Availability::NotReady => {}
            Availability::In(rest) => {
                status.number_ready += 1;
                plan.requeue_within(rest);
            }
            Availability::Available => {
                status.number_ready += 1;
                available += 1;
            }
        }
    }
    status.number_available = unless_zero(available);
    status.number_unavailable = unless_zero(status.desired_number_scheduled - available);
    status.updated_number_scheduled = unless_zero(updated);
    if status != old {
        let written = DaemonSet { status: Some(status), ..daemons.set.clone() };
        plan.then([Action::PutStatus(written.into())]);
    }
}
