//! How each kind of change updates the world, and which objects it affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::by_name::{ByName, insert_sorted, remove_sorted};
use super::{Affected, NodeEntry, PodEntry, ServiceEntry, World};
use crate::gate::Gate;
use crate::hint::HintState;
use crate::hint::auto::crosses_threshold;
use crate::hint::capacity::measure_capacity;
use crate::intent::{Intent, IntentDecision};
use crate::key::{Name, PodKey, ServiceKey};
use crate::labels::Labels;
use crate::model::{Namespace, Node, Pod, Service, Slice};
use crate::object::{Change, Kind, Object, ObjectRef};
use crate::problem::Problem;
use crate::routing::{Routing, SliceRouting};

impl World {
    /// Applies a change and returns what it affects.
    pub fn apply(&mut self, change: Change) -> Affected {
        self.apply_all([change])
    }

    /// Applies many changes at once, such as a list, and computes the capacity only once.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> Affected {
        let mut touched = Affected::default();
        for change in changes {
            touched.merge(self.take_in(change));
        }
        if std::mem::take(&mut self.capacity_stale) {
            self.remeasure(&mut touched);
        }
        touched.reach.extend(self.node_groups.take_changed().cloned());
        touched
    }

    fn take_in(&mut self, change: Change) -> Affected {
        match change {
            Change::Put(object) => self.put(object),
            Change::Gone(object) => self.remove(&object),
            Change::Listed(kind, listed) => {
                let is_gone = |object: &ObjectRef| !listed.contains(object);
                let gone: Vec<ObjectRef> = self.objects(kind).filter(is_gone).collect();
                let mut affected = Affected::default();
                gone.iter().for_each(|object| affected.merge(self.remove(object)));
                affected
            }
            Change::Planned(key, state) => self.keep_state(&key, state),
        }
    }

    fn put(&mut self, object: Object) -> Affected {
        match object {
            Object::Node(node) => self.put_node(node),
            Object::Namespace(namespace) => self.put_namespace(namespace),
            Object::ServiceCidr(cidr) => {
                self.service_cidrs.insert(cidr.name.clone(), cidr);
                Affected::default()
            }
            Object::Service(service) => self.put_service(*service),
            Object::Pod(pod) => self.put_pod(*pod),
            Object::Slice(slice) => self.put_slice(*slice),
            Object::Locator(locator) => self.put_locator(*locator),
        }
    }

    fn remove(&mut self, object: &ObjectRef) -> Affected {
        match object {
            ObjectRef::Node(name) => self.remove_node(name),
            ObjectRef::Namespace(name) => self.remove_namespace(name),
            ObjectRef::ServiceCidr(name) => {
                self.service_cidrs.remove(name);
                Affected::default()
            }
            ObjectRef::Service(key) => self.remove_service(key),
            ObjectRef::Pod(key) => self.remove_pod(key),
            ObjectRef::Slice(namespace, name) => self.remove_slice(namespace, name),
            ObjectRef::Locator(key) => self.remove_locator(key),
        }
    }

    fn objects(&self, kind: Kind) -> Box<dyn Iterator<Item = ObjectRef> + '_> {
        match kind {
            Kind::Node => Box::new(self.nodes().map(|node| ObjectRef::Node(node.name.clone()))),
            Kind::Namespace => Box::new(self.namespaces.keys().cloned().map(ObjectRef::Namespace)),
            Kind::ServiceCidr => {
                Box::new(self.service_cidrs.keys().cloned().map(ObjectRef::ServiceCidr))
            }
            Kind::Service => Box::new(self.services.keys().cloned().map(ObjectRef::Service)),
            Kind::Pod => Box::new(self.pod_keys().cloned().map(ObjectRef::Pod)),
            Kind::Slice => {
                Box::new(self.slices.values().flat_map(ByName::iter).map(|slice| slice.reference()))
            }
            Kind::Locator => Box::new(
                self.locators.iter().map(|locator| ObjectRef::Locator(locator.key.clone())),
            ),
        }
    }

    fn note(&mut self, object: ObjectRef, problems: Vec<Problem>) {
        if problems.is_empty() {
            self.problems.remove(&object);
        } else {
            self.problems.insert(object, problems);
        }
    }

    /// Records the problems of a Service and of its topology request.
    fn note_service(&mut self, key: &ServiceKey) {
        let Some(entry) = self.services.get(key) else { return };
        let mut problems = entry.service.problems();
        problems.extend(entry.intent.problems.iter().cloned());
        self.note(ObjectRef::Service(key.clone()), problems);
    }

    fn put_service(&mut self, mut service: Service) -> Affected {
        self.interner.name(&mut service.key.namespace);
        if !self.settings.gates.on(Gate::AllowServiceExternalIPs) {
            service.external_ips.clear();
        }
        let key = service.key.clone();
        let service = Arc::new(service);
        let before = self.services.get(&key);
        if before.is_some_and(|entry| entry.service == service) {
            return Affected::default();
        }
        let selector_before = before.map(|entry| entry.service.selector.clone());
        let intent = self.decide(&service);
        let named_before = self.named_keys(&key);
        if selector_before.as_ref() == Some(&service.selector) {
            let entry = self.services.get_mut(&key).expect("it has a selector, so it is there");
            entry.service = service;
            entry.intent = intent;
        } else {
            self.file_service(service, intent, selector_before.flatten());
        }
        self.note_service(&key);
        self.note_keys(&key);
        let locators = self.touch_named(&key, &named_before);
        Affected { locators, ..touch_service(key) }
    }

    /// Groups the nodes by the hard topology keys of a Service, if it has any.
    fn note_keys(&mut self, key: &ServiceKey) {
        let entry = self.services.get(key).filter(|entry| entry.service.wants_slices());
        let keys = match entry.map(|entry| &entry.intent.intent) {
            Some(Intent::Keys(keys)) if !keys.soft => Some(keys.keys.as_slice()),
            _ => None,
        };
        let nodes = self.nodes.values().filter_map(|entry| entry.node.as_ref());
        self.node_groups.set_keys(key, keys, nodes);
    }

    /// Indexes a new Service, or a Service with a new selector.
    fn file_service(
        &mut self,
        service: Arc<Service>,
        intent: IntentDecision,
        selector_before: Option<Labels>,
    ) {
        let key = service.key.clone();
        if let Some(selector) = selector_before {
            self.selectors.remove(&key, &selector);
        }
        let mut pods = Vec::new();
        if let Some(selector) = &service.selector {
            self.selectors.insert(&key, selector);
            let in_namespace = self.pods.get(&key.namespace).into_iter().flat_map(ByName::iter);
            let selected = in_namespace.filter(|entry| selector.selects(&entry.pod.labels));
            pods.extend(selected.cloned());
        }
        let state = self.services.remove(&key).map_or_else(HintState::default, |e| e.state);
        self.services.insert(key, ServiceEntry { service, intent, pods, state });
    }

    fn remove_service(&mut self, key: &ServiceKey) -> Affected {
        let named_before = self.named_keys(key);
        let Some(entry) = self.services.remove(key) else { return Affected::default() };
        if let Some(selector) = &entry.service.selector {
            self.selectors.remove(key, selector);
        }
        self.note(ObjectRef::Service(key.clone()), Vec::new());
        self.note_keys(key);
        let locators = self.touch_named(key, &named_before);
        Affected { locators, ..touch_service(key.clone()) }
    }

    /// Stores the hint state that a plan produced. The zones may have changed during the write.
    fn keep_state(&mut self, key: &ServiceKey, mut state: HintState) -> Affected {
        state.tables().for_each(|table| self.interner.table(table));
        let mut touched = Affected::default();
        if let Some(entry) = self.services.get_mut(key) {
            entry.state = state;
            if self.crosses_threshold(&self.services[key]) {
                touched.plan.insert(key.clone());
            }
        }
        touched
    }

    /// Whether the current zones take the Auto hints of a Service over a threshold.
    fn crosses_threshold(&self, entry: &ServiceEntry) -> bool {
        let shares = || self.capacity.shares(self.settings.max_unzoned);
        entry.intent.intent == Intent::Auto
            && entry.state.iter().any(|state| crosses_threshold(&state.auto, shares()))
    }

    fn put_namespace(&mut self, namespace: Namespace) -> Affected {
        let name = namespace.name.clone();
        let before = self.namespaces.insert(name.clone(), namespace);
        let default = |ns: &Namespace| ns.traffic_distribution.clone();
        if before.as_ref().and_then(default) == self.namespaces.get(&name).and_then(default) {
            return Affected::default();
        }
        self.redecide(&name)
    }

    fn remove_namespace(&mut self, name: &Name) -> Affected {
        let gone = self.namespaces.remove(name);
        if gone.is_none_or(|namespace| namespace.traffic_distribution.is_none()) {
            return Affected::default();
        }
        self.redecide(name)
    }

    /// Recomputes the intents of a namespace after its default has changed.
    fn redecide(&mut self, namespace: &Name) -> Affected {
        let first = ServiceKey::new(namespace.clone(), "");
        let keys: Vec<ServiceKey> = (self.services.range(first..))
            .take_while(|(key, _)| key.namespace == *namespace)
            .map(|(key, _)| key.clone())
            .collect();
        let mut touched = Affected::default();
        for key in keys {
            let intent = self.decide(&self.services[&key].service);
            let named_before = self.named_keys(&key);
            let entry = self.services.get_mut(&key).expect("listed above");
            if entry.intent != intent {
                entry.intent = intent;
                self.note_service(&key);
                self.note_keys(&key);
                touched.locators.extend(self.touch_named(&key, &named_before));
                touched.plan.insert(key);
            }
        }
        touched
    }

    fn put_pod(&mut self, mut pod: Pod) -> Affected {
        self.interner.name(&mut pod.key.namespace);
        self.interner.optional_name(&mut pod.node);
        self.interner.labels(&mut pod.labels);
        self.interner.container_ports(&mut pod.ports);
        let before = self.pod_entry(&pod.key).cloned();
        if before.as_ref().is_some_and(|entry| entry.pod == pod) {
            return Affected::default();
        }
        let node = pod.node.as_ref().and_then(|name| self.node(name)).cloned();
        let now = Arc::new(PodEntry { pod, node });
        let touched_before = before.as_ref().map_or_else(BTreeSet::new, |entry| self.unfile(entry));
        let touched_now = self.file(&now);
        let locators =
            self.touch_located(before.as_deref().map(|entry| &entry.pod), Some(&now.pod));
        let relabelled_only = before.is_some_and(|before| {
            Pod { labels: now.pod.labels.clone(), ..before.pod.clone() } == now.pod
        });
        let plan = if relabelled_only {
            touched_before.symmetric_difference(&touched_now).cloned().collect()
        } else {
            touched_before.union(&touched_now).cloned().collect()
        };
        Affected { plan, locators, ..Affected::default() }
    }

    fn remove_pod(&mut self, key: &PodKey) -> Affected {
        let Some(entry) = self.pod_entry(key).cloned() else { return Affected::default() };
        let locators = self.touch_located(Some(&entry.pod), None);
        Affected { plan: self.unfile(&entry), locators, ..Affected::default() }
    }

    pub(super) fn pod_entry(&self, key: &PodKey) -> Option<&Arc<PodEntry>> {
        self.pods.get(&key.namespace)?.get(&key.name)
    }

    /// Services that select a Pod.
    fn selecting(&self, pod: &Pod) -> BTreeSet<ServiceKey> {
        let mut keys = self.selectors.candidates(pod);
        keys.retain(|key| {
            let selector = self.services.get(key).and_then(|entry| entry.service.selector.as_ref());
            selector.is_some_and(|selector| selector.selects(&pod.labels))
        });
        keys
    }

    /// Indexes a Pod by its namespace, its Node and the Services that select it.
    fn file(&mut self, entry: &Arc<PodEntry>) -> BTreeSet<ServiceKey> {
        let namespace = self.pods.entry(entry.pod.key.namespace.clone()).or_default();
        namespace.insert(entry.clone());
        if let Some(node) = &entry.pod.node {
            let pods = &mut self.nodes.entry(node.clone()).or_default().pods;
            if pods.len() == pods.capacity() {
                pods.reserve_exact(pods.len() / 4 + 1);
            }
            pods.push(entry.clone());
        }
        let services = self.selecting(&entry.pod);
        for service in &services {
            let pods = &mut self.services.get_mut(service).expect("it selects").pods;
            insert_sorted(pods, entry.clone());
        }
        services
    }

    /// Removes a Pod from all indexes.
    fn unfile(&mut self, entry: &Arc<PodEntry>) -> BTreeSet<ServiceKey> {
        let key = &entry.pod.key;
        if let Some(namespace) = self.pods.get_mut(&key.namespace) {
            namespace.remove(&key.name);
            if namespace.is_empty() {
                self.pods.remove(&key.namespace);
            }
        }
        if let Some(name) = &entry.pod.node
            && let Some(node) = self.nodes.get_mut(name)
        {
            node.pods.retain(|pod| !Arc::ptr_eq(pod, entry));
            self.drop_unused_node(name);
        }
        let services = self.selecting(&entry.pod);
        for service in &services {
            let pods = &mut self.services.get_mut(service).expect("it selects").pods;
            remove_sorted(pods, &key.name);
        }
        services
    }

    fn drop_unused_node(&mut self, name: &Name) {
        let unused = |entry: &NodeEntry| entry.node.is_none() && entry.pods.is_empty();
        if self.nodes.get(name).is_some_and(unused) {
            self.nodes.remove(name);
        }
    }

    fn put_node(&mut self, mut node: Node) -> Affected {
        self.interner.name(&mut node.name);
        self.interner.labels(&mut node.labels);
        let name = node.name.clone();
        if self.node(&name).is_some_and(|before| **before == node) {
            return Affected::default();
        }
        self.note(ObjectRef::Node(name.clone()), node.problems());
        self.set_node(name, Some(Arc::new(node)))
    }

    fn remove_node(&mut self, name: &Name) -> Affected {
        if self.node(name).is_none() {
            return Affected::default();
        }
        self.note(ObjectRef::Node(name.clone()), Vec::new());
        self.set_node(name.clone(), None)
    }

    fn set_node(&mut self, name: Name, now: Option<Arc<Node>>) -> Affected {
        let entry = self.nodes.entry(name.clone()).or_default();
        let before = std::mem::replace(&mut entry.node, now.clone());
        let rejoined = std::mem::take(&mut entry.pods);
        self.ranges.set(before.as_deref(), now.as_deref());
        self.node_groups.move_node(before.as_deref(), now.as_deref());
        let mut touched = Affected::default();
        let relocated = self.copied.node_differs(before.as_deref(), now.as_deref());
        for pod in rejoined {
            if relocated {
                touched.locators.insert(pod.pod.key.clone());
            }
            let services = self.selecting(&pod.pod);
            touched.plan.extend(services.into_iter().filter(|service| {
                let intent = self.services.get(service).map(|entry| &entry.intent.intent);
                endpoint_differs(before.as_deref(), now.as_deref(), intent)
            }));
            self.file(&Arc::new(PodEntry { pod: pod.pod.clone(), node: now.clone() }));
        }
        self.drop_unused_node(&name);
        let labels = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.labels.clone());
        if labels(&before) != labels(&now) {
            touched.nodes.insert(name);
        }
        if capacity_differs(before.as_deref(), now.as_deref()) {
            self.capacity_stale = true;
        }
        touched
    }

    /// Recomputes the capacity and marks the Services that cross a threshold because of it.
    fn remeasure(&mut self, touched: &mut Affected) {
        let capacity = measure_capacity(self.nodes().map(Arc::as_ref));
        if capacity == self.capacity {
            return;
        }
        self.capacity = capacity;
        let concerned = self.services.iter().filter(|(_, entry)| {
            matches!(entry.intent.intent, Intent::Balanced(_)) || self.crosses_threshold(entry)
        });
        touched.plan.extend(concerned.map(|(key, _)| key.clone()));
    }

    fn put_slice(&mut self, mut slice: Slice) -> Affected {
        self.share_slice(&mut slice);
        let (namespace, name) = (slice.namespace.clone(), slice.name.clone());
        if self.slice(&namespace, &name).is_some_and(|before| **before == slice) {
            return Affected::default();
        }
        let problems = slice.problems();
        let mut touched = self.remove_slice(&namespace, &name);
        self.note(ObjectRef::Slice(namespace.clone(), name), problems);
        if let Some(service) = slice.service() {
            touched.merge(self.touch_slice(&service, &slice));
            let slice = Arc::new(slice);
            self.slices.entry(namespace).or_default().insert(slice.clone());
            insert_sorted(self.service_slices.entry(service).or_default(), slice);
        }
        touched
    }

    fn share_slice(&mut self, slice: &mut Slice) {
        self.interner.name(&mut slice.namespace);
        self.interner.labels(&mut slice.labels);
        self.interner.slice_ports(&mut slice.ports);
        if let SliceRouting::Valid(routing) = &mut slice.routing
            && let Routing::Weights(table) = routing.as_ref()
        {
            let mut table = table.clone();
            self.interner.table(&mut table);
            *routing = Arc::new(Routing::Weights(table));
        }
        for endpoint in &mut slice.endpoints {
            self.interner.optional_name(&mut endpoint.node);
            self.interner.optional_name(&mut endpoint.zone);
            self.interner.hints(&mut endpoint.hints);
            if let Some(pod) = &mut endpoint.target {
                self.interner.name(&mut pod.namespace);
            }
        }
        slice.endpoints.shrink_to_fit();
    }

    fn remove_slice(&mut self, namespace: &Name, name: &Name) -> Affected {
        self.note(ObjectRef::Slice(namespace.clone(), name.clone()), Vec::new());
        let in_namespace = self.slices.get_mut(namespace);
        let Some(slice) = in_namespace.and_then(|slices| slices.remove(name)) else {
            return Affected::default();
        };
        if self.slices.get(namespace).is_some_and(ByName::is_empty) {
            self.slices.remove(namespace);
        }
        let service = slice.service().expect("only slices of a Service are filed");
        if let Some(slices) = self.service_slices.get_mut(&service) {
            remove_sorted(slices, name);
            if slices.is_empty() {
                self.service_slices.remove(&service);
            }
        }
        self.touch_slice(&service, &slice)
    }

    /// A slice affects the routes of its Service. A slice that nearhop manages also affects the
    /// plan.
    fn touch_slice(&self, service: &ServiceKey, slice: &Slice) -> Affected {
        let mut touched = Affected::default();
        touched.routes.insert(service.clone());
        if slice.managed_by() == Some(&self.settings.controller) || self.is_retired(slice) {
            touched.plan.insert(service.clone());
        }
        touched
    }

    /// Compares Nodes by their content and by the set of Pods on them; the order of Pods is
    /// ignored.
    pub(super) fn nodes_equal(&self, other: &Self) -> bool {
        let pods = |entry: &NodeEntry| -> BTreeSet<PodKey> {
            entry.pods.iter().map(|pod| pod.pod.key.clone()).collect()
        };
        self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(|((a, left), (b, right))| {
                a == b && left.node == right.node && pods(left) == pods(right)
            })
    }
}

fn touch_service(key: ServiceKey) -> Affected {
    Affected {
        plan: BTreeSet::from([key.clone()]),
        routes: BTreeSet::from([key]),
        ..Affected::default()
    }
}

/// Whether a Node's change affects the endpoints on it: its zone, its existence, or a label that
/// the topology keys of the Service name.
fn endpoint_differs(before: Option<&Node>, now: Option<&Node>, intent: Option<&Intent>) -> bool {
    if before.is_some() != now.is_some() || before.and_then(Node::zone) != now.and_then(Node::zone)
    {
        return true;
    }
    let Some(Intent::Keys(keys)) = intent else { return false };
    let label =
        |node: Option<&Node>, key: &Name| node.and_then(|node| node.labels.get(key).cloned());
    keys.keys.iter().any(|key| label(before, key) != label(now, key))
}

fn capacity_differs(before: Option<&Node>, now: Option<&Node>) -> bool {
    let counted = |node: Option<&Node>| {
        let node = node.filter(|node| node.counts_as_capacity())?;
        Some((node.zone().cloned(), node.region().cloned(), node.cpu_milli))
    };
    counted(before) != counted(now)
}
