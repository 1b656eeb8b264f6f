//! The state of the cluster as nearhop knows it, and what each change affects.
//!
//! One writer applies [`Change`](crate::object::Change)s. Each returns as [`Affected`] the Services
//! to plan or route again. Affected only reduces the work: a new computation of everything gives
//! the same result. A change without a difference (a heartbeat) affects nothing.

mod across;
mod apply;
mod by_name;
mod intern;
mod locators;
mod node_groups;
mod select;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::cidr::Cidr;
use crate::gate::Gates;
use crate::hint::capacity::{Capacity, MaxUnzonedShare};
use crate::hint::{HintContext, HintState};
use crate::intent::{IntentContext, IntentDecision, decide_intent};
use crate::key::{Name, PodKey, ServiceKey};
use crate::labels::well_known;
use crate::locate::{Located, LocatorLabels, Locators, NodeRanges};
use crate::model::{Namespace, Node, Pod, Service, ServiceCidr, Slice};
use crate::object::ObjectRef;
use crate::problem::Problem;
use crate::route::reach::{Reach, judge_reach};
use crate::slice::{PlanInput, PodOnNode, SlicePlan, plan_slices};
use by_name::{ByName, Named};
use intern::Interner;
use locators::Copied;
pub(crate) use node_groups::Groups;
use node_groups::NodeGroups;
use select::Selectors;

/// The operator's settings. They do not change during the life of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `--feature-gates`.
    pub gates: Gates,
    /// `--default-traffic-distribution`.
    pub default_traffic_distribution: Option<Name>,
    /// `--max-unzoned-share`.
    pub max_unzoned: MaxUnzonedShare,
    /// Value of the managed-by label of nearhop's slices.
    pub controller: Name,
    /// Value of the managed-by label of slices that nearhop wrote when it ran in another mode.
    /// These slices are outdated, so plans delete them.
    pub retired_controller: Option<Name>,
    /// `--max-endpoints-per-slice`.
    pub max_endpoints_per_slice: usize,
    /// Which slices of a Service are used for routes and DNS answers.
    pub read_slices_of: ReadSlicesOf,
    /// Which Nodes this world contains.
    pub nodes: KnownNodes,
    /// `--locator-labels`.
    pub locator_labels: LocatorLabels,
}

/// Which slices of a Service are used for routes and DNS answers, by their managed-by label. If
/// nearhop runs beside the cluster's own EndpointSlice controller, a Service has slices of both for
/// the same Pods. Only nearhop's slices carry its topology, so the two sets must not be combined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReadSlicesOf {
    /// All slices.
    #[default]
    All,
    /// Only slices with this label: for a reader that receives only Services with such slices.
    Only(Name),
    /// For each Service, only slices with this label if it has one, else all slices: for a reader
    /// of all Services, with and without nearhop's slices. Until nearhop has written slices for a
    /// Service, the existing ones are used.
    Preferably(Name),
}

/// Which Nodes a world contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownNodes {
    /// All Nodes.
    All,
    /// Only the Node on which the proxy runs; the zones of other Nodes are unknown.
    Own,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gates: Gates::default(),
            default_traffic_distribution: None,
            max_unzoned: MaxUnzonedShare::default(),
            controller: Name::from(well_known::IN_TREE_CONTROLLER),
            retired_controller: None,
            max_endpoints_per_slice: 100,
            read_slices_of: ReadSlicesOf::All,
            nodes: KnownNodes::All,
            locator_labels: LocatorLabels::default(),
        }
    }
}

/// The objects that a change affects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affected {
    /// Services whose slices must be planned again.
    pub plan: BTreeSet<ServiceKey>,
    /// Services whose routes must be chosen again.
    pub routes: BTreeSet<ServiceKey>,
    /// Services whose hard topology keys may cut off other nodes than before: nodes came, went, or
    /// changed a label that the keys name. Their slices stay.
    pub reach: BTreeSet<ServiceKey>,
    /// Nodes whose place has changed.
    pub nodes: BTreeSet<Name>,
    /// Pods whose PodLocators must be planned again.
    pub locators: BTreeSet<PodKey>,
}

