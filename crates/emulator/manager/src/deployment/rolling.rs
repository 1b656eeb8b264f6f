//! Rolling update: how far to scale the new ReplicaSet up and the old ones down. Pure.

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::{Rollout, available, wanted};
use crate::object;

/// The next size of the new set, if it changes.
pub(super) fn scale_new(rollout: &Rollout<'_>, new: &ReplicaSet) -> Option<i32> {
    let size = wanted(new);
    let target = if size > rollout.replicas {
        rollout.replicas
    } else {
        rollout.room_for(Some(new)).unwrap_or(size).clamp(size, rollout.replicas)
    };
    (target != size).then_some(target)
}

/// The next sizes of old sets: first without their unavailable Pods, then down to minAvailable.
pub(super) fn scale_old<'a>(rollout: &Rollout<'a>, new: &ReplicaSet) -> Vec<(&'a ReplicaSet, i32)> {
    let mut sizes: Vec<i32> = rollout.old.iter().map(|set| wanted(set)).collect();
    let total = object::sum(sizes.iter().copied().chain([wanted(new)]));
    let not_yet = wanted(new).saturating_sub(available(new));
    // Unavailable Pods of the new set count against minAvailable once only.
    let most = total.saturating_sub(rollout.min_available()).saturating_sub(not_yet);
    if most <= 0 {
        return Vec::new();
    }
    let mut left = most;
    for (set, size) in rollout.old.iter().zip(&mut sizes) {
        let cut = size.saturating_sub(available(set)).min(left);
        *size -= cut;
        left -= cut;
    }
    let kept = rollout.old.iter().zip(&sizes).map(|(set, size)| available(set).min(*size));
    let standing = object::sum(kept.chain([available(new)]));
    let mut spare = standing.saturating_sub(rollout.min_available()).max(0);
    for size in &mut sizes {
        let cut = (*size).min(spare);
        *size -= cut;
        spare -= cut;
    }
    let resized = rollout.old.iter().copied().zip(sizes);
    resized.filter(|(set, size)| wanted(set) != *size).collect()
}
