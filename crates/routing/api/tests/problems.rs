//! The problems that conversion reports for unreadable fields. Conversion never panics.

use nearhop_api::convert_json;
use nearhop_core::model::{DEFAULT_AFFINITY, Service, SourceRanges};
use nearhop_core::{Object, Problem};
use proptest::prelude::*;
use serde_json::{Value, json};

fn service(metadata: Value, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "n", "name": "s"},
        "spec": spec,
    });
    for (key, value) in metadata.as_object().into_iter().flatten() {
        object["metadata"][key] = value.clone();
    }
    object
}

fn object(api_version: &str, kind: &str, rest: Value) -> Value {
    let mut object = rest;
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object["metadata"]["namespace"] = json!("n");
    object["metadata"]["name"] = json!("o");
    object
}

fn problems(object: &Value) -> Vec<String> {
    let (found, problems) = convert_json(object.to_string().as_bytes());
    assert!(found.is_some(), "{object}");
    problems.iter().map(Problem::to_string).collect()
}

#[test]
fn an_invalid_service_field_is_reported_and_ignored() {
    let text = "give a string; it counts as unset until then";
    for (object, message) in [
        (service(json!({"uid": 7}), json!({})), format!("metadata.uid: is a number, not a string; {text}")),
        (
            service(json!({"labels": {"a": 1}}), json!({})),
            format!("metadata.labels[a]: is a number, not a string; {text}"),
        ),
        (
            service(json!({"labels": []}), json!({})),
            "metadata.labels: is a list, not an object; give an object; it counts as unset \
             until then".into(),
        ),
        (
            service(json!({"annotations": {"nearhop.dev/max-overload": 20}}), json!({})),
            format!(
                "metadata.annotations[nearhop.dev/max-overload]: is a number, not a string; {text}"
            ),
        ),
        (
            service(json!({"creationTimestamp": "soon"}), json!({})),
            "metadata.creationTimestamp: \"soon\" is not a time such as 2025-01-31T12:00:00Z; give \
             a time such as 2025-01-31T12:00:00Z; it counts as unset until then".into(),
        ),
        (
            service(json!({}), json!({"type": "Odd"})),
            "spec.type: \"Odd\" is not ClusterIP, NodePort, LoadBalancer or ExternalName; give \
             ClusterIP, NodePort, LoadBalancer or ExternalName; it counts as unset until then"
                .into(),
        ),
        (
            service(json!({}), json!({"internalTrafficPolicy": "Global"})),
            "spec.internalTrafficPolicy: \"Global\" is not Cluster or Local; give Cluster or \
             Local; it counts as unset until then".into(),
        ),
        (
            service(json!({}), json!({"publishNotReadyAddresses": "yes"})),
            "spec.publishNotReadyAddresses: is a string, not true or false; give true or false; \
             it counts as unset until then".into(),
        ),
        (
            service(json!({}), json!({"clusterIPs": ["10.0.0.1", "ten"]})),
            "spec.clusterIPs[1]: \"ten\" is not an IP address; give an IP address; it counts as \
             unset until then".into(),
        ),
        (
            service(json!({}), json!({"ipFamilies": ["IPv5"]})),
            "spec.ipFamilies[0]: \"IPv5\" is not IPv4 or IPv6; give IPv4 or IPv6; it counts as \
             unset until then".into(),
        ),
        (
            service(json!({}), json!({"externalIPs": [null]})),
            format!("spec.externalIPs[0]: is null, not a string; {text}"),
        ),
        (
            service(json!({}), json!({"ports": [{"name": "x"}]})),
            "spec.ports[0].port: missing; give a port from 1 to 65535; it is not served until then"
                .into(),
        ),
        (
            service(json!({}), json!({"ports": [{"port": -1}]})),
            "spec.ports[0].port: -1 is not a port; give a port from 1 to 65535; it counts as unset \
             until then".into(),
        ),
        (
            service(json!({}), json!({"ports": [{"port": 80.5}]})),
            "spec.ports[0].port: is a decimal number, not a whole number; give a whole number; it \
             counts as unset until then".into(),
        ),
        (
            service(json!({}), json!({"ports": [{"port": 80, "targetPort": 65536}]})),
            "spec.ports[0].targetPort: 65536 is not a port; give a port from 1 to 65535; it counts \
             as unset until then".into(),
        ),
        (
            service(json!({}), json!({"ports": [{"port": 80, "nodePort": 65536}]})),
            "spec.ports[0].nodePort: 65536 is not a port; give a port from 1 to 65535; it counts \
             as unset until then".into(),
        ),
        (
            service(json!({}), json!({"healthCheckNodePort": 65536})),
            "spec.healthCheckNodePort: 65536 is not a port; give a port from 1 to 65535; it counts \
             as unset until then".into(),
        ),
        (
            service(json!({}), json!({"sessionAffinity": "Cookie"})),
            "spec.sessionAffinity: \"Cookie\" is not ClientIP or None; give ClientIP or None; it \
             counts as unset until then".into(),
        ),
    ] {
        assert_eq!(problems(&object), [format!("Service n/s: {message}")]);
    }
}

