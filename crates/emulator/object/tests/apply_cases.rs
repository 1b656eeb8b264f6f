//! Cases of ownership and server-side apply that the recordings contain only in part.

use nearhop_object::apply::{ApplyError, Force, Writer, apply, update};
use nearhop_object::{Schema, builtin};
use serde_json::{Value, json};

fn service() -> Schema {
    builtin::schema_of("", "v1", "Service").expect("the kind is built in")
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

fn with_ports(ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({ "port": port })).collect();
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": ports}})
}

fn created(mut object: Value, by: &str) -> Value {
    update(service().node(), None, &mut object, &writer(by));
    object
}

fn applied(live: &Value, config: &Value, by: &str) -> Result<Value, ApplyError> {
    apply(service().node(), Some(live), config, &writer(by), Force::No)
}

fn managers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    list.filter_map(|entry| entry["manager"].as_str()).collect()
}

#[test]
fn merged_lists_keep_the_order_of_both_lists() {
    for (live, config, merged) in [
        (&[80, 81][..], &[82][..], &[80, 81, 82][..]),
        (&[80, 81], &[82, 80], &[82, 80, 81]),
        (&[80, 81], &[81, 80], &[81, 80]),
        (&[1, 2, 3], &[3, 9], &[1, 2, 3, 9]),
        (&[1, 2, 3], &[9, 1], &[9, 1, 2, 3]),
        (&[1, 2, 3, 4], &[4, 2], &[1, 3, 4, 2]),
        (&[], &[2, 1], &[2, 1]),
        (&[1], &[], &[1]),
    ] {
        let live = created(with_ports(live), "creator");
        let result = applied(&live, &with_ports(config), "one").expect("the apply has no conflict");
        assert_eq!(result["spec"]["ports"], with_ports(merged)["spec"]["ports"]);
    }
}

#[test]
fn fields_that_do_not_match_the_schema_are_named() {
    for (config, problem) in [
        (json!({"spec": {"bogus": 1}}), ".spec.bogus: field not declared in schema"),
        (
            json!({"spec": {"ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}]}}),
            r#".spec.ports: duplicate entries for key [port=80,protocol="TCP"]"#,
        ),
        (
            json!({"spec": {"ports": {}}, "x": 1}),
            "errors:\n  .spec.ports: expected list, got &{map[]}\n  .x: field not declared in schema",
        ),
        (
            json!({"spec": {"type": 5}}),
            ".spec.type: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (
            json!({"spec": {"ports": [{"port": "x"}]}}),
            r#".spec.ports[port="x",protocol="TCP"].port: expected numeric (int or float), got string"#,
        ),
        (
            json!({"spec": {"ports": [1]}}),
            ".spec.ports: element 0: associative list with keys may not have non-map elements",
        ),
    ] {
        let mut object = with_ports(&[]);
        for (key, value) in config.as_object().expect("the configuration is a map") {
            object[key] = value.clone();
        }
        let error = apply(service().node(), None, &object, &writer("one"), Force::No);
        let text =
            format!("failed to create typed patch object (/s; /v1, Kind=Service): {problem}");
        assert_eq!(error, Err(ApplyError::Untyped(text)));
    }
}

#[test]
fn conflicts_are_listed_by_manager() {
    let mut live = created(with_ports(&[80]), "zeta");
    let mut config = with_ports(&[80]);
    config["spec"]["type"] = "NodePort".into();
    live = apply(service().node(), Some(&live), &config, &writer("alpha"), Force::No)
        .expect("no other manager owns the type");
    let mut other = with_ports(&[]);
    other["spec"] = json!({"type": "ClusterIP", "ports": [{"port": 80, "name": "x"}]});
    live["spec"]["ports"][0]["name"] = "y".into();
    let before = live.clone();
    live["spec"]["ports"][0]["name"] = "z".into();
    update(service().node(), Some(&before), &mut live, &writer("zeta"));
    let error = applied(&live, &other, "one").expect_err("the apply has two conflicts");
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"alpha\":\n- .spec.type\n\
         conflicts with \"zeta\" using v1:\n- .spec.ports[port=80,protocol=\"TCP\"].name"
    );
}

#[test]
fn a_configuration_with_managed_fields_is_rejected() {
    let mut config = with_ports(&[80]);
    config["metadata"]["managedFields"] = json!([]);
    let result = apply(service().node(), None, &config, &writer("one"), Force::No);
    assert_eq!(result, Err(ApplyError::NamesOwners));
}

#[test]
fn clients_can_replace_managed_fields_with_valid_ones() {
    let live = created(with_ports(&[80]), "creator");
    let foreign = json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ports": {
            "k:{\"protocol\":\"TCP\", \"port\":80.0}": {".": {}, "x:later": {}}}}}}]);
    for (sent, left) in [
        (json!([]), vec![]),
        (json!([{}]), vec![]),
        (Value::Null, vec!["creator"]),
        (json!([{"manager": "m", "operation": "Nonsense"}]), vec!["creator"]),
        (foreign, vec!["m"]),
    ] {
        let mut new = live.clone();
        new["metadata"]["managedFields"] = sent;
        update(service().node(), Some(&live), &mut new, &writer("other"));
        assert_eq!(managers(&new), left);
        if left == ["m"] {
            let fields = &new["metadata"]["managedFields"][0]["fieldsV1"];
            let key = r#"k:{"port":80,"protocol":"TCP"}"#;
            assert_eq!(*fields, json!({"f:spec": {"f:ports": {key: {}}}}));
        }
    }
    let mut status = live.clone();
    status["metadata"]["managedFields"] = json!([]);
    let through = Writer { subresource: "status", ignore: &["spec"], ..writer("other") };
    update(service().node(), Some(&live), &mut status, &through);
    assert_eq!(managers(&status), ["creator"]);
}

