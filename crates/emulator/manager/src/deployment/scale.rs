//! Scaling during a rollout: each ReplicaSet keeps its share, so that scaling neither speeds up nor
//! reverts the rollout. Pure.

use std::cmp::Reverse;

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::{DESIRED, MAX, Rollout, Strategy, actual, available, is_settled, wanted};
use crate::action::Action;
use crate::object;

/// Whether the Deployment was scaled after its sets.
pub(super) fn is_needed(rollout: &Rollout<'_>) -> bool {
    let scaled = |set: &ReplicaSet| number(set, DESIRED).is_some_and(|n| n != rollout.replicas);
    rollout.all().filter(|set| wanted(set) > 0).any(scaled)
}

fn number(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    object::annotation(&set.metadata, annotation)?.parse().ok().filter(|number| *number >= 0)
}

/// Scales all sets.
pub(super) fn proportional(rollout: &Rollout<'_>) -> Vec<Action> {
    if let Some(only) = active_or_latest(rollout) {
        let size = wanted(only);
        let room = rollout.room_for(Some(only)).map_or(size, |room| room.max(size));
        let target = rollout.replicas.min(room);
        return if target == size && !is_needed(rollout) {
            Vec::new()
        } else {
            rollout.resize(only, target)
        };
    }
    if rollout.new.is_some_and(|new| is_saturated(rollout, new)) {
        let active = rollout.old.iter().filter(|set| wanted(set) > 0);
        return active.flat_map(|set| rollout.resize(set, 0)).collect();
    }
    match rollout.strategy {
        // The rollout decides about sizes, once the annotations have the new number of replicas.
        Strategy::Recreate => {
            let active = rollout.all().filter(|set| wanted(set) > 0);
            active.flat_map(|set| rollout.resize(set, wanted(set))).collect()
        }
        Strategy::RollingUpdate => share_out(rollout),
    }
}

/// The only set with Pods; if none has Pods, the newest.
fn active_or_latest<'a>(rollout: &Rollout<'a>) -> Option<&'a ReplicaSet> {
    let mut active = rollout.all().filter(|set| wanted(set) > 0);
    match (active.next(), active.next()) {
        (None, _) => rollout.new.or(rollout.old.last().copied()),
        (Some(only), None) => Some(only),
        (Some(_), Some(_)) => None,
    }
}

/// Whether the new set has all replicas, and they are available.
fn is_saturated(rollout: &Rollout<'_>, new: &ReplicaSet) -> bool {
    let replicas = rollout.replicas;
    wanted(new) == replicas && number(new, DESIRED) == Some(replicas) && available(new) == replicas
}

fn share_out(rollout: &Rollout<'_>) -> Vec<Action> {
    let mut sets: Vec<&ReplicaSet> = rollout.all().filter(|set| wanted(set) > 0).collect();
    let total = object::sum(sets.iter().map(|set| wanted(set)));
    let allowed = if rollout.replicas > 0 { rollout.most() } else { 0 };
    let to_add = allowed.saturating_sub(total);
    // Terminating Pods occupy room; the annotations change after they are gone.
    if to_add > 0 && !rollout.all().all(is_settled) {
        return Vec::new();
    }
    let created = |set: &ReplicaSet| set.metadata.creation_timestamp.clone();
    if to_add > 0 {
        sets.sort_by_key(|set| (Reverse(wanted(set)), Reverse(created(set))));
    } else {
        sets.sort_by_key(|set| (Reverse(wanted(set)), created(set)));
    }
    let mut left = to_add;
    let mut sizes: Vec<i32> = Vec::with_capacity(sets.len());
    for set in &sets {
        let share = fraction(rollout, set);
        let share = if to_add > 0 { share.min(left) } else { share.max(left) };
        let share = if to_add == 0 { 0 } else { share };
        left = left.saturating_sub(share);
        sizes.push(wanted(set).saturating_add(share));
    }
    if let Some(largest) = sizes.first_mut() {
        *largest = largest.saturating_add(left).max(0);
    }
    let resized = sets.into_iter().zip(sizes);
    resized.flat_map(|(set, size)| rollout.resize(set, size)).collect()
}

/// How much a set grows or shrinks to keep its share.
fn fraction(rollout: &Rollout<'_>, set: &ReplicaSet) -> i32 {
    let size = wanted(set);
    if rollout.replicas == 0 {
        return size.saturating_neg();
    }
    let max_now = rollout.most();
    let known = number(set, MAX).filter(|max| *max > 0);
    let max_then = known.unwrap_or_else(|| object::sum(rollout.all().map(actual)));
    if max_then == 0 {
        return 0;
    }
    let new_size = f64::from(size) * f64::from(max_now) / f64::from(max_then);
    (new_size.round() as i32).saturating_sub(size)
}
