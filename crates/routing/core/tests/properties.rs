//! Properties that hold for every cluster and every sequence of changes.
//!
//! The tests change a small cluster (two Services, four nodes, six Pods, slices of other
//! controllers) at random. The cluster is small, so that all combinations of objects occur.

use nearhop_core::{Kind, Object, ObjectRef};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use nearhop_core::fixture::apply_plan;
use nearhop_core::hint::HintState;
use nearhop_core::labels::well_known;
use nearhop_core::locate::LocatorPlan;
use nearhop_core::model::*;
use nearhop_core::route::{
    Agreed, HintGates, Place, PortPolicy, RouteInput, RouteTable, Verdict, agreed_routing,
    port_endpoints,
};
use nearhop_core::routing::SliceRouting;
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{
    Affected, Change, Family, Gate, Gates, Labels, Name, PodKey, Protocol, ServiceKey, World,
    choose_route,
};
use proptest::prelude::*;
use proptest::sample::select;

fn now() -> PlanTime {
    PlanTime::at(Timestamp::UNIX_EPOCH)
}

fn service_key(i: usize) -> ServiceKey {
    ServiceKey::new("default", format!("s{i}"))
}

const ASKS: [&str; 12] = [
    "",
    "auto",
    "PreferZone",
    "keys-hard",
    "keys-soft",
    "PreferSameZone",
    "PreferSameNode",
    "Balanced",
    "Nearest",
    "RequireZone",
    "garbage",
    "Balanced-inf",
];

fn asks(kind: &str) -> TopologySpec {
    let name = |text: &str| Some(Name::from(text));
    let mut asks = TopologySpec::default();
    match kind {
        "auto" => asks.topology_mode = name("Auto"),
        "PreferZone" => asks.traffic_policy = name("PreferZone"),
        "keys-hard" => asks.topology_keys = ["rack", well_known::ZONE].map(Name::from).to_vec(),
        "keys-soft" => asks.topology_keys_annotation = name("kubernetes.io/hostname,rack,*"),
        "Balanced" | "Nearest" | "RequireZone" => {
            asks.traffic_distribution = name(&format!("nearhop.dev/{kind}"));
        }
        "Balanced-inf" => {
            asks.traffic_distribution = name("nearhop.dev/Balanced");
            asks.max_overload = name("inf");
        }
        other => asks.traffic_distribution = (!other.is_empty()).then(|| Name::from(other)),
    }
    asks
}

prop_compose! {
    fn service()(
        i in 0..2_usize,
        kind in select(&ASKS[..]),
        named in any::<bool>(),
        dual in any::<bool>(),
        local in 0..4_u8,
        publish in prop::bool::weighted(0.2),
        selector in select(vec!["s0", "s1", "", "-"]),
        label in prop::option::weighted(0.2, Just("v")),
    ) -> Service {
        let mut service = Service::new(service_key(i));
        service.uid = Name::from(format!("uid{i}"));
        service.labels = label.map(|value| ("l", value)).into_iter().collect();
        service.selector = match selector {
            "-" => None,
            "" => Some(Labels::default()),
            app => Some([("app", app)].into_iter().collect()),
        };
        let target = if named { TargetPort::Named(Name::from("http")) } else { TargetPort::Number(8080) };
        service.ports = vec![ServicePort {
            name: Name::from("web"), protocol: Protocol::Tcp, port: 80, target, node_port: 0,
            app_protocol: None,
        }];
        service.cluster_ips = ClusterIps::Addresses(vec!["10.96.0.1".parse().expect("a valid address")]);
        service.ip_families = if dual { vec![Family::Ipv4, Family::Ipv6] } else { vec![Family::Ipv4] };
        if local == 1 {
            service.internal_traffic_policy = TrafficPolicy::Local;
        }
        if local >= 2 {
            service.service_type = ServiceType::NodePort;
            service.ports[0].node_port = 30000;
        }
        if local == 3 {
            service.external_traffic_policy = TrafficPolicy::Local;
        }
        service.publish_not_ready_addresses = publish;
        service.topology = asks(kind);
        service
    }
}

