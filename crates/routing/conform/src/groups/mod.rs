//! The groups of cases: each converts its rows to core's values, calls core (and netfilter for
//! packets), and returns the result in the format of the expectation.

mod capacity;
mod dns;
mod endpoint;
mod flows;
mod hints;
mod intent;
mod local;
mod metadata;
mod ports;
mod reconcile;
mod route;
mod trigger;

use nearhop_core::Name;
use nearhop_core::labels::well_known;

use crate::check::Check;
use crate::read::{CaseError, Field};
use crate::report::What;

/// One row, and the file around it.
pub(crate) struct Case<'a> {
    /// The row.
    pub row: Field<'a>,
    /// The file, for settings that its rows share.
    pub file: Field<'a>,
}

impl Case<'_> {
    /// Value of the managed-by label.
    fn controller(&self) -> Result<Name, CaseError> {
        let name = self.file.get("controller_name")?;
        Ok(Name::from(name.text_or(well_known::IN_TREE_CONTROLLER)?))
    }
}

/// How the rows of a group are run.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// A row is a result.
    One(fn(&Case<'_>, &mut Check<'_>) -> Result<(), CaseError>),
    /// A row has many results, each with its own id.
    Many(fn(&Case<'_>) -> Result<Vec<Part>, CaseError>),
}

/// One of several results of a row: its id within the row, and its failures.
pub(crate) type Part = (String, Vec<(String, What)>);

use Run::{Many, One};

/// Every group of this build, sorted by name.
pub(crate) const ALL: [(&str, Run); 31] = [
    ("address_types_for_service", One(metadata::address_types)),
    ("categorize_endpoints", One(route::categorize)),
    ("dns_apex", One(dns::ask)),
    ("dns_external_name", One(dns::ask)),
    ("dns_headless", One(dns::ask)),
    ("dns_integration", One(dns::ask)),
    ("dns_pods", One(dns::ask)),
    ("dns_ports_srv", One(dns::ask)),
    ("dns_queries", One(dns::ask)),
    ("dns_reverse", One(dns::ask)),
    ("dns_spec_examples", One(dns::ask)),
    ("endpoint_ports", One(ports::endpoint)),
    ("find_port", One(ports::find)),
    ("hints_enabled", One(intent::hints_enabled)),
    ("new_slice", One(metadata::new)),
    ("pod_to_endpoint", One(endpoint::from_pod)),
    ("proxy_no_local_endpoints_metric", One(local::count)),
    ("proxy_packet_flows", Many(flows::walk)),
    ("reconciler_finalize", One(reconcile::finalize)),
    ("reconciler_missing_node", One(reconcile::missing_node)),
    ("reconciler_packing", One(reconcile::packing)),
    ("reconciler_placeholder", One(reconcile::placeholder)),
    ("reconciler_single_pod", One(reconcile::single_pod)),
    ("reconciler_topology_hints", One(reconcile::topology_hints)),
    ("reconciler_traffic_distribution", One(reconcile::traffic_distribution)),
    ("slice_labels", One(metadata::labels)),
    ("topology_add_hints", One(hints::auto)),
    ("topology_overloaded_services", One(capacity::overloaded)),
    ("topology_set_nodes", One(capacity::set_nodes)),
    ("trafficdist_reconcile_hints", One(hints::traffic_distribution)),
    ("trigger_time", One(trigger::observe)),
];

/// The function that runs a group's rows.
pub(crate) fn find(group: &str) -> Option<Run> {
    ALL.iter().find(|(name, _)| *name == group).map(|(_, run)| *run)
}
