//! Properties of field sets, updates and server-side apply, tested with random objects of a small
//! kind that has every sort of field.

use std::sync::Arc;

use nearhop_object::apply::{
    ApplyError, FieldSet, Force, ManagedFields, Writer, apply, fields_of, update,
};
use nearhop_object::{Schema, Shape, Types};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const KIND: &str = r#"
struct Thing
  metadata 1 Meta omitempty
  spec 2 Spec omitempty
  status 3 Sub omitempty
struct Meta
  name 1 string omitempty
  labels 11 map[]string omitempty
struct Spec
  text 1 string omitempty
  number 2 *int32 omitempty
  whole 3 map[]string omitempty map=atomic
  rows 4 []string omitempty
  names 5 []string omitempty list=set
  ports 6 []Port omitempty list=map:port,protocol
  sub 7 *Sub omitempty
  free 8 any omitempty
struct Port
  name 1 string omitempty
  protocol 2 string omitempty default="TCP"
  port 3 int32
struct Sub
  x 1 string omitempty
  y 2 map[]int32 omitempty
"#;

fn schema() -> Schema {
    let types = Types::parse(KIND).expect("the types are valid");
    let id = types.find("Thing").expect("Thing is one of the types");
    Schema::new(Arc::new(types), Shape::Struct(id))
}

fn writer(manager: &str) -> Writer<'_> {
    Writer {
        manager,
        api_version: "v1",
        subresource: "",
        now: Some(jiff::Timestamp::UNIX_EPOCH),
        ignore: &["status"],
    }
}

fn word() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "a.b/c", "<&>"]).prop_map(str::to_owned)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..90i64).prop_map(Value::from),
        Just(json!(1.5)),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map(word(), inner, 0..3).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn words() -> impl Strategy<Value = Value> {
    btree_map(word(), word(), 0..3).prop_map(|map| json!(map))
}

fn port() -> impl Strategy<Value = (u8, Value)> {
    (80..84u8, option::of(word()), any::<bool>()).prop_map(|(port, name, explicit)| {
        let mut item = json!({ "port": port });
        if let Some(name) = name {
            item["name"] = name.into();
        }
        if explicit {
            item["protocol"] = "TCP".into();
        }
        (port, item)
    })
}

fn sub() -> impl Strategy<Value = Value> {
    (option::of(word()), option::of(btree_map(word(), 0..3i32, 0..3))).prop_map(|(x, y)| {
        let fields = [("x", x.map(Value::from)), ("y", y.map(|y| json!(y)))];
        present(fields)
    })
}

fn present<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// A configuration that fits the kind.
fn config() -> impl Strategy<Value = Value> {
    let simple = (option::of(word()), option::of(0..3i32), option::of(words()));
    let lists = (
        option::of(vec(word(), 0..3)),
        option::of(proptest::collection::btree_set(word(), 0..3)),
        option::of(vec(port(), 0..4)),
    );
    let rest = (option::of(sub()), option::of(json_value()), option::of(words()));
    (simple, lists, rest).prop_map(|(simple, lists, rest)| {
        let ports = lists.2.map(|mut ports| {
            let mut seen = std::collections::BTreeSet::new();
            ports.retain(|(port, _)| seen.insert(*port));
            ports.into_iter().map(|(_, item)| item).collect::<Value>()
        });
        let spec = present([
            ("text", simple.0.map(Value::from)),
            ("number", simple.1.map(Value::from)),
            ("whole", simple.2),
            ("rows", lists.0.map(|rows| json!(rows))),
            ("names", lists.1.map(|names| json!(names))),
            ("ports", ports),
            ("sub", rest.0),
            ("free", rest.1),
        ]);
        let metadata = present([("name", Some("t".into())), ("labels", rest.2)]);
        json!({"apiVersion": "v1", "kind": "Thing", "metadata": metadata, "spec": spec})
    })
}

/// An object that a client created.
fn object() -> impl Strategy<Value = Value> {
    (config(), prop::sample::select(vec!["creator", "one"])).prop_map(|(mut object, by)| {
        update(schema().node(), None, &mut object, &writer(by));
        object
    })
}

fn set() -> impl Strategy<Value = FieldSet> {
    let path = vec(prop::sample::select(vec!["f:a", "f:b", "k:{\"n\":1}", "v:\"x\"", "i:3"]), 1..4);
    vec(path, 0..6).prop_map(|paths| {
        let mut out = FieldSet::default();
        for path in paths {
            let leaf = Value::Object(Map::new());
            let tree =
                path.into_iter().rev().fold(leaf, |below, step| json!({ step.to_owned(): below }));
            out.union(FieldSet::parse(tree).expect("the fields are canonical"));
        }
        out
    })
}

fn minus(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut out = a.clone();
    out.subtract(b);
    out
}

fn plus(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut out = a.clone();
    out.union(b.clone());
    out
}

fn entry<'a>(object: &'a Value, manager: &str) -> Option<&'a Value> {
    let list = object["metadata"]["managedFields"].as_array()?;
    list.iter().find(|entry| entry["manager"] == manager && entry["operation"] == "Apply")
}