const ZONES: [&str; 5] = ["a", "b", "c", "-", ""];

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().filter(|(_, value)| *value != "-").map(|(k, v)| (*k, *v)).collect()
}

prop_compose! {
    fn node()(
        i in 0..4_usize,
        zone in select(&ZONES[..]),
        region in select(vec!["eu", "us", "-"]),
        rack in select(vec!["r1", "r2", "-"]),
        role in prop::bool::weighted(0.1),
        ready in prop::bool::weighted(0.9),
        cpu in select(vec![None, Some(1000), Some(2000), Some(9000)]),
        address in select(vec!["192.0.2.1", "192.0.2.2"]),
        deleting in prop::bool::weighted(0.1),
    ) -> Node {
        let name = format!("n{i}");
        let role = if role { "" } else { "-" };
        let labels = labels(&[
            (well_known::HOSTNAME, &name), (well_known::ZONE, zone), (well_known::REGION, region),
            ("rack", rack), (well_known::CONTROL_PLANE, role),
        ]);
        let addresses = vec![address.parse().expect("a valid address")];
        Node { labels, ready, cpu_milli: cpu, addresses, deleting, ..Node::new(name) }
    }
}

prop_compose! {
    fn pod()(
        i in 0..6_usize,
        app in select(vec!["s0", "s1", "other"]),
        node in 0..5_usize,
        v6 in any::<bool>(),
        port in select(vec![8080_u16, 9090, 0]),
        ready in prop::bool::weighted(0.8),
        deleting in prop::bool::weighted(0.2),
        terminal in prop::bool::weighted(0.1),
    ) -> Pod {
        let mut pod = Pod::new(PodKey::new("default", format!("p{i}")));
        pod.uid = Name::from(format!("uid-p{i}"));
        pod.labels = [("app", app)].into_iter().collect();
        let mut ips: Vec<IpAddr> = vec![format!("10.0.0.{i}").parse().expect("a valid address")];
        ips.extend(v6.then(|| format!("fd00::{i}").parse::<IpAddr>().expect("a valid address")));
        pod.ips = ips.into_iter().collect();
        pod.node = Some(Name::from(format!("n{node}")));
        if port != 0 {
            let name = Name::from("http");
            pod.ports = Arc::new(vec![ContainerPort { name, port, protocol: Protocol::Tcp }]);
        }
        (pod.ready, pod.deleting, pod.terminal) = (ready, deleting, terminal);
        pod
    }
}

const ROUTINGS: [&str; 6] = [
    "",
    "{",
    r#"{"v":1,"keys":["rack","*"],"nodes":{"n0":["r1"],"n1":["r2"]}}"#,
    r#"{"v":1,"keys":["rack"],"nodes":{"n0":["r1"]}}"#,
    r#"{"v":1,"weights":{"a":{"a":1000000},"b":{"a":400000,"c":600000}}}"#,
    r#"{"v":1,"weights":{"a":{"zz":1000000}}}"#,
];

prop_compose! {
    fn endpoint()(
        i in 0..9_u8,
        node in prop::option::of(0..4_u8),
        zone in prop::option::of(select(vec!["a", "b", "c", ""])),
        zones in prop::collection::vec(select(vec!["a", "b", "c", ""]), 0..3),
        nodes in prop::collection::vec(select(vec!["n0", "n1"]), 0..2),
        ready in prop::option::of(any::<bool>()),
        serving in prop::option::of(any::<bool>()),
        terminating in prop::option::of(any::<bool>()),
    ) -> Endpoint {
        let names = |list: Vec<&str>| list.into_iter().map(Name::from).collect();
        Endpoint {
            conditions: Conditions { ready, serving, terminating },
            node: node.map(|i| Name::from(format!("n{i}"))),
            zone: zone.map(Name::from),
            hints: Some(Arc::new(Hints { zones: names(zones), nodes: names(nodes) })),
            ..Endpoint::at(format!("10.1.0.{i}").parse().expect("a valid address"))
        }
    }
}

