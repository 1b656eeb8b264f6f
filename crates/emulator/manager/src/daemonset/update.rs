//! Rolling update of a DaemonSet: deletes old Pods within maxUnavailable, or adds new ones within
//! maxSurge. Pure.

use k8s_openapi::api::apps::v1::RollingUpdateDaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{DaemonPods, Placement, delete};
use crate::action::Action;
use crate::object::{self, Round, scaled};

/// The old and the new Pod of a node, without terminating ones.
struct NodePods<'a> {
    node: &'a str,
    old: Option<&'a Pod>,
    new: Option<&'a Pod>,
}

/// The next replacements.
pub(super) fn update(daemons: &DaemonPods<'_>) -> Vec<Action> {
    let strategy = daemons.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return Vec::new();
    }
    let pairs = pairs(daemons);
    let surge = surge(daemons);
    if surge > 0 { add_new(daemons, &pairs, surge) } else { delete_old(daemons, &pairs) }
}

fn pairs<'a>(daemons: &DaemonPods<'a>) -> Vec<NodePods<'a>> {
    let wanted = daemons.nodes.iter().filter(|(_, place)| **place != Placement::Remove);
    let pair = |(node, place): (&&'a str, &Placement)| {
        let alive = |pod: &&&'a Pod| !object::is_deleting(&pod.metadata);
        let here = daemons.on(node).iter().filter(alive).copied();
        let (new, old): (Vec<&Pod>, Vec<&Pod>) = here.partition(|pod| daemons.is_new(pod));
        let pair = NodePods { node, old: old.first().copied(), new: new.first().copied() };
        // A node with NoSchedule taint and without Pod does not count as unavailable.
        (*place == Placement::Create || pair.old.is_some() || pair.new.is_some()).then_some(pair)
    };
    wanted.filter_map(pair).collect()
}

fn delete_old(daemons: &DaemonPods<'_>, pairs: &[NodePods<'_>]) -> Vec<Action> {
    let mut unavailable = 0;
    let (mut broken, mut candidates) = (Vec::new(), Vec::new());
    for pair in pairs {
        match (pair.old, pair.new) {
            (None, Some(new)) => unavailable += usize::from(!daemons.is_available(new)),
            (Some(old), None) if daemons.is_available(old) => candidates.push(old),
            (Some(old), None) => {
                unavailable += 1;
                broken.push(old);
            }
            (None, None) | (Some(_), Some(_)) => unavailable += 1,
        }
    }
    let spare = unavailable_limit(daemons).saturating_sub(unavailable);
    broken.into_iter().chain(candidates.into_iter().take(spare)).map(delete).collect()
}

fn add_new(daemons: &DaemonPods<'_>, pairs: &[NodePods<'_>], surge: usize) -> Vec<Action> {
    let mut surging = 0;
    let (mut actions, mut candidates) = (Vec::new(), Vec::new());
    for pair in pairs {
        let may_run = daemons.nodes.get(pair.node) == Some(&Placement::Create);
        match (pair.old, pair.new) {
            (Some(old), Some(new)) if daemons.is_available(new) => actions.push(delete(old)),
            (Some(_), Some(_)) => surging += 1,
            (Some(_), None) if !may_run => {}
            (Some(old), None) if daemons.is_available(old) => candidates.push(pair.node),
            (Some(_), None) => actions.push(daemons.create(pair.node)),
            (None, _) => {}
        }
    }
    let more = candidates.into_iter().take(surge.saturating_sub(surging));
    actions.extend(more.map(|node| daemons.create(node)));
    actions
}

fn rolling<'a>(daemons: &DaemonPods<'a>) -> Option<&'a RollingUpdateDaemonSet> {
    let strategy = daemons.set.spec.as_ref()?.update_strategy.as_ref()?;
    strategy.rolling_update.as_ref()
}

fn desired(daemons: &DaemonPods<'_>) -> i32 {
    let wanted = daemons.nodes.values().filter(|place| **place == Placement::Create).count();
    i32::try_from(wanted).unwrap_or(i32::MAX)
}

/// How many nodes may run a second Pod at a time.
pub(super) fn surge(daemons: &DaemonPods<'_>) -> usize {
    let surge = rolling(daemons).and_then(|rolling| rolling.max_surge.as_ref());
    let count = surge.map_or(0, |surge| scaled(surge, desired(daemons), Round::Up));
    usize::try_from(count).unwrap_or(0)
}

fn unavailable_limit(daemons: &DaemonPods<'_>) -> usize {
    let one = IntOrString::Int(1);
    let limit = rolling(daemons).and_then(|rolling| rolling.max_unavailable.as_ref());
    let count = scaled(limit.unwrap_or(&one), desired(daemons), Round::Up);
    // With both zero the update would never finish.
    usize::try_from(count).unwrap_or(0).max(1)
}
