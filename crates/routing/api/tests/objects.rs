//! Whole objects, as `kubectl get -o json` prints them.

use std::net::IpAddr;
use std::time::Duration;

use nearhop_api::convert_json;
use nearhop_core::labels::well_known;
use nearhop_core::model::{
    AddressType, Addresses, ClusterIps, Conditions, ContainerPort, Endpoint, Hints, Namespace,
    Node, Pod, PodDns, PodRef, Service, ServicePort, ServiceType, Slice, SlicePort, SourceRanges,
    TargetPort, TopologySpec, TrafficPolicy,
};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Cidr, Family, Object, PodKey, Protocol, ServiceKey};

/// Converts an object and expects no problems.
fn convert(text: &str) -> Object {
    let (object, problems) = convert_json(text.as_bytes());
    assert_eq!(problems, []);
    object.expect("an object")
}

#[test]
fn a_service_is_converted() {
    let text = r#"{
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"apiVersion\":\"v1\"}\n",
                "service.kubernetes.io/topology-mode": "Auto",
                "service.kubernetes.io/topology-aware-hints": "Disabled",
                "nearhop.dev/topology-keys": "rack,*",
                "nearhop.dev/traffic-distribution": "nearhop.dev/Balanced",
                "nearhop.dev/routing-preference": "Zone",
                "nearhop.dev/max-overload": "10%"
            },
            "creationTimestamp": "2025-03-01T08:15:30Z",
            "deletionTimestamp": "2025-03-02T00:00:00Z",
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
            "labels": {"team": "shop", "app": "web"},
            "managedFields": [{"apiVersion": "v1", "fieldsV1": {"f:spec": {"f:ports": {}}}}],
            "name": "web",
            "namespace": "shop",
            "resourceVersion": "81723",
            "uid": "6c1d4bd5-5b1f-4f0a-a7a6-0f6f3c2e9d11"
        },
        "spec": {
            "allocateLoadBalancerNodePorts": true,
            "clusterIP": "10.96.14.2",
            "clusterIPs": ["10.96.14.2", "fd00::14"],
            "externalIPs": ["192.0.2.7"],
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000,
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "loadBalancerSourceRanges": ["10.1.2.3/8", " 192.0.2.0/24 "],
            "ports": [
                {"name": "http", "nodePort": 30080, "port": 80, "protocol": "TCP",
                 "targetPort": "web", "appProtocol": "kubernetes.io/h2c"},
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353},
                {"name": "same", "port": 9090}
            ],
            "publishNotReadyAddresses": true,
            "routingPreference": "Spread",
            "selector": {"app": "web"},
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
            "topologyKeys": ["kubernetes.io/hostname", "*"],
            "trafficDistribution": "PreferClose",
            "trafficPolicy": "PreferZone",
            "type": "LoadBalancer"
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "198.51.100.3", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]},
            {"ip": "198.51.100.4", "ipMode": "Proxy"},
            {"ip": "198.51.100.5"},
            {"hostname": "lb.example.com"}
        ]}}
    }"#;
    let port = |name: &str, protocol, port, target, node_port| ServicePort {
        name: name.into(),
        protocol,
        port,
        target,
        node_port,
        app_protocol: None,
    };
    let mut ports = vec![
        port("http", Protocol::Tcp, 80, TargetPort::Named("web".into()), 30080),
        port("dns", Protocol::Udp, 53, TargetPort::Number(5353), 0),
        port("same", Protocol::Tcp, 9090, TargetPort::Number(9090), 0),
    ];
    ports[0].app_protocol = Some("kubernetes.io/h2c".into());
    let expected = Service {
        key: ServiceKey::new("shop", "web"),
        uid: "6c1d4bd5-5b1f-4f0a-a7a6-0f6f3c2e9d11".into(),
        labels: [("app", "web"), ("team", "shop")].into_iter().collect(),
        created: Some("2025-03-01T08:15:30Z".parse().unwrap()),
        deleting: true,
        service_type: ServiceType::LoadBalancer,
        external_name: None,
        selector: Some([("app", "web")].into_iter().collect()),
        ports,
        cluster_ips: ClusterIps::Addresses(vec![
            "10.96.14.2".parse().unwrap(),
            "fd00::14".parse().unwrap(),
        ]),
        ip_families: vec![Family::Ipv4, Family::Ipv6],
        external_ips: vec!["192.0.2.7".parse().unwrap()],
        load_balancer_ips: vec!["198.51.100.3".parse().unwrap(), "198.51.100.5".parse().unwrap()],
        source_ranges: SourceRanges::Only(vec![
            Cidr::parse("10.0.0.0/8").unwrap(),
            Cidr::parse("192.0.2.0/24").unwrap(),
        ]),
        session_affinity: Some(Duration::from_secs(7)),
        health_check_node_port: 31000,
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Local,
        publish_not_ready_addresses: true,
        topology: TopologySpec {
            topology_mode: Some("Auto".into()),
            topology_aware_hints: Some("Disabled".into()),
            traffic_policy: Some("PreferZone".into()),
            topology_keys: vec!["kubernetes.io/hostname".into(), "*".into()],
            topology_keys_annotation: Some("rack,*".into()),
            traffic_distribution_annotation: Some("nearhop.dev/Balanced".into()),
            traffic_distribution: Some("PreferClose".into()),
            routing_preference: Some("Spread".into()),
            routing_preference_annotation: Some("Zone".into()),
            max_overload: Some("10%".into()),
        },
    };
    assert_eq!(convert(text), Object::from(expected));
}