prop_compose! {
    fn foreign_slice()(
        i in 0..3_usize,
        service in select(vec!["s0", "s1", ""]),
        family in select(vec!["IPv4", "IPv4", "IPv6", "FQDN"]),
        endpoints in prop::collection::vec(endpoint(), 0..4),
        routing in select(&ROUTINGS[..]),
    ) -> Slice {
        let port = SlicePort {
            name: Name::from("web"), protocol: Protocol::Tcp, port: Some(8080), app_protocol: None,
        };
        Slice {
            namespace: Name::from("default"),
            name: Name::from(format!("f{i}")),
            labels: [(well_known::SERVICE_NAME, service), (well_known::MANAGED_BY, "another-controller")]
                .into_iter().collect(),
            owners: Vec::new(),
            deleting: false,
            address_type: AddressType::parse(family),
            ports: Arc::from([port]),
            endpoints,
            trigger_time: None,
            routing: SliceRouting::read((!routing.is_empty()).then_some(routing)),
        }
    }
}

fn pod_key(i: usize) -> PodKey {
    PodKey::new("default", format!("p{i}"))
}

prop_compose! {
    /// A PodLocator with random content, as any client may write it.
    fn locator()(
        i in 0..6_usize,
        owned in any::<bool>(),
        ip in prop::option::of(0..6_usize),
        node in prop::option::of(0..4_usize),
        rack in select(vec!["r1", "-"]),
    ) -> Locator {
        Locator {
            key: pod_key(i),
            owner: owned.then(|| Name::from(format!("uid-p{i}"))),
            ips: ip.map(|i| format!("10.0.0.{i}").parse().expect("a valid address")).into_iter().collect(),
            node: node.map(|i| Name::from(format!("n{i}"))),
            node_labels: labels(&[("rack", rack)]),
        }
    }
}

/// One step of a test sequence. `Converge` lets the controller write all its plans.
#[derive(Clone, Debug)]
enum Step {
    Change(Change),
    Converge,
}

fn step() -> impl Strategy<Value = Step> {
    let name = |text: String| Name::from(text);
    let change = prop_oneof![
        4 => service().prop_map(Change::put),
        1 => (0..2_usize).prop_map(|i| Change::Gone(ObjectRef::Service(service_key(i)))),
        6 => pod().prop_map(Change::put),
        1 => (0..6_usize).prop_map(|i| Change::Gone(ObjectRef::Pod(pod_key(i)))),
        2 => locator().prop_map(Change::put),
        1 => (0..6_usize).prop_map(|i| Change::Gone(ObjectRef::Locator(pod_key(i)))),
        4 => node().prop_map(Change::put),
        1 => (0..4_usize).prop_map(move |i| Change::Gone(ObjectRef::Node(name(format!("n{i}"))))),
        1 => select(vec!["", "PreferSameZone", "nonsense"]).prop_map(|value| {
            let traffic_distribution = (!value.is_empty()).then(|| Name::from(value));
            Change::put(Namespace { name: Name::from("default"), traffic_distribution })
        }),
        1 => Just(Change::Gone(ObjectRef::Namespace(Name::from("default")))),
        2 => foreign_slice().prop_map(Change::put),
        1 => (0..3_usize).prop_map(move |i| Change::Gone(ObjectRef::Slice("default".into(), name(format!("f{i}"))))),
        1 => listed(),
    ];
    prop_oneof![5 => change.prop_map(Step::Change), 2 => Just(Step::Converge)]
}

