//! Cells of Nodes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Rules, condition, or};
use crate::table::column::{dig, list, text};

pub(super) const RULES: Rules = &[
    ("node-status", |node, _| status(node).into()),
    ("node-roles", |node, _| or(&roles(node), "<none>").into()),
    ("node-internal-ip", |node, _| address(node, "InternalIP").into()),
    ("node-external-ip", |node, _| address(node, "ExternalIP").into()),
    ("node-kernel", |node, _| kernel(node).into()),
];

fn status(node: &Value) -> String {
    let ready = condition(node, "status.conditions", "Ready").map(|ready| text(ready, "status"));
    let ready = match ready {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let closed = dig(node, "spec.unschedulable") == true;
    if closed { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}

/// From the labels `node-role.kubernetes.io/<role>` and `kubernetes.io/role=<role>`.
fn roles(node: &Value) -> String {
    let labels = dig(node, "metadata.labels").as_object().into_iter().flatten();
    let roles =
        labels.filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        });
    let roles: BTreeSet<&str> = roles.filter(|role| !role.is_empty()).collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address(node: &Value, kind: &str) -> String {
    let mut addresses = list(node, "status.addresses").iter();
    let found = addresses.find(|address| text(address, "type") == kind);
    found.map_or("<none>", |address| text(address, "address")).to_owned()
}

fn kernel(node: &Value) -> String {
    let kernel = or(text(node, "status.nodeInfo.kernelVersion"), "<unknown>");
    match text(node, "status.nodeInfo.architecture") {
        "" => kernel,
        architecture => format!("{kernel} ({architecture})"),
    }
}
