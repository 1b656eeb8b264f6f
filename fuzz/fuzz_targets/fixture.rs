//! Whatever fixture is read is printed and read again as the same, and makes a world that can be
//! planned and routed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_core::fixture::Fixture;
use nearhop_core::route::{Place, RouteTable};
use nearhop_core::world::Settings;

fuzz_target!(|text: &str| {
    let Ok(fixture) = Fixture::parse(text) else { return };
    if fixture.nodes.len() + fixture.services.len() + fixture.pods.len() > 200 {
        return;
    }
    assert_eq!(Fixture::parse(&fixture.to_string()).as_ref(), Ok(&fixture));
    let world = fixture.world(Settings::default());
    let place = world.nodes().next().map(|node| Place::of(node)).unwrap_or_default();
    let _table = RouteTable::build(&world, place);
});
