//! A cluster that changes, the routes of one of its nodes, and an engine that synchronizes a table.
//! Also the comparison with a table written from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use nearhop_core::fixture::{Fixture, apply_plan};
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Affected, Change, Family, Kind, Name, ObjectRef, PodKey, ServiceKey, World};
use nearhop_netfilter::affinity::port_of;
use nearhop_netfilter::config::Config;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{Bytes, Data};
use nearhop_netfilter::reconcile::{KernelChain, KernelState};
use nearhop_proxy::engine::{Engine, Scope, Synced, Tables};

use crate::on::FakeTables;

/// The node whose routes are used.
pub(crate) const NODE: &str = "n1";

pub(crate) fn parse(text: &str) -> Fixture {
    Fixture::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn v4() -> Config {
    Config::new(Family::Ipv4)
}

pub(crate) fn service(name: &str) -> ServiceKey {
    ServiceKey::new("default", name)
}

/// What a sync covers.
pub(crate) enum Todo {
    Some(BTreeSet<ServiceKey>),
    All,
}

impl Todo {
    pub(crate) fn scope(&self) -> Scope<'_> {
        match self {
            Self::Some(services) => Scope::Some(services),
            Self::All => Scope::All,
        }
    }
}

/// A cluster state and the routes of one node.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) routes: RouteTable,
}

impl Cluster {
    pub(crate) fn new(text: &str) -> Self {
        let mut cluster = Self::empty();
        cluster.turn_into(text);
        cluster
    }

    pub(crate) fn empty() -> Self {
        let world = World::new(Settings::default());
        let place = Place { node: Some(Name::from(NODE)), ..Place::default() };
        Self { routes: RouteTable::build(&world, place), world }
    }

    /// Applies changes, as controller and proxy do, and returns what to sync.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) -> Todo {
        let mut touched = self.world.apply_all(changes);
        self.plan(&mut touched);
        let place = self.routes.place().clone();
        self.routes.refresh(&self.world, &touched);
        if *self.routes.place() == place { Todo::Some(touched.routes) } else { Todo::All }
    }

    fn plan(&mut self, touched: &mut Affected) {
        for service in touched.plan.clone() {
            if let Some(plan) = self.world.plan(&service, PlanTime::at(jiff::Timestamp::UNIX_EPOCH))
            {
                touched.merge(apply_plan(&mut self.world, &service, plan));
            }
        }
    }

    /// Changes the cluster to the one in a text: objects that the text does not have are deleted.
    pub(crate) fn turn_into(&mut self, text: &str) -> Todo {
        let fixture = parse(text);
        let mut changes = fixture.changes();
        let mut objects = BTreeSet::new();
        for change in &changes {
            if let Change::Put(object) = change {
                objects.insert(object.reference());
            }
        }
        for kind in [Kind::Service, Kind::Pod, Kind::Node] {
            changes.push(Change::Listed(kind, objects.clone()));
        }
        self.apply(changes)
    }
}

/// A cluster and the engine of one node.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) cluster: Cluster,
    pub(crate) engine: Engine,
}

impl Follower {
    /// Creates it; nothing is written yet.
    pub(crate) fn new(text: &str, config: Config) -> Self {
        Self { cluster: Cluster::new(text), engine: Engine::new(config) }
    }

    /// Creates it and runs the first pass.
    pub(crate) fn start(tables: &mut impl Tables, text: &str) -> Self {
        let mut follower = Self::new(text, v4());
        follower.sync_all(tables);
        follower
    }

    pub(crate) fn routes(&self) -> &RouteTable {
        &self.cluster.routes
    }

    pub(crate) fn sync_all(&mut self, tables: &mut impl Tables) -> Synced {
        self.engine.sync(tables, &self.cluster.routes, Scope::All).unwrap()
    }

    /// Applies changes and syncs.
    pub(crate) fn follow(&mut self, tables: &mut impl Tables, changes: Vec<Change>) -> Synced {
        let todo = self.cluster.apply(changes);
        self.engine.sync(tables, &self.cluster.routes, todo.scope()).unwrap()
    }

    /// Changes the cluster to the one in a text and syncs.
    pub(crate) fn turn_into(&mut self, tables: &mut impl Tables, text: &str) -> Synced {
        let todo = self.cluster.turn_into(text);
        self.engine.sync(tables, &self.cluster.routes, todo.scope()).unwrap()
    }

    pub(crate) fn pod_gone(&mut self, tables: &mut impl Tables, pod: &str) -> Synced {
        self.follow(tables, vec![Change::Gone(ObjectRef::Pod(PodKey::new("default", pod)))])
    }

    pub(crate) fn full(&mut self, tables: &mut impl Tables) -> Synced {
        self.engine.full(tables, &self.cluster.routes).unwrap()
    }