fn read_service(spec: Value) -> (Service, Vec<String>) {
    let (object, problems) = convert_json(service(json!({}), spec).to_string().as_bytes());
    let Some(Object::Service(service)) = object else { panic!("a Service") };
    (*service, problems.iter().map(Problem::to_string).collect())
}

#[test]
fn an_invalid_affinity_timeout_becomes_the_default() {
    let at = "Service n/s: spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    let cure = "give seconds from 1 to 86400; 10800 are used until then";
    for (seconds, message) in [
        (json!(0), format!("{at}: 0 is out of range; {cure}")),
        (json!(-1), format!("{at}: -1 is out of range; {cure}")),
        (json!(86_401), format!("{at}: 86401 is out of range; {cure}")),
        (
            json!("long"),
            format!(
                "{at}: is a string, not a whole number; give a whole number; it counts as unset \
                 until then"
            ),
        ),
    ] {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        let spec = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config});
        let (service, problems) = read_service(spec);
        assert_eq!(service.session_affinity, Some(DEFAULT_AFFINITY));
        assert_eq!(problems, [message]);
    }
}

/// An unreadable range must not admit all clients.
#[test]
fn invalid_source_ranges_admit_no_client() {
    let at = "Service n/s: spec.loadBalancerSourceRanges";
    let cure = "give an address range such as 10.0.0.0/8; it admits no client until then";
    let not = |i: usize, text: &str| {
        format!("{at}[{i}]: {text:?} is not an address range such as 10.0.0.0/8; {cure}")
    };
    for (ranges, expected, messages) in [
        (json!(null), None, vec![]),
        (json!([]), None, vec![]),
        (json!(["10.0.0.0/8"]), Some(vec!["10.0.0.0/8"]), vec![]),
        (json!([" 10.0.0.0/8\t"]), Some(vec!["10.0.0.0/8"]), vec![]),
        (json!(["0.0.0.0/0", "::/0"]), Some(vec!["0.0.0.0/0", "::/0"]), vec![]),
        (json!(["ten/8", "10.0.0.0/8"]), Some(vec!["10.0.0.0/8"]), vec![not(0, "ten/8")]),
        (json!(["10.0.0.1"]), Some(vec![]), vec![not(0, "10.0.0.1")]),
        (json!([""]), Some(vec![]), vec![not(0, "")]),
        (json!([" ", "10.0.0.0/33"]), Some(vec![]), vec![not(0, " "), not(1, "10.0.0.0/33")]),
        (json!([null]), Some(vec![]), vec![format!("{at}[0]: is null, not a string; {cure}")]),
        (json!([8]), Some(vec![]), vec![format!("{at}[0]: is a number, not a string; {cure}")]),
        (
            json!("10.0.0.0/8"),
            Some(vec![]),
            vec![format!(
                "{at}: is a string, not a list; give a list of address ranges; no client is admitted \
                 until then"
            )],
        ),
    ] {
        let (service, problems) = read_service(json!({"loadBalancerSourceRanges": ranges}));
        let read = match service.source_ranges {
            SourceRanges::AnyClient => None,
            SourceRanges::Only(ranges) => {
                Some(ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
            }
        };
        assert_eq!(
            (read, problems),
            (expected.map(|all| all.iter().map(ToString::to_string).collect()), messages)
        );
    }
}

#[test]
fn invalid_fields_of_other_kinds_are_reported() {
    let paths = |object: &Value| -> Vec<String> {
        let (object, problems) = convert_json(object.to_string().as_bytes());
        assert!(object.is_some());
        problems.iter().map(|problem| format!("{} {}", problem.subject, problem.field)).collect()
    };
    let pod = json!({
        "spec": {"nodeName": 1, "containers": [
            {"ports": [{"name": "a", "containerPort": 0}, {"name": "b", "containerPort": 1e3}]},
            null,
            {"ports": [{"name": "c", "containerPort": 1, "protocol": "tcp"}, {"containerPort": "?"}]},
        ]},
        "status": {"podIPs": [{"ip": 5}, "10.0.0.1"]},
    });
    assert_eq!(
        paths(&object("v1", "Pod", pod)),
        [
            "Pod n/o spec.nodeName",
            "Pod n/o status.podIPs[1]",
            "Pod n/o status.podIPs[0].ip",
            "Pod n/o spec.containers[1]",
            "Pod n/o spec.containers[0].ports[0].containerPort",
            "Pod n/o spec.containers[0].ports[1].containerPort",
            "Pod n/o spec.containers[2].ports[0].protocol",
        ]
    );
    let node = json!({"status": {"allocatable": {"cpu": "lots"}, "conditions": [7]}});
    assert_eq!(
        paths(&object("v1", "Node", node)),
        ["Node o status.conditions[0]", "Node o status.allocatable.cpu"]
    );
    let node = json!({
        "metadata": {"deletionTimestamp": 1},
        "spec": {"podCIDRs": ["10.0.0.0", 7, "fd00::/64"], "taints": [{"key": 1}, "x"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "here"},
            {"type": 1, "address": "10.0.0.1"},
            {"type": "Hostname", "address": 1},
            "10.0.0.1",
        ]},
    });
    assert_eq!(
        paths(&object("v1", "Node", node)),
        [
            "Node o status.addresses[3]",
            "Node o status.addresses[0].address",
            "Node o status.addresses[1].type",
            "Node o spec.podCIDRs[1]",
            "Node o spec.podCIDRs[0]",
            "Node o metadata.deletionTimestamp",
            "Node o spec.taints[1]",
            "Node o spec.taints[0].key",
        ]
    );
    let node = json!({"spec": {"podCIDR": "10.0.0.0/33"}});
    assert_eq!(paths(&object("v1", "Node", node)), ["Node o spec.podCIDR"]);
    let slice = json!({
        "metadata": {"ownerReferences": [{"kind": "Service", "apiVersion": "v1", "uid": {}}]},
        "addressType": "IPv4",
        "ports": [{"port": "http"}, {"port": 80, "protocol": "x"}, {"port": 0}],
        "endpoints": [
            "10.0.0.1",
            {"addresses": ["10.0.0.1"], "conditions": {"ready": "yes"}, "hints": {"forZones": [{}]}},
        ],
    });
    assert_eq!(
        paths(&object("discovery.k8s.io/v1", "EndpointSlice", slice)),
        [
            "EndpointSlice n/o metadata.ownerReferences[0].uid",
            "EndpointSlice n/o ports[0].port",
            "EndpointSlice n/o ports[1].protocol",
            "EndpointSlice n/o ports[2].port",
            "EndpointSlice n/o endpoints[0]",
            "EndpointSlice n/o endpoints[1].conditions.ready",
            "EndpointSlice n/o endpoints[1].hints.forZones[0].name",
        ]
    );
}

