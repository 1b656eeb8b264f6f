//! The EndpointSlices of all Services: decides which Service to sync next, and tracks the
//! controller's own writes. Pure; `control` plans, and `write` sends.

pub(crate) mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use nearhop_api::{Changed, Meta, Version};
use nearhop_core::model::{Service, Slice};
use nearhop_core::slice::TriggerTimes;
use nearhop_core::{Change, IntentDecision, Name, Object, ObjectRef, ServiceKey, SlicePlan, World};
use nearhop_runtime::client::{KnownVersions, Outdated};
use nearhop_runtime::metrics::{Metrics, WorkqueueMetrics};
use nearhop_runtime::queue::WorkQueue;
use tracing::{info, warn};

use crate::metrics::{ControllerMetrics, Operation};
use crate::mode::Mode;
use crate::throttle::{Throttle, repair_time};
use write::{Base, Step};

/// The known versions of objects of one kind, and the last changes that the feed showed.
pub(crate) type Versions = KnownVersions<ObjectRef, Name, Version, Change>;

/// UID and version.
pub(crate) fn stamp(meta: &Meta) -> (&Name, &Version) {
    (&meta.uid, &meta.version)
}

/// A write to a slice that the feed showed while the controller was writing its Service: by the
/// controller itself or by another client.
#[derive(Debug, PartialEq)]
enum ObservedWrite {
    Version(Version),
    Deleted,
}

/// A plan that is being written, without its slices.
pub(crate) struct InFlight {
    pub(crate) plan: SlicePlan,
    /// The Service at the time of the plan; it may have changed since. `None` for orphans.
    pub(crate) planned_for: Option<(Arc<Service>, IntentDecision)>,
    /// How many slices the plan changes.
    pub(crate) changed: usize,
    observed: BTreeMap<ObjectRef, ObservedWrite>,
}

impl InFlight {
    pub(crate) fn new(
        plan: SlicePlan,
        planned_for: Option<(Arc<Service>, IntentDecision)>,
        changed: usize,
    ) -> Self {
        Self { plan, planned_for, changed, observed: BTreeMap::new() }
    }

    /// Removes an observed write that the reply to an own write explains.
    fn explain(&mut self, name: &ObjectRef, write: &ObservedWrite) {
        if self.observed.get(name) == Some(write) {
            self.observed.remove(name);
        }
    }

    /// Whether another client wrote slices of the Service in the meantime.
    pub(crate) fn has_foreign_writes(&self) -> bool {
        !self.observed.is_empty()
    }
}

/// The controller's own writes for one Service.
#[derive(Default)]
struct OwnWrites {
    in_flight: Option<InFlight>,
    /// Trigger time of a plan that is not written yet.
    trigger_time: Option<Timestamp>,
    /// Whether conditions must be removed: the Service is gone or lost its label, and its status
    /// had conditions that nearhop owns.
    conditions_left: bool,
}

/// The queue of Services, and the controller's own writes.
pub(crate) struct Slices {
    pub(crate) queue: WorkQueue<ServiceKey>,
    pub(crate) metrics: ControllerMetrics,
    triggers: TriggerTimes,
    versions: Versions,
    writes: BTreeMap<ServiceKey, OwnWrites>,
    throttle: Throttle,
    /// When a change by another client was last repaired.
    repaired: BTreeMap<ServiceKey, Instant>,
}

impl Slices {
    pub(crate) fn new(workers: usize, metrics: &Metrics) -> Self {
        let workqueue = WorkqueueMetrics::new(metrics, "endpoint_slice");
        Self {
            queue: WorkQueue::new(workers).with_metrics(workqueue),
            metrics: ControllerMetrics::new(metrics),
            triggers: TriggerTimes::default(),
            versions: Versions::default(),
            writes: BTreeMap::new(),
            throttle: Throttle::default(),
            repaired: BTreeMap::new(),
        }
    }

    /// Whether the feed shows a new version of a slice.
    pub(crate) fn observe(
        &mut self,
        slice: &Slice,
        meta: &Meta,
        change: &Change,
        world: &World,
    ) -> bool {
        let name = slice.reference();
        let new = self.versions.observe(&name, stamp(meta), change);
        if new {
            let observed = || ObservedWrite::Version(meta.version.clone());
            self.note_write(slice.service(), &name, observed, world);
        }
        new
    }

    /// Whether a slice that the feed shows as deleted is deleted.
    pub(crate) fn observe_deleted(&mut self, name: &ObjectRef, meta: &Meta, world: &World) -> bool {
        let new = self.versions.observe_deleted(name, stamp(meta));
        if new {
            self.note_write(None, name, || ObservedWrite::Deleted, world);
        }
        new
    }

    /// Adds to a list the own writes that are newer. Returns the changes that are valid again.
    pub(crate) fn complete_list(
        &mut self,
        names: &mut BTreeSet<ObjectRef>,
        version: &Version,
        world: &World,
    ) -> Vec<Change> {
        let again = self.versions.complete_list(names, version);
        for (name, Outdated { version, value, .. }) in &again {
            if let Change::Put(Object::Slice(slice)) = value {
                info!(slice = %slice.name, "API server lost a write, probably by a restore");
                let observed = || ObservedWrite::Version(version.clone());
                self.note_write(slice.service(), name, observed, world);
            }
        }
        again.into_iter().map(|(_, outdated)| outdated.value).collect()
    }

