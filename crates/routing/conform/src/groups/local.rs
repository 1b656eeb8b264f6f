//! The number of Service ports without an endpoint on this node.

use nearhop_core::Family;
use nearhop_core::model::Node;
use nearhop_core::route::{Place, count_without_local};
use serde_json::{Value, json};

use super::Case;
use crate::check::Check;
use crate::diff::Rule;
use crate::flows::Rows;
use crate::objects::family_or_ipv4;
use crate::read::{CaseError, Field};

/// The node of the cases.
const NODE: &str = "test-node";

/// `proxy_no_local_endpoints_metric`: a row is a Service, with the keys of a Service in a packet case.
pub(super) fn count(case: &Case<'_>, check: &mut Check<'_>) -> Result<(), CaseError> {
    let mut row = case.row.value().clone();
    let family = family_or_ipv4(case.row.get("family")?)?;
    let cluster_ip = match family {
        Family::Ipv4 => "172.30.0.41",
        Family::Ipv6 => "fd00:172:30::41",
    };
    let defaults = [
        ("name", json!("svc1")),
        ("cluster_ip", json!(cluster_ip)),
        ("port", json!(80)),
        ("port_name", json!("p80")),
    ];
    if let Value::Object(row) = &mut row {
        for (key, value) in defaults {
            row.entry(key).or_insert(value);
        }
    }
    let rows = Value::Array(vec![row]);
    let node = case.row.get("node_name")?.text_or(NODE)?;
    let routes = Rows::read(&Field::root(&rows))?.routes(Place::of(&Node::new(node)));
    let count = count_without_local(&routes, family);
    check.fields(&case.row, |key| match key {
        "internal" => Some((Rule::Exact, json!(count.internal))),
        "external" => Some((Rule::Exact, json!(count.external))),
        _ => None,
    })
}
