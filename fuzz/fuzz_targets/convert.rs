//! Any bytes are converted to a change or to problems, and applying the change never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_api::convert_json;
use nearhop_core::World;
use nearhop_core::route::{Place, RouteTable};

fuzz_target!(|bytes: &[u8]| {
    let (change, _problems) = convert_json(bytes);
    let mut world = World::default();
    if let Some(change) = change {
        world.apply(change);
        let _table = RouteTable::build(&world, Place::default());
    }
});
