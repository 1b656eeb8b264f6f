//! Scheduling decisions and their reasons.

use serde_json::{Value, json};

use super::*;
use crate::testing::{self, at, labels};

/// A pending Pod with these fields in its spec.
fn waiting(name: &str, spec: &Value) -> Pod {
    let mut pod = serde_json::to_value(testing::pod(name, "")).unwrap();
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

struct Table {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    services: Vec<Service>,
}

impl Table {
    fn six() -> Self {
        let names = [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b"), ("n5", "c"), ("n6", "c")];
        let nodes = names.map(|(name, zone)| testing::node(name, zone)).into();
        Self { nodes, pods: Vec::new(), services: Vec::new() }
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.metadata.name.as_deref() == Some(name)).unwrap()
    }

    fn schedule(&self, pod: &Pod) -> String {
        let info = |node| NodeInfo {
            node,
            pods: self
                .pods
                .iter()
                .filter(|p| pod::node(p) == object::name(&node.metadata))
                .collect(),
        };
        let snapshot = Snapshot {
            nodes: self.nodes.iter().map(info).collect(),
            services: self.services.iter().collect(),
            namespaces: [("x", None)].into(),
        };
        schedule(pod, &snapshot).unwrap_or_else(|unfit| unfit.to_string())
    }

    /// Schedules Pods one after another.
    fn place(&mut self, count: usize, make: impl Fn(usize) -> Pod) -> Vec<String> {
        let mut nodes = Vec::new();
        for index in 0..count {
            let mut pod = make(index);
            let node = self.schedule(&pod);
            pod.spec.as_mut().unwrap().node_name = Some(node.clone());
            self.pods.push(pod);
            nodes.push(node);
        }
        nodes
    }
}

#[test]
fn pods_of_an_owner_spread_over_zones_then_nodes() {
    let set = testing::replica_set("web", 9);
    let make =
        |index: usize| testing::owned_pod("ReplicaSet", &set.metadata, &format!("p{index}"), "");
    let mut table = Table::six();
    let nodes = table.place(9, make);
    assert_eq!(nodes, ["n1", "n3", "n5", "n2", "n4", "n6", "n1", "n3", "n5"]);
}

#[test]
fn pods_without_an_owner_spread_by_service() {
    let mut table = Table::six();
    let service = json!({
        "metadata": { "name": "s", "namespace": "x" },
        "spec": { "selector": { "app": "web" } },
    });
    table.services.push(serde_json::from_value(service).unwrap());
    table.pods.push(testing::pod("there", "n1"));
    assert_eq!(table.schedule(&testing::pod("p", "")), "n3", "zone a has one already");
    table.services.clear();
    assert_eq!(table.schedule(&testing::pod("p", "")), "n2", "without it, the emptiest node");
}

#[test]
fn the_least_loaded_node_wins_a_tie() {
    let mut table = Table::six();
    let hungry = json!({ "containers": [
        { "name": "c", "resources": { "requests": { "cpu": "1" } } },
    ] });
    let mut pod = waiting("there", &hungry);
    pod.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    table.pods.push(pod);
    assert_eq!(table.schedule(&testing::pod("p", "")), "n2");
}

#[test]
fn required_constraints_are_enforced() {
    let zone = "topology.kubernetes.io/zone";
    let term = |selector: &str| json!([{ "topologyKey": zone, "labelSelector": { "matchLabels": { "app": selector } } }]);
    let anti = json!({ "affinity": { "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": term("web"),
    } } });
    let pro = json!({ "affinity": { "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": term("web"),
    } } });
    let lonely = json!({ "affinity": { "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": term("db"),
    } } });
    let port = json!({ "containers": [{ "name": "c", "ports": [
        { "containerPort": 80, "hostPort": 80 },
    ] }] });
    let cases = [
        (json!({ "nodeSelector": { "kubernetes.io/hostname": "n4" } }), "n4"),
        (anti, "n3"),
        (pro, "n2"),
        (lonely, "0/6 nodes are available: 6 node(s) didn't match pod affinity rules."),
        (port, "n2"),
    ];
    for (spec, expected) in cases {
        let mut table = Table::six();
        let port = json!({ "containers": [{ "name": "c", "ports": [
            { "containerPort": 80, "hostPort": 80, "protocol": "TCP" },
        ] }] });
        let mut there = waiting("there", &port);
        there.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
        table.pods.push(there);
        assert_eq!(table.schedule(&waiting("p", &spec)), expected, "{spec}");
    }
}

#[test]
fn anti_affinity_of_placed_pods_counts() {
    let mut table = Table::six();
    let anti = json!({ "affinity": { "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "topology.kubernetes.io/zone",
              "labelSelector": { "matchLabels": { "app": "web" } } },
        ],
    } } });
    let nodes = table.place(4, |index| waiting(&format!("p{index}"), &anti));
    assert_eq!(nodes[..3], ["n1", "n3", "n5"]);
    assert!(nodes[3].contains("6 node(s) didn't match pod anti-affinity rules"), "{nodes:?}");
    let plain = table.schedule(&testing::pod("plain", ""));
    assert!(plain.contains("6 node(s) didn't satisfy existing pods anti-affinity"), "{plain}");
}