/// A list from which some objects are missing. It always contains the slices that nearhop writes.
fn listed() -> impl Strategy<Value = Change> {
    fn some(
        kind: Kind,
        most: usize,
        object: impl Fn(usize) -> ObjectRef,
    ) -> impl Strategy<Value = Change> {
        prop::collection::btree_set(0..most, 0..=most).prop_map(move |numbers| {
            Change::Listed(kind, numbers.into_iter().map(&object).collect())
        })
    }
    prop_oneof![
        some(Kind::Service, 2, |i| ObjectRef::Service(service_key(i))),
        some(Kind::Pod, 6, |i| ObjectRef::Pod(pod_key(i))),
        some(Kind::Locator, 6, |i| ObjectRef::Locator(pod_key(i))),
        some(Kind::Node, 4, |i| ObjectRef::Node(Name::from(format!("n{i}")))),
        some(Kind::Namespace, 1, |_| ObjectRef::Namespace(Name::from("default"))),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..30)
}

/// A world, the routing table of one node, and the objects as an API server stores them.
struct Cluster {
    world: World,
    table: RouteTable,
    place: Place,
    dirty: BTreeSet<ServiceKey>,
    dirty_locators: BTreeSet<PodKey>,
    services: BTreeMap<ServiceKey, Service>,
    pods: BTreeMap<PodKey, Pod>,
    nodes: BTreeMap<Name, Node>,
    namespaces: BTreeMap<Name, Namespace>,
    foreign: BTreeMap<Name, Slice>,
    states: BTreeMap<ServiceKey, HintState>,
    locators: BTreeMap<PodKey, Locator>,
}

/// The place of node n0. A deleted node keeps the place where it was last seen.
fn place_of(world: &World, last: Place) -> Place {
    world.node("n0").map_or(last, |node| Place::of(node))
}

impl Cluster {
    fn new() -> Self {
        let gates = Gates::default().with(Gate::PodLocator);
        let settings = Settings { gates, max_endpoints_per_slice: 2, ..Settings::default() };
        let world = World::new(settings);
        let place = Place { node: Some(Name::from("n0")), ..Place::default() };
        let table = RouteTable::build(&world, place.clone());
        Self {
            world,
            table,
            place,
            dirty: BTreeSet::new(),
            dirty_locators: BTreeSet::new(),
            services: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            foreign: BTreeMap::new(),
            states: BTreeMap::new(),
            locators: BTreeMap::new(),
        }
    }

    fn run(steps: Vec<Step>) -> Self {
        let mut cluster = Self::new();
        for step in steps {
            match step {
                Step::Change(change) => cluster.change(change),
                Step::Converge => cluster.converge(),
            }
        }
        cluster
    }

    fn change(&mut self, change: Change) {
        match &change {
            Change::Put(Object::Service(s)) => {
                drop(self.services.insert(s.key.clone(), (**s).clone()));
            }
            Change::Gone(ObjectRef::Service(key)) => {
                self.services.remove(key);
                self.states.remove(key);
            }
            Change::Put(Object::Pod(p)) => drop(self.pods.insert(p.key.clone(), (**p).clone())),
            Change::Gone(ObjectRef::Pod(key)) => drop(self.pods.remove(key)),
            Change::Put(Object::Node(n)) => drop(self.nodes.insert(n.name.clone(), n.clone())),
            Change::Gone(ObjectRef::Node(name)) => drop(self.nodes.remove(name)),
            Change::Put(Object::Namespace(ns)) => {
                drop(self.namespaces.insert(ns.name.clone(), ns.clone()));
            }
            Change::Gone(ObjectRef::Namespace(name)) => drop(self.namespaces.remove(name)),
            Change::Put(Object::Slice(s)) => {
                drop(self.foreign.insert(s.name.clone(), (**s).clone()));
            }
            Change::Gone(ObjectRef::Slice(_, name)) => drop(self.foreign.remove(name)),
            Change::Put(Object::Locator(l)) => {
                drop(self.locators.insert(l.key.clone(), (**l).clone()));
            }
            Change::Gone(ObjectRef::Locator(key)) => drop(self.locators.remove(key)),
            Change::Put(Object::ServiceCidr(_))
            | Change::Gone(ObjectRef::ServiceCidr(_))
            | Change::Planned(..) => {}
            Change::Listed(kind, listed) => self.keep_only(*kind, listed),
        }
        let touched = self.world.apply(change);
        self.place = place_of(&self.world, self.place.clone());
        self.record_affected(touched);
    }

