//! Makes plans and applies them: the slices of one Service, stored as in an API server, and the
//! writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use nearhop_core::hint::capacity::{Capacity, MaxUnzonedShare};
use nearhop_core::hint::{HintContext, HintState};
use nearhop_core::intent::IntentDecision;
use nearhop_core::model::{Endpoint, Service, Slice};
use nearhop_core::slice::{PlanInput, PodOnNode, SlicePlan};
use nearhop_core::{Gates, Name, plan_slices};
use serde_json::{Map, Value, json};

use super::super::{Case, intent};
use super::metrics::{Metrics, Mode};
use crate::diff::Rule;
use crate::objects::{endpoint_value, labels_value, port_value};
use crate::read::CaseError;

/// The trigger time given to every plan, down to the nanosecond.
const TRIGGER: Timestamp = Timestamp::constant(1_714_979_289, 123_456_789);
/// The trigger time in RFC 3339, UTC.
const TRIGGER_TEXT: &str = "2024-05-06T07:08:09.123456789Z";

/// A stored slice.
#[derive(Clone, Debug)]
struct Stored {
    slice: Arc<Slice>,
    /// The number of its writes, from 1.
    generation: u64,
}

/// The slices of one Service, and all inputs of its plans.
#[derive(Debug)]
pub(super) struct Bench {
    /// Feature gates.
    pub gates: Gates,
    /// The cluster's zones, if the case has a topology cache.
    pub capacity: Option<Capacity>,
    controller: Name,
    max: usize,
    store: BTreeMap<Name, Stored>,
    state: HintState,
    metrics: Metrics,
    created: u64,
    last: Last,
}

/// The result of the last plan.
#[derive(Debug, Default)]
struct Last {
    actions: Vec<&'static str>,
    missing_nodes: bool,
    stamped: bool,
}

impl Bench {
    /// An empty bench with the settings of a case.
    pub(super) fn new(case: &Case<'_>) -> Result<Self, CaseError> {
        let max = case.row.get("max_endpoints_per_slice")?;
        let max_endpoints = max.count_or(100, 1_000_000)?;
        if max_endpoints == 0 {
            return Err(max.error("must be at least 1"));
        }
        Ok(Self {
            gates: Gates::default(),
            capacity: None,
            controller: case.controller()?,
            max: max_endpoints,
            store: BTreeMap::new(),
            state: HintState::default(),
            metrics: Metrics::default(),
            created: 0,
            last: Last::default(),
        })
    }

    /// A bench whose slices hold one endpoint each.
    pub(super) fn one_per_slice(case: &Case<'_>) -> Result<Self, CaseError> {
        Ok(Self { max: 1, ..Self::new(case)? })
    }

    /// Value of the managed-by label.
    pub(super) fn controller(&self) -> &Name {
        &self.controller
    }

    /// Replaces the stored slices.
    pub(super) fn put(&mut self, slices: impl IntoIterator<Item = Slice>) {
        let stored = |slice: Slice| {
            let name = slice.name.clone();
            (name, Stored { slice: Arc::new(slice), generation: 1 })
        };
        self.store = slices.into_iter().map(stored).collect();
    }

    /// The stored slices.
    pub(super) fn stored(&self) -> Vec<Slice> {
        self.slices().cloned().collect()
    }

    /// Whether a slice of that name is stored.
    pub(super) fn has(&self, name: &str) -> bool {
        self.store.contains_key(name)
    }

    /// The number of slices created since the start.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    /// Plans and writes.
    pub(super) fn reconcile(&mut self, service: &Service, pods: &[PodOnNode<'_>]) {
        let intent = intent::decide(service, &self.gates);
        let plan = self.plan(service, &intent, pods);
        // A Service that is being deleted creates no slices, but the metrics count them.
        let creates = if service.deleting {
            let alive = Service { deleting: false, ..service.clone() };
            self.plan(&alive, &intent, pods).create.len()
        } else {
            plan.create.len()
        };
        let mode = Mode::of(&intent, self.capacity.is_some());
        self.metrics.count(service, &plan, mode, creates);
        self.write(service, plan);
    }

    fn plan(
        &self,
        service: &Service,
        intent: &IntentDecision,
        pods: &[PodOnNode<'_>],
    ) -> SlicePlan {
        let existing: Vec<Arc<Slice>> =
            self.store.values().map(|stored| stored.slice.clone()).collect();
        plan_slices(PlanInput {
            service,
            intent,
            pods,
            existing: &existing,
            state: &self.state,
            hints: HintContext {
                capacity: self.capacity.as_ref(),
                max_unzoned: MaxUnzonedShare::default(),
                now: TRIGGER,
            },
            controller: &self.controller,
            max_endpoints_per_slice: self.max,
            trigger_time: Some(TRIGGER),
        })
    }

    /// Creates, updates, deletes: in this order, as the controller writes.
    fn write(&mut self, service: &Service, plan: SlicePlan) {
        let written = || plan.create.iter().chain(&plan.update);
        self.last = Last {
            actions: Vec::new(),
            missing_nodes: !plan.missing_nodes.is_empty(),
            stamped: written().all(|slice| slice.trigger_time.as_deref() == Some(TRIGGER_TEXT)),
        };
        for slice in plan.create {
            self.last.actions.push("create");
            self.created += 1;
            let name = Name::from(format!("{}-new-{:06}", service.key.name, self.created));
            let slice = Arc::new(Slice { name: name.clone(), ..slice });
            self.store.insert(name, Stored { slice, generation: 1 });
        }
        for slice in plan.update {
            self.last.actions.push("update");
            let generation = self.store.get(&slice.name).map_or(0, |stored| stored.generation);
            let stored = Stored { slice: Arc::new(slice), generation: generation + 1 };
            self.store.insert(stored.slice.name.clone(), stored);
        }
        for slice in plan.delete {
            self.last.actions.push("delete");
            self.store.remove(&slice.name);
        }
        self.state = plan.state;
    }

    fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.store.values().map(|stored| stored.slice.as_ref())
    }

    /// All endpoints, slice by slice.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.slices().flat_map(|slice| &slice.endpoints)
    }

