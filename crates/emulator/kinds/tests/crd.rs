//! CustomResourceDefinitions and their objects, compared with the replies of kube-apiserver 1.36.2.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use nearhop_kinds::crd::{
    CLEANUP_FINALIZER, ScaleError, accept_names, cell, columns, conform, default_crd, establish,
    is_established, prepare_crd_create, prepare_crd_update, prepare_create, prepare_update,
    remove_finalizer, resources_of, scale_for_update, scale_of, set_scale, terminating, validate,
    validate_crd, validate_crd_update, warnings,
};
use nearhop_kinds::{Origin, Resource, Subresource};
use nearhop_object::FieldError;
use nearhop_object::patch::merge_patch;
use serde_json::{Value, json};

const NOW: &str = "2026-11-15T20:29:23Z";

fn recorded() -> Value {
    serde_json::from_str(include_str!("data/crd.json")).unwrap()
}

/// The version of a definition that a resource comes from.
fn version(resource: &Resource) -> &Value {
    match &resource.origin {
        Origin::Custom(version) => version,
        Origin::BuiltIn => panic!("{} is built in", resource.kind),
    }
}

/// The definition that the server creates from the input of a client.
fn created(input: &Value) -> Value {
    let mut crd = input.clone();
    default_crd(&mut crd);
    prepare_crd_create(&mut crd);
    crd
}

fn resource(crd: &Value) -> Resource {
    resources_of(crd).into_iter().next().unwrap()
}

fn causes(errors: &[FieldError]) -> BTreeSet<String> {
    let cause = |e: &FieldError| format!("{} {}: {}", e.kind.reason(), e.field, e.message);
    errors.iter().map(cause).collect()
}

fn recorded_causes(causes: &Value) -> BTreeSet<String> {
    let text = |cause: &Value, key: &str| cause[key].as_str().unwrap().to_owned();
    let causes = causes.as_array().unwrap().iter();
    let line =
        |c: &Value| format!("{} {}: {}", text(c, "reason"), text(c, "field"), text(c, "message"));
    causes.map(line).collect()
}

