//! Any two JSON values are the schema of a custom resource and an object: the schema is checked,
//! the object pruned, defaulted and validated, and pruning it once more finds nothing to drop.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearhop_object::structural::{apply_defaults, check_schema, prune, to_schema, validate};
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    let (Some(Ok(schema)), Some(Ok(mut object))) = (values.next(), values.next()) else { return };
    let errors = check_schema(&schema, "spec");
    let shape = to_schema(&schema);
    prune(shape.node(), &mut object);
    assert!(prune(shape.node(), &mut object).is_empty(), "what was pruned is pruned");
    apply_defaults(&schema, &mut object);
    // A schema that is refused never validates an object, but must not bring the server down.
    let _ = (errors, validate(&schema, &object, None));
});
