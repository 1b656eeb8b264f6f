//! Writes hints and routing into slices, and does not rewrite a slice that is already correct.

use std::sync::Arc;

use crate::model::{Endpoint, Hints, Slice};
use crate::routing::SliceRouting;
use crate::slice::SliceLists;

/// Sets the hints of every ready endpoint and the routing of every slice. `hints` is called once
/// per ready endpoint: created, updated, then unchanged slices, each in order. Endpoints that are
/// not ready keep their hints and never cause a rewrite.
pub(super) fn write_hints(
    lists: &mut SliceLists,
    hints: &mut dyn FnMut(&Endpoint) -> Option<Arc<Hints>>,
    routing: &dyn Fn(&Slice) -> SliceRouting,
) {
    for slice in lists.create.iter_mut().chain(&mut lists.update) {
        for endpoint in slice.endpoints.iter_mut().filter(|endpoint| endpoint.is_ready()) {
            endpoint.hints = hints(endpoint);
        }
        slice.routing = routing(slice);
    }
    let mut wanted: Vec<Option<Arc<Hints>>> = Vec::new();
    let (mut same, mut changed) = (Vec::new(), Vec::new());
    for slice in lists.unchanged.drain(..) {
        wanted.clear();
        let ready = || slice.endpoints.iter().filter(|endpoint| endpoint.is_ready());
        wanted.extend(ready().map(&mut *hints));
        let routing = routing(&slice);
        let right = slice.routing == routing
            && ready().zip(&wanted).all(|(endpoint, wanted)| carries(endpoint, wanted.as_deref()));
        if right {
            same.push(slice);
        } else {
            changed.push(rewritten(&slice, &mut wanted, routing));
        }
    }
    lists.unchanged = same;
    lists.update.append(&mut changed);
}

fn carries(endpoint: &Endpoint, wanted: Option<&Hints>) -> bool {
    let (zones, nodes) = wanted.map_or((&[][..], &[][..]), |hints| (&hints.zones, &hints.nodes));
    endpoint.hint_zones() == zones && endpoint.hint_nodes() == nodes
}

fn rewritten(slice: &Slice, wanted: &mut Vec<Option<Arc<Hints>>>, routing: SliceRouting) -> Slice {
    let mut slice = Slice { routing, ..slice.clone() };
    let ready = slice.endpoints.iter_mut().filter(|endpoint| endpoint.is_ready());
    for (endpoint, hints) in ready.zip(wanted.drain(..)) {
        endpoint.hints = hints;
    }
    slice
}

/// Removes all hints and routing; unchanged slices that have any are rewritten.
pub(super) fn strip_hints(lists: &mut SliceLists) {
    let carries_any = |slice: &Arc<Slice>| {
        slice.routing != SliceRouting::Absent
            || slice.endpoints.iter().any(|endpoint| endpoint.hints.is_some())
    };
    let (hinted, plain) = lists.unchanged.drain(..).partition(carries_any);
    lists.unchanged = plain;
    let hinted: Vec<Arc<Slice>> = hinted;
    lists.update.extend(hinted.iter().map(|slice| Slice::clone(slice)));
    for slice in lists.create.iter_mut().chain(&mut lists.update) {
        slice.routing = SliceRouting::Absent;
        slice.endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    }
}