fn without_times(mut crd: Value) -> Value {
    for condition in crd["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
    crd
}

#[test]
fn created_definitions_match_kubernetes() {
    let recorded = recorded();
    for name in ["create", "widget", "gadget"] {
        let crd = created(&recorded[name]["input"]);
        assert_eq!(crd, recorded[name]["output"], "{name}");
        assert_eq!(validate_crd(&crd), [], "{name}");
    }
    assert_eq!(created(&recorded["conflict"]["input"]), recorded["conflict"]["created"]);
    let rules = warnings(&recorded["create"]["input"]);
    assert_eq!(rules, ["x-kubernetes-validations are not evaluated by this server"]);
    assert!(warnings(&recorded["widget"]["input"]).is_empty());
}

#[test]
fn errors_of_invalid_definitions_match_kubernetes() {
    let recorded = recorded();
    for case in recorded["refused"].as_array().unwrap() {
        let errors = validate_crd(&created(&case["input"]));
        assert_eq!(causes(&errors), recorded_causes(&case["causes"]), "{}", case["source"]);
        assert_eq!(errors.len(), case["causes"].as_array().unwrap().len());
    }
}

#[test]
fn a_definition_is_established_in_two_updates() {
    let recorded = recorded();
    let mut crd = created(&recorded["create"]["input"]);
    assert_eq!(crd, recorded["frames"][0]);
    assert!(accept_names(&mut crd, &[], NOW));
    assert_eq!(crd, recorded["frames"][1]);
    assert!(!accept_names(&mut crd, &[], "later"));
    assert!(establish(&mut crd, NOW));
    assert_eq!(crd, recorded["frames"][2]);
    assert!(!establish(&mut crd, "later"));
    assert!(is_established(&crd));
    for name in ["widget", "gadget"] {
        let mut crd = created(&recorded[name]["input"]);
        accept_names(&mut crd, &[], NOW);
        establish(&mut crd, NOW);
        let wanted = recorded[format!("{name}Established")].clone();
        assert_eq!(without_times(crd), without_times(wanted));
    }
}

#[test]
fn conflicting_names_are_reported() {
    let recorded = recorded();
    let other = recorded["frames"][2].clone();
    let mut crd = created(&recorded["conflict"]["input"]);
    let twin = crd.clone();
    assert!(accept_names(&mut crd, &[&other, &twin], "2026-11-15T20:29:27Z"));
    assert_eq!(crd, recorded["conflict"]["after"]);
    assert!(!establish(&mut crd, NOW));
    // The other definition is deleted, and its names are free.
    assert!(accept_names(&mut crd, &[], NOW));
    assert!(establish(&mut crd, NOW));
    assert!(is_established(&crd));
}

#[test]
fn scope_and_group_are_immutable() {
    let recorded = recorded();
    let old = recorded["frames"][2].clone();
    let mut new = merge_patch(&old, &recorded["scope"]["patch"]).unwrap();
    prepare_crd_update(&mut new, &old);
    assert_eq!(new["metadata"]["generation"], 2);
    let errors = validate_crd_update(&new, &old);
    assert_eq!(causes(&errors), recorded_causes(&recorded["scope"]["causes"]));
    let mut new = old.clone();
    new["spec"]["group"] = "other.example".into();
    new["spec"]["names"]["plural"] = "crates".into();
    let fields: Vec<_> = validate_crd_update(&new, &old).into_iter().map(|e| e.field).collect();
    assert_eq!(fields, ["spec.group", "spec.names.plural"]);
    assert_eq!(validate_crd_update(&old, &old), []);
}

#[test]
fn a_new_storage_version_is_added_to_stored_versions() {
    let old = recorded()["frames"][2].clone();
    let mut new = old.clone();
    let mut version = new["spec"]["versions"][0].clone();
    version["name"] = "v2".into();
    new["spec"]["versions"][0]["storage"] = false.into();
    new["spec"]["versions"].as_array_mut().unwrap().push(version);
    default_crd(&mut new);
    prepare_crd_update(&mut new, &old);
    assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
    assert_eq!(validate_crd_update(&new, &old), []);
    new["spec"]["versions"].as_array_mut().unwrap().remove(0);
    let errors = validate_crd_update(&new, &old);
    assert_eq!(errors[0].field, "status.storedVersions[0]");
}

#[test]
fn a_deleted_definition_is_marked_as_terminating() {
    let recorded = recorded();
    let mut crd = recorded["frames"][2].clone();
    assert!(terminating(&mut crd, "2026-11-15T20:29:28Z"));
    assert_eq!(crd, recorded["deleted"]);
    assert!(!terminating(&mut crd, NOW));
    assert_eq!(crd["metadata"]["finalizers"], json!([CLEANUP_FINALIZER]));
    remove_finalizer(&mut crd);
    assert!(crd["metadata"].get("finalizers").is_none());
    let mut crd = recorded["widgetEstablished"].clone();
    terminating(&mut crd, NOW);
    assert_eq!(without_times(crd), without_times(recorded["widgetDeleted"].clone()));
}

#[test]
fn discovery_of_a_definition_matches_kubernetes() {
    let recorded = recorded();
    let resource = resource(&recorded["frames"][2]);
    let mut rows = vec![json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs, "shortNames": resource.short_names,
        "categories": resource.categories,
    })];
    for sub in &resource.subresources {
        let mut row = json!({
            "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
            "namespaced": true, "kind": sub.kind, "verbs": sub.verbs,
        });
        if !sub.group.is_empty() {
            row["group"] = json!(sub.group);
            row["version"] = json!(sub.version);
        }
        rows.push(row);
    }
    let mut wanted = recorded["discovery"].clone();
    wanted[0].as_object_mut().unwrap().remove("storageVersionHash");
    assert_eq!(Value::from(rows), wanted);
    assert_eq!(resource.qualified_plural(), "boxes.crd.example");
    assert_eq!(&*resource.list_kind, "BoxList");
}