    /// Asserts that the kernel holds the same as a table written from scratch; unused chains may
    /// remain.
    pub(crate) fn check(&self, tables: &mut impl Tables) {
        self.compare(tables, Leftovers::Allowed);
    }

    /// The same, without unused chains.
    pub(crate) fn check_exactly(&self, tables: &mut impl Tables) {
        self.compare(tables, Leftovers::None);
    }

    fn compare(&self, tables: &mut impl Tables, leftovers: Leftovers) {
        let config = self.engine.config();
        let fresh = from_scratch(&self.cluster.routes, config);
        let held = tables.read(&config.table).unwrap().expect("the table exists");
        let mut content = Content::of(&held);
        if leftovers == Leftovers::Allowed {
            content.chains.retain(|name, _| fresh.chains.contains_key(name));
            content.sets.retain(|name| port_of(name).is_none() || fresh.sets.contains(name));
        }
        assert_same(&content, &fresh);
        assert!(!held.outdated);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leftovers {
    Allowed,
    None,
}

/// The content of a table written from scratch for these routes.
pub(crate) fn from_scratch(routes: &RouteTable, config: &Config) -> Content {
    let mut tables = FakeTables::default();
    Engine::new(config.clone()).full(&mut tables, routes).unwrap();
    Content::of(&tables.read(&config.table).unwrap().unwrap())
}

/// The content of a table, independent of the order of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) sets: BTreeSet<Name>,
    pub(crate) chains: BTreeMap<Name, KernelChain>,
    pub(crate) elements: BTreeMap<(SetId, Bytes), (Option<Bytes>, Data)>,
    /// By frontend, sorted.
    pub(crate) slots: BTreeMap<(SetId, Bytes), Vec<Data>>,
}

impl Content {
    pub(crate) fn of(held: &KernelState) -> Self {
        let mut content = Self {
            sets: held.sets.clone(),
            chains: held.chains.clone(),
            elements: BTreeMap::new(),
            slots: BTreeMap::new(),
        };
        let mut slots: BTreeMap<(SetId, Bytes), BTreeMap<u32, Data>> = BTreeMap::new();
        for (set, element) in &held.elements {
            if !is_slots(*set) {
                let end = element.end.as_deref().copied();
                content.elements.insert((*set, element.key), (end, element.data.clone()));
                continue;
            }
            let (key, slot) = element.key.as_slice().split_last_chunk::<4>().unwrap();
            let frontend = (*set, Bytes::from_slice(key).unwrap());
            let slot = u32::from_ne_bytes(*slot);
            slots.entry(frontend).or_default().insert(slot, element.data.clone());
        }
        for (frontend, slots) in slots {
            let count = slots.len() as u32;
            assert!(slots.keys().copied().eq(0..count), "slots of {frontend:?} have holes");
            let mut data: Vec<Data> = slots.into_values().collect();
            data.sort();
            content.slots.insert(frontend, data);
        }
        content
    }

    /// The elements of a set.
    pub(crate) fn set(&self, set: SetId) -> Vec<Bytes> {
        self.elements.keys().filter(|(of, _)| *of == set).map(|(_, key)| *key).collect()
    }
}

/// Asserts equality and prints only the differences, because tables are long.
#[track_caller]
pub(crate) fn assert_same(is: &Content, wanted: &Content) {
    if is == wanted {
        return;
    }
    let mut differences = Vec::new();
    differ("set", &set_names(is), &set_names(wanted), &mut differences);
    differ("chain", &is.chains, &wanted.chains, &mut differences);
    differ("element", &is.elements, &wanted.elements, &mut differences);
    differ("slots", &is.slots, &wanted.slots, &mut differences);
    panic!("the table differs from one written from scratch:\n{}", differences.join("\n"));
}

fn set_names(content: &Content) -> BTreeMap<&Name, ()> {
    content.sets.iter().map(|name| (name, ())).collect()
}

fn differ<K: Ord + Debug, V: PartialEq + Debug>(
    what: &str,
    is: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
    differences: &mut Vec<String>,
) {
    for key in is.keys().chain(wanted.keys()).collect::<BTreeSet<_>>() {
        let (is, wanted) = (is.get(key), wanted.get(key));
        if is != wanted {
            differences.push(format!("{what} {key:?}: is {is:?}, should be {wanted:?}"));
        }
    }
}

fn is_slots(set: SetId) -> bool {
    matches!(
        set,
        SetId::Endpoints
            | SetId::EndpointsLocal
            | SetId::NodeportEndpoints
            | SetId::NodeportEndpointsLocal
    )
}

/// The current content of a table.
pub(crate) fn content(tables: &mut impl Tables, config: &Config) -> Content {
    Content::of(&tables.read(&config.table).unwrap().expect("the table exists"))
}
