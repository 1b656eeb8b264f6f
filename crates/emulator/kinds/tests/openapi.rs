//! OpenAPI documents, compared with excerpts of a real server's documents; all references are valid.

use std::collections::BTreeSet;
use std::sync::Arc;

use nearhop_kinds::{Origin, Registry, builtin, crd, openapi};
use serde_json::{Map, Value, json};

const SERVICE: &str = include_str!("data/openapi/service.json");
const ENDPOINTSLICE: &str = include_str!("data/openapi/endpointslice.json");
const INDEX: &str = include_str!("data/openapi/index.txt");

fn document(registry: &Registry, group: &str, version: &str) -> Value {
    openapi::document(registry, group, version).expect("the group version is served")
}

/// The document without descriptions, which the excerpts do not have.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept =
                map.iter().filter(|(key, value)| !(*key == "description" && value.is_string()));
            kept.map(|(key, value)| (key.clone(), bare(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(bare).collect(),
        other => other.clone(),
    }
}

#[test]
fn schemas_and_paths_match_a_real_server() {
    let registry = builtin::registry();
    // Fields that Kubernetes does not have.
    let own = ["topologyKeys", "trafficPolicy", "routingPreference"];
    for (excerpt, group) in [(SERVICE, ""), (ENDPOINTSLICE, "discovery.k8s.io")] {
        let excerpt: Value = serde_json::from_str(excerpt).expect("JSON");
        let mut document = bare(&document(registry, group, "v1"));
        assert_eq!(document["openapi"], excerpt["openapi"]);
        assert_eq!(document["info"], excerpt["info"]);
        for (name, expected) in excerpt["components"]["schemas"].as_object().expect("a map") {
            let schema = &mut document["components"]["schemas"][name];
            if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
                properties.retain(|name, _| !own.contains(&name.as_str()));
            }
            // The order of required fields is not fixed.
            let mut expected = expected.clone();
            for schema in [&mut *schema, &mut expected] {
                if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
                    required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
                }
            }
            assert_eq!(*schema, expected, "{name}");
        }
        for (path, expected) in excerpt["paths"].as_object().expect("a map") {
            assert_eq!(&document["paths"][path], expected, "{path}");
        }
    }
}

#[test]
fn the_index_contains_every_group_version_of_a_real_server() {
    let index = openapi::index(builtin::registry());
    let ours: BTreeSet<&str> =
        index["paths"].as_object().expect("a map").keys().map(String::as_str).collect();
    let is_group_version = |path: &&str| {
        *path == "api/v1" || path.starts_with("apis/") && path.matches('/').count() == 2
    };
    let theirs: BTreeSet<&str> = INDEX.lines().filter(is_group_version).collect();
    assert_eq!(ours, theirs);
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().expect("text");
    let hash = url.strip_prefix("/openapi/v3/apis/apps/v1?hash=").expect("an address");
    assert_eq!(hash, openapi::document_hash(builtin::registry(), "apps", "v1"));
    assert!(
        hash.len() == 128 && hash.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b))
    );
}

#[test]
fn schemas_have_descriptions_for_kubectl_explain() {
    let document = document(builtin::registry(), "", "v1");
    let schemas = &document["components"]["schemas"];
    let spec = &schemas["io.k8s.api.core.v1.ServiceSpec"];
    for text in [&spec["description"], &spec["properties"]["trafficDistribution"]["description"]] {
        assert!(text.as_str().is_some_and(|text| text.len() > 40), "{text}");
    }
    let described = schemas
        .as_object()
        .expect("a map")
        .iter()
        .filter(|(_, schema)| schema["description"].is_string());
    let all = schemas.as_object().map_or(0, Map::len);
    assert_eq!(described.count(), all);
}

#[test]
fn every_reference_is_valid() {
    let registry = with_widgets();
    for (group, versions) in registry.groups() {
        for version in versions {
            let document = document(&registry, group, version);
            assert!(follow(&document, &document) > 0);
        }
    }
    let swagger = openapi::swagger(&registry);
    assert!(follow(&swagger, &swagger) > 1000);
    assert!(
        swagger["definitions"]["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"].is_object()
    );
    assert!(
        swagger["paths"]["/apis/lab.example/v1/namespaces/{namespace}/widgets"]["post"].is_object()
    );
    assert!(openapi::document(&registry, "nope", "v1").is_none());
}