#[test]
fn a_selector_or_key_list_with_an_invalid_entry_is_ignored() {
    let spec = json!({"selector": {"app": "web", "tier": 1}, "topologyKeys": ["a", 2]});
    let object = service(json!({}), spec);
    let (object, problems) = convert_json(object.to_string().as_bytes());
    let Some(Object::Service(service)) = object else { panic!("a Service") };
    assert_eq!(service.selector, None, "without the key tier the selector would match more Pods");
    assert_eq!(service.topology.topology_keys, Vec::<nearhop_core::Name>::new());
    let fields: Vec<_> = problems.into_iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["spec.topologyKeys[1]", "spec.selector[tier]"]);
}

#[test]
fn an_object_is_skipped_only_if_its_name_is_unreadable() {
    for (text, message) in [
        (
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}"#,
            "object of kind Service: metadata.namespace: missing; name the object; it is ignored \
             until then",
        ),
        (
            r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": 5}}"#,
            "object of kind Node: metadata.name: is a number, not a string; give a string; it \
             counts as unset until then",
        ),
        (
            r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}"#,
            "object from JSON text: kind: \"Deployment\" of \"apps/v1\" is not a kind that is \
             read; give a Service, Pod, Node or Namespace of v1, an EndpointSlice of \
             discovery.k8s.io/v1, a ServiceCIDR of networking.k8s.io/v1 or a PodLocator of \
             nearhop.dev/v1alpha1; it is ignored until then",
        ),
        (
            "[]",
            "object from JSON text: kind: \"\" of \"\" is not a kind that is read; give a \
             Service, Pod, Node or Namespace of v1, an EndpointSlice of discovery.k8s.io/v1, a \
             ServiceCIDR of networking.k8s.io/v1 or a PodLocator of nearhop.dev/v1alpha1; it is \
             ignored until then",
        ),
        (
            "{",
            "object from JSON text: (whole text): not readable: EOF while parsing an object at \
             line 1 column 1; give one JSON object; it is ignored until then",
        ),
    ] {
        let (object, problems) = convert_json(text.as_bytes());
        assert_eq!(object, None);
        let messages: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(messages, [message]);
    }
}

