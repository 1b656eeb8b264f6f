//! Writes ordered topology keys (KEP-536) into slices.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::close::{Closeness, write_close};
use super::{HintOutcome, HintRefusal, Hinted, write_hints};
use crate::intent::TopologyKeys;
use crate::key::Name;
use crate::labels::well_known;
use crate::model::{Node, Slice};
use crate::object::ObjectRef;
use crate::problem::Problem;
use crate::routing::{KeyRouting, MAX_BYTES, Routing, SliceRouting};
use crate::slice::{PlanInput, SliceLists};

/// Ordered keys: the annotation for nearhop, and the closest standard hints for other proxies.
/// `forNodes` has priority over all other hints, so it is written only if the host name is the
/// first key.
pub(super) fn hint_keys(
    lists: &mut SliceLists,
    keys: &TopologyKeys,
    input: &PlanInput<'_>,
) -> Hinted {
    let nodes: BTreeMap<&Name, &Node> =
        (input.pods.iter()).filter_map(|(_, node)| node.map(|node| (&node.name, node))).collect();
    let too_long = std::cell::Cell::new(false);
    let routing = |slice: &Slice| match key_routing(slice, keys, &nodes) {
        Some(routing) if routing.to_string().len() > MAX_BYTES => {
            too_long.set(true);
            SliceRouting::Absent
        }
        Some(routing) => SliceRouting::Valid(Arc::new(routing)),
        None => SliceRouting::Absent,
    };
    let first = keys.keys.first();
    let close = Closeness {
        zone: keys.keys.iter().any(|key| *key == well_known::ZONE),
        node: first.is_some_and(|key| *key == well_known::HOSTNAME),
    };
    if close.zone || close.node {
        // Nodes follow the annotation. Hints that are missing for some endpoints change what other
        // proxies do, and not what was requested.
        write_close(lists, close, &routing);
    } else {
        write_hints(lists, &mut |_| None, &routing);
    }
    if !too_long.get() {
        return Hinted::new(HintOutcome::Written);
    }
    let mut hinted = Hinted::new(HintOutcome::Refused(HintRefusal::RoutingTooLong));
    hinted.problems.push(annotation_too_long(input));
    hinted
}

fn annotation_too_long(input: &PlanInput<'_>) -> Problem {
    Problem::new(
        ObjectRef::Service(input.service.key.clone()),
        "spec.topologyKeys",
        "the label values of its nodes do not fit into a slice's annotation",
        "use fewer keys or a smaller --max-endpoints-per-slice; standard hints are used until then",
    )
}

fn key_routing(
    slice: &Slice,
    keys: &TopologyKeys,
    nodes: &BTreeMap<&Name, &Node>,
) -> Option<Routing> {
    if slice.endpoints.is_empty() {
        return None;
    }
    let mut values = BTreeMap::new();
    for name in slice.endpoints.iter().filter_map(|endpoint| endpoint.node.as_ref()) {
        values.entry(name.clone()).or_insert_with(|| {
            let label = |key: &Name| nodes.get(name).and_then(|node| node.labels.get(key)).cloned();
            keys.keys.iter().map(label).collect()
        });
    }
    Some(Routing::Keys(KeyRouting { keys: keys.keys.clone(), soft: keys.soft, nodes: values }))
}