#[test]
fn all_forms_of_cluster_ips_are_read() {
    let one = ClusterIps::Addresses(vec!["10.0.0.1".parse().unwrap()]);
    for (spec, expected) in [
        (r#"{}"#, ClusterIps::Unset),
        (r#"{"clusterIP": ""}"#, ClusterIps::Unset),
        (r#"{"clusterIPs": [""]}"#, ClusterIps::Unset),
        (r#"{"clusterIP": "None"}"#, ClusterIps::Headless),
        (r#"{"clusterIP": "None", "clusterIPs": ["None"]}"#, ClusterIps::Headless),
        (r#"{"clusterIP": "10.0.0.1"}"#, one.clone()),
        (r#"{"clusterIP": "10.0.0.1", "clusterIPs": []}"#, one.clone()),
        (r#"{"clusterIPs": ["::ffff:10.0.0.1"]}"#, one),
    ] {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"s","namespace":"n"}},
                "spec":{spec}}}"#
        );
        let Object::Service(service) = convert(&text) else { panic!("a Service") };
        assert_eq!(service.cluster_ips, expected, "{spec}");
    }
}

#[test]
fn absent_and_empty_selectors_differ() {
    let selector = |spec: &str| {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"s","namespace":"n"}},
                "spec":{spec}}}"#
        );
        let Object::Service(service) = convert(&text) else { panic!("a Service") };
        service.selector
    };
    assert_eq!(selector("{}"), None);
    assert_eq!(selector(r#"{"selector": null}"#), None);
    assert_eq!(selector(r#"{"selector": {}}"#), Some([("", ""); 0].into_iter().collect()));
}

#[test]
fn a_pod_is_converted() {
    let text = r#"{
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": "2025-03-01T08:00:00Z",
            "generateName": "web-7d9c-",
            "labels": {"app": "web", "pod-template-hash": "7d9c"},
            "managedFields": [{"manager": "kubelet"}],
            "name": "web-7d9c-x2x4z",
            "namespace": "shop",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "r"}],
            "uid": "p-1"
        },
        "spec": {
            "containers": [
                {"image": "web:1", "name": "web", "resources": {"requests": {"cpu": "1"}},
                 "ports": [{"containerPort": 8080, "name": "web", "protocol": "TCP"},
                           {"containerPort": 9999}]},
                {"name": "dns", "ports": [{"containerPort": 53, "name": "dns", "protocol": "UDP"}]}
            ],
            "hostname": "w0",
            "subdomain": "web",
            "initContainers": [
                {"name": "setup", "ports": [{"containerPort": 1, "name": "never"}]},
                {"name": "mesh", "restartPolicy": "Always",
                 "ports": [{"containerPort": 15090, "name": "metrics"}]}
            ],
            "nodeName": "a1",
            "tolerations": [{"effect": "NoExecute", "tolerationSeconds": 300}]
        },
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": null},
                {"type": "Ready", "status": "True", "lastProbeTime": null,
                 "lastTransitionTime": "2025-03-01T08:00:07Z"}
            ],
            "containerStatuses": [{"name": "web", "restartCount": 0}],
            "hostIP": "192.0.2.1",
            "phase": "Running",
            "podIP": "10.244.1.7",
            "podIPs": [{"ip": "010.244.1.7"}, {"ip": "fd00:244::7"}],
            "qosClass": "Burstable"
        }
    }"#;
    let port = |name: &str, port, protocol| ContainerPort { name: name.into(), port, protocol };
    let expected = Pod {
        key: PodKey::new("shop", "web-7d9c-x2x4z"),
        uid: "p-1".into(),
        labels: [("app", "web"), ("pod-template-hash", "7d9c")].into_iter().collect(),
        ips: ["10.244.1.7", "fd00:244::7"].iter().map(|ip| ip.parse().unwrap()).collect(),
        node: Some("a1".into()),
        dns: Some(Box::new(PodDns { hostname: "w0".into(), subdomain: "web".into() })),
        ports: vec![
            port("web", 8080, Protocol::Tcp),
            port("dns", 53, Protocol::Udp),
            port("metrics", 15090, Protocol::Tcp),
        ]
        .into(),
        ready_since: Some("2025-03-01T08:00:07Z".parse::<jiff::Timestamp>().unwrap().into()),
        ready: true,
        deleting: false,
        terminal: false,
    };
    assert_eq!(convert(text), Object::from(expected));
}

