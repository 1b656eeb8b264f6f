//! Server-side apply and ownership on any objects, owners and configurations: nothing may panic,
//! applying twice is applying once, and what is written can be read again.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use nearhop_object::apply::{Force, ManagedFields, Writer, apply, keep_times, update};
use nearhop_object::{Schema, Shape, Types, builtin};
use serde_json::Value;

static SCHEMAS: LazyLock<[Schema; 2]> = LazyLock::new(|| {
    let service = builtin::schema_of("", "v1", "Service").expect("a built-in kind");
    [service, Schema::new(Arc::new(Types::default()), Shape::Any)]
});

fuzz_target!(|data: &[u8]| {
    let Ok((live, config, owners)) = serde_json::from_slice::<(Value, Value, Value)>(data) else {
        return;
    };
    let writer = Writer {
        manager: "kubectl",
        api_version: "v1",
        subresource: "",
        now: Some(jiff::Timestamp::UNIX_EPOCH),
        ignore: &["status", "metadata.annotations"],
    };
    for schema in SCHEMAS.iter() {
        let mut object = live.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("managedFields".to_owned(), owners.clone());
        }
        update(schema.node(), None, &mut object, &writer);
        if let Some(list) = object.pointer("/metadata/managedFields") {
            let read = ManagedFields::parse(list.clone()).expect("it was written here");
            assert_eq!(read.into_json(), *list);
        }
        if let Ok(once) = apply(schema.node(), Some(&object), &config, &writer, Force::Yes) {
            let _ = apply(schema.node(), Some(&once), &config, &writer, Force::No);
            let mut back = live.clone();
            update(schema.node(), Some(&once), &mut back, &writer);
            keep_times(&once, &mut back);
        }
    }
});
