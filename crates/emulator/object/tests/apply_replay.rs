//! Replays recorded writes and compares `metadata.managedFields` with that of kube-apiserver 1.36.2
//! after each step. This crate does no defaulting and no allocation, so these come from the
//! recording.

use std::sync::Arc;

use nearhop_object::apply::{ApplyError, Force, Writer, apply, keep_times, update};
use nearhop_object::{Schema, Shape, Types, builtin};
use serde_json::Value;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Three custom resources; their fields have no protobuf numbers.
const CUSTOM: &str = r#"
struct Meta
  name 1 string omitempty
  namespace 3 string omitempty
  labels 11 map[]string omitempty
  annotations 12 map[]string omitempty
struct Widget
  metadata 0 Meta
  spec 0 WidgetSpec
  status 0 Status
struct WidgetSpec
  free 0 Free
  note 0 string
  ports 0 []Port list=map:port
  replicas 0 int64 default=1
  size 0 string
struct Free preserve
struct Port
  name 0 string
  port 0 int64
struct Status
  phase 0 string
  replicas 0 int64
struct Box
  metadata 0 Meta
  spec 0 BoxSpec
  status 0 Status
struct BoxSpec
  size 0 string
  n 0 int64 default=3
  name 0 string
  list 0 []string list=set
  m 0 []Pair list=map:k
  sub 0 Sub default={}
  i 0 intorstring
  nul 0 string
  imm 0 string
struct Pair
  k 0 string
  v 0 string
struct Sub
  d 0 bool default=true
struct Gadget
  metadata 0 Meta
  spec 0 GadgetSpec
struct GadgetSpec
  n 0 int64 default=3
  keep 0 Free
"#;

fn schema(object: &Value) -> Option<Schema> {
    let custom = Types::parse(CUSTOM).expect("the types are valid");
    if let Some(id) = custom.find(text(object, "kind")) {
        return Some(Schema::new(Arc::new(custom), Shape::Struct(id)));
    }
    let api_version = text(object, "apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    builtin::schema_of(group, version, text(object, "kind"))
}

/// The time of the newest entry, which is that of the write.
fn time_of(after: &Value) -> jiff::Timestamp {
    let entries = after["metadata"]["managedFields"].as_array().into_iter().flatten();
    let times = entries.filter_map(|entry| entry["time"].as_str()?.parse().ok());
    times.max().unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

/// Whether `whole` contains everything in `part` except nulls and empty values.
fn is_within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Null, _) => true,
        (Value::Object(part), _) if part.is_empty() => true,
        (Value::Array(part), _) if part.is_empty() => true,
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(key, value)| {
            let by_server = ["managedFields", "resourceVersion", "generation"];
            by_server.contains(&key.as_str())
                || is_within(value, whole.get(key).unwrap_or(&Value::Null))
        }),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(a, b)| is_within(a, b))
        }
        _ => part == whole,
    }
}

/// The object before the server added fields without an owner.
fn as_sent(after: &Value, difference: &Value) -> Value {
    let mut new = after.clone();
    if let Some(metadata) = new["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    for one in difference.as_array().into_iter().flatten() {
        let (parent, key) = one[0]
            .as_str()
            .and_then(|at| at.rsplit_once('/'))
            .expect("the field is a JSON pointer");
        let key = key.replace("~1", "/");
        let object = new
            .pointer_mut(parent)
            .and_then(Value::as_object_mut)
            .expect("the parent is an object");
        match one.get(1) {
            Some(value) => object.insert(key, value.clone()),
            None => object.remove(&key),
        };
    }
    new
}

fn replay(objects: &[Value], step: &Value) -> Result<(), String> {
    let object = |key: &str| step[key].as_u64().and_then(|at| objects.get(at as usize));
    let after = object("after").unwrap_or(&Value::Null);
    let ignore: Vec<&str> =
        step["ignore"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let schema = schema(object("after").unwrap_or(&step["applied"])).ok_or("no schema")?;
    let before = object("before");
    let writer = Writer {
        manager: text(step, "manager"),
        api_version: text(step, "apiVersion"),
        subresource: text(step, "subresource"),
        now: (text(step, "subresource") != "scale").then(|| time_of(after)),
        ignore: &ignore,
    };
    let mut result = if step["op"] == "apply" {
        let force = if step["force"] == true { Force::Yes } else { Force::No };
        match apply(schema.node(), before, &step["applied"], &writer, force) {
            Ok(merged) => merged,
            Err(error) => return expect_error(step, &error),
        }
    } else {
        let mut new = as_sent(after, &step["difference"]);
        update(schema.node(), before, &mut new, &writer);
        new
    };
    if step["error"].is_string() {
        return Err(format!("no error; expected {}", step["error"]));
    }
    if let Some(before) = before {
        keep_times(before, &mut result);
    }
    let (is, expected) =
        (&result["metadata"]["managedFields"], &after["metadata"]["managedFields"]);
    if is != expected {
        return Err(format!("managedFields\n   is {is}\n  not {expected}"));
    }
    if step["op"] == "apply" {
        for path in &ignore {
            result.as_object_mut().map(|object| object.remove(*path));
        }
        if !is_within(&result, after) {
            return Err(format!("merged\n   is {result}\n  not {after}"));
        }
    }
    Ok(())
}

fn expect_error(step: &Value, error: &ApplyError) -> Result<(), String> {
    if error.to_string() != text(step, "error") {
        return Err(format!("error\n   is {error}\n  not {}", text(step, "error")));
    }
    if let ApplyError::Conflicts(conflicts) = error {
        let causes: Vec<Value> = conflicts
            .iter()
            .map(|conflict| {
                serde_json::json!({"reason": "FieldManagerConflict",
                    "message": conflict.cause_message(), "field": conflict.path})
            })
            .collect();
        if step["causes"] != Value::from(causes) {
            return Err("causes".to_owned());
        }
    }
    Ok(())
}

#[test]
fn recorded_writes_give_the_recorded_owners() {
    let data: Value = serde_json::from_str(include_str!("data/apply/steps.json")).expect("JSON");
    let list = |key: &str| data[key].as_array().cloned().unwrap_or_default();
    let (objects, steps) = (list("objects"), list("steps"));
    let mut wrong = Vec::new();
    for step in &steps {
        if let Err(problem) = replay(&objects, step) {
            wrong.push(format!("{}: {problem}", text(step, "name")));
        }
    }
    let right = steps.len() - wrong.len();
    assert!(wrong.is_empty(), "{right} of {} agree\n{}", steps.len(), wrong.join("\n"));
}
