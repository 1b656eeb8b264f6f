//! Any bytes are a case file that runs or a report that says why not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_conform::{Only, run_file};

fuzz_target!(|bytes: &[u8]| {
    let _report = run_file("fuzz.json", bytes, &Only::everything());
});
