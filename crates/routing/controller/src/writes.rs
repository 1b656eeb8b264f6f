//! A plan as a list of writes, for programs that read `--dry-run -o json`.

use nearhop_api::Version;
use nearhop_api::write::{slice_to_create, slice_to_patch};
use nearhop_core::locate::LocatorPlan;
use nearhop_core::model::Slice;
use nearhop_core::{PodKey, ServiceKey, SlicePlan, World};
use serde_json::{Value, json};

/// The writes of a Service's plan. A body is what the controller would send, except that a patch
/// has no resourceVersion: the list is not meant to be replayed.
pub(crate) fn slice_writes(world: &World, key: &ServiceKey, plan: &SlicePlan) -> Vec<Value> {
    let create = plan.create.iter().map(|slice| {
        let object = body(&slice_to_create(slice, key));
        json!({"verb": "create", "resource": "endpointslices", "service": key.to_string(),
            "namespace": slice.namespace.as_str(), "object": object})
    });
    let update = plan.update.iter().filter_map(|slice| {
        let before = world.slice(&slice.namespace, &slice.name)?;
        let mut patch = body(&slice_to_patch(before, slice, &Version::from("")));
        if let Some(metadata) = patch["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        Some(json!({"verb": "patch", "resource": "endpointslices", "service": key.to_string(),
            "namespace": slice.namespace.as_str(), "name": slice.name.as_str(), "object": patch}))
    });
    let delete = plan.delete.iter().map(|slice| delete_slice(key, slice));
    create.chain(update).chain(delete).collect()
}

/// The deletions of slices whose Service does not exist.
pub(crate) fn orphan_writes(world: &World, key: &ServiceKey) -> Vec<Value> {
    world.slices(key).map(|slice| delete_slice(key, slice)).collect()
}

/// The write of a Pod's PodLocator, if there is one.
pub(crate) fn locator_write(world: &World, key: &PodKey) -> Option<Value> {
    let verb = match world.plan_locator(key) {
        LocatorPlan::Keep => return None,
        LocatorPlan::Create(_) => "create",
        LocatorPlan::Update(_) => "update",
        LocatorPlan::Delete => "delete",
    };
    Some(json!({"verb": verb, "resource": "podlocators", "pod": key.to_string()}))
}

fn delete_slice(key: &ServiceKey, slice: &Slice) -> Value {
    json!({"verb": "delete", "resource": "endpointslices", "service": key.to_string(),
        "namespace": slice.namespace.as_str(), "name": slice.name.as_str()})
}

fn body(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("a body of our own making is JSON")
}
