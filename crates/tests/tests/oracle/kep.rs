//! A second implementation of route choice and hints, written from the text of the KEPs.
//!
//! An oracle for tests: it reads Kubernetes objects as JSON, is as naive as possible, and shares no
//! code with nearhop (the test `the_oracle_imports_nothing_of_nearhop` checks that). If the KEPs do not
//! decide, the comment names the page that does. Not covered: `nearhop.dev/Balanced`,
//! which no KEP describes, and Services of two families.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// `metadata.labels` of a Node that names its zone (KEP-2433 "Identifying Zones").
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Annotation `nearhop.dev/traffic-distribution` of Services and Namespaces (docs/policies.md, rows 4 and 7).
const DISTRIBUTION: &str = "nearhop.dev/traffic-distribution";

/// A Node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its CPU counts: it is ready and not of the control plane.
    pub counts: bool,
    /// Allocatable CPU in thousandths of a core; None if the Node has none.
    pub cpu: Option<u64>,
}

impl Node {
    /// Reads a Node.
    pub fn read(node: &Value) -> Self {
        let labels = strings(&node["metadata"]["labels"]);
        let control_plane = labels.contains_key("node-role.kubernetes.io/control-plane")
            || labels.contains_key("node-role.kubernetes.io/master");
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True");
        let cpu = node["status"]["allocatable"]["cpu"].as_str().and_then(millicores);
        let name = text(&node["metadata"]["name"]);
        Self { name, labels, counts: ready && !control_plane, cpu: cpu.filter(|cpu| *cpu > 0) }
    }

    /// Its zone. A value that no label may have cannot be a hint, and counts as no zone.
    fn zone(&self) -> Option<&String> {
        let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        self.labels.get(ZONE).filter(|zone| {
            zone.len() <= 63
                && zone.chars().all(inner)
                && zone.starts_with(|c: char| c.is_ascii_alphanumeric())
                && zone.ends_with(|c: char| c.is_ascii_alphanumeric())
        })
    }
}

/// An endpoint of one port, from a Pod or from an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `address:port`.
    pub key: String,
    /// `nodeName`.
    pub node: Option<String>,
    /// `zone`.
    pub zone: Option<String>,
    /// `conditions.ready`; absent means true.
    pub ready: bool,
    /// `conditions.serving`; absent means true.
    pub serving: bool,
    /// `conditions.terminating`; absent means false.
    pub terminating: bool,
    /// `hints.forZones`.
    pub for_zones: Vec<String>,
    /// `hints.forNodes`.
    pub for_nodes: Vec<String>,
}

/// The endpoints of a Service's first port in EndpointSlices.
pub fn read_slices(slices: &[Value], port: &str) -> Vec<Endpoint> {
    let mut all = Vec::new();
    for slice in slices {
        let ports = slice["ports"].as_array().into_iter().flatten();
        let mut ports = ports.filter(|p| text(&p["name"]) == port);
        let Some(number) = ports.next().and_then(|p| p["port"].as_u64()) else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let condition = |name: &str| endpoint["conditions"][name].as_bool();
            let hints = |name: &str| {
                let hints = endpoint["hints"][name].as_array().into_iter().flatten();
                hints.map(|hint| text(&hint["name"])).collect()
            };
            all.push(Endpoint {
                key: format!("{}:{number}", text(&endpoint["addresses"][0])),
                node: endpoint["nodeName"].as_str().map(str::to_owned),
                zone: endpoint["zone"].as_str().map(str::to_owned),
                ready: condition("ready").unwrap_or(true),
                serving: condition("serving").unwrap_or(true),
                terminating: condition("terminating").unwrap_or(false),
                for_zones: hints("forZones"),
                for_nodes: hints("forNodes"),
            });
        }
    }
    all
}

