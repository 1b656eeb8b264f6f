//! The cost of a decision: the choice for a port, the plan for a change, the plan for a whole
//! cluster.
//!
//! `cargo bench -p nearhop-core --bench decide`; results in docs/benchmarks.md.

mod common;

use std::hint::black_box;
use std::time::Duration;

use common::{cold, node, now, pod, service_key, settle};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use nearhop_core::model::Slice;
use nearhop_core::route::{
    HintGates, Place, PortPolicy, RouteInput, RouteTable, agreed_routing, port_endpoints,
};
use nearhop_core::{Change, Family, Name, ObjectRef, choose_route};

/// One Service with 1,000 endpoints on 300 nodes, by policy.
fn choose(c: &mut Criterion) {
    let policies =
        ["", "PreferSameZone", "PreferSameNode", "nearhop.dev/Nearest", "nearhop.dev/Balanced"];
    let mut group = c.benchmark_group("choose one port, 1,000 endpoints");
    for policy in policies {
        let mut world = cold(1, 1000, 300, policy);
        let key = service_key(0);
        settle(&mut world, &key);
        let service = world.service(&key).expect("the fixture has it").clone();
        let port = &service.ports[0];
        let place = Place::of(world.node("node-00007").expect("the fixture has it"));
        let slices: Vec<&Slice> = world.slices(&key).map(|slice| &**slice).collect();
        let collect = || {
            let port = (&port.name, port.protocol);
            port_endpoints(slices.iter().copied(), Family::Ipv4, port, place.node.as_ref())
        };
        let endpoints = collect();
        let choose = |endpoints: &[_]| {
            choose_route(RouteInput {
                policy: PortPolicy::of(&service, port),
                endpoints,
                routing: agreed_routing(slices.iter().copied(), Family::Ipv4),
                place: &place,
                gates: HintGates { zones: true, nodes: true },
            })
        };
        let name = if policy.is_empty() { "Default" } else { policy };
        group.bench_function(name, |b| b.iter(|| choose(black_box(&endpoints))));
        group.bench_function(format!("{name}, from slices"), |b| b.iter(|| choose(&collect())));
    }
}

/// One of 1,000 Pods becomes unready and ready again; the Service is planned each time.
fn plan_one_change(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan one pod change, 1,000 pods");
    for policy in ["", "PreferSameZone", "nearhop.dev/Balanced", "Auto"] {
        let mut world = cold(1, 1000, 300, if policy == "Auto" { "" } else { policy });
        let key = service_key(0);
        if policy == "Auto" {
            let mut service = world.service(&key).expect("the fixture has it").as_ref().clone();
            service.topology.topology_mode = Some("Auto".into());
            world.apply(Change::put(service));
        }
        settle(&mut world, &key);
        let mut ready = true;
        let name = if policy.is_empty() { "Default" } else { policy };
        group.bench_function(name, |b| {
            b.iter(|| {
                ready = !ready;
                let mut pod = pod(0, 500, 300);
                pod.ready = ready;
                let touched = world.apply(Change::put(pod));
                (touched, world.plan(&key, now()))
            });
        });
    }
}

/// 10,000 Services of 10 Pods on 5,000 nodes, nothing written yet.
fn plan_cold(c: &mut Criterion) {
    let mut group = c.benchmark_group("cold, 10,000 services x 10 pods, 5,000 nodes");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    for policy in ["", "PreferSameZone", "nearhop.dev/Balanced"] {
        let world = cold(10_000, 10, 5_000, policy);
        let name = if policy.is_empty() { "Default" } else { policy };
        group.bench_function(format!("plan all, {name}"), |b| {
            b.iter(|| {
                let plans = (0..10_000).map(|i| world.plan(&service_key(i), now()));
                plans.map(|plan| plan.map_or(0, |plan| plan.create.len())).sum::<usize>()
            });
        });
    }
    let mut world = cold(10_000, 10, 5_000, "PreferSameZone");
    for i in 0..10_000 {
        settle(&mut world, &service_key(i));
    }
    let place = Place::of(world.node("node-00007").expect("the fixture has it"));
    group.bench_function("route table of one node", |b| {
        b.iter(|| RouteTable::build(&world, place.clone()));
    });
    let mut table = RouteTable::build(&world, place);
    let mut ready = true;
    group.bench_function("one endpoint changes: world, slices, route table", |b| {
        b.iter_batched(
            || {
                ready = !ready;
                let mut pod = pod(5000, 5, 5000);
                pod.ready = ready;
                pod
            },
            |pod| {
                let touched = world.apply(Change::put(pod));
                for key in &touched.plan {
                    let plan = world.plan(key, now()).expect("the Service exists");
                    let touched = nearhop_core::fixture::apply_plan(&mut world, key, plan);
                    table.refresh(&world, &touched);
                }
            },
            BatchSize::PerIteration,
        );
    });
}

/// 10,000 Services with hard keys on 5,000 nodes: a plan alone, with the judgement of the nodes that
/// the keys cut off, and the judgements after a node has come or gone.
fn judge_reach(c: &mut Criterion) {
    let mut group = c.benchmark_group("reach, 10,000 services x 10 pods, 5,000 nodes");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    for policy in ["nearhop.dev/RequireZone", "PreferSameZone"] {
        let mut world = cold(10_000, 10, 5_000, policy);
        for i in 0..10_000 {
            settle(&mut world, &service_key(i));
        }
        let plan_all = |judge: &dyn Fn(&nearhop_core::ServiceKey) -> usize| {
            let keys = (0..10_000).map(service_key);
            keys.map(|key| {
                world.plan(&key, now()).map_or(0, |plan| plan.unchanged.len()) + judge(&key)
            })
            .sum::<usize>()
        };
        group.bench_function(format!("plan all, {policy}"), |b| b.iter(|| plan_all(&|_| 0)));
        group.bench_function(format!("plan and judge all, {policy}"), |b| {
            b.iter(|| plan_all(&|key| world.reach(key).map_or(0, |reach| reach.cut_off)));
        });
        let mut there = true;
        group.bench_function(format!("a node comes or goes, {policy}"), |b| {
            b.iter(|| {
                there = !there;
                let extra = node(5_001);
                let touched = if there {
                    world.apply(Change::Gone(ObjectRef::Node(extra.name)))
                } else {
                    world.apply(Change::put(extra))
                };
                touched.reach.iter().filter_map(|key| world.reach(key)).count()
            });
        });
        let (mut relabelled, mut version) = (node(7), 0_u64);
        group.bench_function(format!("another label of a node changes, {policy}"), |b| {
            b.iter(|| {
                version += 1;
                let others = relabelled.labels.iter().filter(|(key, _)| **key != *"agent");
                let others = others.map(|(key, value)| (key.clone(), value.clone()));
                let agent = (Name::from("agent"), Name::from(version.to_string()));
                relabelled.labels = others.chain([agent]).collect();
                world.apply(Change::put(relabelled.clone())).reach.len()
            });
        });
    }
}

criterion_group!(benches, choose, plan_one_change, plan_cold, judge_reach);
criterion_main!(benches);
