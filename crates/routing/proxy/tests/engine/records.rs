//! Session affinity records: which are deleted and when, failures, and which are copied from a
//! table of an older layout.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use nearhop_core::{EndpointKey, Family, Name};
use nearhop_netfilter::affinity::{LEGACY_MAP, port_of};
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{
    Batch, Bytes, Chain, CtKey, Data, Element, Expr, Field, Op, Reg, Rule, Set, SetData, SetKind,
    Timed, Verdict,
};
use nearhop_netfilter::records::endpoint_of;
use nearhop_proxy::engine::{ApplyError, Engine, Tables, Verified};
use nearhop_proxy::release::Releases;

use crate::follow::{Follower, v4};
use crate::on::{Watched, on_both};

/// The map of the Service in [`CLUSTER`].
pub(crate) fn web() -> &'static str {
    "affinity/default/web/tcp"
}

/// The address of a client.
pub(crate) fn client(number: u32) -> IpAddr {
    IpAddr::from(Ipv4Addr::from(0xac10_0000 + number))
}

/// A pod of the Service.
pub(crate) fn endpoint(number: u8) -> EndpointKey {
    EndpointKey { ip: IpAddr::from([10, 244, 0, number]), port: 8080 }
}

/// A client and its endpoint.
pub(crate) fn record(client: IpAddr, endpoint: EndpointKey) -> Timed {
    let data = Data::Value(Bytes::EMPTY.address(endpoint.ip).port(endpoint.port));
    let key = Bytes::EMPTY.address(client);
    let element = Element { key, end: None, data, comment: None };
    Timed { element, timeout_ms: 300_000, expires_ms: 200_000 }
}

/// The endpoint of each client.
pub(crate) fn clients_of(tables: &mut impl Tables, map: &str) -> BTreeMap<IpAddr, EndpointKey> {
    let records = tables.read_records(&v4().table, map).unwrap();
    let read = |record: Timed| {
        let client = record.element.key.as_slice().first_chunk::<4>().copied().unwrap();
        (IpAddr::from(client), endpoint_of(&record.element, Family::Ipv4).unwrap())
    };
    records.into_iter().map(read).collect()
}

const CLUSTER: &str = "
node n1
node n2
service web type=NodePort cluster-ip=10.96.0.1 port=80->8080 node-port=30080 affinity=300s
service other cluster-ip=10.96.0.2
pod web-1 for=web on=n1 ip=10.244.0.1
pod web-2 for=web on=n2 ip=10.244.0.2
pod web-3 for=web on=n2 ip=10.244.0.3
";

fn apply(tables: &mut impl Tables, ops: Vec<Op>) {
    tables.apply(&Batch { table: v4().table, ops }).unwrap();
}

fn add_records(tables: &mut impl Tables, elements: Vec<Timed>) {
    apply(tables, vec![Op::AddTimed { set: web().into(), elements }]);
}

/// Number of recorded clients, without expired records.
fn clients_left<T: Tables>(tables: &mut Watched<T>) -> usize {
    clients_of(&mut tables.inner, web()).len()
}

/// The maps of Service ports.
fn maps(tables: &mut impl Tables) -> BTreeSet<Name> {
    let held = tables.read(&v4().table).unwrap().unwrap();
    held.sets.into_iter().filter(|set| port_of(set).is_some()).collect()
}

/// The time of the test, and the scheduled sweeps.
struct Clock {
    now: Instant,
    releases: Releases,
}

impl Clock {
    fn after_sync(follower: &mut Follower) -> Self {
        let (now, mut releases) = (Instant::now(), Releases::default());
        releases.add(follower.engine.take_releases(), now);
        Self { now, releases }
    }

    /// Advances the time until a sweep is due, and runs it.
    fn step(&mut self, follower: &mut Follower, tables: &mut impl Tables) -> usize {
        let due = self.releases.due().expect("a sweep is scheduled");
        assert!(due <= self.now + Duration::from_secs(1), "the next sweep is due within a second");
        self.now = self.now.max(due);
        self.releases.run(&mut follower.engine, tables, || self.now)
    }
}