#[test]
fn stable_and_new_versions_are_preferred() {
    let mut crd = recorded()["frames"][2].clone();
    let version = crd["spec"]["versions"][0].clone();
    let names = ["v1alpha1", "foo", "v2", "v1beta2", "v10", "v1", "v1beta10", "bar", "hidden"];
    let named = |name: &&str| {
        let mut version = version.clone();
        version["name"] = (*name).into();
        version["served"] = (*name != "hidden").into();
        version
    };
    crd["spec"]["versions"] = names.iter().map(named).collect();
    let order: Vec<_> = resources_of(&crd).into_iter().map(|r| r.version.to_string()).collect();
    assert_eq!(order, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "bar", "foo"]);
}

#[test]
fn created_and_updated_objects_match_kubernetes() {
    let recorded = recorded();
    let boxes = resource(&recorded["frames"][2]);
    let mut object = recorded["created"]["input"].clone();
    assert_eq!(conform(&boxes, &mut object), ["extra", "spec.unknown"]);
    prepare_create(&boxes, &mut object);
    assert_eq!(object, recorded["created"]["output"]);
    assert_eq!(validate(&boxes, None, &object, None), []);

    let mut stored = recorded["updates"]["first"].clone();
    for step in recorded["updates"]["steps"].as_array().unwrap() {
        let mut new = merge_patch(&stored, &step["patch"]).unwrap();
        let subresource = step["subresource"].as_str().and_then(Subresource::parse);
        assert!(conform(&boxes, &mut new).is_empty());
        prepare_update(&boxes, subresource, &mut new, &stored);
        assert_eq!(validate(&boxes, subresource, &new, Some(&stored)), []);
        let mut wanted = step["output"].clone();
        // Only the store sets this field.
        wanted["metadata"]["resourceVersion"] = new["metadata"]["resourceVersion"].clone();
        assert_eq!(new, wanted, "{}", step["source"]);
        stored = new;
    }
}

#[test]
fn errors_of_invalid_objects_match_kubernetes() {
    let recorded = recorded();
    let boxes = resource(&recorded["frames"][2]);
    let widgets = resource(&recorded["widgetEstablished"]);
    for (resource, case) in [
        (&widgets, &recorded["badWidget"]),
        (&boxes, &recorded["wrongKind"]),
        (&boxes, &recorded["many"]),
    ] {
        let mut object = case["input"].clone();
        conform(resource, &mut object);
        prepare_create(resource, &mut object);
        let errors = validate(resource, None, &object, None);
        assert_eq!(causes(&errors), recorded_causes(&case["causes"]));
    }
}

#[test]
fn the_scale_subresource_matches_kubernetes() {
    let recorded = recorded();
    let boxes = resource(&recorded["frames"][2]);
    let scale = &recorded["scale"];
    let mut object = recorded["updates"]["steps"][3]["output"].clone();
    let read = scale_of(&boxes, &object).unwrap();
    assert_eq!(read, scale["read"]);
    let new = merge_patch(&read, &scale["patch"]).unwrap();
    set_scale(&boxes, &mut object, &new).unwrap();
    let old = recorded["updates"]["steps"][3]["output"].clone();
    prepare_update(&boxes, Some(Subresource::Scale), &mut object, &old);
    assert_eq!(validate(&boxes, Some(Subresource::Scale), &object, Some(&old)), []);
    object["metadata"]["resourceVersion"] = scale["object"]["metadata"]["resourceVersion"].clone();
    assert_eq!(object, scale["object"]);
    assert_eq!(scale_of(&boxes, &object).unwrap(), scale["written"]);
}

