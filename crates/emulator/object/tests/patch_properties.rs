//! Properties of patches and selectors that hold for any input.

use std::sync::{Arc, LazyLock};

use nearhop_object::patch::{json_patch, merge_patch, strategic_merge_patch};
use nearhop_object::selector::{FieldSelector, LabelSelector};
use nearhop_object::{Schema, Shape, Types};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A kind with one field for each way to merge.
static KIND: LazyLock<Schema> = LazyLock::new(|| {
    let types = Types::parse(
        "struct T\n  a 1 []U omitempty merge=k retainkeys\n  b 2 []string omitempty merge\n  c 3 \
         []U omitempty\n  d 4 *T omitempty\n  e 5 map[]string omitempty\n  f 6 string omitempty\n  \
         g 7 any omitempty\nstruct U\n  k 1 string\n  a 2 []U omitempty merge=k\n  b 3 []string \
         omitempty merge\n  f 4 string omitempty\n",
    )
    .expect("the types are valid");
    let root = Shape::Struct(types.find("T").expect("T is one of the types"));
    Schema::new(Arc::new(types), root)
});

fn strategic(doc: &Value, patch: &Value) -> Result<Value, nearhop_object::PatchError> {
    strategic_merge_patch(KIND.node(), doc, patch)
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..4i64).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
        prop_oneof![Just("delete"), Just("replace"), Just("merge"), Just("frob")]
            .prop_map(Value::from),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "[a-gk]",
        1 => Just("$patch".to_owned()),
        1 => Just("$retainKeys".to_owned()),
        1 => "[$]setElementOrder/[a-g]",
        1 => "[$]deleteFromPrimitiveList/[a-g]",
    ]
}

/// Any value, with field names of `KIND`.
fn any_value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Array),
            btree_map(name(), inner, 0..5).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A value for JSON merge patch: no `null` inside arrays, where the server differs from the RFC.
fn mergeable() -> impl Strategy<Value = Value> {
    let list = vec((0..4i64).prop_map(Value::from), 0..3).prop_map(Value::Array);
    prop_oneof![scalar(), list].prop_recursive(4, 30, 4, |inner| {
        btree_map("[a-d]", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
    })
}

/// The algorithm of RFC 7386, section 2.
fn rfc7386(target: Option<Value>, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut target = match target {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    for (name, value) in patch {
        let old = target.remove(name);
        if !value.is_null() {
            target.insert(name.clone(), rfc7386(old, value));
        }
    }
    Value::Object(target)
}

/// An object of `KIND` without directives and `null`, lists without duplicates.
fn well_formed() -> impl Strategy<Value = Value> {
    let words = proptest::sample::subsequence(vec!["p", "q", "r", "s"], 0..=4).prop_shuffle();
    let item = (words.clone(), "[a-c]?").prop_map(|(b, f)| json!({"b": b, "f": f}));
    let items = (words.clone(), vec(item, 4)).prop_map(|(keys, items)| {
        let with_key = |(key, mut item): (&str, Value)| {
            item["k"] = key.into();
            item
        };
        Value::Array(keys.into_iter().zip(items).map(with_key).collect())
    });
    let member = prop_oneof![
        items.clone().prop_map(|v| ("a", v)),
        words.prop_map(|v| ("b", json!(v))),
        items.prop_map(|v| ("c", v)),
        btree_map("[a-c]", "[a-c]?", 0..3).prop_map(|v| ("e", json!(v))),
        "[a-c]?".prop_map(|v| ("f", v.into())),
    ];
    let level = vec(member, 0..4).prop_map(|members| {
        Value::Object(members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    });
    level.clone().prop_recursive(3, 12, 1, move |inner| {
        (level.clone(), inner).prop_map(|(mut outer, inner)| {
            outer["d"] = inner;
            outer
        })
    })
}

fn operation() -> impl Strategy<Value = Value> {
    let op = prop_oneof![
        Just("add"),
        Just("remove"),
        Just("replace"),
        Just("move"),
        Just("copy"),
        Just("test"),
    ];
    let path = || "(/([a-d]|-?[0-3]|-|~0|~1)){0,4}";
    (op, path(), path(), any_value()).prop_map(
        |(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn merge_patch_matches_rfc_7386(doc in mergeable(), patch in mergeable()) {
        let (doc, patch) = (json!({"a": doc}), json!({"a": patch}));
        prop_assert_eq!(merge_patch(&doc, &patch).unwrap(), rfc7386(Some(doc), &patch));
    }

    #[test]
    fn merge_patch_is_idempotent(doc in any_value(), patch in any_value()) {
        if let Ok(once) = merge_patch(&doc, &patch) {
            prop_assert_eq!(merge_patch(&once, &patch).unwrap(), once);
        }
    }

    #[test]
    fn an_empty_strategic_patch_changes_nothing(doc in any_value()) {
        let doc = json!({"d": doc});
        prop_assert_eq!(strategic(&doc, &json!({})).unwrap(), doc);
    }

    #[test]
    fn strategic_patch_with_itself_changes_nothing(doc in well_formed()) {
        prop_assert_eq!(strategic(&doc, &doc).unwrap(), doc);
    }

    #[test]
    fn strategic_patch_is_idempotent(doc in well_formed(), patch in well_formed()) {
        let once = strategic(&doc, &patch).unwrap();
        prop_assert_eq!(strategic(&once, &patch).unwrap(), once);
    }

    #[test]
    fn strategic_patch_keeps_and_adds_every_item(doc in well_formed(), patch in well_formed()) {
        let once = strategic(&doc, &patch).unwrap();
        let keys = |v: &Value| -> std::collections::BTreeSet<String> {
            v["a"].as_array().into_iter().flatten().map(|i| i["k"].to_string()).collect()
        };
        prop_assert_eq!(keys(&once), keys(&doc).union(&keys(&patch)).cloned().collect());
    }

    #[test]
    fn strategic_patch_never_panics(doc in any_value(), patch in any_value()) {
        let _ = strategic(&doc, &patch);
    }

    #[test]
    fn json_patch_never_panics(doc in any_value(), patch in vec(operation(), 0..6), other in any_value()) {
        let _ = json_patch(&doc, &Value::Array(patch));
        let _ = json_patch(&doc, &other);
    }

    #[test]
    fn json_patch_matches_the_rfc_crate(doc in any_value(), patch in vec(operation(), 1..5)) {
        let patch = Value::Array(patch);
        let mut by_the_rfc = doc.clone();
        let operations: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
        if json_patch::patch_unsafe(&mut by_the_rfc, &operations).is_ok() && is_plain(&patch) {
            prop_assert_eq!(json_patch(&doc, &patch).unwrap(), by_the_rfc);
        }
    }

    #[test]
    fn selectors_round_trip(text in "[ab=!<>(), ]{0,12}|[ -~]{0,20}|.{0,10}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            let again = FieldSelector::parse(&selector.to_string()).unwrap();
            let sorted = |s: &FieldSelector| {
                let mut terms: Vec<String> = s.terms().iter().map(|t| format!("{t:?}")).collect();
                terms.sort();
                terms
            };
            prop_assert_eq!(sorted(&again), sorted(&selector));
        }
    }
}

/// Whether the server's library follows the RFC for all operations: none of them is at the root.
fn is_plain(patch: &Value) -> bool {
    let at_root = |operation: &Value| {
        operation["path"] == "" || (operation["from"] == "" && operation["op"] != "test")
    };
    !patch.as_array().into_iter().flatten().any(at_root)
}