    fn keep_only(&mut self, kind: Kind, listed: &BTreeSet<ObjectRef>) {
        match kind {
            Kind::Service => {
                let kept = |key: &ServiceKey| listed.contains(&ObjectRef::Service(key.clone()));
                self.services.retain(|key, _| kept(key));
                self.states.retain(|key, _| kept(key));
            }
            Kind::Pod => {
                self.pods.retain(|key, _| listed.contains(&ObjectRef::Pod(key.clone())));
            }
            Kind::Node => {
                self.nodes.retain(|name, _| listed.contains(&ObjectRef::Node(name.clone())));
            }
            Kind::Namespace => {
                let kept = |name: &Name| listed.contains(&ObjectRef::Namespace(name.clone()));
                self.namespaces.retain(|name, _| kept(name));
            }
            Kind::Locator => {
                self.locators.retain(|key, _| listed.contains(&ObjectRef::Locator(key.clone())));
            }
            Kind::ServiceCidr | Kind::Slice => {
                unreachable!("the random steps contain no lists of this kind")
            }
        }
    }

    fn record_affected(&mut self, touched: Affected) {
        self.table.refresh(&self.world, &touched);
        self.dirty.extend(touched.plan);
        self.dirty_locators.extend(touched.locators);
    }

    fn converge(&mut self) {
        while let Some(key) = self.dirty_locators.pop_first() {
            let change = match self.world.plan_locator(&key) {
                LocatorPlan::Keep => continue,
                LocatorPlan::Create(locator) | LocatorPlan::Update(locator) => Change::put(locator),
                LocatorPlan::Delete => Change::Gone(ObjectRef::Locator(key)),
            };
            self.change(change);
        }
        for _ in 0..100 {
            let Some(key) = self.dirty.pop_first() else { return };
            let Some(plan) = self.world.plan(&key, now()) else { continue };
            self.states.insert(key.clone(), plan.state.clone());
            let touched = apply_plan(&mut self.world, &key, plan);
            self.record_affected(touched);
        }
        panic!("the controller still plans writes after 100 rounds");
    }