#[test]
fn pod_ip_without_pod_ips_is_ignored() {
    let text = r#"{"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "deletionTimestamp": "2025-03-01T08:00:07Z"},
        "status": {"phase": "Failed", "podIP": "10.0.0.1"}}"#;
    let Object::Pod(pod) = convert(text) else { panic!("a Pod") };
    assert_eq!(pod.ips.first(), None);
    assert!(pod.terminal && pod.deleting && !pod.ready);
    assert_eq!(pod.dns, None);
}

#[test]
fn a_node_is_converted() {
    let text = r#"{
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            "labels": {"kubernetes.io/hostname": "a1", "topology.kubernetes.io/zone": "a"},
            "name": "a1",
            "uid": "n-1"
        },
        "spec": {"podCIDR": "10.244.1.0/24"},
        "status": {
            "addresses": [
                {"address": "203.0.113.1", "type": "ExternalIP"},
                {"address": "192.0.2.1", "type": "InternalIP"},
                {"address": "a1.example.com", "type": "Hostname"},
                {"address": "fd00::1", "type": "InternalIP"}
            ],
            "allocatable": {"cpu": "3920m", "memory": "16Gi", "pods": "110"},
            "capacity": {"cpu": "4"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2025-03-01T08:00:00Z"}
            ],
            "nodeInfo": {"kubeletVersion": "v1.34.0"}
        }
    }"#;
    let labels = [(well_known::HOSTNAME, "a1"), (well_known::ZONE, "a")];
    let expected = Node {
        name: "a1".into(),
        labels: labels.into_iter().collect(),
        ready: true,
        cpu_milli: Some(3920),
        addresses: ["192.0.2.1", "fd00::1", "203.0.113.1"]
            .map(|address| address.parse::<IpAddr>().unwrap())
            .to_vec(),
        pod_cidrs: vec![Cidr::parse("10.244.1.0/24").unwrap()],
        deleting: false,
        tainted_for_deletion: false,
    };
    assert_eq!(convert(text), Object::from(expected));
}