on_both! {
    fn only_records_of_removed_endpoints_are_deleted(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        follower.engine.take_releases();
        let elements = (0..30).map(|i| record(client(i), endpoint(1 + i as u8 % 3)));
        add_records(tables, elements.collect());
        // One more endpoint or another Service causes no sweep.
        follower.turn_into(tables, &format!("{CLUSTER}pod web-4 for=web on=n2 ip=10.244.0.4\n"));
        follower.turn_into(tables, &format!("{CLUSTER}pod web-4 for=web on=n2 ip=10.244.0.4\npod o for=other on=n1 ip=10.244.1.1\n"));
        assert_eq!(follower.engine.take_releases(), BTreeSet::new());
        follower.turn_into(tables, CLUSTER);
        follower.pod_gone(tables, "web-2");
        let mut clock = Clock::after_sync(&mut follower);
        assert_eq!(clock.step(&mut follower, tables), 10);
        let left = clients_of(tables, web());
        assert_eq!(left.len(), 20);
        assert!(left.values().all(|left| *left != endpoint(2)));
        // A packet in transit creates a record again: the next sweep, a second later, finds it.
        add_records(tables, vec![record(client(99), endpoint(2))]);
        assert_eq!(clock.step(&mut follower, tables), 1);
        assert_eq!(clock.step(&mut follower, tables), 0);
        assert_eq!(clock.releases.due(), None, "no further sweep is scheduled");
        assert_eq!(clients_of(tables, web()), left);
        // The test itself has changed the table, so the verification reads it.
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Same);
    }

    fn a_failed_sweep_is_retried_without_a_sync(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        follower.engine.take_releases();
        add_records(tables, (0..10).map(|i| record(client(i), endpoint(2))).collect());
        follower.pod_gone(tables, "web-2");
        let mut clock = Clock::after_sync(&mut follower);
        tables.failing_reads.push_back(ApplyError::Failed(String::from("EINTR")));
        assert_eq!(clock.step(&mut follower, tables), 0);
        tables.fail_after(0, ApplyError::Failed(String::from("ENOBUFS")));
        assert_eq!(clock.step(&mut follower, tables), 0);
        assert_eq!(clients_of(tables, web()).len(), 10, "the two failed sweeps deleted nothing");
        assert_eq!(clock.step(&mut follower, tables), 10);
        assert_eq!(clients_of(tables, web()), BTreeMap::new());
    }

    fn expired_records_cause_few_transactions(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        follower.engine.take_releases();
        add_records(tables, (0..2_000).map(|i| record(client(i), endpoint(2))).collect());
        follower.pod_gone(tables, "web-2");
        let expired = |i| Timed { expires_ms: 1, ..record(client(i), endpoint(2)) };
        tables.expired = (5_000..5_010).map(expired).collect();
        tables.forget();
        let mut clock = Clock::after_sync(&mut follower);
        // A kernel that is still resizing the map may list the rest only a second later.
        let mut released = 0;
        while released < 2_000 {
            released += clock.step(&mut follower, tables);
        }
        assert_eq!(clients_left(tables), 0);
        assert!(tables.tries < 400, "{} transactions", tables.tries);
    }

    fn the_records_and_maps_of_a_deleted_service_are_deleted(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        follower.engine.take_releases();
        assert_eq!(maps(tables), BTreeSet::from([Name::from(web())]));
        add_records(tables, vec![record(client(1), endpoint(1))]);
        // Another timeout gives another chain and the same map.
        follower.turn_into(tables, &CLUSTER.replace("300s", "200s"));
        let mut clock = Clock::after_sync(&mut follower);
        assert_eq!(clock.step(&mut follower, tables), 0);
        assert_eq!(clock.step(&mut follower, tables), 0);
        assert_eq!(clients_of(tables, web()).len(), 1);
        follower.check(tables);
        let without: String = CLUSTER.lines().filter(|line| !line.contains("web"))
            .map(|line| format!("{line}\n")).collect();
        follower.turn_into(tables, &without);
        let mut clock = Clock::after_sync(&mut follower);
        assert_eq!(clock.step(&mut follower, tables), 1);
        assert_eq!(maps(tables).len(), 1, "the map stays, because the kernel may release references late");
        assert_eq!(clock.step(&mut follower, tables), 0);
        assert_eq!(maps(tables), BTreeSet::new());
        let chains = tables.read_chains(&v4().table).unwrap();
        assert_eq!(chains.keys().find(|name| name.contains('/')), None);
        // The test itself has changed the table, so the verification reads it.
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Same);
        // The Service returns.
        follower.turn_into(tables, CLUSTER);
        assert_eq!(clients_of(tables, web()), BTreeMap::new());
        follower.check(tables);
    }

    fn records_survive_a_restart_and_a_configuration_change(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        add_records(tables, vec![record(client(1), endpoint(1)), record(client(2), endpoint(2))]);
        let before = clients_of(tables, web());
        follower.engine = Engine::new(v4());
        follower.sync_all(tables);
        let mut config = v4();
        config.masquerade_mark = 1 << 20;
        follower.engine.configure(config);
        follower.sync_all(tables);
        let mut clock = Clock::after_sync(&mut follower);
        assert_eq!(clock.step(&mut follower, tables), 0);
        assert_eq!(clients_of(tables, web()), before);
    }

    fn records_of_the_older_layout_are_copied(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        make_older(tables);
        follower.engine = Engine::new(v4());
        follower.sync_all(tables);
        let held = tables.read(&v4().table).unwrap().unwrap();
        assert!(!held.sets.contains(LEGACY_MAP));
        follower.check_exactly(tables);
        let expected = BTreeMap::from([
            (client(1), endpoint(1)),
            (client(2), endpoint(2)),
            (client(3), endpoint(3)),
        ]);
        assert_eq!(clients_of(tables, web()), expected);
        let left: Vec<u64> = tables.read_records(&v4().table, web()).unwrap().into_iter()
            .map(|record| record.expires_ms).collect();
        assert!(left.iter().all(|left| (1..=200_000).contains(left)), "{left:?}");
    }

    fn records_survive_the_replacement_of_an_outdated_table(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        add_records(tables, vec![record(client(1), endpoint(1)), record(client(2), endpoint(9))]);
        // A set with the definition of another version.
        let mut firewall = SetId::Firewall.define(Family::Ipv4);
        firewall.key.pop();
        let users = ["check-sources"].map(|chain| Op::FlushChain(chain.into()));
        apply(tables, users.into());
        apply(tables, vec![Op::DeleteSet(firewall.name.clone()), Op::AddSet(firewall)]);
        follower.engine = Engine::new(v4());
        follower.sync_all(tables);
        follower.check_exactly(tables);
        let expected = BTreeMap::from([(client(1), endpoint(1))]);
        assert_eq!(clients_of(tables, web()), expected, "the record of a removed endpoint is deleted");
    }
}

