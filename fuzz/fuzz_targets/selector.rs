//! A selector that parses prints and parses again as the same; matching never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_object::{FieldSelector, LabelSelector};

fuzz_target!(|text: &str| {
    if let Ok(selector) = LabelSelector::parse(text) {
        assert_eq!(LabelSelector::parse(&selector.to_string()).as_ref(), Ok(&selector));
        let _matches = selector.matches(|key| key.get(1..).map(|_| "1"));
        assert!(!selector.is_everything() || selector.matches(|_| None));
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let again = FieldSelector::parse(&selector.to_string());
        assert_eq!(again.map(|again| again.terms().len()), Ok(selector.terms().len()));
        let _matches = selector.matches(|_| Some("1"));
    }
});