    /// Records a write to a slice whose Service is being written, for its current Service and its
    /// former one. The replies show later whether it was an own write.
    fn note_write(
        &mut self,
        service: Option<ServiceKey>,
        name: &ObjectRef,
        observed: impl Fn() -> ObservedWrite,
        world: &World,
    ) {
        if self.queue.running() == 0 {
            return;
        }
        let ObjectRef::Slice(namespace, slice) = name else { return };
        let before = world.slice(namespace, slice).and_then(|slice| slice.service());
        for key in [service, before].into_iter().flatten() {
            let writes = self.writes.get_mut(&key);
            if let Some(in_flight) = writes.and_then(|writes| writes.in_flight.as_mut()) {
                in_flight.observed.insert(name.clone(), observed());
            }
        }
    }

    /// The slice with the UID and version to base a write on.
    pub(crate) fn base(&self, slice: &Arc<Slice>) -> Option<Base> {
        let (uid, version) = self.versions.get(&slice.reference())?;
        Some(Base { slice: slice.clone(), uid: uid.clone(), version: version.clone() })
    }

    /// The time of the first change that a plan handles, including changes of an earlier plan that
    /// is not written.
    pub(crate) fn take_trigger_time(
        &mut self,
        service: &Service,
        world: &World,
    ) -> Option<Timestamp> {
        let pods = world.pods(&service.key).map(|(pod, _)| pod);
        let observed = self.triggers.observe(service, pods);
        let writes = self.writes.get_mut(&service.key);
        let unwritten = writes.and_then(|writes| writes.trigger_time.take());
        [observed, unwritten].into_iter().flatten().min()
    }

    /// Records that a plan is being written.
    pub(crate) fn begin(
        &mut self,
        key: &ServiceKey,
        in_flight: InFlight,
        trigger_time: Option<Timestamp>,
    ) {
        let writes = self.writes.entry(key.clone()).or_default();
        writes.in_flight = Some(in_flight);
        writes.trigger_time = trigger_time;
    }

    pub(crate) fn is_in_flight(&self, key: &ServiceKey) -> bool {
        self.writes.get(key).is_some_and(|writes| writes.in_flight.is_some())
    }

    /// Records that the plan is no longer being written, and returns it.
    pub(crate) fn end(&mut self, key: &ServiceKey) -> Option<InFlight> {
        let in_flight = self.writes.get_mut(key)?.in_flight.take();
        self.prune(key);
        in_flight
    }

    /// Records that everything about a Service is written.
    pub(crate) fn all_written(&mut self, key: &ServiceKey) {
        if let Some(writes) = self.writes.get_mut(key) {
            writes.trigger_time = None;
            writes.conditions_left = false;
        }
        self.prune(key);
    }

    /// Forgets a Service that is gone, or that nearhop no longer manages.
    pub(crate) fn forget(&mut self, key: &ServiceKey, conditions_left: bool) {
        self.triggers.forget(key);
        self.metrics.forget(key);
        if conditions_left {
            self.writes.entry(key.clone()).or_default().conditions_left = true;
        }
        if let Some(writes) = self.writes.get_mut(key) {
            writes.trigger_time = None;
        }
        self.repaired.remove(key);
        self.prune(key);
    }

    fn prune(&mut self, key: &ServiceKey) {
        let is_empty = |writes: &OwnWrites| {
            writes.in_flight.is_none() && writes.trigger_time.is_none() && !writes.conditions_left
        };
        if self.writes.get(key).is_some_and(is_empty) {
            self.writes.remove(key);
        }
    }

    /// Whether conditions that nearhop owns must be removed from the status of such a Service.
    pub(crate) fn has_conditions_left(&self, key: &ServiceKey) -> bool {
        self.writes.get(key).is_some_and(|writes| writes.conditions_left)
    }

    /// When to repair slices that another client changed.
    pub(crate) fn repair_time(&mut self, key: &ServiceKey, now: Instant, mode: Mode) -> Instant {
        self.metrics.foreign_write();
        let at = repair_time(&mut self.repaired, key, now);
        if at > now && self.throttle.may_warn(now) {
            warn!(
                service = %key, managed_by = mode.managed_by(),
                "another client keeps changing EndpointSlices of this Service; run one controller \
                 for this managed-by label (kube-controller-manager \
                 --controllers=-endpointslice-controller), or use --mode=labelled"
            );
        }
        at
    }

    /// Handles the reply to an own write. Returns the change of the world.
    pub(crate) fn take_step(
        &mut self,
        step: Step,
        in_flight: Option<&mut InFlight>,
    ) -> Option<Change> {
        match step {
            Step::Wrote(operation, changed) => {
                self.metrics.change(operation);
                let Changed { change, meta, .. } = *changed;
                let Some(Change::Put(Object::Slice(slice))) = &change else { return None };
                let name = slice.reference();
                if let Some(in_flight) = in_flight {
                    in_flight.explain(&name, &ObservedWrite::Version(meta.version.clone()));
                }
                change.filter(|_| self.versions.record_write(&name, stamp(&meta)))
            }
            Step::Found(base, changed) => {
                let Changed { change, meta, .. } = *changed;
                let Some(Change::Put(Object::Slice(slice))) = &change else { return None };
                let new = self.versions.record_conflict(&slice.reference(), &base, stamp(&meta));
                change.filter(|_| new)
            }
            Step::Deleted(name, uid) => {
                self.metrics.change(Operation::Delete);
                if let Some(in_flight) = in_flight {
                    in_flight.explain(&name, &ObservedWrite::Deleted);
                }
                self.take_deleted(name, &uid)
            }
            Step::Vanished(name, uid) => self.take_deleted(name, &uid),
        }
    }

    fn take_deleted(&mut self, name: ObjectRef, uid: &Name) -> Option<Change> {
        let known = self.versions.record_delete(&name, uid);
        known.then_some(Change::Gone(name))
    }
}