/// The endpoints that a Service's Pods give, without hints. A Pod that ended or has no address gives
/// none; a Pod that is being deleted is terminating, and serving while its Ready condition is True
/// (KEP-1672, which KEP-4444 builds on).
pub fn read_pods(service: &Value, pods: &[Value], nodes: &[Node]) -> Vec<Endpoint> {
    let selector = strings(&service["spec"]["selector"]);
    let target = service["spec"]["ports"][0]["targetPort"].as_u64().unwrap_or_default();
    let mut all = Vec::new();
    for pod in pods {
        let labels = strings(&pod["metadata"]["labels"]);
        let selected = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
        let ended = ["Succeeded", "Failed"].contains(&text(&pod["status"]["phase"]).as_str());
        let address = text(&pod["status"]["podIP"]);
        if !selected || ended || address.is_empty() {
            continue;
        }
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let serving = conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True");
        let terminating = !pod["metadata"]["deletionTimestamp"].is_null();
        let published = service["spec"]["publishNotReadyAddresses"] == true;
        let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
        let on = nodes.iter().find(|known| Some(&known.name) == node.as_ref());
        all.push(Endpoint {
            key: format!("{address}:{target}"),
            zone: on.and_then(Node::zone).cloned(),
            node,
            ready: published || (serving && !terminating),
            serving,
            terminating,
            for_zones: Vec::new(),
            for_nodes: Vec::new(),
        });
    }
    all
}

/// What a Service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing, or nothing valid.
    Nothing,
    /// KEP-2433.
    Auto,
    /// KEP-4444 `PreferClose`, KEP-3015 `PreferSameZone`.
    SameZone,
    /// KEP-3015 `PreferSameNode`.
    SameNode,
    /// KEP-536 `topologyKeys`, with a final `*` if there is one.
    Keys(Vec<String>),
    /// `nearhop.dev/Balanced`, which this oracle does not check.
    Balanced,
}

/// What a Service asks for. The annotation comes before the field (KEP-4444 "Upgrade / Downgrade
/// Strategy"), Auto excludes topology keys (KEP-2433 "Interoperability"); the rest of the order is
/// docs/policies.md "Policies: what a Service can ask for". An unknown value counts as absent (KEP-3015
/// "Upgrade / Downgrade Strategy").
pub fn request_of(service: &Value, namespace: &Value) -> Request {
    let annotation = |object: &Value, key: &str| -> Option<String> {
        object["metadata"]["annotations"][key].as_str().map(str::to_owned)
    };
    let mode = annotation(service, "service.kubernetes.io/topology-aware-hints")
        .or_else(|| annotation(service, "service.kubernetes.io/topology-mode"));
    if matches!(mode.as_deref(), Some("Auto" | "auto")) {
        return Request::Auto;
    }
    if service["spec"]["trafficPolicy"] == "PreferZone" {
        return Request::Auto;
    }
    let field: Vec<String> =
        service["spec"]["topologyKeys"].as_array().into_iter().flatten().map(text).collect();
    let list = annotation(service, "nearhop.dev/topology-keys").unwrap_or_default();
    let list: Vec<String> = list.split(',').map(|key| key.trim().to_owned()).collect();
    for keys in [field, list] {
        if are_valid_keys(&keys) {
            return Request::Keys(keys);
        }
    }
    let field = service["spec"]["trafficDistribution"].as_str().map(str::to_owned);
    let values = [annotation(service, DISTRIBUTION), field, annotation(namespace, DISTRIBUTION)];
    for value in values.into_iter().flatten() {
        let keys = |keys: &[&str]| Request::Keys(keys.iter().map(ToString::to_string).collect());
        return match value.as_str() {
            "PreferClose" | "PreferSameZone" => Request::SameZone,
            "PreferSameNode" => Request::SameNode,
            "nearhop.dev/Balanced" => Request::Balanced,
            "nearhop.dev/RequireZone" => keys(&[ZONE]),
            "nearhop.dev/Nearest" => {
                keys(&["kubernetes.io/hostname", ZONE, "topology.kubernetes.io/region", "*"])
            }
            // The Service opts out of the default of its Namespace.
            "nearhop.dev/None" => Request::Nothing,
            _ => continue,
        };
    }
    Request::Nothing
}

/// KEP-536 "Service API changes": label keys, each once; `*` matches all nodes, so nothing can follow.
fn are_valid_keys(keys: &[String]) -> bool {
    let different: BTreeSet<&String> = keys.iter().collect();
    let star = keys.iter().position(|key| key == "*");
    let named = |key: &String| !key.is_empty() && !key.contains(' ');
    !keys.is_empty()
        && different.len() == keys.len()
        && keys.iter().all(named)
        && star.is_none_or(|at| at + 1 == keys.len())
}

/// The outcome of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Each of these endpoints gets the same share.
    To(BTreeSet<String>),
    /// There is no endpoint: the connection is refused.
    Reject,
    /// There are endpoints, but none on this node, and the policy is Local: packets are dropped.
    Drop,
}

