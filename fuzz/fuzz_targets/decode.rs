//! Any bytes are a request body: JSON, YAML and protobuf are read or refused, and what was brought
//! into the shape of a kind stays in it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nearhop_object::Schema;
use nearhop_object::builtin::schema_of;
use nearhop_object::decode::{conform, decode_protobuf, parse_json, parse_yaml};

static SERVICE: LazyLock<Schema> =
    LazyLock::new(|| schema_of("", "v1", "Service").expect("a built-in kind"));

fuzz_target!(|bytes: &[u8]| {
    let _ = (decode_protobuf(bytes), parse_yaml(bytes));
    let Ok(parsed) = parse_json(bytes) else { return };
    let mut object = parsed.value;
    if conform(SERVICE.node(), &mut object).is_ok() {
        let before = object.clone();
        assert_eq!(conform(SERVICE.node(), &mut object), Ok(Vec::new()));
        assert_eq!(object, before);
    }
});