/// Returns the number of references; panics at an invalid one.
fn follow(root: &Value, value: &Value) -> usize {
    match value {
        Value::Object(map) => {
            let own = match map.get("$ref") {
                Some(Value::String(reference)) => {
                    let found = reference.strip_prefix('#').and_then(|path| root.pointer(path));
                    assert!(found.is_some(), "{reference}");
                    1
                }
                _ => 0,
            };
            own + map.values().map(|value| follow(root, value)).sum::<usize>()
        }
        Value::Array(list) => list.iter().map(|value| follow(root, value)).sum(),
        _ => 0,
    }
}

#[test]
fn custom_resources_are_published_like_a_real_server() {
    let registry = with_widgets();
    let document = document(&registry, "lab.example", "v1");
    assert_eq!(document["info"], json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}));
    let schemas = bare(&document["components"]["schemas"]);
    let text = json!({"type": "string"});
    let meta = |name: &str| {
        json!({"allOf": [{"$ref":
        format!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.{name}")}]})
    };
    let kind = |name: &str| json!([{"group": "lab.example", "kind": name, "version": "v1"}]);
    let expected = json!({"type": "object", "required": ["spec"],
        "properties": {"apiVersion": text, "kind": text, "metadata": meta("ObjectMeta"), "spec": widget_spec()},
        "x-kubernetes-group-version-kind": kind("Widget")});
    assert_eq!(schemas["example.lab.v1.Widget"], expected);
    let items =
        json!({"type": "array", "items": {"$ref": "#/components/schemas/example.lab.v1.Widget"}});
    let expected = json!({"type": "object", "required": ["items"],
        "properties": {"apiVersion": text, "kind": text, "metadata": meta("ListMeta"), "items": items},
        "x-kubernetes-group-version-kind": kind("WidgetList")});
    assert_eq!(schemas["example.lab.v1.WidgetList"], expected);
    assert!(schemas["io.k8s.api.autoscaling.v1.Scale"].is_object());

    let item = "/apis/lab.example/v1/namespaces/{namespace}/widgets/{name}";
    let paths: Vec<String> =
        document["paths"].as_object().expect("a map").keys().cloned().collect();
    let expected = [
        "/apis/lab.example/v1/namespaces/{namespace}/widgets".to_owned(),
        item.to_owned(),
        format!("{item}/scale"),
        format!("{item}/status"),
        "/apis/lab.example/v1/widgets".to_owned(),
    ];
    assert_eq!(paths, expected);
    let patch = &document["paths"][item]["patch"];
    assert_eq!(patch["operationId"], "patchLabExampleV1NamespacedWidget");
    assert_eq!(patch["tags"], json!(["labExample_v1"]));
    let media: Vec<&String> =
        patch["requestBody"]["content"].as_object().expect("a map").keys().collect();
    assert_eq!(
        media,
        [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json"
        ]
    );
    let names: Vec<&Value> =
        patch["parameters"].as_array().expect("a list").iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
}

#[test]
fn a_changed_definition_changes_the_hash() {
    let registry = with_widgets();
    let hash = openapi::document_hash(&registry, "lab.example", "v1");
    let mut other = (**registry.resources().last().expect("widgets")).clone();
    other.origin = Origin::Custom(Arc::new(json!({"name": "v1"})));
    let changed = registry.with_custom(vec![Arc::new(other)]);
    assert_ne!(openapi::document_hash(&changed, "lab.example", "v1"), hash);
    let core = openapi::document_hash(&registry, "", "v1");
    assert_eq!(openapi::document_hash(&changed, "", "v1"), core);
}

fn widget_spec() -> Value {
    json!({"type": "object", "required": ["size"], "properties": {"size": {"type": "string"}}})
}

fn with_widgets() -> Registry {
    let schema = json!({"type": "object", "required": ["spec"], "description": "A widget.",
        "properties": {"spec": widget_spec()}});
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}, "scale": {}}});
    let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget",
        "listKind": "WidgetList"});
    let crd = json!({"spec": {"group": "lab.example", "names": names, "versions": [version]}});
    builtin::registry().with_custom(crd::resources_of(&crd).into_iter().map(Arc::new).collect())
}