/// The outcomes of connections on one node: of clients in the cluster and, if the Service is exposed,
/// of clients outside. `keys` are the topology keys that the proxy follows.
pub fn route(
    service: &Value,
    keys: Option<&[String]>,
    endpoints: &[Endpoint],
    nodes: &[Node],
    node: &Node,
) -> (Outcome, Option<Outcome>) {
    let here = |endpoint: &Endpoint| endpoint.node.as_ref() == Some(&node.name);
    let outcome = |local: bool| {
        // KEP-2086, in KEP-4444 "Intersection with internal/externalTrafficPolicy": Local is strict.
        let chosen = if local {
            available(endpoints.iter().filter(|e| here(e)).collect()).0
        } else {
            route_in_cluster(keys, endpoints, nodes, node)
        };
        let some = endpoints.iter().any(|e| e.ready || (e.serving && e.terminating));
        match (chosen.is_empty(), local && some) {
            (false, _) => Outcome::To(chosen.iter().map(|endpoint| endpoint.key.clone()).collect()),
            (true, true) => Outcome::Drop,
            (true, false) => Outcome::Reject,
        }
    };
    let spec = &service["spec"];
    let not_empty = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let typed = ["NodePort", "LoadBalancer"].contains(&text(&spec["type"]).as_str());
    let exposed = spec["ports"][0]["nodePort"].as_u64().unwrap_or_default() != 0
        || not_empty(&spec["externalIPs"])
        || not_empty(&service["status"]["loadBalancer"]["ingress"]);
    let external_local =
        spec["externalTrafficPolicy"] == "Local" && (typed || not_empty(&spec["externalIPs"]));
    let internal = outcome(spec["internalTrafficPolicy"] == "Local");
    (internal, exposed.then(|| outcome(external_local)))
}

/// The ready endpoints. If there are none, those that still serve while they terminate (KEP-1669), and
/// true.
fn available(endpoints: Vec<&Endpoint>) -> (Vec<&Endpoint>, bool) {
    let ready: Vec<&Endpoint> = endpoints.iter().copied().filter(|e| e.ready).collect();
    if !ready.is_empty() {
        return (ready, false);
    }
    (endpoints.into_iter().filter(|e| e.serving && e.terminating).collect(), true)
}

fn route_in_cluster<'a>(
    keys: Option<&[String]>,
    endpoints: &'a [Endpoint],
    nodes: &[Node],
    node: &Node,
) -> Vec<&'a Endpoint> {
    let (all, terminating) = available(endpoints.iter().collect());
    if let Some(keys) = keys {
        return route_by_keys(keys, &all, nodes, node);
    }
    // No endpoint gets a hint while it terminates, so hints cannot be complete.
    if terminating {
        return all;
    }
    // KEP-3015 "Addition of PreferSameNode", the three rules of CategorizeEndpoints.
    let for_node: Vec<&Endpoint> =
        all.iter().copied().filter(|e| e.for_nodes.contains(&node.name)).collect();
    if all.iter().all(|e| !e.for_nodes.is_empty()) && !for_node.is_empty() {
        return for_node;
    }
    let in_zone = |e: &&Endpoint| node.zone().is_some_and(|zone| e.for_zones.contains(zone));
    let for_zone: Vec<&Endpoint> = all.iter().copied().filter(in_zone).collect();
    if all.iter().all(|e| !e.for_zones.is_empty()) && !for_zone.is_empty() {
        return for_zone;
    }
    all
}

/// KEP-536 "Service API changes": only if no backends exist for a key is the next one considered; if no
/// key has any, connections fail; `*` matches all nodes.
fn route_by_keys<'a>(
    keys: &[String],
    endpoints: &[&'a Endpoint],
    nodes: &[Node],
    client: &Node,
) -> Vec<&'a Endpoint> {
    for key in keys {
        if key == "*" {
            return endpoints.to_vec();
        }
        let Some(value) = client.labels.get(key) else { continue };
        let same = |e: &&&Endpoint| {
            let node = nodes.iter().find(|node| Some(&node.name) == e.node.as_ref());
            node.and_then(|node| node.labels.get(key)) == Some(value)
        };
        let found: Vec<&Endpoint> = endpoints.iter().filter(same).copied().collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// A difference between what is published and what the KEPs say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Its kind, by which a difference is accepted; see `data/oracle.json`.
    pub kind: &'static str,
    /// What was found.
    pub found: String,
}

fn difference(kind: &'static str, found: String) -> Vec<Difference> {
    vec![Difference { kind, found }]
}