/// Makes the table look like one of an older version: one map for all Services, by client, address
/// and port.
fn make_older(tables: &mut impl Tables) {
    let address = Field::Address(Family::Ipv4);
    let legacy = Set {
        name: LEGACY_MAP.into(),
        key: vec![address, address, Field::Protocol, Field::Port],
        data: SetData::Value(vec![address, Field::Port]),
        kind: SetKind::Dynamic,
        comment: None,
    };
    let key = |number: u32, to: &str, port: u16| {
        let key = Bytes::EMPTY.address(client(number)).address(to.parse().unwrap());
        key.protocol(6).port(port)
    };
    let stays = [
        (key(1, "10.96.0.1", 80), 1),
        (key(2, "192.0.2.250", 30080), 2),
        (key(3, "10.96.0.1", 80), 3),
        // The endpoint is removed; the Service has no affinity; no Service has the address.
        (key(4, "10.96.0.1", 80), 9),
        (key(5, "10.96.0.2", 80), 1),
        (key(6, "10.96.0.9", 80), 1),
    ];
    let stay = |(key, number): (Bytes, u8)| {
        let mut stay = record(client(0), endpoint(number));
        stay.element.key = key;
        stay
    };
    let ct = |key, to| Expr::Ct { key, to: Reg(to) };
    let exprs = vec![
        ct(CtKey::OriginalSource, 0),
        ct(CtKey::OriginalDestination, 1),
        Expr::Meta { key: nearhop_netfilter::object::MetaKey::L4Proto, to: Reg(2) },
        ct(CtKey::OriginalPort, 3),
        ct(CtKey::ReplySource, 4),
        ct(CtKey::ReplyPort, 5),
        Expr::Update { set: LEGACY_MAP.into(), key: Reg(0), data: Reg(4), timeout_ms: 300_000 },
    ];
    let rules = vec![Rule { exprs, comment: Some("#00000000".into()) }];
    let chain = Chain { name: "record-tcp-300s".into(), hook: None, rules, comment: None };
    let goes = Element {
        key: Bytes::EMPTY.address("10.96.0.1".parse().unwrap()).protocol(6).port(80),
        end: None,
        data: Data::Verdict(Verdict::Goto(chain.name.clone())),
        comment: None,
    };
    let services: Name = SetId::AffinityServices.name().into();
    let sticky: Vec<Op> = [
        SetId::Services,
        SetId::Nodeports,
        SetId::StickyServices,
        SetId::StickyNodeports,
        SetId::AffinityServices,
        SetId::AffinityNodeports,
    ]
    .into_iter()
    .map(|set| {
        let held = tables.read(&v4().table).unwrap().unwrap();
        let of = held.elements.into_iter().filter(|(of, _)| *of == set);
        let elements = of.map(|(_, element)| element).collect();
        Op::DeleteElements { set: set.name().into(), elements }
    })
    .collect();
    apply(tables, sticky);
    let chains: Vec<Name> = (tables.read_chains(&v4().table).unwrap().into_keys())
        .filter(|name| name.contains('/'))
        .collect();
    let maps = maps(tables);
    let mut ops: Vec<Op> = chains.iter().cloned().map(Op::FlushChain).collect();
    ops.extend(maps.into_iter().map(Op::DeleteSet));
    ops.extend(chains.into_iter().map(Op::DeleteChain));
    ops.extend([
        Op::AddSet(legacy),
        Op::AddTimed { set: LEGACY_MAP.into(), elements: stays.into_iter().map(stay).collect() },
        Op::AddChain(chain),
        Op::AddElements { set: services, elements: vec![goes] },
    ]);
    apply(tables, ops);
}
