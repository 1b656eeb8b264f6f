//! Whatever is read from `nearhop.dev/routing` is written back and read again as the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_core::routing::parse;

fuzz_target!(|text: &str| {
    if let Ok(routing) = parse(text) {
        assert_eq!(parse(&routing.to_string()).as_ref(), Ok(&routing));
        assert!(routing.same_revision(&routing));
    }
});
