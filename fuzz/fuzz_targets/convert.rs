//! Any bytes are converted to a change or to problems, and applying, planning and routing it never
//! panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_api::convert_json;
use jiff::Timestamp;
use nearhop_core::World;
use nearhop_core::fixture::apply_plan;
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::world::PlanTime;

fuzz_target!(|bytes: &[u8]| {
    let (change, _problems) = convert_json(bytes);
    let mut world = World::default();
    if let Some(change) = change {
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