    /// The state of the bench, by the keys that cases expect.
    pub(super) fn value(&self, key: &str) -> Option<(Rule, Value)> {
        const ANY_ORDER: Rule = Rule::Bag(&Rule::Exact);
        const PORTS: Rule = Rule::Bag(&Rule::Bag(&Rule::Sparse));
        Some(match key {
            "actions" => (ANY_ORDER, json!(self.last.actions)),
            "actions_ordered" => (Rule::Exact, json!(self.last.actions)),
            "error" => (Rule::Exact, json!(self.last.missing_nodes)),
            "slices" => (Rule::Exact, json!(self.store.len())),
            "lengths" => (ANY_ORDER, self.slices().map(|s| json!(s.endpoints.len())).collect()),
            "final_by_name" => (Rule::Subset, self.lengths_by_name()),
            "ports" => (PORTS, self.slices().map(ports_value).collect()),
            "all_ready" => (Rule::Exact, json!(self.endpoints().all(Endpoint::is_ready))),
            "slices_by_address_type" => (Rule::Sparse, self.by_address_type()),
            "address_type" => {
                (Rule::Exact, self.common(|slice| json!(slice.address_type.as_str())))
            }
            "labels" => (Rule::Exact, self.common(|slice| labels_value(&slice.labels))),
            "labels_include" => (Rule::Subset, self.common_labels()),
            "name_prefix" => (Rule::Exact, self.common(name_prefix)),
            "generation_tracked" => (Rule::Exact, self.generation()),
            "trigger_time_annotation" => (Rule::Holds, json!(self.last.stamped)),
            "metrics" => (Rule::Subset, self.metrics.totals()),
            "gauges" => (Rule::Subset, self.metrics.gauges()),
            "added_histogram" => (Rule::Subset, self.metrics.added_histogram()),
            "removed_histogram" => (Rule::Subset, self.metrics.removed_histogram()),
            _ => return None,
        })
    }

    fn lengths_by_name(&self) -> Value {
        let pair = |slice: &Slice| (slice.name.to_string(), json!(slice.endpoints.len()));
        Value::Object(self.slices().map(pair).collect())
    }

    fn by_address_type(&self) -> Value {
        let mut types: Map<String, Value> = Map::new();
        for slice in self.slices() {
            let list = types.entry(slice.address_type.as_str()).or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.extend(slice.endpoints.iter().map(endpoint_value));
            }
        }
        Value::Object(types)
    }

    /// The common value of all slices, or the list of their values.
    fn common(&self, of: impl Fn(&Slice) -> Value) -> Value {
        agreed(self.slices().map(of).collect())
    }

    fn common_labels(&self) -> Value {
        let all: Vec<&Slice> = self.slices().collect();
        let Some((first, others)) = all.split_first() else { return json!({}) };
        let everywhere = |(key, value): &(&Name, &Name)| {
            others.iter().all(|slice| slice.labels.get(key) == Some(*value))
        };
        labels_value(&first.labels.iter().filter(everywhere).map(cloned_pair).collect())
    }

    fn generation(&self) -> Value {
        agreed(self.store.values().map(|stored| json!(stored.generation)).collect())
    }
}

fn cloned_pair((key, value): (&Name, &Name)) -> (Name, Name) {
    (key.clone(), value.clone())
}

fn agreed(mut values: Vec<Value>) -> Value {
    values.dedup();
    match values.pop() {
        Some(only) if values.is_empty() => only,
        last => values.into_iter().chain(last).collect(),
    }
}

fn ports_value(slice: &Slice) -> Value {
    slice.ports.iter().map(|port| port_value(port, i64::from)).collect()
}

/// The Service's name begins the name of a created slice; the API server appends the rest.
fn name_prefix(slice: &Slice) -> Value {
    json!(slice.service().map(|service| service.name.to_string()))
}