    /// A new world with the same objects, applied in another order.
    fn rebuild(&self) -> World {
        let mut world = World::new(self.world.settings().clone());
        let keys: Vec<ServiceKey> = (0..2).map(service_key).collect();
        let ours = keys.iter().flat_map(|key| self.world.slices(key)).map(Arc::as_ref);
        let ours =
            ours.filter(|slice| slice.managed_by() == Some(&self.world.settings().controller));
        let slices: Vec<Slice> = ours.chain(self.foreign.values()).cloned().collect();
        world.apply_all(self.pods.values().rev().map(|pod| Change::put(pod.clone())));
        let locators = self.locators.values().rev().cloned();
        world.apply_all(locators.map(Change::put));
        world.apply_all(slices.into_iter().rev().map(Change::put));
        world.apply_all(self.services.values().rev().map(|s| Change::put(s.clone())));
        world.apply_all(self.nodes.values().rev().map(|node| Change::put(node.clone())));
        world.apply_all(self.namespaces.values().map(|ns| Change::put(ns.clone())));
        world.apply_all(self.states.iter().map(|(k, s)| Change::Planned(k.clone(), s.clone())));
        world
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn incremental_equals_from_scratch(steps in steps()) {
        let mut cluster = Cluster::run(steps);
        prop_assert!(cluster.world == cluster.rebuild(), "the world differs from one built from scratch");
        let scratch = RouteTable::build(&cluster.world, cluster.place.clone());
        prop_assert_eq!(&cluster.table, &scratch);
        // The controller has planned all affected objects. No object needs another write.
        cluster.converge();
        for key in (0..2).map(service_key) {
            let plan = cluster.world.plan(&key, now());
            prop_assert!(plan.is_none_or(|plan| plan.is_noop()), "the controller missed a write for {}", key);
        }
        for key in (0..6).map(pod_key) {
            let plan = cluster.world.plan_locator(&key);
            prop_assert_eq!(plan, LocatorPlan::Keep, "the controller missed a write for PodLocator {}", key);
            let (there, pod) = (cluster.world.locators().get(&key), cluster.pods.get(&key));
            prop_assert_eq!(there.is_some(), pod.is_some());
        }
    }

    #[test]
    fn a_route_has_endpoints_unless_the_intent_is_hard(steps in steps()) {
        let cluster = Cluster::run(steps);
        for (key, route) in cluster.table.iter() {
            let slices: Vec<&Slice> = cluster.world.slices(&key.port.service).map(Arc::as_ref).collect();
            let port = (&key.port.port, key.port.protocol);
            let endpoints = port_endpoints(slices.iter().copied(), key.family, port, None);
            let eligible = endpoints.iter().any(|e| e.ready || (e.serving && e.terminating));
            let hard = matches!(agreed_routing(slices.iter().copied(), key.family), Agreed::Keys(keys) if !keys.soft);
            let Some(cluster_set) = &route.decision.cluster else { continue };
            if eligible && !hard {
                prop_assert!(!cluster_set.backends.is_empty(), "{:?}", cluster_set.reason);
            }
            prop_assert!(eligible || cluster_set.backends.is_empty());
            let forwards = route.decision.internal == Verdict::Cluster;
            prop_assert!(!forwards || !cluster_set.backends.is_empty());
        }
    }

    #[test]
    fn an_unready_endpoint_does_not_change_the_choice(
        slices in prop::collection::vec(foreign_slice(), 1..4),
        mut extra in endpoint(),
        at in any::<prop::sample::Index>(),
        own_slice in any::<bool>(),
        node in node(),
    ) {
        extra.conditions.ready = Some(false);
        let before: Vec<Slice> = named(slices);
        let mut after = before.clone();
        if own_slice {
            let template = &before[at.index(before.len())];
            let slice = Slice { name: "extra".into(), endpoints: vec![extra], routing: SliceRouting::Absent, ..template.clone() };
            after.push(slice);
        } else {
            let count = after.len();
            after[at.index(count)].endpoints.push(extra);
        }
        let chosen = |slices: &[Slice]| {
            let endpoints = port_endpoints(slices, Family::Ipv4, (&"web".into(), Protocol::Tcp), Some(&node.name));
            let place = Place::of(&node);
            let decision = choose_route(RouteInput {
                policy: PortPolicy { internal: TrafficPolicy::Cluster, external: TrafficPolicy::Local, exposed: true },
                endpoints: &endpoints,
                routing: agreed_routing(slices, Family::Ipv4),
                place: &place,
                gates: HintGates { zones: true, nodes: true },
            });
            let ready = endpoints.iter().any(|e| e.ready);
            let ready_here = endpoints.iter().any(|e| e.ready && e.local);
            (decision.cluster.filter(|_| ready), decision.local.filter(|_| ready_here))
        };
        let (cluster, local) = chosen(&before);
        let (cluster_after, local_after) = chosen(&after);
        prop_assert!(cluster.is_none() || cluster == cluster_after, "{cluster:?}, {cluster_after:?}");
        prop_assert!(local.is_none() || local == local_after, "{local:?}, {local_after:?}");
    }

    #[test]
    fn applying_a_plan_leaves_nothing_to_plan(steps in steps()) {
        let mut cluster = Cluster::run(steps);
        for key in (0..2).map(service_key) {
            let Some(plan) = cluster.world.plan(&key, now()) else { continue };
            let events = plan.events.len();
            apply_plan(&mut cluster.world, &key, plan);
            let again = cluster.world.plan(&key, now()).expect("the Service still exists");
            prop_assert!(again.is_noop(), "create {:?} update {:?} delete {:?}", again.create, again.update, again.delete);
            prop_assert!(again.events.is_empty(), "{events} events, then {:?}", again.events);
        }
    }

    #[test]
    fn slices_are_small_enough_and_writes_are_minimal(
        before in prop::collection::vec((0..40_u8, any::<bool>()), 0..40),
        after in prop::collection::vec((0..40_u8, any::<bool>()), 0..40),
        max in 1..8_usize,
    ) {
        check_packing(before.into_iter().collect(), after.into_iter().collect(), max)?;
    }
}

/// Gives random slices distinct names and one Service.
fn named(slices: Vec<Slice>) -> Vec<Slice> {
    let name = |(i, slice): (usize, Slice)| Slice { name: format!("f{i}").into(), ..slice };
    slices.into_iter().enumerate().map(name).collect()
}

/// Fills slices with one set of Pods (name to ready) and plans another set. Compares the writes
/// with the minimum: slices that lost or changed an endpoint must be written; new endpoints fill
/// these slices first, then whole new slices; the remainder may change at most one slice that
/// otherwise stays the same.
fn check_packing(
    before: BTreeMap<u8, bool>,
    after: BTreeMap<u8, bool>,
    max: usize,
) -> Result<(), TestCaseError> {
    let mut world = World::new(Settings { max_endpoints_per_slice: max, ..Settings::default() });
    let key = service_key(0);
    let mut service = Service::new(key.clone());
    service.selector = Some([("app", "x")].into_iter().collect());
    service.ip_families = vec![Family::Ipv4];
    world.apply(Change::put(Node::new("n0")));
    world.apply(Change::put(service));
    let pod = |(i, ready): (&u8, &bool)| {
        let mut pod = Pod::new(PodKey::new("default", format!("p{i:02}")));
        pod.ips = [format!("10.0.0.{i}").parse().expect("a valid address")].into_iter().collect();
        pod.labels = [("app", "x")].into_iter().collect();
        pod.node = Some(Name::from("n0"));
        pod.ready = *ready;
        Change::put(pod)
    };
    world.apply_all(before.iter().map(pod));
    let plan = world.plan(&key, now()).expect("the Service exists");
    apply_plan(&mut world, &key, plan);
    let gone = before.keys().filter(|i| !after.contains_key(i));
    world.apply_all(
        gone.map(|i| Change::Gone(ObjectRef::Pod(PodKey::new("default", format!("p{i:02}"))))),
    );
    world.apply_all(after.iter().map(pod));

    let number = |e: &Endpoint| {
        e.target.as_ref().expect("the target is a Pod").name[1..]
            .parse::<u8>()
            .expect("the name ends in a number")
    };
    let (mut must, mut emptied, mut room, mut spare) = (0, 0, 0, Vec::new());
    for slice in world.slices(&key).filter(|slice| !slice.endpoints.is_empty()) {
        let kept = slice.endpoints.iter().filter(|e| after.contains_key(&number(e))).count();
        let differs =
            slice.endpoints.iter().any(|e| after.get(&number(e)) != Some(&before[&number(e)]));
        match (differs, kept) {
            (true, 0) => emptied += 1,
            (true, kept) => (must, room) = (must + 1, room + max - kept),
            (false, kept) => spare.push(max - kept),
        }
    }
    let new = after.keys().filter(|i| !before.contains_key(i)).count();
    let rest = new.saturating_sub(room);
    let remainder = rest % max;
    let fits = remainder > 0 && spare.iter().any(|spare| *spare >= remainder);
    let creates = rest / max + usize::from(remainder > 0 && !fits);
    let recycled = creates.min(emptied);

    let plan = world.plan(&key, now()).expect("the Service exists");
    let all = plan.create.iter().chain(&plan.update).chain(plan.unchanged.iter().map(Arc::as_ref));
    for slice in all {
        prop_assert!(slice.endpoints.len() <= max);
    }
    if !before.is_empty() && !after.is_empty() {
        prop_assert_eq!(plan.create.len(), creates - recycled);
        prop_assert_eq!(plan.update.len(), must + usize::from(fits) + recycled);
        prop_assert_eq!(plan.delete.len(), emptied - recycled);
    }
    Ok(())
}