#[test]
fn updates_add_no_owners_to_objects_without_owners() {
    let live = with_ports(&[80]);
    let mut new = with_ports(&[81]);
    update(service().node(), Some(&live), &mut new, &writer("other"));
    assert_eq!(new, with_ports(&[81]));
    let result = applied(&new, &with_ports(&[81]), "one").expect("the apply has no conflict");
    assert_eq!(managers(&result), ["one", "before-first-apply"]);
}

#[test]
fn old_update_entries_are_merged() {
    let mut live = created(with_ports(&[80]), "creator");
    for at in 0..12 {
        let mut new = live.clone();
        new["metadata"]["labels"][format!("l{at}")] = "x".into();
        let name = format!("m{at:02}");
        let now = jiff::Timestamp::from_second(at).expect("the time is valid");
        update(
            service().node(),
            Some(&live),
            &mut new,
            &Writer { now: Some(now), ..writer(&name) },
        );
        live = new;
    }
    let names = managers(&live);
    assert_eq!(names.len(), 10);
    assert!(names.contains(&"ancient-changes") && names.contains(&"m11"), "{names:?}");
    let ancient =
        names.iter().position(|name| *name == "ancient-changes").expect("the entry exists");
    let fields = &live["metadata"]["managedFields"][ancient]["fieldsV1"]["f:metadata"]["f:labels"];
    assert!(fields.get("f:l0").is_some() && fields.get("f:l11").is_none());
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let mut config = with_ports(&[80]);
    config["spec"]["type"] = "ClusterIP".into();
    let mut object = config.clone();
    object["metadata"]["annotations"] = json!({ LAST: config.to_string() });
    let live = created(object, "kubectl-client-side-apply");
    config["spec"]["type"] = "NodePort".into();
    assert!(applied(&live, &config, "other").is_err());
    let result = applied(&live, &config, "kubectl").expect("kubectl owns the field itself");
    assert_eq!(result["metadata"]["annotations"][LAST], format!("{config}\n"));
    assert_eq!(result["spec"]["type"], "NodePort");
}
