//! What the proxy does with a Service and why, for `/debug/services`. Changes nothing and does not
//! read the kernel: it reports what the kernel has acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nearhop_core::route::{Route, RouteKey, RouteSet, explain_excluded};
use nearhop_core::{EndpointKey, ServiceKey};
use nearhop_netfilter::compile::{PreviousSlots, compile};
use nearhop_netfilter::frontend::{At, Entry, Frontend, Path, Program, Refusal};
use serde_json::{Value, json};

use crate::control::Control;
use crate::family_sync::{FamilySync, LastSync};

/// A summary of all Services.
pub(crate) fn describe_all(control: &Control, families: &[FamilySync]) -> Value {
    let services = control.world().services().map(|service| {
        let key = &service.key;
        let tiers: BTreeSet<String> = (control.routes().of_service(key))
            .filter_map(|(_, route)| route.decision.cluster.as_ref())
            .map(|set| set.reason.tier.to_string())
            .collect();
        let left_out =
            families.iter().any(|family_sync| family_sync.engine().isolated().contains_key(key));
        json!({ "service": key.to_string(), "tiers": tiers, "leftOut": left_out })
    });
    json!({
        "node": control.options().node.as_str(),
        "zone": control.routes().place().zone.as_ref().map(|zone| zone.as_str()),
        "families": families.iter().map(describe_family).collect::<Vec<_>>(),
        "services": services.collect::<Vec<_>>(),
    })
}

/// All details of one Service. None if this proxy does not serve it.
pub(crate) fn describe(
    control: &Control,
    families: &[FamilySync],
    key: &ServiceKey,
) -> Option<Value> {
    control.world().service(key)?;
    let ports = control.routes().of_service(key).filter_map(|(route_key, route)| {
        let family_sync =
            families.iter().find(|family_sync| family_sync.family() == route_key.family)?;
        Some(describe_port(control, family_sync, route_key, route))
    });
    let ports: Vec<Value> = ports.collect();
    Some(json!({
        "service": key.to_string(),
        "node": control.options().node.as_str(),
        "zone": control.routes().place().zone.as_ref().map(|zone| zone.as_str()),
        "ports": ports,
        "families": families.iter().map(describe_family).collect::<Vec<_>>(),
        "waiting": control.is_waiting(),
    }))
}

fn describe_family(family_sync: &FamilySync) -> Value {
    json!({
        "family": family_sync.family().as_str(),
        "lastSync": family_sync.last().map(describe_sync),
        "failure": family_sync.failure(),
    })
}

fn describe_sync(last: LastSync) -> Value {
    let age = Timestamp::now().duration_since(last.at).as_secs_f64();
    json!({
        "time": last.at.to_string(),
        "ageSeconds": age,
        "pass": format!("{:?}", last.pass),
        "tookSeconds": last.took.as_secs_f64(),
        "elements": last.elements,
    })
}

fn describe_port(
    control: &Control,
    family_sync: &FamilySync,
    key: &RouteKey,
    route: &Route,
) -> Value {
    let service = &key.port.service;
    let decision = &route.decision;
    let set = |set: &Option<RouteSet>| set.as_ref().map(|set| describe_set(route, set));
    json!({
        "port": key.port.port.as_str(),
        "protocol": key.port.protocol.as_str(),
        "family": key.family.as_str(),
        "internal": format!("{:?}", decision.internal),
        "external": decision.external.map(|verdict| format!("{verdict:?}")),
        "cluster": set(&decision.cluster),
        "local": set(&decision.local),
        "frontends": describe_frontends(control, family_sync, key),
        "leftOut": family_sync.engine().isolated().get(service),
    })
}

/// The chosen endpoints with the reason, and the other endpoints, each with its reason.
fn describe_set(route: &Route, set: &RouteSet) -> Value {
    let excluded = route.endpoints.iter().filter_map(|endpoint| {
        let why = explain_excluded(&endpoint, set)?;
        Some(json!({ "endpoint": endpoint.key.to_string(), "why": why.to_string() }))
    });
    let chosen = set.backends.iter().map(|backend| {
        json!({
            "endpoint": backend.key.to_string(),
            "zone": backend.zone.as_ref().map(|zone| zone.as_str()),
            "weight": backend.weight,
            "onThisNode": backend.local,
        })
    });
    json!({
        "tier": set.reason.tier.to_string(),
        "reason": set.reason.to_string(),
        "desired": chosen.collect::<Vec<_>>(),
        "excluded": excluded.collect::<Vec<_>>(),
    })
}

/// Each frontend of the port: what the kernel holds, and how it differs from the desired state.
fn describe_frontends(control: &Control, family_sync: &FamilySync, key: &RouteKey) -> Vec<Value> {
    let desired = family_sync.engine().desired();
    let service = &key.port.service;
    let none = Program::default();
    let held = desired.program(service).unwrap_or(&none);
    let before: &dyn PreviousSlots = held;
    let routes = control.routes().of_service(service).filter(|(other, _)| *other == key);
    let wanted = compile(routes, desired.config(), before).unwrap_or_default();
    wanted
        .frontends
        .iter()
        .map(|(frontend, entry)| {
            let owner = desired.frontend(frontend).map(|(owner, _)| owner);
            let programmed = held.frontends.get(frontend).filter(|_| owner == Some(service));
            let mut described = describe_frontend(frontend, entry, programmed);
            if let Some(owner) = owner.filter(|owner| *owner != service) {
                described["takenBy"] = json!(owner.to_string());
            }
            described
        })
        .collect()
}

fn describe_frontend(frontend: &Frontend, wanted: &Entry, programmed: Option<&Entry>) -> Value {
    let at = match frontend.at {
        At::Address(address) => std::net::SocketAddr::new(address, frontend.port).to_string(),
        At::Node => format!("node:{}", frontend.port),
    };
    let slots = |entry: &Entry| -> BTreeMap<EndpointKey, usize> {
        let mut counts = BTreeMap::new();
        let endpoints = match &entry.path {
            Path::LocalOnly(local) => local,
            Path::Direct | Path::Masquerade => &entry.endpoints,
        };
        endpoints.iter().for_each(|endpoint| *counts.entry(*endpoint).or_default() += 1);
        counts
    };
    let (want, have) = (slots(wanted), programmed.map(slots).unwrap_or_default());
    let texts = |endpoints: Vec<&EndpointKey>| -> Vec<String> {
        endpoints.into_iter().map(EndpointKey::to_string).collect()
    };
    json!({
        "at": at,
        "programmed": have.iter().map(|(k, n)| (k.to_string(), json!(n))).collect::<serde_json::Map<_, _>>(),
        "refusal": programmed.and_then(|entry| entry.refusal).map(refusal_word),
        "missing": texts(want.keys().filter(|key| !have.contains_key(key)).collect()),
        "surplus": texts(have.keys().filter(|key| !want.contains_key(key)).collect()),
        "inStep": programmed == Some(wanted),
    })
}

fn refusal_word(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Reject => "reject",
        Refusal::Drop => "drop",
    }
}
