//! Prints a plan as a diff for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use nearhop_core::locate::LocatorPlan;
use nearhop_core::model::{Endpoint, Locator, Slice};
use nearhop_core::{IntentDecision, Name, PodKey, ServiceKey, SlicePlan, World};

/// The changes of a plan, one line for each slice and each endpoint that differs.
pub(crate) fn diff(
    world: &World,
    key: &ServiceKey,
    intent: &IntentDecision,
    plan: &SlicePlan,
) -> String {
    let mut text = format!("Service {key} ({})\n", intent.intent);
    for slice in &plan.create {
        line(&mut text, '+', 2, &format!("EndpointSlice {}* {}", slice_stem(key), about(slice)));
        slice.endpoints.iter().for_each(|endpoint| line(&mut text, '+', 4, &describe(endpoint)));
    }
    for slice in &plan.update {
        line(&mut text, '~', 2, &format!("EndpointSlice {} {}", slice.name, about(slice)));
        if let Some(before) = world.slice(&slice.namespace, &slice.name) {
            diff_slice(&mut text, before, slice);
        }
    }
    plan.delete.iter().for_each(|slice| deleted(&mut text, slice));
    for problem in plan.problems.iter().chain(&plan.missing_nodes) {
        line(&mut text, '!', 2, &problem.to_string());
    }
    text
}

/// The slices that a run would delete because their Service is gone or nearhop no longer manages
/// it.
pub(crate) fn diff_orphans(world: &World, key: &ServiceKey) -> String {
    let mut text = format!("Service {key} (does not exist)\n");
    world.slices(key).for_each(|slice| deleted(&mut text, slice));
    text
}

/// The change of a Pod's PodLocator; `None` if there is none.
pub(crate) fn diff_locator(world: &World, key: &PodKey) -> Option<String> {
    let before = world.locators().get(key).map(describe_locator);
    let (sign, what) = match (world.plan_locator(key), before) {
        (LocatorPlan::Keep, _) => return None,
        (LocatorPlan::Create(after), _) => ('+', describe_locator(&after)),
        (LocatorPlan::Update(after), before) => {
            ('~', format!("{} -> {}", before.unwrap_or_default(), describe_locator(&after)))
        }
        (LocatorPlan::Delete, before) => ('-', before.unwrap_or_default()),
    };
    let mut text = String::new();
    line(&mut text, sign, 0, &format!("PodLocator {key} {what}"));
    Some(text)
}

fn describe_locator(locator: &Locator) -> String {
    let ips = locator.ips.as_slice().iter().map(|ip| ip.to_string());
    let node = locator.node.iter().map(|node| format!("node={node}"));
    let labels = locator.node_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let words: Vec<String> = ips.chain(node).chain(labels).collect();
    if words.is_empty() { "nowhere".to_owned() } else { words.join(" ") }
}

fn deleted(text: &mut String, slice: &Slice) {
    let count = slice.endpoints.len();
    let what = format!("EndpointSlice {} {} ({count} endpoints)", slice.name, about(slice));
    line(text, '-', 2, &what);
}

fn line(text: &mut String, sign: char, indent: usize, what: &str) {
    writeln!(text, "{:indent$}{sign} {what}", "").expect("a String takes any text");
}

fn slice_stem(key: &ServiceKey) -> String {
    format!("{}-", key.name)
}

fn about(slice: &Slice) -> String {
    let ports = slice.ports.iter().map(|port| {
        let number = port.port.map_or_else(|| "*".to_owned(), |port| port.to_string());
        let name = if port.name.is_empty() { String::new() } else { format!("{}:", port.name) };
        format!("{name}{number}/{}", port.protocol)
    });
    let ports: Vec<String> = ports.collect();
    format!("{} [{}]", slice.address_type.as_str(), ports.join(", "))
}

fn diff_slice(text: &mut String, before: &Slice, after: &Slice) {
    if before.ports != after.ports {
        line(text, '~', 4, &format!("ports {} -> {}", about(before), about(after)));
    }
    if before.labels != after.labels {
        line(text, '~', 4, "labels");
    }
    if before.routing != after.routing {
        line(text, '~', 4, "annotation nearhop.dev/routing");
    }
    let by_address = |slice: &Slice| -> BTreeMap<Option<IpAddr>, Endpoint> {
        slice.endpoints.iter().map(|e| (e.addresses.first(), e.clone())).collect()
    };
    let (old, new) = (by_address(before), by_address(after));
    for (address, endpoint) in &old {
        match new.get(address) {
            None => line(text, '-', 4, &describe(endpoint)),
            Some(now) if now != endpoint => {
                line(text, '~', 4, &format!("{} -> {}", describe(endpoint), state(now)));
            }
            Some(_) => {}
        }
    }
    let added = new.iter().filter(|(address, _)| !old.contains_key(address));
    added.for_each(|(_, endpoint)| line(text, '+', 4, &describe(endpoint)));
}

fn describe(endpoint: &Endpoint) -> String {
    let address = endpoint.addresses.first().map_or_else(String::new, |ip| ip.to_string());
    format!("{address} {}", state(endpoint))
}

fn state(endpoint: &Endpoint) -> String {
    let conditions = endpoint.conditions;
    let mut words =
        vec![if conditions.ready == Some(true) { "ready" } else { "not-ready" }.to_owned()];
    if conditions.terminating == Some(true) {
        let serving = conditions.serving == Some(true);
        words.push(if serving { "terminating+serving" } else { "terminating" }.to_owned());
    }
    words.extend(endpoint.node.as_ref().map(|node| format!("node={node}")));
    words.extend(endpoint.zone.as_ref().map(|zone| format!("zone={zone}")));
    let join = |names: &[Name]| names.iter().map(Name::as_str).collect::<Vec<_>>().join("+");
    if !endpoint.hint_zones().is_empty() {
        words.push(format!("for-zones={}", join(endpoint.hint_zones())));
    }
    if !endpoint.hint_nodes().is_empty() {
        words.push(format!("for-nodes={}", join(endpoint.hint_nodes())));
    }
    words.join(" ")
}
