//! Problems between objects: nodes that are not in the shares, hints that no node can use.
//!
//! These problems are computed on request and not stored: each object may be valid by itself.

use std::collections::BTreeSet;

use super::World;
use crate::key::Name;
use crate::labels::well_known;
use crate::model::{Slice, is_zone_name};
use crate::object::ObjectRef;
use crate::problem::{Problem, quote};

pub(super) fn find_problems(world: &World) -> Vec<Problem> {
    let zones: BTreeSet<&Name> = world.nodes().filter_map(|node| node.zone()).collect();
    // If no node has a zone, no zone label is missing.
    if zones.is_empty() {
        return Vec::new();
    }
    let capacity = world.capacity();
    // A label with an invalid zone name is a problem of the Node itself.
    let unlabelled = |name: &&Name| {
        world.node(name).is_some_and(|node| node.labels.get(well_known::ZONE).is_none())
    };
    let bare = capacity.without_zone.iter().filter(unlabelled);
    let mut problems: Vec<Problem> = bare.map(without_zone).collect();
    problems.extend(capacity.without_cpu.iter().map(without_cpu));
    let slices = world.services().flat_map(|service| world.routed_slices(&service.key));
    slices.for_each(|slice| unknown_zones(slice, &zones, &mut problems));
    problems
}

fn without_zone(node: &Name) -> Problem {
    Problem::new(
        ObjectRef::Node(node.clone()),
        format!("metadata.labels[{}]", well_known::ZONE),
        "missing, while other nodes have one",
        "label it with its zone; it counts for no zone and its pods use all endpoints until then",
    )
}

fn without_cpu(node: &Name) -> Problem {
    Problem::new(
        ObjectRef::Node(node.clone()),
        "status.allocatable.cpu",
        "missing or 0",
        "let the node report it; every node counts as one core until then",
    )
}

fn unknown_zones(slice: &Slice, zones: &BTreeSet<&Name>, problems: &mut Vec<Problem>) {
    for (i, endpoint) in slice.endpoints.iter().enumerate() {
        for (j, zone) in endpoint.hint_zones().iter().enumerate() {
            if is_zone_name(zone) && !zones.contains(zone) {
                problems.push(Problem::new(
                    ObjectRef::Slice(slice.namespace.clone(), slice.name.clone()),
                    format!("endpoints[{i}].hints.forZones[{j}].name"),
                    format!("no node is in zone {}", quote(zone)),
                    "correct the hint or label the nodes; it has no effect until then",
                ));
            }
        }
    }
}
