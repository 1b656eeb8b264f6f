//! Objects for tests.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{
    Container, Node, NodeCondition, NodeStatus, Pod, PodCondition, PodSpec, PodStatus,
    PodTemplateSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::object::{self, Labels};

/// A timestamp in seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(crate) fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("x".to_owned()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".to_owned()),
        generation: Some(1),
        creation_timestamp: Some(object::time(at(0))),
        ..ObjectMeta::default()
    }
}

pub(crate) fn template(app: &str) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels(&[("app", app)])),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![Container { name: "c".to_owned(), ..Container::default() }],
            ..PodSpec::default()
        }),
    }
}

/// A pending Pod on a node, or without one.
pub(crate) fn pod(name: &str, node: &str) -> Pod {
    let spec = template("web").spec.map(|spec| PodSpec {
        node_name: (!node.is_empty()).then(|| node.to_owned()),
        scheduler_name: Some("default-scheduler".to_owned()),
        ..spec
    });
    let metadata = ObjectMeta { labels: Some(labels(&[("app", "web")])), ..meta(name) };
    let status = PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() };
    Pod { metadata, spec, status: Some(status) }
}

pub(crate) fn owned_pod(kind: &str, owner: &ObjectMeta, name: &str, node: &str) -> Pod {
    let mut pod = pod(name, node);
    pod.metadata.owner_references = Some(vec![object::owned_by(kind, owner)]);
    pod
}

pub(crate) fn set_ready(pod: &mut Pod, ready: bool, now: Timestamp) {
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Running".to_owned());
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.push(PodCondition {
        type_: "Ready".to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(object::time(now)),
        ..PodCondition::default()
    });
}

pub(crate) fn selector(app: &str) -> LabelSelector {
    LabelSelector { match_labels: Some(labels(&[("app", app)])), match_expressions: None }
}

pub(crate) fn replica_set(name: &str, replicas: i32) -> ReplicaSet {
    ReplicaSet {
        metadata: meta(name),
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            selector: selector("web"),
            template: Some(template("web")),
            min_ready_seconds: None,
        }),
        status: None,
    }
}

/// A ready node of a zone, with 4 CPUs, 8 GiB and room for 110 pods.
pub(crate) fn node(name: &str, zone: &str) -> Node {
    let quantity = |text: &str| Quantity(text.to_owned());
    let allocatable = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110")];
    let mut metadata = meta(name);
    metadata.namespace = None;
    metadata.labels =
        Some(labels(&[("kubernetes.io/hostname", name), ("topology.kubernetes.io/zone", zone)]));
    Node {
        metadata,
        spec: None,
        status: Some(NodeStatus {
            allocatable: Some(allocatable.map(|(k, v)| (k.to_owned(), quantity(v))).into()),
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            }]),
            ..NodeStatus::default()
        }),
    }
}