#[test]
fn errors_of_the_scale_subresource_match_kubernetes() {
    let recorded = recorded();
    let boxes = resource(&recorded["frames"][2]);
    let mut none = json!({"metadata": {"name": "x"}});
    let error = scale_of(&boxes, &none).unwrap_err();
    assert_eq!(error.to_string(), "the spec replicas field \".spec.n\" does not exist");
    let mut scale = scale_for_update(&boxes, &none).unwrap();
    let error = set_scale(&boxes, &mut none, &scale).unwrap_err();
    assert_eq!(error.to_string(), "the spec replicas field \".spec.n\" cannot be empty");
    scale["spec"]["replicas"] = 2.into();
    set_scale(&boxes, &mut none, &scale).unwrap();
    assert_eq!(none["spec"]["n"], 2);
    let odd = json!({"metadata": {}, "spec": {"n": "2"}});
    let error = scale_of(&boxes, &odd).unwrap_err().to_string();
    assert_eq!(error, ".spec.n accessor error: 2 is of the type string, expected int64");
    let gadgets = resource(&recorded["gadgetEstablished"]);
    assert_eq!(scale_of(&gadgets, &odd), Err(ScaleError::NotScalable));
}

#[test]
fn printer_columns_match_kubernetes() {
    let recorded = recorded();
    let widgets = resource(&recorded["widgetEstablished"]);
    let object = &recorded["tableObject"];
    let columns = columns(version(&widgets));
    let wanted = recorded["table"]["columns"].as_array().unwrap();
    assert_eq!(columns.len() + 1, wanted.len());
    for (column, wanted) in columns.iter().zip(&wanted[1..]) {
        let shown = json!({
            "name": column.name, "type": column.type_, "format": column.format,
            "description": column.description, "priority": column.priority,
        });
        assert_eq!(shown, *wanted);
    }
    let cells: Vec<Value> = columns.iter().map(|column| column.cell(object)).collect();
    let wanted = recorded["table"]["cells"][0].as_array().unwrap();
    assert_eq!(cells[..3], wanted[1..4]);
    assert_eq!(cells[3], cell(object, ".metadata.creationTimestamp"));
    let boxes = resource(&recorded["frames"][2]);
    let names: Vec<_> =
        nearhop_kinds::crd::columns(version(&boxes)).into_iter().map(|c| c.name).collect();
    assert_eq!(names, ["Age"]);
}

#[test]
fn invalid_definitions_do_not_panic() {
    let invalid = [
        json!(null),
        json!(1),
        json!([]),
        json!("x"),
        json!({}),
        json!({"spec": 1}),
        json!({"spec": {"versions": 1, "names": []}, "status": [], "metadata": 3}),
        json!({"spec": {"versions": [1, null, {"name": 3, "schema": {"openAPIV3Schema": []}}]}}),
        json!({"spec": {"versions": [{"served": true, "subresources": {"scale": {}, "status": 1}}]}}),
        json!({"status": {"conditions": [1, {"type": 3}], "acceptedNames": 1, "storedVersions": [1]}}),
    ];
    for crd in &invalid {
        let mut changed = crd.clone();
        default_crd(&mut changed);
        prepare_crd_create(&mut changed);
        accept_names(&mut changed, &[crd], NOW);
        establish(&mut changed, NOW);
        terminating(&mut changed, NOW);
        remove_finalizer(&mut changed);
        let mut updated = changed.clone();
        prepare_crd_update(&mut updated, crd);
        for crd in [crd, &changed, &updated] {
            validate_crd(crd);
            validate_crd_update(crd, &changed);
            warnings(crd);
            for resource in resources_of(crd) {
                for object in &invalid {
                    let mut new = object.clone();
                    conform(&resource, &mut new);
                    prepare_create(&resource, &mut new);
                    prepare_update(&resource, None, &mut new, object);
                    prepare_update(&resource, Some(Subresource::Status), &mut new, object);
                    validate(&resource, None, &new, None);
                    validate(&resource, Some(Subresource::Status), &new, Some(object));
                    let _ = scale_of(&resource, object);
                    let _ = set_scale(&resource, &mut new, object);
                    columns(version(&resource)).iter().for_each(|column| drop(column.cell(object)));
                }
            }
        }
    }
}
