//! Any two JSON values are an object and a patch: each kind of patch gives a result or says why
//! not, and what it gives can be written and read again.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearhop_object::Schema;
use nearhop_object::builtin::schema_of;
use nearhop_object::patch::{json_patch, merge_patch, strategic_merge_patch};
use serde_json::Value;

static DEPLOYMENT: LazyLock<Schema> =
    LazyLock::new(|| schema_of("apps", "v1", "Deployment").expect("a built-in kind"));

fuzz_target!(|bytes: &[u8]| {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    let (Some(Ok(doc)), Some(Ok(patch))) = (values.next(), values.next()) else { return };
    let results = [
        json_patch(&doc, &patch),
        merge_patch(&doc, &patch),
        strategic_merge_patch(DEPLOYMENT.node(), &doc, &patch),
    ];
    for result in results.into_iter().flatten() {
        let text = result.to_string();
        assert_eq!(serde_json::from_str::<Value>(&text).expect("is JSON").to_string(), text);
    }
});
