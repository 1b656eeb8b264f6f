//! Columns and cells, compared with tables of a real server for the same objects.

use std::sync::Arc;

use jiff::{Timestamp, ToSpan as _};
use nearhop_kinds::table::{self, Definitions, IncludeObject};
use nearhop_kinds::{Resource, builtin, crd};
use serde_json::{Value, json};

const RECORDED: &str = include_str!("data/tables/recorded.json");

fn now() -> Timestamp {
    "2026-11-15T20:30:00Z".parse().expect("a valid time")
}

fn resource(group: &str, plural: &str) -> Arc<Resource> {
    if let Some(found) = builtin::registry().find(group, "v1", plural) {
        return Arc::clone(found);
    }
    custom(json!({"name": "v1", "served": true, "storage": true}))
}

/// A custom resource with this version.
fn custom(version: Value) -> Arc<Resource> {
    let names = json!({"plural": "widgets", "kind": "Widget"});
    let crd = json!({"spec": {"group": "lab.example", "names": names, "versions": [version]}});
    crd::resources_of(&crd).into_iter().map(Arc::new).next().expect("one version is served")
}

/// Replaces times of the form `-SECONDS`, and the field `age`, by real times.
fn with_real_times(mut object: Value) -> Value {
    let ago = |seconds: i64| json!((now() - seconds.seconds()).to_string());
    if let Some(age) = object["age"].as_i64() {
        object["metadata"]["creationTimestamp"] = ago(age);
    }
    for path in [
        "/firstTimestamp",
        "/lastTimestamp",
        "/eventTime",
        "/deprecatedFirstTimestamp",
        "/deprecatedLastTimestamp",
        "/status/containerStatuses/0/lastState/terminated/finishedAt",
    ] {
        if let Some(time) = object.pointer_mut(path)
            && let Some(seconds) = time.as_str().and_then(|text| text.strip_prefix('-'))
        {
            *time = ago(seconds.parse().expect("the time is a number of seconds"));
        }
    }
    object
}

#[test]
fn columns_and_rows_match_a_real_server() {
    let recorded: Value = serde_json::from_str(RECORDED).expect("JSON");
    let mut rows = 0;
    for kind in recorded.as_array().expect("a list") {
        let resource =
            resource(kind["group"].as_str().expect("text"), kind["plural"].as_str().expect("text"));
        let mut columns = table::columns(&resource);
        for column in &mut columns {
            let description =
                column.as_object_mut().and_then(|column| column.remove("description"));
            assert!(description.is_some_and(|text| text != ""), "{}", resource.plural);
        }
        assert_eq!(json!(columns), kind["columns"], "{}", resource.plural);
        for case in kind["cases"].as_array().expect("a list") {
            let object = with_real_times(case["object"].clone());
            assert_eq!(json!(table::cells(&resource, &object, now())), case["cells"], "{object}");
            rows += 1;
        }
    }
    assert_eq!(rows, 64);
}

#[test]
fn a_table_includes_the_requested_objects() {
    let resource = resource("", "configmaps");
    let metadata =
        json!({"name": "a", "resourceVersion": "7", "creationTimestamp": "2026-11-15T20:29:42Z"});
    let object = json!({"metadata": metadata, "data": {"k": "v"}});
    let list_meta = json!({"resourceVersion": "9", "continue": "x", "remainingItemCount": 3});
    let table = |include| table::table(&resource, [&object], list_meta.clone(), include, now());
    let expected = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
        "columnDefinitions": table::columns(&resource),
        "rows": [{"cells": ["a", 1, "18s"], "object": {
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}]});
    assert_eq!(table(IncludeObject::Metadata), expected);
    assert_eq!(table(IncludeObject::None)["rows"][0]["object"], Value::Null);
    let whole =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"k": "v"}});
    assert_eq!(table(IncludeObject::Object)["rows"][0]["object"], whole);
    assert_eq!(IncludeObject::parse("Everything"), None);
    assert_eq!(IncludeObject::parse(""), Some(IncludeObject::Metadata));
}

#[test]
fn watch_frames_define_columns_once() {
    let resource = resource("", "configmaps");
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let bookmark = json!({"metadata": {"resourceVersion": "546", "annotations": annotations}});
    let frame = table::table_of_one(
        &resource,
        &bookmark,
        Definitions::Left,
        IncludeObject::Metadata,
        now(),
    );
    let expected = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "546"},
        "columnDefinitions": null, "rows": [{"cells": ["", 0, "<unknown>"], "object": {
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": bookmark["metadata"]}}]});
    assert_eq!(frame, expected);
    let first =
        table::table_of_one(&resource, &bookmark, Definitions::Given, IncludeObject::None, now());
    assert_eq!(first["columnDefinitions"], json!(table::columns(&resource)));
}

#[test]
fn rows_of_finished_pods_have_a_condition() {
    let pods = resource("", "pods");
    let pod = json!({"metadata": {"name": "p"}, "status": {"phase": "Failed"}});
    let table = table::table_of_one(&pods, &pod, Definitions::Left, IncludeObject::None, now());
    let expected = json!([{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}]);
    assert_eq!(table["rows"][0]["conditions"], expected);
}

/// As recorded: a missing value is null, and a date is printed as an age.
#[test]
fn printer_columns_of_a_custom_resource_match_the_recording() {
    let column = |name, kind, path, priority| json!({"name": name, "type": kind, "jsonPath": path, "priority": priority});
    let columns = json!([
        column("Size", "string", ".spec.size", 0),
        column("Replicas", "integer", ".spec.replicas", 0),
        column("Note", "string", ".spec.note", 1),
        column("Age", "date", ".metadata.creationTimestamp", 0),
    ]);
    let version =
        json!({"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns});
    let widgets = custom(version);
    let metadata = json!({"name": "w1", "creationTimestamp": "2026-11-15T20:29:58Z"});
    let widget = json!({"metadata": metadata, "spec": {"size": "small", "replicas": 1}});
    assert_eq!(
        json!(table::cells(&widgets, &widget, now())),
        json!(["w1", "small", 1, null, "2s"])
    );
    let names: Vec<Value> =
        table::columns(&widgets).iter().map(|column| column["name"].clone()).collect();
    assert_eq!(names, ["Name", "Size", "Replicas", "Note", "Age"]);
}
