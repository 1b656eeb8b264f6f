//! DNS answers by the client's place (KEP-536 "DNS server changes"), and answers that are the same
//! for all clients.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nearhop_core::answer::{
    Answer, AskedName, Asking, Config, Data, Index, Outcome, PodMode, Question, RecordType,
    Spelling, Synced, Zone, answer,
};
use nearhop_core::fixture::Fixture;
use nearhop_core::labels::well_known;
use nearhop_core::locate::{How, Located};
use nearhop_core::model::{Addresses, Endpoint, Locator, Slice, SlicePort};
use nearhop_core::route::Tier;
use nearhop_core::routing::SliceRouting;
use nearhop_core::world::{ReadSlicesOf, Settings};
use nearhop_core::{Change, Name, ObjectRef, PodKey, World};

use crate::common::*;

/// DNS questions to a world, with the settings that most tests use.
struct Asks {
    world: World,
    index: Index,
    config: Config,
}

impl Asks {
    fn of(world: World) -> Self {
        let index = Index::build(&world);
        let mut config = Config::new(Zone::parse("cluster.local").expect("a valid name"));
        config.zones.push(Zone::parse("in-addr.arpa").expect("a valid name"));
        config.pods = PodMode::Insecure;
        Self { world, index, config }
    }

    fn ask<T>(
        &self,
        name: &str,
        record_type: RecordType,
        asker: &Located,
        seed: Option<u64>,
        look: impl FnOnce(&Answer<'_>) -> T,
    ) -> T {
        let name = AskedName::parse(name).expect("a valid name");
        let question = Question { name, record_type };
        let asking = Asking {
            world: &self.world,
            index: &self.index,
            config: &self.config,
            serial: 1,
            synced: Synced::Yes,
            asker,
            seed,
            most: usize::MAX,
        };
        look(&answer(&asking, &question))
    }

    /// Records of a name as text, for a client on a node.
    fn text(&self, name: &str, record_type: RecordType, node: &str) -> Vec<String> {
        let asked = AskedName::parse(name).expect("a valid name");
        self.ask(name, record_type, &self.on(node), None, |answer| {
            let spelling = Spelling::of(answer, &asked, &self.config);
            answer.answers.iter().map(|record| spelling.record(record)).collect()
        })
    }

    fn outcome(&self, name: &str, record_type: RecordType) -> String {
        self.ask(name, record_type, &Located::unknown(), None, |answer| {
            format!("{:?}", answer.outcome)
        })
    }

    /// A client on a node.
    fn on(&self, node: &str) -> Located {
        let address = self.world.node(node).expect("the node is in the fixture").addresses[0];
        self.world.locate(address)
    }

    /// The Pods that a client gets for a name, sorted.
    fn pods(&self, service: &str, asker: &Located, seed: Option<u64>) -> Vec<String> {
        let name = format!("{service}.default.svc.cluster.local");
        let addresses = self.ask(&name, RecordType::A, asker, seed, addresses);
        let mut pods: Vec<String> = addresses.iter().map(|ip| self.pod(service, *ip)).collect();
        pods.sort();
        pods
    }

    fn pod(&self, service: &str, ip: IpAddr) -> String {
        let key = key(service);
        let found = self.world.pods(&key).find(|(pod, _)| pod.ips.as_slice().contains(&ip));
        found.expect("a Pod has the address").0.key.name.to_string()
    }
}

fn addresses(answer: &Answer<'_>) -> Vec<IpAddr> {
    let address = |data: &Data<'_>| match data {
        Data::A(v4) => Some(IpAddr::V4(*v4)),
        Data::Aaaa(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    };
    answer.answers.iter().filter_map(|record| address(&record.data)).collect()
}

const NODES: [&str; 5] = ["here", "rack", "zone", "region", "far"];

/// The cluster of the KEP-536 test plan, with an additional headless Service.
fn around(available: u8, keys: &str) -> String {
    let mut text = String::from(
        "namespace default\n\
         node here   rack=r1 zone=z1 region=g1 address=172.18.0.1\n\
         node rack   rack=r1 zone=z1 region=g1 address=172.18.0.2\n\
         node zone   rack=r2 zone=z1 region=g1 address=172.18.0.3\n\
         node region rack=r3 zone=z2 region=g1 address=172.18.0.4\n\
         node far    rack=r4 zone=z3 region=g2 address=172.18.0.5\n",
    );
    text += &format!("service web topology-keys={keys}\n");
    text += &format!("service twin cluster-ip=None select:app=web topology-keys={keys}\n");
    for (i, node) in NODES.iter().enumerate() {
        if i == 4 || available & (1 << i) != 0 {
            text += &format!("pod p{i} for=web on={node}\n");
        }
    }
    text
}

#[test]
fn dns_answers_and_routes_choose_the_same_endpoints() {
    let keys = "kubernetes.io/hostname,rack,topology.kubernetes.io/zone,\
                topology.kubernetes.io/region";
    for soft in [",*", ""] {
        for available in 0..16 {
            let asks = Asks::of(world(&around(available, &format!("{keys}{soft}"))));
            for node in NODES {
                let by_packet = chosen(&asks.world, node, "web");
                let by_name = asks.pods("twin", &asks.on(node), Some(7));
                assert_eq!(by_name, by_packet, "{available:04b} {soft:?} from {node}");
            }
        }
    }
}

#[test]
fn no_endpoint_in_reach_is_nodata_and_unknown_clients_get_all_endpoints() {
    let asks = Asks::of(world(&around(0, "rack")));
    let name = "twin.default.svc.cluster.local";
    asks.ask(name, RecordType::A, &asks.on("here"), None, |answer| {
        assert_eq!(answer.outcome, Outcome::NoData);
        let soa = answer.authority.expect("a negative answer has the SOA record");
        assert_eq!((soa.ttl, soa.data), (1, Data::Soa { serial: 1, minimum: 1 }));
        let choice = answer.choice.as_ref().expect("the answer contains the choice");
        assert_eq!(choice.reasons[0].tier, Tier::OutOfReach);
    });
    assert_eq!(asks.pods("twin", &Located::unknown(), None), ["p4"]);
    assert_eq!(asks.outcome(name, RecordType::Txt), "NoData");
}

/// If nearhop runs beside the cluster's own controller, a labelled Service has slices of both, and
/// only nearhop's slices carry the keys. Services without nearhop's label have only the slices of
/// the other controller.
#[test]
fn slices_of_nearhop_take_precedence_over_slices_of_another_controller() {
    let ours = Name::from(well_known::NEARHOP_CONTROLLER);
    let text = around(0b1111, "topology.kubernetes.io/zone")
        + "service plain cluster-ip=None select:app=web\n";
    let settings = Settings {
        controller: ours.clone(),
        read_slices_of: ReadSlicesOf::Preferably(ours),
        ..Settings::default()
    };
    let mut world = Fixture::parse(&text).expect("the fixture is valid").world(settings);
    for service in ["twin", "plain"] {
        let slice =
            world.slices(&key(service)).next().expect("the Service has a slice").as_ref().clone();
        let labels = [
            (well_known::SERVICE_NAME, service),
            (well_known::MANAGED_BY, well_known::IN_TREE_CONTROLLER),
        ];
        let unhinted = |endpoint: &Endpoint| Endpoint { hints: None, ..endpoint.clone() };
        let theirs = Slice {
            endpoints: slice.endpoints.iter().map(unhinted).collect(),
            name: format!("{service}-theirs").into(),
            labels: labels.into_iter().collect(),
            routing: SliceRouting::Absent,
            ..slice.clone()
        };
        world.apply(Change::put(theirs));
        if service == "plain" {
            world.apply(Change::Gone(ObjectRef::Slice(slice.namespace, slice.name)));
        }
    }
    let mut asks = Asks::of(world);
    assert_eq!(asks.pods("twin", &asks.on("here"), None), ["p0", "p1", "p2"]);
    assert_eq!(asks.pods("plain", &asks.on("here"), None).len(), 5);
    let keepers = asks.world.slice_keepers(&key("twin"));
    let read: Vec<_> = keepers.iter().map(|k| (k.managed_by.as_deref(), k.routed)).collect();
    let (nearhop, in_tree) = (well_known::NEARHOP_CONTROLLER, well_known::IN_TREE_CONTROLLER);
    assert_eq!(read, [(Some(in_tree), false), (Some(nearhop), true)]);
    // The user removes the label, and nearhop deletes its slices. The other slices still exist.
    let slice = asks.world.routed_slices(&key("twin")).next().expect("nearhop has a slice").clone();
    let touched = asks.world.apply(Change::Gone(ObjectRef::Slice(slice.namespace, slice.name)));
    asks.index.refresh(&asks.world, &touched);
    assert_eq!(asks.index, Index::build(&asks.world));
    assert_eq!(asks.pods("twin", &asks.on("here"), None).len(), 5);
}

/// SRV records and the address records in the same answer contain the same endpoints.
#[test]
fn srv_records_and_their_addresses_have_the_same_endpoints() {
    let text = around(0b1111, "rack,*").replace("service twin", "service twin port=http:80->8080");
    let asks = Asks::of(world(&text));
    let name = "_http._tcp.twin.default.svc.cluster.local";
    asks.ask(name, RecordType::Srv, &asks.on("zone"), None, |answer| {
        assert_eq!(answer.answers.len(), 1, "{answer:?}");
        assert_eq!(answer.additional.len(), 1, "{answer:?}");
        let Data::Srv { port, target, weight } = answer.answers[0].data else {
            panic!("{answer:?}")
        };
        assert_eq!((port, weight), (8080, 100));
        assert_eq!(answer.additional[0].owner, target);
    });
}

/// An address in two slices with different ports has both ports (mirrored Endpoints create such
/// slices).
#[test]
fn an_address_in_two_slices_has_the_ports_of_both() {
    let text = around(0b0001, "rack,*").replace("service twin", "service twin port=http:80->8080");
    let mut asks = Asks::of(world(&text));
    let slice =
        asks.world.slices(&key("twin")).next().expect("the Service has a slice").as_ref().clone();
    let port = SlicePort { name: "more".into(), port: Some(81), ..slice.ports[0].clone() };
    let more = Slice { name: "twin-more".into(), ports: [port].into(), ..slice };
    let touched = asks.world.apply(Change::put(more));
    asks.index.refresh(&asks.world, &touched);
    assert_eq!(asks.index, Index::build(&asks.world));
    let found = asks.text("twin.default.svc.cluster.local", RecordType::Srv, "here");
    let port =
        |record: &String| record.split(' ').nth(6).expect("an SRV record has a port").to_owned();
    let ports: BTreeSet<String> = found.iter().map(port).collect();
    assert_eq!(ports, BTreeSet::from(["8080".to_owned(), "81".to_owned()]), "{found:?}");
    assert_eq!(asks.text("twin.default.svc.cluster.local", RecordType::A, "here").len(), 1);
}

/// The resolver picks at most as many endpoints as fit in an answer, each with equal probability.
#[test]
fn answers_of_a_large_service_choose_endpoints_evenly() {
    let text = "namespace default\nnode a address=172.18.0.1\n\
                service s cluster-ip=None\npods p x40 for=s on=a";
    let asks = Asks::of(world(text));
    let mut counts: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for seed in 0..4000 {
        let name = AskedName::parse("s.default.svc.cluster.local").expect("a valid name");
        let question = Question { name, record_type: RecordType::A };
        let asking = Asking {
            world: &asks.world,
            index: &asks.index,
            config: &asks.config,
            serial: 1,
            synced: Synced::Yes,
            asker: &asks.on("a"),
            seed: Some(seed),
            most: 10,
        };
        let found = addresses(&answer(&asking, &question));
        assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 10, "{found:?}");
        found.into_iter().for_each(|address| *counts.entry(address).or_default() += 1);
    }
    let fair = |count: &u32| (850..1150).contains(count);
    assert!(counts.len() == 40 && counts.values().all(fair), "{counts:?}");
}