#[test]
fn required_spread_respects_max_skew() {
    let spread = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    }] });
    let mut table = Table::six();
    for name in ["n5", "n6"] {
        table.node(name).spec.get_or_insert_default().unschedulable = Some(true);
    }
    let nodes = table.place(3, |index| waiting(&format!("p{index}"), &spread));
    assert_eq!(nodes[..2], ["n1", "n3"]);
    assert_eq!(
        nodes[2],
        "0/6 nodes are available: 2 node(s) were unschedulable, 4 node(s) didn't match pod \
         topology spread constraints.",
        "zone c counts and has none"
    );
}

#[test]
fn the_message_counts_each_reason_per_node() {
    let mut table = Table::six();
    let taint = crate::taint::taint("dedicated", "NoSchedule");
    table.node("n1").spec.get_or_insert_default().taints = Some(vec![taint]);
    table.node("n2").spec.get_or_insert_default().unschedulable = Some(true);
    table.node("n3").status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status =
        "Unknown".to_owned();
    table.node("n4").status.as_mut().unwrap().conditions = None;
    table.node("n5").metadata.labels = Some(labels(&[("disk", "hdd")]));
    table.node("n6").metadata.labels = Some(labels(&[("disk", "ssd")]));
    let spec = json!({
        "nodeSelector": { "disk": "ssd" },
        "containers": [{ "name": "c", "resources": { "requests": {
            "cpu": "5", "memory": "9Gi", "example.com/gpu": "1",
        } } }],
    });
    assert_eq!(
        table.schedule(&waiting("p", &spec)),
        "0/6 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu, 1 \
         Insufficient memory, 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had \
         untolerated taint {dedicated: }, 1 node(s) had untolerated taint \
         {node.kubernetes.io/not-ready: }, 1 node(s) had untolerated taint \
         {node.kubernetes.io/unreachable: }, 1 node(s) were unschedulable."
    );
    let none = Table { nodes: Vec::new(), pods: Vec::new(), services: Vec::new() };
    assert_eq!(none.schedule(&waiting("p", &spec)), "no nodes available to schedule pods");
}

#[test]
fn a_full_node_takes_no_more_pods() {
    let mut table = Table::six();
    table.nodes.truncate(1);
    let allocatable = table.nodes[0].status.as_mut().unwrap().allocatable.as_mut().unwrap();
    allocatable.get_mut("pods").unwrap().0 = "2".to_owned();
    let nodes = table.place(3, |index| testing::pod(&format!("p{index}"), ""));
    assert_eq!(nodes, ["n1", "n1", "0/1 nodes are available: 1 Too many pods."]);
}

#[test]
fn unsupported_fields_are_named() {
    let table = Table::six();
    for (spec, field) in [
        (
            json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }),
            "spec.volumes[0]",
        ),
        (json!({ "resourceClaims": [{ "name": "r" }] }), "spec.resourceClaims"),
    ] {
        let message = table.schedule(&waiting("p", &spec));
        assert!(message.contains(field), "{message}");
    }
}

#[test]
fn only_pods_of_this_scheduler_wait() {
    let cases = [
        (json!({}), true),
        (json!({ "schedulerName": "other" }), false),
        (json!({ "nodeName": "n1" }), false),
        (json!({ "schedulingGates": [{ "name": "g" }] }), false),
    ];
    for (spec, expected) in cases {
        assert_eq!(is_waiting(&waiting("p", &spec)), expected, "{spec}");
    }
}

#[test]
fn a_scheduling_failure_is_reported_once() {
    let pod = testing::pod("p", "");
    let snapshot = Snapshot::default();
    let first = plan(&pod, &snapshot, at(0));
    let Some(Action::PutStatus(crate::kind::Object::Pod(reported))) = first.actions().next() else {
        panic!("{first:?}")
    };
    assert_eq!(first.actions().count(), 2, "the status and an event");
    let second = plan(reported, &snapshot, at(9));
    assert_eq!(second, Plan::after(RETRY_INTERVAL));
}

#[test]
fn requests_beyond_the_number_range_are_insufficient() {
    let mut table = Table::six();
    let hungry = json!({ "containers": [
        { "name": "a", "resources": { "requests": { "memory": "1e30" } } },
        { "name": "b", "resources": { "requests": { "memory": "1e30" } } },
    ] });
    let message = table.schedule(&waiting("p", &hungry));
    assert_eq!(message, "0/6 nodes are available: 6 Insufficient memory.");
    for index in 0..3 {
        let mut there = waiting(&format!("there{index}"), &hungry);
        there.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
        table.pods.push(there);
    }
    assert_eq!(table.schedule(&testing::pod("p", "")), "n2", "n1 has the highest load");
    assert_eq!(table.schedule(&waiting("p", &hungry)), message);
}
