//! The groups of cases: each turns its rows into core's values, asks core, and hands back what
//! core said in the shape of the expectation.

mod capacity;
mod endpoint;
mod hints;
mod intent;
mod metadata;
mod ports;
mod reconcile;
mod route;
mod trigger;

use nearhop_core::Name;
use nearhop_core::labels::well_known;

use crate::check::Check;
use crate::read::{CaseError, Field};

/// One row, and the file around it.
pub(crate) struct Case<'a> {
    /// The row.
    pub row: Field<'a>,
    /// The whole file, for what its rows share.
    pub file: Field<'a>,
}

impl Case<'_> {
    /// Value of the managed-by label.
    fn controller(&self) -> Result<Name, CaseError> {
        let name = self.file.get("controller_name")?;
        Ok(Name::from(name.text_or(well_known::IN_TREE_CONTROLLER)?))
    }
}

/// Runs one row.
pub(crate) type Run = fn(&Case<'_>, &mut Check<'_>) -> Result<(), CaseError>;

/// Every group this build knows, sorted by name.
pub(crate) const ALL: [(&str, Run); 20] = [
    ("address_types_for_service", metadata::address_types),
    ("categorize_endpoints", route::categorize),
    ("endpoint_ports", ports::endpoint),
    ("find_port", ports::find),
    ("hints_enabled", intent::hints_enabled),
    ("new_slice", metadata::new),
    ("pod_to_endpoint", endpoint::from_pod),
    ("reconciler_finalize", reconcile::finalize),
    ("reconciler_missing_node", reconcile::missing_node),
    ("reconciler_packing", reconcile::packing),
    ("reconciler_placeholder", reconcile::placeholder),
    ("reconciler_single_pod", reconcile::single_pod),
    ("reconciler_topology_hints", reconcile::topology_hints),
    ("reconciler_traffic_distribution", reconcile::traffic_distribution),
    ("slice_labels", metadata::labels),
    ("topology_add_hints", hints::auto),
    ("topology_overloaded_services", capacity::overloaded),
    ("topology_set_nodes", capacity::set_nodes),
    ("trafficdist_reconcile_hints", hints::traffic_distribution),
    ("trigger_time", trigger::observe),
];

/// The function that runs a group's rows.
pub(crate) fn find(group: &str) -> Option<Run> {
    ALL.iter().find(|(name, _)| *name == group).map(|(_, run)| *run)
}