/// Names of single endpoints and addresses have the same answer for all clients.
#[test]
fn names_of_single_endpoints_are_never_filtered() {
    let text = "namespace default\nnode a zone=za address=172.18.0.1\nnode b zone=zb address=172.18.0.2\n\
                service db cluster-ip=None port=80->80 topology-keys=topology.kubernetes.io/zone\n\
                pod db-0 for=db on=a hostname=db-0 subdomain=db\n\
                pod db-1 for=db on=b hostname=db-1 subdomain=db\n";
    let asks = Asks::of(world(text));
    let own = asks.text("db.default.svc.cluster.local", RecordType::A, "a");
    assert_eq!(own.len(), 1, "{own:?}");
    for host in ["db-0", "db-1"] {
        let name = format!("{host}.db.default.svc.cluster.local");
        let found = asks.text(&name, RecordType::A, "a");
        assert_eq!(found.len(), 1, "{host}: {found:?}");
        let ip = found[0].rsplit(' ').next().expect("a valid address");
        let mut octets: Vec<&str> = ip.split('.').collect();
        octets.reverse();
        let reverse = format!("{}.in-addr.arpa", octets.join("."));
        let found = asks.text(&reverse, RecordType::Ptr, "a");
        assert!(
            found[0].ends_with(&format!("PTR {host}.db.default.svc.cluster.local.")),
            "{found:?}"
        );
    }
}