proptest! {
    #[test]
    fn field_sets_round_trip(set in set()) {
        prop_assert_eq!(FieldSet::parse(set.clone().into_json()), Ok(set));
    }

    #[test]
    fn field_sets_obey_set_laws(a in set(), b in set(), c in set()) {
        prop_assert_eq!(plus(&a, &b), plus(&b, &a));
        prop_assert_eq!(&plus(&a, &a), &a);
        prop_assert_eq!(plus(&plus(&a, &b), &c), plus(&a, &plus(&b, &c)));
        prop_assert!(minus(&a, &a).is_empty());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert!(minus(&a, &b).intersection(&b).is_empty());
        prop_assert_eq!(&plus(&minus(&a, &b), &a.intersection(&b)), &a);
        prop_assert_eq!(minus(&plus(&a, &b), &b), minus(&a, &b));
        prop_assert_eq!(a.paths().len() + b.paths().len(),
            plus(&a, &b).paths().len() + a.intersection(&b).paths().len());
    }

    #[test]
    fn managed_fields_round_trip(object in object()) {
        let list = object["metadata"]["managedFields"].clone();
        let managed = ManagedFields::parse(list.clone()).expect("the list is valid");
        if !managed.is_empty() {
            prop_assert_eq!(managed.into_json(), list);
        }
    }

    #[test]
    fn an_update_without_changes_keeps_the_owners(object in object()) {
        let mut again = object.clone();
        update(schema().node(), Some(&object), &mut again, &writer("other"));
        prop_assert_eq!(again, object);
    }

    #[test]
    fn apply_is_idempotent(live in option::of(object()), config in config()) {
        let schema = schema();
        let once = apply(schema.node(), live.as_ref(), &config, &writer("one"), Force::Yes);
        let once = once.expect("the configuration matches the schema");
        // A manager that applies only empty lists owns nothing. An object without owners is handled
        // like one from before the first apply.
        prop_assume!(!once["metadata"]["managedFields"].is_null());
        let twice = apply(schema.node(), Some(&once), &config, &writer("one"), Force::No);
        prop_assert_eq!(twice, Ok(once));
    }

    #[test]
    fn a_manager_owns_all_fields_that_it_applies(live in option::of(object()), config in config()) {
        let schema = schema();
        let merged = apply(schema.node(), live.as_ref(), &config, &writer("one"), Force::Yes);
        let merged = merged.expect("the configuration matches the schema");
        let owned = entry(&merged, "one").map_or(Value::Null, |entry| entry["fieldsV1"].clone());
        let mut missing = fields_of(schema.node(), &config);
        missing.subtract(&FieldSet::parse(owned).expect("the fields are canonical"));
        let names = [".apiVersion", ".kind", ".metadata.name"];
        prop_assert!(missing.paths().iter().all(|path| names.contains(&path.as_str())), "{missing}");
    }

    #[test]
    fn managers_of_different_fields_have_no_conflict(left in words(), right in words()) {
        let schema = schema();
        let config = |labels: &Value| json!({"apiVersion": "v1", "kind": "Thing",
            "metadata": {"name": "t"}, "spec": {"sub": {"y": labels}}});
        let number = |words: &Value, prefix: &str| -> Value {
            words.as_object().expect("a map").keys()
                .map(|key| (format!("{prefix}{key}"), Value::from(1))).collect()
        };
        let (left, right) = (number(&left, "l"), number(&right, "r"));
        let one = apply(schema.node(), None, &config(&left), &writer("one"), Force::No);
        let one = one.expect("the configuration matches the schema");
        let both = apply(schema.node(), Some(&one), &config(&right), &writer("two"), Force::No);
        let both = both.expect("the fields are disjoint");
        for (manager, keys) in [("one", &left), ("two", &right)] {
            for key in keys.as_object().expect("a map").keys() {
                prop_assert_eq!(&both["spec"]["sub"]["y"][key], &json!(1));
                let fields = &entry(&both, manager).expect("the manager owns fields")["fieldsV1"];
                let step = format!("f:{key}");
                prop_assert!(fields["f:spec"]["f:sub"]["f:y"].get(step).is_some());
            }
        }
    }

    #[test]
    fn a_manager_that_applies_nothing_loses_its_entry(live in object(), config in config()) {
        let schema = schema();
        let nothing = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "t"}});
        let merged = apply(schema.node(), Some(&live), &config, &writer("two"), Force::Yes);
        let merged = merged.expect("the configuration matches the schema");
        let after = apply(schema.node(), Some(&merged), &nothing, &writer("two"), Force::No);
        let after = after.expect("the configuration matches the schema");
        prop_assert_eq!(entry(&after, "two"), None);
    }

    #[test]
    fn force_resolves_conflicts(live in object(), config in config()) {
        let schema = schema();
        let result = apply(schema.node(), Some(&live), &config, &writer("two"), Force::No);
        if let Err(error) = result {
            let ApplyError::Conflicts(conflicts) = error else { panic!("the configuration matches the schema") };
            prop_assert!(!conflicts.is_empty());
            let forced = apply(schema.node(), Some(&live), &config, &writer("two"), Force::Yes);
            let forced = forced.expect("force resolves the conflicts");
            for one in forced["metadata"]["managedFields"].as_array().into_iter().flatten() {
                if one["manager"] != "two" {
                    let fields = FieldSet::parse(one["fieldsV1"].clone()).expect("the fields are canonical");
                    for conflict in &conflicts {
                        prop_assert!(!fields.paths().contains(&conflict.path));
                    }
                }
            }
        }
    }

    #[test]
    fn any_input_is_handled_without_panic(live in json_value(), new in json_value(), owners in json_value()) {
        let any = Schema::new(Arc::new(Types::default()), Shape::Any);
        for schema in [schema(), any] {
            let mut live = json!({"metadata": {"labels": live}, "spec": live});
            live["metadata"]["managedFields"] = owners.clone();
            let mut changed = json!({"metadata": {"labels": new}, "spec": new});
            let _ = apply(schema.node(), Some(&live), &changed, &writer("one"), Force::Yes);
            update(schema.node(), Some(&live), &mut changed, &writer("one"));
            let _ = apply(schema.node(), Some(&changed), &live, &writer("kubectl"), Force::No);
        }
    }
}