/// The kinds of intended differences, each with its reason.
pub fn accepted() -> BTreeMap<String, String> {
    let text = include_str!("../../data/oracle.json");
    serde_json::from_str(text).expect("the list has kinds and reasons")
}

/// Checks the hints in a whole cluster: Nodes, Namespaces, Services and their EndpointSlices, of which
/// only those of `managed_by` count. Intended differences are left out.
pub fn judge_cluster(objects: &[Value], managed_by: &str) -> Vec<String> {
    let accepted = accepted();
    let of = |kind: &str| objects.iter().filter(|o| o["kind"] == *kind).collect::<Vec<_>>();
    let nodes: Vec<Node> = of("Node").into_iter().map(Node::read).collect();
    let mut wrong = Vec::new();
    for service in of("Service") {
        let metadata = &service["metadata"];
        let ours = |slice: &&&Value| {
            let labels = strings(&slice["metadata"]["labels"]);
            slice["metadata"]["namespace"] == metadata["namespace"]
                && labels.get("kubernetes.io/service-name") == Some(&text(&metadata["name"]))
                && labels
                    .get("endpointslice.kubernetes.io/managed-by")
                    .is_some_and(|by| by == managed_by)
        };
        let slices: Vec<&Value> = of("EndpointSlice").iter().filter(ours).copied().collect();
        let namespaces = of("Namespace");
        let namespace = namespaces.iter().find(|n| n["metadata"]["name"] == metadata["namespace"]);
        let request = request_of(service, namespace.copied().unwrap_or(&Value::Null));
        let families: BTreeSet<String> = slices.iter().map(|s| text(&s["addressType"])).collect();
        for family in families {
            let slices: Vec<Value> =
                slices.iter().filter(|s| s["addressType"] == *family).copied().cloned().collect();
            let endpoints = read_slices(&slices, &text(&service["spec"]["ports"][0]["name"]));
            let found = check_hints(&request, &endpoints, &nodes, Before::Unknown);
            let found = found.into_iter().filter(|one| !accepted.contains_key(one.kind));
            let name = &metadata["name"];
            wrong.extend(
                found.map(|one| format!("{name}, {request:?}: {}: {}", one.kind, one.found)),
            );
        }
    }
    wrong
}

/// The addresses that a client on a node reaches through a Service's cluster address, sorted.
pub fn reached_from(objects: &[Value], namespace: &str, service: &str, node: &str) -> Vec<String> {
    let of = |kind: &str| objects.iter().filter(|o| o["kind"] == *kind).collect::<Vec<_>>();
    let nodes: Vec<Node> = of("Node").into_iter().map(Node::read).collect();
    let named =
        |o: &&&Value| o["metadata"]["namespace"] == *namespace && o["metadata"]["name"] == *service;
    let (services, namespaces) = (of("Service"), of("Namespace"));
    let (Some(found), Some(node)) =
        (services.iter().find(named), nodes.iter().find(|known| known.name == node))
    else {
        return Vec::new();
    };
    let space = namespaces.iter().find(|n| n["metadata"]["name"] == *namespace);
    let label = |slice: &Value| text(&slice["metadata"]["labels"]["kubernetes.io/service-name"]);
    let slices: Vec<Value> = of("EndpointSlice")
        .into_iter()
        .filter(|slice| slice["metadata"]["namespace"] == *namespace && label(slice) == service)
        .cloned()
        .collect();
    let endpoints = read_slices(&slices, &text(&found["spec"]["ports"][0]["name"]));
    let request = request_of(found, space.copied().unwrap_or(&Value::Null));
    let keys = if let Request::Keys(keys) = &request { Some(keys.as_slice()) } else { None };
    match route(found, keys, &endpoints, &nodes, node).0 {
        Outcome::To(chosen) => {
            chosen.iter().filter_map(|key| Some(key.rsplit_once(':')?.0.to_owned())).collect()
        }
        Outcome::Reject | Outcome::Drop => Vec::new(),
    }
}

/// Gives each endpoint its hints by KEP-4444 "EndpointSlice Controller Implementation" and KEP-3015
/// "Addition of PreferSameNode"; none if neither applies.
pub fn hint_own_place(request: &Request, endpoints: &mut [Endpoint]) {
    let zones = matches!(request, Request::SameZone | Request::SameNode);
    for endpoint in endpoints {
        let node = endpoint.node.clone().filter(|_| *request == Request::SameNode);
        endpoint.for_zones = endpoint.zone.clone().filter(|_| zones).into_iter().collect();
        endpoint.for_nodes = node.into_iter().collect();
    }
}