/// Over many answers each zone gets its share, whichever record a client uses.
#[test]
fn answers_match_the_weights() {
    let text = "namespace default\nnode a cpu=8 zone=za address=172.18.0.1\nnode b cpu=4 zone=zb address=172.18.0.2\n\
                node c cpu=4 zone=zc address=172.18.0.3\n\
                service web port=80->80 traffic-distribution-annotation=nearhop.dev/Balanced\n\
                service twin cluster-ip=None select:app=web traffic-distribution-annotation=nearhop.dev/Balanced\n\
                pod a-0 for=web on=a\npod b-0 for=web on=b\n\
                pod b-1 for=web on=b\npod c-0 for=web on=c\n\
                pod c-1 for=web on=c\n";
    let asks = Asks::of(world(text));
    let set = route(&asks.world, "a", "web").decision.cluster.expect("the cluster set is used");
    assert_eq!(set.reason.tier, Tier::Weights);
    let total: f64 = set.backends.iter().map(|backend| f64::from(backend.weight)).sum();
    let mut expected: BTreeMap<String, f64> = BTreeMap::new();
    for backend in &set.backends {
        let zone = backend.zone.as_ref().expect("every node has a zone").to_string();
        *expected.entry(zone).or_default() += f64::from(backend.weight) / total;
    }
    const ANSWERS: u64 = 20_000;
    let mut counted: BTreeMap<String, f64> = BTreeMap::new();
    for seed in 0..ANSWERS {
        let pods = asks.pods("twin", &asks.on("a"), Some(seed));
        let zones: BTreeSet<&str> = pods.iter().map(|pod| &pod[..1]).collect();
        assert_eq!(zones.len(), 1, "an answer has one zone: {pods:?}");
        let zone = format!("z{}", zones.first().expect("the answer has a zone"));
        *counted.entry(zone).or_default() += 1.0 / ANSWERS as f64;
    }
    assert_eq!(counted.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (zone, share) in expected {
        // Four standard deviations of a fair draw.
        let allowed = 4.0 * (share * (1.0 - share) / ANSWERS as f64).sqrt();
        assert!((counted[&zone] - share).abs() < allowed, "{zone}: {} {share}", counted[&zone]);
    }
}

#[test]
fn answers_are_shuffled() {
    let asks = Asks::of(world(
        "namespace default\nnode a address=172.18.0.1\nservice s cluster-ip=None\npods p x4 for=s on=a",
    ));
    let name = "s.default.svc.cluster.local";
    let ask = |seed| asks.ask(name, RecordType::A, &asks.on("a"), Some(seed), addresses);
    let mut firsts: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for seed in 0..4000 {
        let answer = ask(seed);
        assert_eq!(answer.iter().collect::<BTreeSet<_>>().len(), 4);
        *firsts.entry(answer[0]).or_default() += 1;
    }
    assert!(
        firsts.len() == 4 && firsts.values().all(|count| (850..1150).contains(count)),
        "{firsts:?}"
    );
}

/// An empty non-terminal exists (RFC 8020). CoreDNS returns NXDOMAIN for some of them.
#[test]
fn empty_non_terminals_are_nodata_and_unknown_names_nxdomain() {
    let asks = Asks::of(world(
        "namespace default\nnode a address=172.18.0.1\nservice s port=http:80->80 cluster-ip=10.96.0.1\n\
         service h port=http:80->80 cluster-ip=None\npod p for=h on=a\n",
    ));
    for (name, record_type) in [
        ("cluster.local", RecordType::Txt),
        ("svc.cluster.local", RecordType::Txt),
        ("default.svc.cluster.local", RecordType::Txt),
        ("dns.cluster.local", RecordType::A),
        ("dns-version.cluster.local", RecordType::A),
        ("_tcp.s.default.svc.cluster.local", RecordType::A),
        ("_tcp.h.default.svc.cluster.local", RecordType::Srv),
        ("96.10.in-addr.arpa", RecordType::Ptr),
        ("1.0.96.10.in-addr.arpa", RecordType::A),
        ("missing.default.svc.cluster.local", RecordType::Soa),
    ] {
        assert_eq!(asks.outcome(name, record_type), "NoData", "{name} {record_type:?}");
    }
    for (name, record_type) in [
        ("_udp.s.default.svc.cluster.local", RecordType::A),
        ("_._tcp.s.default.svc.cluster.local", RecordType::Srv),
        ("_http._.s.default.svc.cluster.local", RecordType::Srv),
        ("*.default.svc.cluster.local", RecordType::A),
        ("any.any.svc.cluster.local", RecordType::A),
        ("x.10-0-0-1.default.pod.cluster.local", RecordType::A),
        ("10-0-0-01.default.pod.cluster.local", RecordType::A),
        ("97.10.in-addr.arpa", RecordType::Ptr),
        ("01.0.96.10.in-addr.arpa", RecordType::Ptr),
        ("1.0.0.96.10.in-addr.arpa", RecordType::Ptr),
    ] {
        assert_eq!(asks.outcome(name, record_type), "NameError", "{name} {record_type:?}");
    }
    assert_eq!(asks.outcome("example.com", RecordType::A), "PassedOn");
    assert_eq!(asks.outcome("cluster.local", RecordType::Transfer), "Refused");
}

#[test]
fn clients_are_located_by_locator_then_pod_cidr_then_node_address() {
    let mut world = world(
        "node a zone=za address=172.18.0.1 pod-cidr=10.1.0.0/24\n\
         node b zone=zb address=172.18.0.2 pod-cidr=10.1.1.0/24\n",
    );
    let zone = |world: &World, ip: &str| {
        let located = world.locate(ip.parse().expect("a valid address"));
        let zone = located.place.and_then(|place| place.zone.clone());
        (zone.map(|zone| zone.to_string()), located.how.code())
    };
    let ip: IpAddr = "10.1.0.7".parse().expect("a valid address");
    assert_eq!(zone(&world, "10.1.0.7"), (Some("za".into()), "pod-cidr"));
    assert_eq!(zone(&world, "172.18.0.2"), (Some("zb".into()), "node-address"));
    assert_eq!(zone(&world, "192.0.2.1"), (None, "unknown"));
    let locator = Locator {
        owner: Some("uid-moved".into()),
        ips: Addresses::One(ip),
        node: Some("b".into()),
        node_labels: [("topology.kubernetes.io/zone", "zb")].into_iter().collect(),
        ..Locator::new(PodKey::new("default", "moved"))
    };
    let stray = Locator { owner: None, ..locator.clone() };
    world.apply(Change::put(stray));
    assert_eq!(
        zone(&world, "10.1.0.7"),
        (Some("za".into()), "pod-cidr"),
        "a PodLocator without an owner is ignored"
    );
    world.apply(Change::put(locator.clone()));
    assert_eq!(zone(&world, "10.1.0.7"), (Some("zb".into()), "locator"));
    let reset = Locator { node: None, node_labels: Default::default(), ..locator };
    world.apply(Change::put(reset));
    assert_eq!(
        zone(&world, "10.1.0.7"),
        (Some("za".into()), "pod-cidr"),
        "the PodLocator no longer has a node"
    );
    world.apply(Change::Gone(ObjectRef::Locator(PodKey::new("default", "moved"))));
    let subnet =
        |text| world.locate_subnet(nearhop_core::Cidr::parse(text).expect("a valid range"));
    assert_eq!(subnet("10.1.1.0/25").how.code(), "pod-cidr");
    assert_eq!(subnet("10.1.0.0/16").how, How::Unknown, "the subnet has two nodes");
}
