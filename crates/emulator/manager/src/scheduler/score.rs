//! Ranks the nodes that fit: even over zones, then over nodes, then by load. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};

use super::filter::domain;
use super::{NodeInfo, Snapshot};
use crate::affinity;
use crate::object::{self, Labels};
use crate::quantity::{Amounts, add, amounts, requests};
use crate::taint;

const ZONE: &str = "topology.kubernetes.io/zone";

/// The best node.
pub(super) fn best<'s, 'a>(
    pod: &Pod,
    fitting: &[&'s NodeInfo<'a>],
    snapshot: &Snapshot<'a>,
) -> Option<&'s NodeInfo<'a>> {
    let group = Group::of(pod, snapshot);
    let mut in_zone: BTreeMap<&str, usize> = BTreeMap::new();
    for info in &snapshot.nodes {
        *in_zone.entry(zone(info)).or_default() += group.count(info);
    }
    let rank = |info: &&&NodeInfo<'a>| {
        let spec = pod.spec.as_ref();
        (
            untolerated_preferences(pod, info),
            Reverse(spec.map_or(0, |spec| affinity::preference(spec, info.node))),
            in_zone.get(zone(info)).copied().unwrap_or(0),
            group.count(info),
            load(info),
            info.pods.len(),
            object::name(&info.node.metadata).to_owned(),
        )
    };
    fitting.iter().min_by_key(rank).copied()
}

fn zone<'a>(info: &NodeInfo<'a>) -> &'a str {
    domain(info, ZONE).unwrap_or_default()
}

/// The number of PreferNoSchedule taints that the Pod does not tolerate.
fn untolerated_preferences(pod: &Pod, info: &NodeInfo<'_>) -> usize {
    let soft = taint::taints(info.node).iter().filter(|t| t.effect == "PreferNoSchedule");
    soft.filter(|taint| !taint::is_tolerated(taint, taint::tolerations(pod))).count()
}

/// The load of a node in thousandths of its capacity: the higher one of CPU and memory.
fn load(info: &NodeInfo<'_>) -> i128 {
    let status = info.node.status.as_ref();
    let all = amounts(status.and_then(|status| status.allocatable.as_ref()));
    let mut used = Amounts::new();
    info.pods.iter().for_each(|pod| add(&mut used, &requests(pod)));
    let share = |name: &str| {
        let whole = all.get(name).copied().filter(|whole| *whole > 0)?;
        Some(used.get(name).copied().unwrap_or(0).saturating_mul(1000) / whole)
    };
    ["cpu", "memory"].into_iter().filter_map(share).max().unwrap_or(0)
}

/// Pods that are spread together: those of the same controller, otherwise those that the same
/// Services select.
enum Group<'a> {
    Owner(&'a str),
    Services(&'a str, Vec<Labels>),
}

impl<'a> Group<'a> {
    fn of(pod: &'a Pod, snapshot: &Snapshot<'_>) -> Self {
        if let Some(owner) = object::controller_of(&pod.metadata) {
            return Self::Owner(&owner.uid);
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let selecting = |service: &&Service| {
            let wanted = service.spec.as_ref()?.selector.clone()?;
            let same = service.metadata.namespace.as_deref() == Some(namespace);
            let selects = same && !wanted.is_empty() && object::has_labels(&pod.metadata, &wanted);
            selects.then_some(wanted)
        };
        Self::Services(namespace, snapshot.services.iter().filter_map(selecting).collect())
    }

    fn count(&self, info: &NodeInfo<'_>) -> usize {
        let alive = info.pods.iter().filter(|pod| !object::is_deleting(&pod.metadata));
        match self {
            Self::Owner(uid) => {
                alive.filter(|pod| object::is_controlled_by(&pod.metadata, uid)).count()
            }
            Self::Services(namespace, selectors) => {
                let mine = alive.filter(|p| p.metadata.namespace.as_deref() == Some(*namespace));
                let selects = |pod: &&&Pod| {
                    selectors.iter().any(|labels| object::has_labels(&pod.metadata, labels))
                };
                mine.filter(selects).count()
            }
        }
    }
}
