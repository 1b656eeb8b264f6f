//! Strategic merge patch: each directive, each order and each error, with a test kind.

use std::sync::Arc;

use nearhop_object::patch::strategic_merge_patch;
use nearhop_object::{PatchError, Schema, Shape, Types};
use serde_json::{Value, json};

const TYPES: &str = "
struct v1.Service
  metadata 1 v1.Meta omitempty
  spec 2 v1.Spec omitempty
struct v1.Meta
  finalizers 1 []string omitempty merge
  labels 2 map[]string omitempty
struct v1.Spec
  ports 1 []v1.Port omitempty merge=port
  taints 2 []v1.Port omitempty
  args 3 []string omitempty
  selector 4 map[]string omitempty
  strategy 5 v1.Strategy omitempty retainkeys
  nested 6 map[]v1.Strategy omitempty
struct v1.Port
  port 1 int32
  name 2 string omitempty
  targetPort 3 intorstring omitempty
  env 4 []v1.Env omitempty merge=name
struct v1.Env
  name 1 string
  value 2 string omitempty
struct v1.Strategy
  type 1 string omitempty
  rollingUpdate 2 v1.Port omitempty
";

fn patched(doc: Value, patch: Value) -> Result<Value, PatchError> {
    let types = Types::parse(TYPES).expect("the types are valid");
    let root = Shape::Struct(types.find("v1.Service").expect("v1.Service is one of the types"));
    strategic_merge_patch(Schema::new(Arc::new(types), root).node(), &doc, &patch)
}

fn spec(doc: Value, patch: Value) -> Value {
    patched(json!({"spec": doc}), json!({"spec": patch})).expect("the patch applies")["spec"]
        .clone()
}

fn ports(numbers: &[i32]) -> Value {
    numbers.iter().map(|port| json!({"port": port})).collect()
}

#[test]
fn lists_are_ordered_without_a_directive() {
    for (live, patch, expected) in [
        (vec![80, 81], vec![82], vec![82, 80, 81]),
        (vec![80, 81], vec![81, 82], vec![80, 81, 82]),
        (vec![80, 81], vec![82, 81], vec![82, 80, 81]),
        (vec![80, 81], vec![82, 80], vec![82, 80, 81]),
        (vec![80, 81, 82], vec![82, 80], vec![81, 82, 80]),
        (vec![], vec![2, 1], vec![2, 1]),
        (vec![53, 80, 53], vec![81], vec![81, 53, 53, 80]),
    ] {
        let merged = spec(json!({"ports": ports(&live)}), json!({"ports": ports(&patch)}));
        assert_eq!(merged["ports"], ports(&expected), "{live:?} + {patch:?}");
    }
}

#[test]
fn set_element_order_orders_lists() {
    for (live, patch, order, expected) in [
        (vec![80, 81], vec![], vec![81, 80], vec![81, 80]),
        (vec![81, 80], vec![83], vec![81, 83, 80], vec![81, 83, 80]),
        (vec![81, 83, 80], vec![], vec![80, 81], vec![83, 80, 81]),
        (vec![80], vec![81], vec![], vec![80, 81]),
    ] {
        let mut patch = json!({"ports": ports(&patch), "$setElementOrder/ports": ports(&order)});
        assert_eq!(
            spec(json!({"ports": ports(&live)}), patch.clone())["ports"],
            ports(&expected),
            "{live:?} + {patch}"
        );
        if patch["ports"] == json!([]) {
            patch.as_object_mut().unwrap().remove("ports");
            let merged = spec(json!({"ports": ports(&live)}), patch);
            assert_eq!(merged["ports"], ports(&expected));
        }
    }
    let fresh = json!({"ports": ports(&[1, 2]), "$setElementOrder/ports": ports(&[1, 2])});
    assert_eq!(spec(json!({}), fresh)["ports"], ports(&[1, 2]));
    let nothing = json!({"$setElementOrder/ports": ports(&[1])});
    assert_eq!(spec(json!({}), nothing), json!({}));
}

#[test]
fn list_items_are_merged_recursively() {
    let live = json!({"ports": [{"port": 80, "env": [{"name": "A", "value": "1"}]}]});
    let patch = json!({"ports": [
        {"port": 80, "name": null, "env": [{"name": "B"}, {"name": "A", "value": null}]},
        {"port": 81, "name": null},
    ]});
    let expected = json!({"ports": [
        {"port": 80, "env": [{"name": "B"}, {"name": "A"}]},
        {"port": 81},
    ]});
    assert_eq!(spec(live, patch), expected);
}

#[test]
fn directives_in_lists_are_applied() {
    let live = || json!({"ports": ports(&[80, 81, 81]), "taints": ports(&[1])});
    let delete = json!({"ports": [{"$patch": "delete", "port": 81}, {"port": 82}]});
    assert_eq!(spec(live(), delete)["ports"], ports(&[82, 80]));
    let replace = json!({"ports": [{"port": 9, "env": null}, {"$patch": "replace"}]});
    assert_eq!(spec(live(), replace)["ports"], json!([{"port": 9, "env": null}]));
    let data = json!({"taints": [{"port": 2}, {"$patch": "replace"}]});
    assert_eq!(spec(live(), data)["taints"], json!([{"port": 2}, {"$patch": "replace"}]));
    let fresh = json!({"ports": [{"port": 2}, {"port": 3, "$patch": "delete"}]});
    assert_eq!(spec(json!({}), fresh)["ports"], ports(&[2]));
}