fn node(rest: &str) -> Node {
    let text = format!(r#"{{"apiVersion": "v1", "kind": "Node", {rest}}}"#);
    let Object::Node(node) = convert(&text) else { panic!("a Node") };
    node
}

#[test]
fn all_forms_of_pod_cidrs_are_read() {
    for (spec, expected) in [
        (r#"{}"#, vec![]),
        (r#"{"podCIDR": "", "podCIDRs": []}"#, vec![]),
        (r#"{"podCIDR": "10.1.2.3/16"}"#, vec!["10.1.0.0/16"]),
        (r#"{"podCIDR": "10.1.0.0/16", "podCIDRs": []}"#, vec!["10.1.0.0/16"]),
        (
            r#"{"podCIDR": "10.1.0.0/16", "podCIDRs": ["010.1.0.0/16", "fd00::1/64"]}"#,
            vec!["10.1.0.0/16", "fd00::/64"],
        ),
    ] {
        let node = node(&format!(r#""metadata": {{"name": "n"}}, "spec": {spec}"#));
        let ranges: Vec<String> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, expected, "{spec}");
    }
}

#[test]
fn the_deletion_taint_of_the_cluster_autoscaler_is_read() {
    let mark = |key: &str, effect: &str| {
        let spec = format!(r#"{{"taints": [{{"key": "x"}}, {{"key": "{key}"{effect}}}]}}"#);
        node(&format!(r#""metadata": {{"name": "n"}}, "spec": {spec}"#)).tainted_for_deletion
    };
    assert!(mark("ToBeDeletedByClusterAutoscaler", r#", "effect": "NoSchedule", "value": "1""#));
    assert!(mark("ToBeDeletedByClusterAutoscaler", r#", "effect": "PreferNoSchedule""#));
    assert!(mark("ToBeDeletedByClusterAutoscaler", ""));
    assert!(!mark("DeletionCandidateOfClusterAutoscaler", r#", "effect": "NoSchedule""#));
    let when = r#""metadata": {"name": "n", "deletionTimestamp": "2025-03-01T08:00:00Z"}"#;
    assert!(node(when).deleting);
}

#[test]
fn all_forms_of_session_affinity_are_read() {
    for (spec, expected) in [
        (r#"{}"#, None),
        (r#"{"sessionAffinity": ""}"#, None),
        (r#"{"sessionAffinity": "None"}"#, None),
        (r#"{"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}"#, None),
        (r#"{"sessionAffinity": "ClientIP"}"#, Some(10_800)),
        (r#"{"sessionAffinity": "ClientIP", "sessionAffinityConfig": {}}"#, Some(10_800)),
        (
            r#"{"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": null}}}"#,
            Some(10_800),
        ),
        (
            r#"{"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86400}}}"#,
            Some(86_400),
        ),
    ] {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"s","namespace":"n"}},
                "spec":{spec}}}"#
        );
        let Object::Service(service) = convert(&text) else { panic!("a Service") };
        assert_eq!(service.session_affinity, expected.map(Duration::from_secs), "{spec}");
        assert_eq!(service.source_ranges, SourceRanges::AnyClient);
    }
}

#[test]
fn a_namespace_is_converted() {
    let text = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop",
        "annotations": {"nearhop.dev/traffic-distribution": "PreferSameZone"}},
        "status": {"phase": "Active"}}"#;
    let expected =
        Namespace { name: "shop".into(), traffic_distribution: Some("PreferSameZone".into()) };
    assert_eq!(convert(text), Object::from(expected));
}

#[test]
fn an_endpoint_slice_is_converted() {
    let text = r#"{
        "addressType": "IPv4",
        "apiVersion": "discovery.k8s.io/v1",
        "endpoints": [
            {
                "addresses": ["10.244.1.7"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "a1"}]},
                "hostname": "w0",
                "nodeName": "a1",
                "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "shop", "uid": "p-1"},
                "zone": "a"
            },
            {
                "addresses": ["10.9.0.1"],
                "targetRef": {"kind": "Node", "name": "b1"}
            }
        ],
        "kind": "EndpointSlice",
        "metadata": {
            "annotations": {
                "endpoints.kubernetes.io/last-change-trigger-time": "2025-03-01T08:00:07Z"
            },
            "generateName": "web-",
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": "web"
            },
            "managedFields": [{"manager": "kube-controller-manager"}],
            "name": "web-8x7zq",
            "namespace": "shop",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "s-1"},
                {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "no"},
                {"apiVersion": "example.com/v1", "kind": "Service", "name": "web", "uid": "no"}
            ]
        },
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "http"},
            {"name": null, "port": null}
        ]
    }"#;
    let mut first = Endpoint::at("10.244.1.7".parse().unwrap());
    first.hostname = Some("w0".into());
    first.node = Some("a1".into());
    first.zone = Some("a".into());
    first.target =
        Some(PodRef { namespace: "shop".into(), name: "web-1".into(), uid: "p-1".into() });
    first.hints = Some(Hints { zones: vec!["a".into()], nodes: vec!["a1".into()] }.into());
    let mut second = Endpoint::at("10.9.0.1".parse().unwrap());
    second.conditions = Conditions::default();
    assert_eq!(second.addresses, Addresses::One("10.9.0.1".parse().unwrap()));
    let port = |name: &str, port, app_protocol: Option<&str>| SlicePort {
        name: name.into(),
        protocol: Protocol::Tcp,
        port,
        app_protocol: app_protocol.map(Into::into),
    };
    let labels = [
        (well_known::MANAGED_BY, "endpointslice-controller.k8s.io"),
        (well_known::SERVICE_NAME, "web"),
    ];
    let expected = Slice {
        namespace: "shop".into(),
        name: "web-8x7zq".into(),
        labels: labels.into_iter().collect(),
        owners: vec!["s-1".into()],
        deleting: false,
        address_type: AddressType::Ip(Family::Ipv4),
        ports: [port("http", Some(8080), Some("http")), port("", None, None)].into(),
        endpoints: vec![first, second],
        trigger_time: Some("2025-03-01T08:00:07Z".into()),
        routing: SliceRouting::Absent,
    };
    assert_eq!(convert(text), Object::from(expected));
}

#[test]
fn fqdn_endpoints_are_ignored_and_reported() {
    let text = r#"{"addressType": "FQDN", "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "x", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}},
        "endpoints": [{"addresses": ["a.example.com"]}], "ports": []}"#;
    let Object::Slice(slice) = convert(text) else { panic!("a slice") };
    assert_eq!(slice.endpoints, []);
    let fields: Vec<_> = slice.problems().into_iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["addressType"]);
}
