//! Endpoints: from a Pod to its endpoint in a slice.

use nearhop_core::Name;
use nearhop_core::labels::well_known;
use nearhop_core::model::{Node, Service};
use nearhop_core::slice::pod_to_endpoint;
use serde_json::Value;

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::objects::{endpoint_value, family_or_ipv4, pod, usual_service};
use crate::read::CaseError;

/// `pod_to_endpoint`. A Pod without an address in the family has no endpoint: then every key is
/// null.
pub(super) fn from_pod(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let publish_not_ready_addresses = case.row.get("publish_not_ready")?.flag()?;
    let service = Service { publish_not_ready_addresses, ..usual_service() };
    let pod = pod(&case.row.get("pod")?, &service.key.namespace)?;
    let zone = case.row.get("node_zone")?.name()?;
    let node = Node {
        labels: zone.map(|zone| (Name::from(well_known::ZONE), zone)).into_iter().collect(),
        ..Node::new(pod.node.clone().unwrap_or_else(|| Name::from("")))
    };
    let family = family_or_ipv4(case.row.get("address_type")?)?;
    let endpoint = pod_to_endpoint(&service, &pod, Some(&node), family);
    let value = endpoint.as_ref().map_or(Value::Null, endpoint_value);
    if case.row.get("expect")?.is_null() {
        return check.value(&case.row, Rule::Exact, value);
    }
    check.fields(&case.row, |key| match &value {
        Value::Object(map) => Some((Rule::Sparse, map.get(key)?.clone())),
        _ => Some((Rule::Exact, Value::Null)),
    })
}