/// Whether the Service had Auto's hints before the endpoints were hinted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// It had hints.
    Hinted,
    /// It had no hints.
    Unhinted,
    /// Not known.
    Unknown,
}

/// Compares the hints of a Service's published endpoints with what the KEPs say.
pub fn check_hints(
    request: &Request,
    endpoints: &[Endpoint],
    nodes: &[Node],
    before: Before,
) -> Vec<Difference> {
    let kind = match request {
        Request::Auto => return check_auto(endpoints, nodes, before),
        Request::Balanced => return Vec::new(),
        Request::Keys(_) => "hints beside topology keys",
        Request::Nothing | Request::SameZone | Request::SameNode => "hints",
    };
    let mut wanted = endpoints.to_vec();
    hint_own_place(request, &mut wanted);
    let differ = endpoints.iter().zip(&wanted).filter(|(is, wanted)| is != wanted);
    let of = |endpoint: &Endpoint| {
        let kind = if endpoint.ready { kind } else { "hints of endpoints that are not ready" };
        Difference { kind, found: format!("{endpoint:?}") }
    };
    differ.map(|(endpoint, _)| of(endpoint)).collect()
}

/// KEP-2433 "EndpointSlice Controller" and "Overload".
fn check_auto(endpoints: &[Endpoint], nodes: &[Node], before: Before) -> Vec<Difference> {
    let ready: Vec<&Endpoint> = endpoints.iter().filter(|e| e.ready).collect();
    if ready.is_empty() {
        return Vec::new();
    }
    let hinted = ready.iter().filter(|e| !e.for_zones.is_empty()).count();
    let shares = zone_shares(nodes);
    let count = ready.len() as u64;
    let add = least_endpoints(count, &shares, 20);
    let keep = least_endpoints(count, &shares, 30);
    let enough = |least: &Option<Vec<(u64, u64)>>, bound: Bound| {
        least.as_ref().is_some_and(|least| total(least, bound) <= count)
    };
    let (possible_to_add, possible_to_keep) =
        (enough(&add, Bound::Below), enough(&keep, Bound::Below));
    if hinted == 0 {
        // Existing hints stay while a distribution below 30 % exists.
        let missing = match before {
            Before::Hinted => possible_to_keep,
            Before::Unhinted | Before::Unknown => possible_to_add,
        };
        let found = format!("no hints although possible: {count} endpoints, {shares:?}");
        return if missing { difference("auto", found) } else { Vec::new() };
    }
    let one_each = ready.iter().all(|e| e.for_zones.len() == 1 && e.for_nodes.is_empty());
    if !one_each {
        return difference("auto", format!("not one zone for each endpoint: {ready:?}"));
    }
    let mut given: BTreeMap<&String, u64> = shares.keys().map(|zone| (zone, 0)).collect();
    for endpoint in &ready {
        match given.get_mut(&endpoint.for_zones[0]) {
            Some(count) => *count += 1,
            None => return difference("auto", format!("not a zone with capacity: {endpoint:?}")),
        }
    }
    let bounded = if before == Before::Unhinted { add } else { keep };
    let Some(least) = bounded else {
        return difference("auto", format!("hints in less than two zones: {shares:?}"));
    };
    let within = |bound: Bound| {
        given.values().zip(&least).all(|(have, (below, at))| match bound {
            Bound::Below => have >= below,
            Bound::At => have >= at,
        })
    };
    let found = format!("{given:?} of {count} endpoints, {shares:?}");
    if !within(Bound::At) {
        return difference("auto", format!("a zone is overloaded: {found}"));
    }
    let mut differences = Vec::new();
    if !within(Bound::Below) {
        differences.extend(difference("auto at the threshold", found.clone()));
    }
    if before == Before::Unhinted {
        differences.extend(check_moved(&ready, &shares, &least, &found));
    }
    differences
}

