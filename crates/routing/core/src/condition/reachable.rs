//! Reachable: which nodes hard topology keys leave without an endpoint, and which endpoints without
//! clients.

use std::collections::BTreeMap;

use super::Verdict;
use crate::hint::capacity::some_of;
use crate::intent::{IntentDecision, Spelling};
use crate::key::Name;
use crate::labels::well_known;
use crate::model::Service;
use crate::route::Candidates;
use crate::route::reach::{Effect, Reach};

pub(super) fn judge_reachable(
    service: &Service,
    decision: &IntentDecision,
    reach: &Reach,
) -> Verdict {
    let Some(candidates) = reach.candidates else {
        return Verdict::no(
            "NoEndpoint",
            "endpoints",
            format!("none is ready, so {}", refused(service, reach, reach.nodes)),
        );
    };
    match reach.effect {
        Effect::OtherKeys => {
            let message = "the EndpointSlices still carry another request";
            return Verdict::unknown("NotProgrammed", "EndpointSlices", message);
        }
        Effect::None if reach.cut_off == 0 => {
            let message = "nodes do not follow the keys, see Programmed; every node has endpoints";
            return Verdict::yes("KeysNotInEffect", message);
        }
        Effect::None | Effect::Keys => {}
    }
    if reach.cut_off == 0 {
        return Verdict::yes("EndpointForEveryNode", "the keys lead every node to an endpoint");
    }
    let kind = match candidates {
        Candidates::Ready => "ready",
        Candidates::ServingTerminating | Candidates::None => "serving",
    };
    let mut message = if reach.unlabelled.len() == reach.nodes {
        format!("no node has {}", if reach.keys.len() == 1 { "it" } else { "one of them" })
    } else {
        format!("no {kind} endpoint")
    };
    if !reach.ports.is_empty() {
        let ports: Vec<Name> = reach.ports.iter().cloned().collect();
        message += &format!(" of port {}", some_of(&ports));
    }
    message += &more_names(reach);
    message += &format!(", so {}", refused(service, reach, reach.cut_off));
    if reach.stray_endpoints > 0 {
        message += &format!("; {}", describe_strays(decision, reach));
    }
    let only_zone = reach.keys.iter().all(|key| *key == well_known::ZONE);
    let reason = if only_zone { "NoEndpointInZone" } else { "NoEndpointForKeys" };
    Verdict::no(reason, describe_cut_off(reach), message)
}

/// What happens to clients on this many nodes.
fn refused(service: &Service, reach: &Reach, nodes: usize) -> String {
    let all = reach.nodes;
    let which = match nodes {
        _ if nodes == all && all == 1 => "the only node".to_owned(),
        _ if nodes == all => format!("all {all} nodes"),
        _ => format!("{nodes} of {all} nodes"),
    };
    if service.is_headless() {
        format!("DNS answers have no addresses for clients on {which}")
    } else {
        format!("connections from {which} are refused")
    }
}

/// A condition names up to this many zones, nodes or label values.
const MOST: usize = 10;

/// The labels of the nodes that are cut off: `zones b, c and node n9 without zone label`. Without
/// numbers of nodes, so that a changed number is no transition.
fn describe_cut_off(reach: &Reach) -> String {
    if reach.unlabelled.len() == reach.nodes {
        return lacking(&reach.keys);
    }
    let mut parts: Vec<String> =
        values_by_key(reach).map(|(key, names)| group(key, &names)).collect();
    if !reach.unlabelled.is_empty() {
        let names: Vec<Name> = reach.unlabelled.iter().cloned().collect();
        parts.push(format!(
            "{} without {}",
            group(well_known::HOSTNAME, &names),
            lacking(&reach.keys)
        ));
    }
    parts.join(" and ")
}

/// Some of the names that [`describe_cut_off`] leaves out because they are many.
fn more_names(reach: &Reach) -> String {
    if reach.unlabelled.len() == reach.nodes {
        return String::new();
    }
    let unlabelled: Vec<Name> = reach.unlabelled.iter().cloned().collect();
    let lists = values_by_key(reach).map(|(_, names)| names).chain([unlabelled]);
    let many = lists.filter(|names| names.len() > MOST);
    many.map(|names| format!(" in {}", some_of(&names))).collect()
}

/// The values of each key that nodes without an endpoint have.
fn values_by_key(reach: &Reach) -> impl Iterator<Item = (&Name, Vec<Name>)> {
    let mut values: BTreeMap<usize, Vec<Name>> = BTreeMap::new();
    for label in &reach.labels {
        values.entry(label.key).or_default().push(label.value.clone());
    }
    values.into_iter().map(|(at, names)| (&reach.keys[at], names))
}

fn group(key: &str, names: &[Name]) -> String {
    let noun = match key {
        well_known::ZONE => "zone",
        well_known::REGION => "region",
        well_known::HOSTNAME => "node",
        other if names.len() > MOST => return format!("more than {MOST} values of {other}"),
        other => return format!("{other}={}", some_of(names)),
    };
    match names.len() {
        1 => format!("{noun} {}", names[0]),
        2..=MOST => format!("{noun}s {}", some_of(names)),
        _ => format!("more than {MOST} {noun}s"),
    }
}

/// The labels that a node lacks.
fn lacking(keys: &[Name]) -> String {
    match keys {
        [key] if *key == well_known::ZONE => "zone label".to_owned(),
        [key] => format!("label {key}"),
        keys => format!("labels {}", some_of(keys)),
    }
}

/// Endpoints that no client reaches, because their nodes have none of the labels.
fn describe_strays(decision: &IntentDecision, reach: &Reach) -> String {
    let names: Vec<Name> = reach.stray_nodes.iter().cloned().collect();
    let (count, on) = (reach.stray_endpoints, group(well_known::HOSTNAME, &names));
    let (endpoints, them) =
        if count == 1 { ("endpoint is", "it") } else { ("endpoints are", "them") };
    let have = if names.len() == 1 { "has" } else { "have" };
    let policy = match decision.spelling {
        Spelling::TopologyKeysField | Spelling::TopologyKeysAnnotation => "topologyKeys",
        _ => decision.value.strip_prefix("nearhop.dev/").unwrap_or(&decision.value),
    };
    format!(
        "{count} {endpoints} on {on}, which {have} no {}; clients cannot reach {them} under {policy}",
        lacking(&reach.keys)
    )
}
