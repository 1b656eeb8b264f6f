//! Discovery documents, compared with the complete documents of a real server.

use std::sync::Arc;

use nearhop_kinds::{Registry, builtin, crd, discovery};
use serde_json::{Value, json};

macro_rules! recorded {
    ($name:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!(
            "data/discovery/discovery-",
            $name,
            ".json"
        )))
        .expect("recorded documents are JSON")
    };
}

#[test]
fn aggregated_documents_match_a_real_server() {
    let registry = builtin::registry();
    assert_eq!(discovery::aggregated_core(registry), recorded!("aggregated-api"));
    assert_eq!(discovery::aggregated_groups(registry), recorded!("aggregated-apis"));
}

#[test]
fn older_documents_match_a_real_server() {
    let registry = builtin::registry();
    let recorded_api = recorded!("legacy-api");
    assert_eq!(discovery::core_versions(registry, "192.0.2.2:16443"), recorded_api);
    assert_eq!(discovery::group_list(registry), recorded!("legacy-apis"));
    let lists = [
        ("", recorded!("legacy-api-v1")),
        ("apiextensions.k8s.io", recorded!("legacy-apis-apiextensions.k8s.io-v1")),
        ("apps", recorded!("legacy-apis-apps-v1")),
        ("authentication.k8s.io", recorded!("legacy-apis-authentication.k8s.io-v1")),
        ("authorization.k8s.io", recorded!("legacy-apis-authorization.k8s.io-v1")),
        ("coordination.k8s.io", recorded!("legacy-apis-coordination.k8s.io-v1")),
        ("discovery.k8s.io", recorded!("legacy-apis-discovery.k8s.io-v1")),
        ("events.k8s.io", recorded!("legacy-apis-events.k8s.io-v1")),
        ("networking.k8s.io", recorded!("legacy-apis-networking.k8s.io-v1")),
        ("policy", recorded!("legacy-apis-policy-v1")),
    ];
    for (group, expected) in lists {
        assert_eq!(discovery::resource_list(registry, group, "v1"), Some(expected), "{group}");
    }
    assert_eq!(discovery::resource_list(registry, "apps", "v2"), None);
}

#[test]
fn one_group_is_found_and_an_unknown_group_is_not() {
    let registry = builtin::registry();
    let version = json!({"groupVersion": "apps/v1", "version": "v1"});
    let expected = json!({"kind": "APIGroup", "apiVersion": "v1", "name": "apps",
        "versions": [version], "preferredVersion": version});
    assert_eq!(discovery::group(registry, "apps"), Some(expected));
    assert_eq!(discovery::group(registry, "nope"), None);
    assert_eq!(discovery::group(registry, ""), None);
}

#[test]
fn paths_name_every_group_version_in_order() {
    let registry = with_boxes();
    let document = discovery::paths(&registry, &["/version", "/healthz"]);
    let paths = document["paths"].as_array().expect("paths is a list");
    for path in [
        "/api/v1",
        "/apis/",
        "/apis/autoscaling/v2",
        "/apis/crd.example/v1",
        "/healthz",
        "/version",
    ] {
        assert!(paths.contains(&json!(path)), "{path}");
    }
    assert!(paths.is_sorted_by_key(|path| path.as_str()));
}

#[test]
fn a_custom_resource_is_listed_like_a_real_server() {
    let registry = with_boxes();
    let all = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    let few = ["get", "patch", "update"];
    let own = json!({"group": "crd.example", "version": "v1", "kind": "Box"});
    let expected = json!({"metadata": {"name": "crd.example"}, "versions": [{"version": "v1", "freshness": "Current",
        "resources": [{"resource": "boxes", "responseKind": own, "scope": "Namespaced", "singularResource": "box",
            "verbs": all, "shortNames": ["bo"], "categories": ["all"], "subresources": [
                {"subresource": "status", "responseKind": own, "verbs": few},
                {"subresource": "scale", "verbs": few,
                 "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}}]}]}]});
    let document = discovery::aggregated_groups(&registry);
    assert_eq!(document["items"].as_array().and_then(|items| items.last()), Some(&expected));

    let expected = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "crd.example/v1", "resources": [
        {"name": "boxes", "singularName": "box", "namespaced": true, "kind": "Box", "verbs": all,
         "shortNames": ["bo"], "categories": ["all"], "storageVersionHash": "4OYc8KIWVPs="},
        {"name": "boxes/status", "singularName": "", "namespaced": true, "kind": "Box", "verbs": few},
        {"name": "boxes/scale", "singularName": "", "namespaced": true, "group": "autoscaling", "version": "v1",
         "kind": "Scale", "verbs": few}]});
    assert_eq!(discovery::resource_list(&registry, "crd.example", "v1"), Some(expected));
}

fn with_boxes() -> Registry {
    let names = json!({"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList",
        "shortNames": ["bo"], "categories": ["all"]});
    let version = json!({"name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}, "scale": {}}});
    let crd = json!({"spec": {"group": "crd.example", "names": names, "versions": [version]}});
    builtin::registry().with_custom(crd::resources_of(&crd).into_iter().map(Arc::new).collect())
}