/// KEP-2433 "Example": endpoints stay in their own zone as far as the distribution allows it.
fn check_moved(
    ready: &[&Endpoint],
    shares: &BTreeMap<String, u64>,
    least: &[(u64, u64)],
    found: &str,
) -> Vec<Difference> {
    let home = |e: &&&Endpoint| e.zone.as_ref().is_some_and(|zone| shares.contains_key(zone));
    let moved =
        ready.iter().filter(home).filter(|e| e.zone.as_ref() != e.for_zones.first()).count();
    let unplaced = ready.len() - ready.iter().filter(home).count();
    let needed: u64 = shares
        .keys()
        .zip(least)
        .map(|(zone, (_, at))| {
            let own = ready.iter().filter(|e| e.zone.as_ref() == Some(zone)).count() as u64;
            at.saturating_sub(own)
        })
        .sum();
    let fewest = needed.saturating_sub(unplaced as u64) as usize;
    if moved == fewest {
        return Vec::new();
    }
    difference("auto", format!("{moved} endpoints leave their zone, {fewest} would do: {found}"))
}

/// "below 20 %" as the KEP has it, or exactly 20 % as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Below,
    At,
}

fn total(least: &[(u64, u64)], bound: Bound) -> u64 {
    least.iter().map(|(below, at)| if bound == Bound::Below { *below } else { *at }).sum()
}

/// For each zone the fewest endpoints with which its overload is below the threshold, and at most the
/// threshold; None if Auto does not apply (KEP-2433 "Test Plan": one zone, no hints). Overload is how
/// much more than the endpoints of a zone a perfect distribution would give it ("Overload").
fn least_endpoints(
    count: u64,
    shares: &BTreeMap<String, u64>,
    percent: u64,
) -> Option<Vec<(u64, u64)>> {
    if shares.len() < 2 {
        return None;
    }
    let all: u64 = shares.values().sum();
    let least = |share: &u64| {
        let expected = count * share * 100;
        let bound = |have: u64| have * all * (100 + percent);
        let below = (1..).find(|have| expected < bound(*have)).unwrap_or(u64::MAX);
        let at = (1..).find(|have| expected <= bound(*have)).unwrap_or(u64::MAX);
        (below, at)
    };
    Some(shares.values().map(least).collect())
}

/// CPU by zone (KEP-2433 "Assumptions"): without the CPU of each node, one core per node. Nodes without
/// a zone are not in any KEP: up to 10 % of the CPU may be on them (docs/controller.md,
/// `--max-unzoned-share`); otherwise there are no shares.
fn zone_shares(nodes: &[Node]) -> BTreeMap<String, u64> {
    let mut shares = BTreeMap::new();
    let mut unzoned = 0;
    for (node, cpu) in capacity(nodes) {
        match node.zone() {
            Some(zone) => *shares.entry(zone.clone()).or_default() += cpu,
            None => unzoned += cpu,
        }
    }
    let zoned: u64 = shares.values().sum();
    if unzoned * 10 > zoned + unzoned { BTreeMap::new() } else { shares }
}

fn capacity(nodes: &[Node]) -> Vec<(&Node, u64)> {
    let counted: Vec<&Node> = nodes.iter().filter(|node| node.counts).collect();
    let known = counted.iter().all(|node| node.cpu.is_some());
    counted.into_iter().map(|node| (node, node.cpu.filter(|_| known).unwrap_or(1000))).collect()
}

/// Traffic by client zone and endpoint zone, as parts of all traffic: each node sends in proportion to
/// its CPU (KEP-2433 "Assumptions") and spreads evenly over the endpoints it may use.
pub fn traffic(
    service: &Value,
    keys: Option<&[String]>,
    endpoints: &[Endpoint],
    nodes: &[Node],
) -> BTreeMap<(String, String), f64> {
    let capacity = capacity(nodes);
    let all: u64 = capacity.iter().map(|(_, cpu)| cpu).sum();
    let mut matrix = BTreeMap::new();
    for (node, cpu) in capacity {
        let Outcome::To(chosen) = route(service, keys, endpoints, nodes, node).0 else { continue };
        let part = cpu as f64 / all as f64 / chosen.len() as f64;
        for endpoint in endpoints.iter().filter(|e| chosen.contains(&e.key)) {
            let zone = |zone: Option<&String>| zone.cloned().unwrap_or_default();
            *matrix.entry((zone(node.zone()), zone(endpoint.zone.as_ref()))).or_default() += part;
        }
    }
    matrix
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strings(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), text(value))).collect()
}

/// `1500m`, `2` or `0.5` in thousandths.
fn millicores(text: &str) -> Option<u64> {
    match text.strip_suffix('m') {
        Some(number) => number.parse().ok(),
        None => text.parse::<f64>().ok().map(|cores| (cores * 1000.0).round() as u64),
    }
}