#[test]
fn the_last_of_duplicate_fields_is_used() {
    let text = br#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"},
        "metadata": {"name": "b"}}"#;
    let (object, problems) = convert_json(text);
    assert_eq!(problems, []);
    assert!(matches!(object, Some(Object::Node(node)) if node.name == "b"));
}

/// A small JSON value of any type.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop_oneof![Just("None"), Just("10.0.0.1"), Just("::1"), Just("1e9"), Just("-1m")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[a-zP]{1,6}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Replaces the value at position `at`, counted through the whole object.
fn replace(value: &mut Value, at: &mut usize, with: &Value) {
    if *at == 0 {
        *value = with.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| replace(value, at, with)),
        Value::Object(object) => object.values_mut().for_each(|value| replace(value, at, with)),
        _ => {}
    }
}

fn samples() -> [Value; 5] {
    let endpoint = json!({
        "addresses": ["10.0.0.1"], "conditions": {"ready": true}, "hostname": "h",
        "nodeName": "a", "zone": "z", "targetRef": {"kind": "Pod", "name": "p"},
        "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "a"}]},
    });
    let metadata = json!({
        "labels": {"kubernetes.io/service-name": "o"},
        "annotations": {"nearhop.dev/routing": "{}", "nearhop.dev/max-overload": "1%"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "uid": "u"}],
        "creationTimestamp": "2025-01-01T00:00:00Z",
    });
    let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "x"}]);
    let ports =
        json!([{"name": "a", "port": 1, "targetPort": 2, "nodePort": 3, "protocol": "UDP"}]);
    [
        object(
            "v1",
            "Service",
            json!({
                "metadata": metadata,
                "spec": {
                    "type": "NodePort", "selector": {"a": "b"}, "ports": ports, "clusterIP": "None",
                    "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "externalIPs": ["1.1.1.1"],
                    "topologyKeys": ["a"], "sessionAffinity": "ClientIP",
                    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}},
                    "loadBalancerSourceRanges": ["1.1.1.1/8"], "healthCheckNodePort": 4,
                },
                "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1", "ipMode": "VIP"}]}},
            }),
        ),
        object(
            "v1",
            "Pod",
            json!({
                "metadata": metadata,
                "spec": {"containers": [{"ports": [{"name": "a", "containerPort": 1}]}], "hostname": "h"},
                "status": {"podIPs": [{"ip": "1.1.1.1"}], "conditions": ready, "phase": "Running"},
            }),
        ),
        object(
            "v1",
            "Node",
            json!({
                "metadata": metadata,
                "spec": {"podCIDR": "1.1.1.1/8", "podCIDRs": ["1.1.1.1/8"], "taints": [{"key": "a"}]},
                "status": {
                    "allocatable": {"cpu": "1"}, "conditions": ready,
                    "addresses": [{"type": "InternalIP", "address": "1.1.1.1"}],
                },
            }),
        ),
        object("v1", "Namespace", json!({"metadata": metadata})),
        object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({
                "metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": [endpoint],
            }),
        ),
    ]
}

