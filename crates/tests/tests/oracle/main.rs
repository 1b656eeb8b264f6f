//! Ten thousand random clusters: nearhop's hints, routes and predictions against an oracle that was
//! written from the KEPs' text and shares no code with nearhop.
//!
//! `NEARHOP_ORACLE_SEED` selects other clusters, `NEARHOP_ORACLE_ONLY` one of them. Intended differences
//! are in `data/oracle.json`, each kind with its reason; a kind that no longer occurs fails the test.

mod random;
mod subject;

use std::collections::BTreeSet;

use nearhop_tests::oracle::{
    Before, Difference, Node, Request, accepted, check_hints, read_pods, read_slices, request_of,
    route, traffic,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::Value;

use random::Cluster;
use subject::Subject;

const CLUSTERS: u64 = 10_000;
/// How many differences are printed.
const SHOWN: usize = 5;

#[test]
fn hints_routes_and_predictions_of_random_clusters_match_the_keps() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect(name));
    let seed: u64 = number("NEARHOP_ORACLE_SEED").unwrap_or(1);
    let only: Option<u64> = number("NEARHOP_ORACLE_ONLY");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let judge_some = |thread: usize| {
        let all = (0..CLUSTERS).skip(thread).step_by(threads);
        let chosen = all.filter(|number| only.is_none_or(|only| only == *number));
        chosen.flat_map(|number| judge(seed, number)).collect::<Vec<_>>()
    };
    let found: Vec<Difference> = std::thread::scope(|scope| {
        let judge_some = &judge_some;
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || judge_some(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let accepted = accepted();
    let wrong: Vec<&Difference> =
        found.iter().filter(|one| !accepted.contains_key(one.kind)).collect();
    let shown: Vec<String> =
        wrong.iter().take(SHOWN).map(|one| format!("{}: {}", one.kind, one.found)).collect();
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), shown.join("\n"));
    if only.is_none() {
        let kinds: BTreeSet<&str> = found.iter().map(|one| one.kind).collect();
        let stale: Vec<&String> =
            accepted.keys().filter(|kind| !kinds.contains(&***kind)).collect();
        assert!(stale.is_empty(), "data/oracle.json: these kinds do not occur any more: {stale:?}");
    }
}

/// All differences in one cluster: as nearhop's controller publishes it, after a change, and with
/// slices that another controller wrote.
fn judge(seed: u64, number: u64) -> Vec<Difference> {
    let mut random = SmallRng::seed_from_u64(seed << 32 | number);
    let mut cluster = Cluster::new(&mut random);
    let mut subject = Subject::new();
    subject.show(cluster.objects());
    let mut found = Vec::new();
    let before = judge_published(&mut subject, &cluster, Before::Unhinted, &mut found);
    let pods = names(&cluster.pods);
    cluster.change(&mut random);
    let left = names(&cluster.pods);
    pods.difference(&left).for_each(|name| subject.remove_pod(name));
    subject.show(cluster.objects());
    judge_published(&mut subject, &cluster, before, &mut found);
    judge_foreign(&cluster, &mut random, &mut found);
    for one in &mut found {
        one.found = format!(
            "NEARHOP_ORACLE_SEED={seed} NEARHOP_ORACLE_ONLY={number}\n  {}\n  {}\n  {}",
            one.found, cluster.service, cluster.namespace["metadata"]["annotations"],
        );
    }
    found
}

fn names(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().filter_map(|o| o["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

/// Publishes slices with nearhop, and checks endpoints, hints, routes and the predicted traffic.
/// Returns whether Auto's hints exist for the next change.
fn judge_published(
    subject: &mut Subject,
    cluster: &Cluster,
    before: Before,
    found: &mut Vec<Difference>,
) -> Before {
    subject.publish();
    let nodes: Vec<Node> = cluster.nodes.iter().map(Node::read).collect();
    let published = subject.published();
    let mut wanted = read_pods(&cluster.service, &cluster.pods, &nodes);
    wanted.sort_by(|a, b| a.key.cmp(&b.key));
    let mut unhinted = published.clone();
    for endpoint in &mut unhinted {
        endpoint.for_zones.clear();
        endpoint.for_nodes.clear();
    }
    if unhinted != wanted {
        let differ = format!("published {unhinted:?}\n  wanted {wanted:?}");
        found.push(Difference { kind: "endpoints", found: differ });
    }
    let request = request_of(&cluster.service, &cluster.namespace);
    found.extend(check_hints(&request, &published, &nodes, before));
    let keys = match &request {
        Request::Keys(keys) => Some(keys.as_slice()),
        Request::Balanced => return Before::Unhinted,
        _ => None,
    };
    for node in &nodes {
        let wanted = route(&cluster.service, keys, &published, &nodes, node);
        let chosen = subject.route(&node.name);
        if chosen != wanted {
            let differ = format!("{request:?}, {}: {chosen:?}\n  wanted {wanted:?}", node.name);
            found.push(Difference { kind: "route", found: differ });
        }
    }
    let (predicted, wanted) =
        (subject.traffic(), traffic(&cluster.service, keys, &published, &nodes));
    let close = |(key, part): (&(String, String), &f64)| {
        predicted.get(key).is_some_and(|other| (other - part).abs() < 1e-9)
    };
    if predicted.len() != wanted.len() || !wanted.iter().all(close) {
        let differ = format!("{request:?}: {predicted:?}\n  wanted {wanted:?}");
        found.push(Difference { kind: "predicted traffic", found: differ });
    }
    let hinted = published.iter().any(|endpoint| endpoint.ready && !endpoint.for_zones.is_empty());
    if request == Request::Auto && hinted { Before::Hinted } else { Before::Unhinted }
}

/// Checks the routes with slices that another controller wrote.
fn judge_foreign(cluster: &Cluster, random: &mut SmallRng, found: &mut Vec<Difference>) {
    let slices = cluster.foreign_slices(random);
    let mut subject = Subject::new();
    subject.show(cluster.nodes.iter().chain([&cluster.service]).chain(&slices));
    let nodes: Vec<Node> = cluster.nodes.iter().map(Node::read).collect();
    let endpoints = read_slices(&slices, "http");
    let request = request_of(&cluster.service, &Value::Null);
    for node in &nodes {
        let chosen = subject.route(&node.name);
        let by_hints = route(&cluster.service, None, &endpoints, &nodes, node);
        let kind = match &request {
            Request::Keys(keys) => {
                let by_keys = route(&cluster.service, Some(keys), &endpoints, &nodes, node);
                let meant = chosen == by_hints && chosen != by_keys;
                if meant { Some("topology keys and slices of another controller") } else { None }
            }
            _ => None,
        };
        let kind = kind.or((chosen != by_hints).then_some("route"));
        if let Some(kind) = kind {
            let differ =
                format!("{}: {chosen:?}\n  wanted {by_hints:?}\n  {endpoints:?}", node.name);
            found.push(Difference { kind, found: differ });
        }
    }
}

/// With shared code the oracle would repeat the mistakes of that code.
#[test]
fn the_oracle_imports_nothing_of_nearhop() {
    let text = include_str!("kep.rs");
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let used: Vec<&str> =
        code.filter(|line| line.contains("nearhop_") || line.contains("crate::")).collect();
    assert!(used.is_empty(), "{used:?}");
}
