//! Recorded requests to kube-apiserver 1.36.2 for the other built-in kinds: the stored objects and
//! the errors.

use nearhop_kinds::config::{ClusterConfig, ServiceCidrs};
use nearhop_kinds::strategy::{self, Context};
use nearhop_kinds::{Resource, Subresource, builtin};
use nearhop_object::apply::{self, Writer};
use nearhop_object::decode::conform;
use nearhop_object::patch::{json_patch, merge_patch, strategic_merge_patch};
use serde_json::{Value, json};

/// The labels of the nodes in the recorded cluster.
fn node_labels(name: &str) -> Option<Value> {
    match name {
        "n1" => Some(json!({"topology.kubernetes.io/zone": "zone-a", "other": "x"})),
        "n2" => Some(json!({"topology.kubernetes.io/zone": "zone-b"})),
        _ => None,
    }
}

fn cluster() -> ClusterConfig {
    ClusterConfig::new(ServiceCidrs::parse("10.96.0.0/16").expect("the range is valid"))
}

fn with_context<T>(use_it: impl FnOnce(&Context<'_>) -> T) -> T {
    let cluster = cluster();
    let cx = Context { now: "2026-01-01T00:00:00Z", node_labels: &node_labels, cluster: &cluster };
    use_it(&cx)
}

fn decode(resource: &Resource, mut object: Value) -> Value {
    let schema = resource.schema.as_ref().expect("built-in kinds have a schema");
    let unknown =
        conform(schema.node(), &mut object).expect("the object has the types of the schema");
    // A patch directive in a replaced list is read as a field and dropped.
    assert!(unknown.iter().all(|field| field.contains('$')), "{unknown:?}");
    strategy::default(resource, &mut object);
    object
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The object without uid, versions, times and owners, which differ in each run.
fn comparable(mut object: Value) -> Value {
    if let Some(meta) = object["metadata"].as_object_mut() {
        for key in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generateName"]
        {
            meta.remove(key);
        }
    }
    object
}

fn causes(errors: &[nearhop_object::FieldError]) -> Value {
    let causes = errors.iter().map(|error| {
        json!({"reason": error.kind.reason(), "message": error.message, "field": error.field})
    });
    Value::Array(causes.collect())
}

/// The first line of each message: in one message a diff of Go structs follows.
fn first_lines(causes: &Value) -> Value {
    let causes = causes.as_array().into_iter().flatten().map(|cause| {
        let mut cause = cause.clone();
        let line = text(&cause, "message").lines().next().unwrap_or_default().to_owned();
        cause["message"] = json!(line);
        cause
    });
    Value::Array(causes.collect())
}

fn create(resource: &Resource, namespace: &str, sent: &Value) -> (Value, Value) {
    let mut new = sent.clone();
    if resource.namespaced {
        new["metadata"]["namespace"] = json!(namespace);
    }
    new["kind"] = json!(&*resource.kind);
    new["apiVersion"] = json!(resource.api_version());
    let mut new = decode(resource, new);
    if new["metadata"]["name"].is_null() && !new["metadata"]["generateName"].is_null() {
        new["metadata"]["name"] = json!("generated");
    }
    with_context(|cx| {
        strategy::prepare_create(resource, &mut new, cx);
        let errors = strategy::validate_create(resource, &new, cx);
        (new, causes(&errors))
    })
}

fn update(resource: &Resource, case: &Value) -> (Value, Value) {
    let (old, body, sub) =
        (&case["old"], &case["body"], case["sub"].as_str().and_then(Subresource::parse));
    let schema = resource.schema.as_ref().expect("built-in kinds have a schema");
    let patched = match text(case, "patch") {
        "merge" => merge_patch(old, body),
        "json" => json_patch(old, body),
        "strategic" => strategic_merge_patch(schema.node(), old, body),
        _ => Ok(body.clone()),
    };
    let mut new = patched.expect("the patch can be applied");
    if resource.namespaced {
        new["metadata"]["namespace"] = json!(text(case, "namespace"));
    }
    let mut new = decode(resource, new);
    with_context(|cx| {
        strategy::prepare_update(resource, sub, &mut new, old, cx);
        let errors = strategy::validate_update(resource, sub, &new, old, cx);
        (new, causes(&errors))
    })
}

#[test]
fn stored_objects_and_errors_match_the_recordings() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("data/strategy-recorded.json"))
        .expect("the file is JSON");
    let registry = builtin::registry();
    let mut failed = Vec::new();
    for case in &cases {
        let resource = registry
            .find(text(case, "group"), text(case, "version"), text(case, "plural"))
            .expect("the resource is built in");
        let (stored, found) = match text(case, "verb") {
            "create" => create(resource, text(case, "namespace"), &case["new"]),
            _ => update(resource, case),
        };
        let expected = case.get("causes").cloned().unwrap_or(json!([]));
        let (expected, found) = (first_lines(&expected), first_lines(&found));
        if expected != found {
            failed.push(format!("{}: {found}\n  expected {expected}", case["name"]));
        } else if let Some(wanted) = case.get("stored") {
            let (wanted, stored) = (comparable(wanted.clone()), comparable(stored));
            let same_name = wanted["metadata"]["name"] == stored["metadata"]["name"];
            if wanted != stored && (same_name || text(&stored["metadata"], "name") != "generated") {
                failed.push(format!("{}: {stored}\n  expected {wanted}", case["name"]));
            }
        }
    }
    assert!(failed.is_empty(), "{} of {}\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// The fields that the creator of an object owns: all fields after defaulting, and no field that is
/// added later.
fn owned_by_creator(resource: &Resource, sent: &Value) -> Option<Value> {
    let mut object = decode(resource, sent.clone());
    let writer = Writer {
        manager: "",
        api_version: &resource.api_version(),
        subresource: "",
        now: None,
        ignore: strategy::reset_fields(resource, None),
    };
    let schema = resource.schema.as_ref().expect("built-in kinds have a schema");
    apply::update(schema.node(), None, &mut object, &writer);
    object.pointer("/metadata/managedFields/0/fieldsV1").cloned()
}

#[test]
fn defaults_match_the_recordings() {
    let registry = builtin::registry();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/defaults"));
    let mut count = 0;
    for file in files.expect("the directory exists") {
        let text_of = std::fs::read_to_string(file.expect("the file is readable").path())
            .expect("the file is text");
        let case: Value = serde_json::from_str(&text_of).expect("the file is JSON");
        let (sent, expected) = (&case["input"], &case["output"]);
        let (version, kind) = (text(sent, "apiVersion"), text(sent, "kind"));
        let mut resources = registry.resources().iter();
        let resource = resources.find(|r| r.api_version() == version && &*r.kind == kind);
        let resource = resource.expect("the kind is built in");
        let (stored, errors) = create(resource, "probe", sent);
        assert_eq!(errors, json!([]), "{}", case["name"]);
        assert_eq!(comparable(stored), comparable(expected.clone()), "{}", case["name"]);
        let owned = expected.pointer("/metadata/managedFields/0/fieldsV1");
        assert_eq!(owned_by_creator(resource, sent).as_ref(), owned, "{}", case["name"]);
        count += 1;
    }
    assert_eq!(count, 18);
}

/// Field names that some kind uses.
const WORDS: [&str; 30] = [
    "metadata",
    "spec",
    "status",
    "name",
    "labels",
    "annotations",
    "containers",
    "initContainers",
    "volumes",
    "template",
    "jobTemplate",
    "selector",
    "matchLabels",
    "matchExpressions",
    "ports",
    "image",
    "resources",
    "limits",
    "requests",
    "strategy",
    "updateStrategy",
    "rollingUpdate",
    "tolerations",
    "taints",
    "podCIDRs",
    "conditions",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "data",
];

fn any_value() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;

    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z:%/@.-]{0,6}|é-|25%|-1Gi".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 5, |inner| {
        let key = proptest::sample::select(WORDS.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest::proptest! {
    #[test]
    fn any_input_is_handled_without_panic(mut new in any_value(), old in any_value()) {
        with_context(|cx| {
            for resource in builtin::registry().resources() {
                strategy::default(resource, &mut new);
                strategy::prepare_create(resource, &mut new, cx);
                strategy::validate_create(resource, &new, cx);
                for sub in [None, Some(Subresource::Status), Some(Subresource::Finalize)] {
                    strategy::warn_ignored(resource, sub, &new, Some(&old), cx);
                    strategy::prepare_update(resource, sub, &mut new, &old, cx);
                    strategy::validate_update(resource, sub, &new, &old, cx);
                }
                strategy::warnings(resource, None, &new, Some(&old));
                strategy::selectable(resource.strategy, &new);
                nearhop_kinds::scale::scale_of(resource, &new);
            }
            let _ = nearhop_kinds::pod::bind(&mut new, &old, cx.now, cx.node_labels);
            nearhop_kinds::pod::grace_period(&new, None);
            nearhop_kinds::event::to_events(&nearhop_kinds::event::to_core(&new));
        });
    }
}