proptest! {
    #[test]
    fn changed_objects_are_converted_or_reported(
        sample in 0..5usize,
        changes in proptest::collection::vec((0..80usize, anything()), 1..4),
    ) {
        let mut object = samples()[sample].clone();
        for (mut at, with) in changes {
            replace(&mut object, &mut at, &with);
        }
        let (object, problems) = convert_json(object.to_string().as_bytes());
        prop_assert!(object.is_some() || !problems.is_empty(), "the object was ignored without a problem");
    }

    #[test]
    fn converting_any_bytes_does_not_panic(
        sample in 0..5usize,
        cut in 0..600usize,
        bytes in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut text = samples()[sample].to_string().into_bytes();
        let at = cut.min(text.len());
        text.splice(at..at, bytes);
        convert_json(&text);
        convert_json(&text[..at]);
    }
}

/// Otherwise any user with permission to create a PodLocator could claim any address.
#[test]
fn a_podlocator_without_its_pod_as_owner_is_reported() {
    let locator = |owner: &str| {
        format!(
            r#"{{"apiVersion": "nearhop.dev/v1alpha1", "kind": "PodLocator",
                "metadata": {{"name": "web-0", "namespace": "shop", "ownerReferences": [{owner}]}},
                "ips": [{{"ip": "10.0.0.7"}}], "nodeName": "n1"}}"#
        )
    };
    let read = |owner: &str| match convert_json(locator(owner).as_bytes()) {
        (Some(Object::Locator(locator)), problems) => (locator.owner, problems),
        other => panic!("{other:?}"),
    };
    let (owner, problems) =
        read(r#"{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "1111"}"#);
    assert_eq!((owner.as_deref(), problems.len()), (Some("1111"), 0));
    for foreign in [
        "",
        r#"{"apiVersion": "v1", "kind": "Pod", "name": "web-1", "uid": "1111"}"#,
        r#"{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": ""}"#,
        r#"{"apiVersion": "v1", "kind": "Service", "name": "web-0", "uid": "1111"}"#,
        r#"{"apiVersion": "apps/v1", "kind": "Pod", "name": "web-0", "uid": "1111"}"#,
    ] {
        let (owner, problems) = read(foreign);
        assert_eq!(owner, None, "{foreign}");
        let text = problems.iter().map(ToString::to_string).collect::<String>();
        assert!(
            text.contains("PodLocator shop/web-0") && text.contains("ownerReferences"),
            "{text}"
        );
    }
}
