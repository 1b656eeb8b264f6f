//! SameZone and SameNode: every endpoint is hinted for its own zone and node (KEP-4444, KEP-3015).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{HintOutcome, Hinted, write_hints};
use crate::key::Name;
use crate::model::{Endpoint, Hints, Slice};
use crate::routing::SliceRouting;
use crate::slice::SliceLists;

/// Whether to hint an endpoint for its own zone, for its own node, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closeness {
    /// `forZones`.
    pub(super) zone: bool,
    /// `forNodes`.
    pub(super) node: bool,
}

/// Hints every ready endpoint for its own zone and node (KEP-4444, KEP-3015).
pub(super) fn hint_close(lists: &mut SliceLists, close: Closeness) -> Hinted {
    let outcome = write_close(lists, close, &|_| SliceRouting::Absent);
    Hinted::new(outcome)
}

pub(super) fn write_close(
    lists: &mut SliceLists,
    close: Closeness,
    routing: &dyn Fn(&Slice) -> SliceRouting,
) -> HintOutcome {
    let (mut without, mut nodes) = (0, Vec::new());
    let mut shared: BTreeMap<(Option<Name>, Option<Name>), Arc<Hints>> = BTreeMap::new();
    let mut own_place = |endpoint: &Endpoint| {
        let zone = endpoint.zone.as_ref().filter(|_| close.zone);
        let node = endpoint.node.as_ref().filter(|_| close.node);
        if zone.is_none() && node.is_none() {
            without += 1;
            nodes.extend(endpoint.node.clone().filter(|node| !nodes.contains(node)));
            return None;
        }
        let has = |have: &[Name], want: Option<&Name>| have.iter().eq(want);
        if has(endpoint.hint_zones(), zone) && has(endpoint.hint_nodes(), node) {
            return endpoint.hints.clone();
        }
        let list = |name: Option<&Name>| name.cloned().into_iter().collect();
        let new = || Arc::new(Hints { zones: list(zone), nodes: list(node) });
        Some(shared.entry((zone.cloned(), node.cloned())).or_insert_with(new).clone())
    };
    write_hints(lists, &mut own_place, routing);
    if without == 0 { HintOutcome::Written } else { HintOutcome::Partial { without, nodes } }
}