impl Affected {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
            && self.routes.is_empty()
            && self.reach.is_empty()
            && self.nodes.is_empty()
            && self.locators.is_empty()
    }

    /// Adds what another change affects.
    pub fn merge(&mut self, other: Self) {
        self.plan.extend(other.plan);
        self.routes.extend(other.routes);
        self.reach.extend(other.reach);
        self.nodes.extend(other.nodes);
        self.locators.extend(other.locators);
    }
}

/// A Pod joined with its Node, so that a plan needs no lookups.
#[derive(Clone, Debug, PartialEq)]
struct PodEntry {
    pod: Pod,
    node: Option<Arc<Node>>,
}

impl Named for PodEntry {
    fn name(&self) -> &Name {
        &self.pod.key.name
    }
}

impl Named for Slice {
    fn name(&self) -> &Name {
        &self.name
    }
}

#[derive(Clone, Debug, PartialEq)]
struct ServiceEntry {
    service: Arc<Service>,
    intent: IntentDecision,
    /// Selected Pods, sorted by name.
    pods: Vec<Arc<PodEntry>>,
    state: HintState,
}

/// A Node, or an entry for a Node that Pods refer to and that does not exist.
#[derive(Clone, Debug, Default)]
struct NodeEntry {
    node: Option<Arc<Node>>,
    /// Pods on this node. A node has about a hundred, so a linear search is sufficient.
    pods: Vec<Arc<PodEntry>>,
}

/// The state of the cluster as nearhop knows it.
#[derive(Clone, Debug, Default)]
pub struct World {
    settings: Settings,
    interner: Interner,
    namespaces: BTreeMap<Name, Namespace>,
    services: BTreeMap<ServiceKey, ServiceEntry>,
    selectors: Selectors,
    /// By namespace.
    pods: BTreeMap<Name, ByName<PodEntry>>,
    nodes: BTreeMap<Name, NodeEntry>,
    /// By namespace.
    slices: BTreeMap<Name, ByName<Slice>>,
    /// The same slices by Service, sorted by name.
    service_slices: BTreeMap<ServiceKey, Vec<Arc<Slice>>>,
    service_cidrs: BTreeMap<Name, ServiceCidr>,
    locators: Locators,
    copied: Copied,
    ranges: NodeRanges,
    node_groups: NodeGroups,
    capacity: Capacity,
    /// Whether a Node changed after the last computation of the capacity. Always false after
    /// `apply`.
    capacity_stale: bool,
    problems: BTreeMap<ObjectRef, Vec<Problem>>,
}

impl PartialEq for World {
    /// Compares the content; shared memory is ignored.
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
            && self.namespaces == other.namespaces
            && self.services == other.services
            && self.selectors == other.selectors
            && self.pods == other.pods
            && self.slices == other.slices
            && self.service_slices == other.service_slices
            && self.service_cidrs == other.service_cidrs
            && self.locators == other.locators
            && self.copied == other.copied
            && self.ranges == other.ranges
            && self.node_groups == other.node_groups
            && self.capacity == other.capacity
            && self.problems == other.problems
            && self.nodes_equal(other)
    }
}

impl World {
    /// An empty world.
    pub fn new(settings: Settings) -> Self {
        Self { copied: Copied::new(&settings), settings, ..Self::default() }
    }