#[test]
fn directives_in_maps_are_applied() {
    let live = || json!({"selector": {"a": "b"}});
    for (patch, expected) in [
        (json!({"c": "d", "a": null}), json!({"selector": {"c": "d"}})),
        (json!({"$patch": "replace", "x": "y"}), json!({"selector": {"x": "y"}})),
        (json!({"$patch": "delete"}), json!({"selector": {}})),
        (Value::Null, json!({})),
    ] {
        assert_eq!(spec(live(), json!({"selector": patch.clone()})), expected, "{patch}");
        // A directive without a map to apply it to is dropped together with its siblings.
        if patch.get("$patch").is_some() {
            assert_eq!(spec(json!({}), json!({"selector": patch})), json!({}));
        }
    }
    let unknown = json!({"spec": {"selector": {"$patch": "frob"}}});
    assert_eq!(patched(json!({"spec": {}}), unknown.clone()).unwrap(), json!({"spec": {}}));
    assert_eq!(
        patched(json!({"spec": live()}), unknown).unwrap_err(),
        PatchError::Internal("unknown patch type: frob in map: map[$patch:frob]".into())
    );
}

#[test]
fn lists_of_scalars_are_merged() {
    let meta = |live: Value, patch: Value| {
        let result = patched(json!({"metadata": live}), json!({"metadata": patch}));
        result.unwrap()["metadata"]["finalizers"].clone()
    };
    let live = || json!({"finalizers": ["a", "b"]});
    assert_eq!(meta(live(), json!({"finalizers": ["c", "b"]})), json!(["c", "a", "b"]));
    assert_eq!(meta(live(), json!({"$deleteFromPrimitiveList/finalizers": ["a"]})), json!(["b"]));
    let both = json!({
        "$deleteFromPrimitiveList/finalizers": ["a"],
        "$setElementOrder/finalizers": ["z", "b"],
        "finalizers": ["z"],
    });
    assert_eq!(meta(live(), both), json!(["z", "b"]));
    assert_eq!(spec(json!({"args": ["x"]}), json!({"args": ["y"]})), json!({"args": ["y"]}));
}

#[test]
fn retain_keys_removes_other_keys() {
    let live = || json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"port": 1}}});
    let patch = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
    assert_eq!(spec(live(), patch), json!({"strategy": {"type": "Recreate"}}));
    for wrong in [json!({"$retainKeys": []}), json!({"$retainKeys": "type"})] {
        let mut wrong = wrong;
        wrong["type"] = "Recreate".into();
        let patch = json!({"spec": {"strategy": wrong}});
        assert_eq!(
            patched(json!({"spec": live()}), patch),
            Err(PatchError::BadRequest("invalid patch format of retainKeys".into()))
        );
    }
}

#[test]
fn errors_match_kubernetes() {
    let live = json!({"spec": {
        "ports": ports(&[80]), "taints": ports(&[1]), "nested": {"a": {"b": {}}},
    }, "metadata": {"finalizers": ["a"]}, "bogus": {"a": {}}});
    for (patch, code, text) in [
        (
            json!([]),
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (
            json!({"spec": {"ports": [{"name": "a", "targetPort": 1}]}}),
            500,
            "map: map[name:a targetPort:1] does not contain declared merge key: port",
        ),
        (
            json!({"spec": {"$setElementOrder/ports": [{"port": 80}], "ports": [{"port": 99, "name": "z"}]}}),
            500,
            "The order in patch list:\n[map[name:z port:99]]\n doesn't match $setElementOrder list:\n[map[port:80]]\n",
        ),
        (
            json!({"spec": {"$setElementOrder": []}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"spec": {"$setElementOrder/ports": 1}}),
            500,
            "expected a []interface {}, but received a int64",
        ),
        (
            json!({"spec": {"$deleteFromPrimitiveListX": []}}),
            400,
            "invalid patch format of primitive list",
        ),
        (
            json!({"spec": {"ports": [1]}}),
            500,
            "list element types are not identical: [[map[port:80]] [1]]",
        ),
        (
            json!({"metadata": {"finalizers": [[]]}}),
            500,
            "list element types are not identical: [[a] [[]]]",
        ),
        (
            json!({"spec": {"ports": [{"port": 80, "$patch": "merge"}]}}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"spec": {"nested": {"a": {"type": "x"}}}}),
            500,
            "merging an object in json but data type is not struct, instead is: map",
        ),
        (
            json!({"bogus": {"a": {}}}),
            500,
            "unable to find api field in struct Service for the json field \"bogus\"",
        ),
        (
            json!({"spec": {"$setElementOrder/selector": []}}),
            500,
            "expected slice or array type, but got: struct",
        ),
    ] {
        let error = patched(live.clone(), patch.clone()).unwrap_err();
        assert_eq!((error.code(), error.to_string().as_str()), (code, text), "{patch}");
    }
}
