//! Number of writes of a rollout if slices were planned and written after every single change: it
//! uses the plans of the core, and applies each of them at once.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use nearhop_api::convert_json;
use nearhop_core::model::Slice;
use nearhop_core::world::PlanTime;
use nearhop_core::{Change, Name, Object, ObjectRef, ServiceKey, SlicePlan, World};
use nearhop_tests::cluster::version;
use nearhop_tests::http::{Open, Request};
use nearhop_tests::scene::Scene;

/// A watch of Pods.
pub(super) struct PodWatch(Open);

impl PodWatch {
    /// Opens a watch from the current version on.
    pub(super) async fn open(scene: &Scene) -> Result<Self> {
        let path = scene.cluster.core("pods");
        let list = scene.cluster.admin.get(&path).await?.ok()?.json();
        let path = format!("{path}?watch=1&resourceVersion={}", version(&list));
        Ok(Self(scene.cluster.admin.open(Request::new("GET", &path)).await?))
    }

    /// All changes of Pods since then, in order.
    pub(super) async fn changes(mut self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        while let Some(event) = self.0.event(Duration::from_millis(500)).await {
            let object = convert_json(event["object"].to_string().as_bytes()).0;
            changes.push(match (event["type"].as_str(), object) {
                (Some("DELETED"), Some(Object::Pod(pod))) => Change::Gone(ObjectRef::Pod(pod.key)),
                (Some("ADDED" | "MODIFIED"), Some(pod @ Object::Pod(_))) => Change::Put(pod),
                _ => anyhow::bail!("a watch of Pods shows {event}"),
            });
        }
        Ok(changes)
    }
}

/// Plans a Service after each change, as if each plan were written at once; returns the number of
/// writes.
pub(super) fn count_writes_one_by_one(
    mut world: World,
    service: &ServiceKey,
    changes: Vec<Change>,
) -> usize {
    let mut writes = 0;
    for change in changes {
        let touched = world.apply(change);
        if touched.plan.contains(service)
            && let Some(plan) = world.plan(service, PlanTime::at(Timestamp::now()))
        {
            writes += write(&mut world, service, plan, writes);
        }
    }
    writes
}

/// Applies a plan and returns its number of writes. `before`, the number of earlier writes, makes
/// the names of new slices unique.
fn write(world: &mut World, service: &ServiceKey, plan: SlicePlan, before: usize) -> usize {
    let named = plan.create.into_iter().enumerate().map(|(i, slice)| {
        let name = Name::from(format!("{}-simulated-{}", service.name, before + i));
        Slice { name, ..slice }
    });
    let mut changes: Vec<Change> = named.chain(plan.update).map(Change::put).collect();
    let deleted = plan.delete.iter();
    changes.extend(
        deleted.map(|s| Change::Gone(ObjectRef::Slice(s.namespace.clone(), s.name.clone()))),
    );
    let writes = changes.len();
    changes.push(Change::Planned(service.clone(), plan.state));
    world.apply_all(changes);
    writes
}
