//! Applies every patch that was recorded from kube-apiserver 1.36.2 to the object before it. The
//! result must equal the object after it, apart from the server's own changes (defaults, metadata).

use nearhop_object::builtin;
use nearhop_object::patch::{PatchError, json_patch, merge_patch, strategic_merge_patch};
use serde_json::Value;

/// Fields that defaulting may add.
const DEFAULTED: [&str; 13] = [
    "protocol",
    "targetPort",
    "type",
    "conditions",
    "rollingUpdate",
    "resources",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "nodePort",
    "externalTrafficPolicy",
];

/// Cases in which the server changes the object after the patch: the test only checks that the
/// patch applies.
const CHANGED_BY_THE_KIND: [&str; 7] = [
    "raw-crud#68",        // Namespace: spec.finalizers only changes through `finalize`
    "raw-delete#22",      // deletionTimestamp cannot be cleared
    "raw-errors-more#21", // Service: a new address is allocated
    "raw-errors-more#23", // Service: node ports are released
    "raw-misc#26",        // creationTimestamp cannot be set
    "raw-patch#38",       // an unknown field is dropped
    "raw-ssa#10",         // Service: sessionAffinityConfig is defaulted
];

fn apply(case: &Value) -> Result<Value, PatchError> {
    let (before, patch) = (&case["before"], &case["patch"]);
    match case["type"].as_str() {
        Some("json") => json_patch(before, patch),
        Some("merge") => merge_patch(before, patch),
        _ => {
            let api_version =
                before["apiVersion"].as_str().expect("objects have apiVersion and kind");
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let kind = before["kind"].as_str().expect("objects have apiVersion and kind");
            let schema = builtin::schema_of(group, version, kind).expect("the kind is built in");
            strategic_merge_patch(schema.node(), before, patch)
        }
    }
}

/// The part of an object to compare: a write to `status` keeps the rest, any other write keeps
/// `status`, and the server itself sets some metadata.
fn relevant(object: &Value, subresource: &Value) -> Value {
    if subresource == "status" {
        return object["status"].clone();
    }
    let mut object = object.clone();
    object.as_object_mut().expect("the value is an object").remove("status");
    let metadata = object["metadata"].as_object_mut().expect("the value is an object");
    for key in ["managedFields", "resourceVersion", "generation"] {
        metadata.remove(key);
    }
    object
}

fn differences(patched: &Value, recorded: &Value, path: &str, found: &mut Vec<String>) {
    match (patched, recorded) {
        (Value::Object(patched), Value::Object(recorded)) => {
            for (key, value) in patched.iter().filter(|(_, value)| !value.is_null()) {
                match recorded.get(key) {
                    Some(recorded) => {
                        differences(value, recorded, &format!("{path}.{key}"), found);
                    }
                    // Empty maps and lists are not written.
                    None if value.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    None => found.push(format!("{path}.{key}: only in the patched object")),
                }
            }
            for (key, value) in recorded.iter().filter(|(key, _)| !patched.contains_key(*key)) {
                if !DEFAULTED.contains(&key.as_str()) {
                    found.push(format!("{path}.{key}: {value} only in the recorded object"));
                }
            }
        }
        (Value::Array(patched), Value::Array(recorded)) if patched.len() == recorded.len() => {
            for (at, (patched, recorded)) in patched.iter().zip(recorded).enumerate() {
                differences(patched, recorded, &format!("{path}[{at}]"), found);
            }
        }
        (patched, recorded) if patched == recorded => {}
        _ => found.push(format!("{path}: {patched} instead of {recorded}")),
    }
}

#[test]
fn recorded_patches_give_the_recorded_objects() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("data/patches.json")).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let number = name.split(' ').next().unwrap();
        match (apply(case), case.get("message")) {
            (Err(error), Some(message)) => {
                assert_eq!(
                    (&error.to_string().into(), &error.code().into()),
                    (message, &case["code"])
                );
            }
            (Ok(patched), None) => {
                let Some(after) = case.get("after") else { continue };
                if CHANGED_BY_THE_KIND.contains(&number) {
                    continue;
                }
                let subresource = &case["subresource"];
                let (patched, after) =
                    (relevant(&patched, subresource), relevant(after, subresource));
                let mut found = Vec::new();
                differences(&patched, &after, "", &mut found);
                wrong.extend(found.into_iter().map(|text| format!("{name} {text}")));
            }
            (result, message) => wrong.push(format!("{name} {result:?} instead of {message:?}")),
        }
    }
    assert!(cases.len() > 150);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
