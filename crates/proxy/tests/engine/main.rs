//! The engine, on the fake and on the kernel, with the same expectations.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod on;

use std::collections::{BTreeMap, BTreeSet};

use nearhop_core::fixture::Fixture;
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::world::{KnownNodes, Settings, World};
use nearhop_core::{Family, Name, ServiceKey};
use nearhop_netfilter::config::Config;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Bytes, Element};
use nearhop_proxy::engine::{Engine, Pass, Scope, Tables, Verified};

use on::{FakeTables, on_both, on_kernel};

const CLUSTER: &str = "
node n1 zone=a
node n2 zone=b
service web type=LoadBalancer port=http:80->8080 node-port=30080 lb-ip=192.0.2.1 etp=Local source-ranges=198.51.100.0/24,198.51.0.0/16
service dns port=dns:53/udp cluster-ip=10.96.0.10 affinity=30s
service lonely port=80 external-ip=203.0.113.7
pods web x3 for=web on=n1,n2
pods dns x2 for=dns on=n2
";

fn world(text: &str) -> World {
    Fixture::parse(text).unwrap().world(Settings::default())
}

fn routes(world: &World, node: &str) -> RouteTable {
    RouteTable::build(world, Place::of(world.node(node).unwrap()))
}

fn config() -> Config {
    Config::new(Family::Ipv4)
}

/// Everything in the table, by set.
fn held(tables: &mut impl Tables) -> BTreeMap<SetId, BTreeMap<Bytes, Element>> {
    let held = tables.read(&config().table).unwrap().expect("the table is there");
    let mut by_set: BTreeMap<SetId, BTreeMap<Bytes, Element>> = BTreeMap::new();
    for (set, mut element) in held.elements {
        element.comment = None;
        by_set.entry(set).or_default().insert(element.key, element);
    }
    by_set
}

on_both! {
    fn a_first_pass_writes_everything_and_a_second_nothing(tables) {
        let world = world(CLUSTER);
        let routes = routes(&world, "n1");
        let mut engine = Engine::new(config());
        let synced = engine.sync(tables, &routes, Scope::All).unwrap();
        assert_eq!(synced.pass, Pass::Full);
        assert_eq!(held(tables)[&SetId::Services].len(), 3);
        let before = tables.generation().unwrap();
        let again = Engine::new(config()).sync(tables, &routes, Scope::All).unwrap();
        assert_eq!((again.pass, again.elements), (Pass::Full, 0));
        assert_eq!(tables.generation().unwrap(), before, "nothing was written");
        assert_eq!(engine.verify(tables).unwrap(), Verified::Untouched);
    }
}

#[test]
fn nft_can_print_it() {
    on_kernel("nft_can_print_it", |kernel| {
        let world = world(CLUSTER);
        let routes = routes(&world, "n1");
        Engine::new(config()).sync(kernel, &routes, Scope::All).unwrap();
        let list = |args: &[&str]| {
            let out = std::process::Command::new("nft").args(args).output();
            out.map(|out| {
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
                String::from_utf8(out.stdout).unwrap()
            })
        };
        let Ok(text) = list(&["list", "ruleset"]) else { return };
        println!("{text}");
    });
}
