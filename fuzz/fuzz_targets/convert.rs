//! Any bytes are converted to a change or to problems, and applying, planning, routing and writing
//! it never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use jiff::Timestamp;
use nearhop_api::write::{slice_to_create, slice_to_patch};
use nearhop_api::{Version, convert_json};
use nearhop_core::{Change, ServiceKey, World};
use nearhop_core::fixture::apply_plan;
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::world::PlanTime;

fuzz_target!(|bytes: &[u8]| {
    let (change, _problems) = convert_json(bytes);
    let mut world = World::default();
    if let Some(change) = change {
        if let Change::Slice(slice) = &change {
            let service = slice.service().unwrap_or_else(|| ServiceKey::new("ns", "s"));
            let _body = slice_to_create(slice, &service);
            let _patch = slice_to_patch(slice, slice, &Version::from("1"));
        }
        for key in world.apply(change).plan {
            let now = PlanTime::at(Timestamp::UNIX_EPOCH);
            if let Some(plan) = world.plan(&key, now) {
                apply_plan(&mut world, &key, plan);
            }
        }
        let _problems = world.problems();
        let _table = RouteTable::build(&world, Place::default());
    }
});