    /// The operator's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All Services, sorted.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values().map(|entry| &entry.service)
    }

    /// One Service.
    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.services.get(key).map(|entry| &entry.service)
    }

    /// What a Service requests.
    pub fn intent(&self, key: &ServiceKey) -> Option<&IntentDecision> {
        self.services.get(key).map(|entry| &entry.intent)
    }

    /// All Nodes, sorted.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().filter_map(|entry| entry.node.as_ref())
    }

    /// One Node.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name).and_then(|entry| entry.node.as_ref())
    }

    /// Whether a Namespace exists.
    pub(crate) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    /// All ServiceCIDRs, sorted by name.
    pub fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.values()
    }

    /// PodLocators, by name and by address.
    pub fn locators(&self) -> &Locators {
        &self.locators
    }

    /// The place of the Pod or Node with this address: by its PodLocator, else by the node whose
    /// Pod CIDR contains the address, else by the node with this address.
    ///
    /// If the locator's node is known, the labels of the Node object are used. A locator has only
    /// the labels that Services named when it was written; a Service may name another label later.
    pub fn locate(&self, address: IpAddr) -> Located {
        let by_locator = self.locators.find(address).map(|located| {
            let node = located.place.as_ref().and_then(|place| place.node.as_ref());
            let known = node.and_then(|node| self.ranges.place_of(node)).cloned();
            Located { place: known.or(located.place), ..located }
        });
        by_locator
            .or_else(|| self.ranges.find_range(address, u8::MAX))
            .or_else(|| self.ranges.find_address(address))
            .or_else(|| self.locators.find_placeless(address))
            .unwrap_or_else(Located::unknown)
    }

    /// The place of the Pods in a subnet, if all of them belong to one node.
    pub fn locate_subnet(&self, subnet: Cidr) -> Located {
        let found = self.ranges.find_range(subnet.first(), subnet.prefix());
        found.unwrap_or_else(Located::unknown)
    }

    /// The slices of a Service, sorted by name.
    pub fn slices<'w>(
        &'w self,
        service: &ServiceKey,
    ) -> impl Iterator<Item = &'w Arc<Slice>> + use<'w> {
        self.service_slices.get(service).into_iter().flatten()
    }

    /// The slices of a Service that routes are chosen from.
    pub fn routed_slices<'w>(
        &'w self,
        service: &ServiceKey,
    ) -> impl Iterator<Item = &'w Slice> + use<'w> {
        self.routed_slices_shared(service).map(Arc::as_ref)
    }

    /// The same, as shared pointers.
    pub(crate) fn routed_slices_shared<'w>(
        &'w self,
        service: &ServiceKey,
    ) -> impl Iterator<Item = &'w Arc<Slice>> + use<'w> {
        let whose = match &self.settings.read_slices_of {
            ReadSlicesOf::All => None,
            ReadSlicesOf::Only(name) => Some(name),
            ReadSlicesOf::Preferably(name) => {
                let has = self.slices(service).any(|slice| slice.managed_by() == Some(name));
                has.then_some(name)
            }
        };
        let read = move |slice: &&Arc<Slice>| whose.is_none() || slice.managed_by() == whose;
        self.slices(service).filter(read)
    }

    /// The controllers that manage slices of a Service, and whether these slices are routed; sorted
    /// by managed-by label.
    pub fn slice_keepers(&self, service: &ServiceKey) -> Vec<SliceKeeper> {
        let mut counts: BTreeMap<Option<Name>, usize> = BTreeMap::new();
        for slice in self.slices(service) {
            *counts.entry(slice.managed_by().cloned()).or_default() += 1;
        }
        let routed: BTreeSet<_> = self.routed_slices(service).map(Slice::managed_by).collect();
        let keeper = |(managed_by, slices): (Option<Name>, usize)| {
            let routed = routed.contains(&managed_by.as_ref());
            SliceKeeper { managed_by, slices, routed }
        };
        counts.into_iter().map(keeper).collect()
    }

    /// One slice that belongs to a Service, by the name of the slice.
    pub fn slice(&self, namespace: &Name, name: &Name) -> Option<&Arc<Slice>> {
        self.slices.get(namespace)?.get(name)
    }

    /// The Pods a Service selects, sorted by name, each with its Node.
    pub fn pods(&self, service: &ServiceKey) -> impl Iterator<Item = PodOnNode<'_>> {
        let entries = self.services.get(service).into_iter().flat_map(|entry| &entry.pods);
        entries.map(|entry| (&entry.pod, entry.node.as_deref()))
    }

    /// Expected demand by zone.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// The problems of objects: first those of each object alone, then those between objects.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self.problems.values().flatten().cloned().collect();
        if self.settings.nodes == KnownNodes::All {
            problems.extend(across::find_problems(self));
        }
        problems
    }

    /// The problems of one object alone.
    pub fn problems_of(&self, object: &ObjectRef) -> &[Problem] {
        self.problems.get(object).map_or(&[], Vec::as_slice)
    }

    /// Services that have slices but do not exist (any more).
    pub fn orphans(&self) -> impl Iterator<Item = &ServiceKey> {
        self.service_slices.keys().filter(|key| !self.services.contains_key(key))
    }

    /// Plans the slices of one Service.
    pub fn plan(&self, key: &ServiceKey, now: PlanTime) -> Option<SlicePlan> {
        let entry = self.services.get(key)?;
        let pods: Vec<PodOnNode<'_>> =
            entry.pods.iter().map(|entry| (&entry.pod, entry.node.as_deref())).collect();
        let managed = |slice: &&Arc<Slice>| slice.managed_by() == Some(&self.settings.controller);
        let existing: Vec<Arc<Slice>> =
            self.slices(&entry.service.key).filter(managed).cloned().collect();
        let mut plan = plan_slices(PlanInput {
            service: &entry.service,
            intent: &entry.intent,
            pods: &pods,
            existing: &existing,
            state: &entry.state,
            hints: HintContext {
                capacity: Some(&self.capacity),
                max_unzoned: self.settings.max_unzoned,
                now: now.now,
            },
            controller: &self.settings.controller,
            max_endpoints_per_slice: self.settings.max_endpoints_per_slice,
            trigger_time: now.trigger_time,
        });
        // The controller deletes last: until then clients use the endpoints of the old slices.
        let retired = |slice: &&Arc<Slice>| !slice.deleting && self.is_retired(slice);
        plan.delete.extend(self.slices(&entry.service.key).filter(retired).cloned());
        Some(plan)
    }

    /// Which nodes the hard topology keys of a Service cut off, by the slices that nearhop manages.
    /// `None` if it has no hard keys, no slices by nearhop, or no port that follows the keys.
    pub fn reach(&self, key: &ServiceKey) -> Option<Reach> {
        let entry = self.services.get(key)?;
        let (keys, groups) = self.node_groups.of(key)?;
        let slices: Vec<&Slice> =
            self.routed_slices(key).filter(|slice| !self.is_retired(slice)).collect();
        judge_reach(&entry.service, &slices, keys, groups)
    }

    /// Whether nearhop managed this slice when it ran in another mode.
    fn is_retired(&self, slice: &Slice) -> bool {
        let retired = self.settings.retired_controller.as_ref();
        retired.is_some() && slice.managed_by() == retired
    }

    fn decide(&self, service: &Service) -> IntentDecision {
        decide_intent(
            service,
            IntentContext {
                gates: &self.settings.gates,
                namespace: self.namespaces.get(&service.key.namespace),
                cluster_default: self.settings.default_traffic_distribution.as_ref(),
            },
        )
    }
}

/// A controller that manages slices of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceKeeper {
    /// Value of the managed-by label, if the slices have one.
    pub managed_by: Option<Name>,
    /// Number of slices.
    pub slices: usize,
    /// Whether routes and DNS answers use them.
    pub routed: bool,
}

/// The time of a plan, which is not part of a world.
#[derive(Clone, Copy, Debug)]
pub struct PlanTime {
    /// The current time.
    pub now: Timestamp,
    /// Time of the change that caused the plan.
    pub trigger_time: Option<Timestamp>,
}

impl PlanTime {
    /// A time, without a change that caused the plan.
    pub fn at(now: Timestamp) -> Self {
        Self { now, trigger_time: None }
    }
}
