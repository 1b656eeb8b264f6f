//! Registers the Node, keeps its status up to date, and renews its Lease.
//!
//! The agent changes no taints except those that it registers with, and it does not delete the Node
//! when it stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::client::{ApiCall, ApiFailure, ApiSender};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::options::Options;

/// The Kubernetes version that the agent reports.
const VERSION: &str = "v1.36.2-nearhop";
/// How often the Node's status is written without a change.
const STATUS_PERIOD: Duration = Duration::from_secs(300);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
const NODES: &str = "/api/v1/nodes";
const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const LEASE_SECONDS: i32 = 40;

/// Registers the Node; returns when it exists.
pub(crate) async fn register(api: &ApiSender, options: &Options) {
    for attempt in 0.. {
        let Err(error) = put(api, options, Labels::Given).await else { return };
        tracing::warn!(%error, "node registration failed; will retry");
        sleep(BACKOFF.delay(attempt, rand::random())).await;
    }
}

/// Renews the Lease and repairs the Node, for ever.
///
/// The two are independent: the Lease is renewed even if the Node's status is rejected.
pub(crate) async fn keep(api: ApiSender, options: Arc<Options>) {
    let (mut written, mut failures) = (Instant::now(), 0);
    loop {
        let right = renew_and_check(&api, &options).await;
        let due = right == Some(false) || failures > 0 || written.elapsed() >= STATUS_PERIOD;
        let done = if due { put(&api, &options, Labels::Missing).await } else { Ok(()) };
        match done {
            Ok(()) => {
                if due {
                    (written, failures) = (Instant::now(), 0);
                }
                sleep(options.heartbeat).await;
            }
            Err(error) => {
                tracing::warn!(%error, "node status not written; will retry");
                sleep(BACKOFF.next_delay(&mut failures).min(options.heartbeat)).await;
            }
        }
    }
}

/// Renews the Lease; returns whether the Node is up to date, if known.
async fn renew_and_check(api: &ApiSender, options: &Options) -> Option<bool> {
    let name = &options.node;
    let call = ApiCall::get(format!("{NODES}/{name}"), format!("node {name}"));
    let node = match api.send_json(call).await {
        Ok(node) => node,
        Err(ApiFailure::NotFound { .. }) => {
            tracing::warn!("node object deleted; registering again");
            return Some(false);
        }
        Err(error) => {
            tracing::warn!(%error, "lease not renewed");
            return None;
        }
    };
    if let Err(error) = renew(api, options, &node).await {
        tracing::warn!(%error, "lease not renewed");
    }
    Some(is_up_to_date(&node, options))
}

/// Whether the Node is up to date. The node controller may have marked it as not ready while the
/// agent was away.
fn is_up_to_date(node: &Node, options: &Options) -> bool {
    let known = node.status.clone().unwrap_or_default();
    let wanted = status(options, &[], Timestamp::UNIX_EPOCH);
    let says = |condition: &NodeCondition| {
        let mut all = known.conditions.iter().flatten();
        all.any(|it| it.type_ == condition.type_ && it.status == condition.status)
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    wanted.conditions.iter().flatten().all(says)
        && known.addresses == wanted.addresses
        && known.daemon_endpoints == wanted.daemon_endpoints
        && options.labels.keys().all(|key| labels.contains_key(key))
}

/// The labels to write to an existing Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Labels {
    /// All configured labels, at start.
    Given,
    /// Missing labels only: a user may have changed the others.
    Missing,
}

async fn put(api: &ApiSender, options: &Options, labels: Labels) -> Result<(), ApiFailure> {
    let (path, what) = (format!("{NODES}/{}", options.node), format!("node {}", options.node));
    let get = || api.send_json::<Node>(ApiCall::get(&path, &what));
    let patch = |patch: Value| api.send_json::<Node>(ApiCall::merge_patch(&path, &patch, &what));
    let wanted = object(options);
    let there = match get().await {
        Err(ApiFailure::NotFound { .. }) => {
            match api.send_json(ApiCall::create(NODES, body(&wanted), &what)).await {
                // Another client created it first.
                Err(ApiFailure::AlreadyExists { .. }) => get().await?,
                done => done?,
            }
        }
        found => found?,
    };
    let mut given = wanted.metadata.labels.clone().unwrap_or_default();
    if labels == Labels::Missing {
        let known = there.metadata.labels.clone().unwrap_or_default();
        given.retain(|key, _| !known.contains_key(key));
    }
    let there = patch(json!({ "metadata": { "labels": given } })).await?;
    if let (Labels::Given, Some(taints)) = (labels, add_taints(&there, &options.taints)) {
        patch(taints).await?;
    }
    if there.spec.and_then(|spec| spec.pod_cidrs).is_none_or(|ranges| ranges.is_empty()) {
        let spec = wanted.spec.unwrap_or_default();
        let ranges = json!({ "podCIDR": spec.pod_cidr, "podCIDRs": spec.pod_cidrs });
        patch(json!({ "spec": ranges })).await?;
    }
    let before = there.status.and_then(|status| status.conditions).unwrap_or_default();
    let status = status(options, &before, Timestamp::now());
    let mut patch = json!({ "status": status });
    // A strategic merge by type would merge two InternalIPs into one.
    if let Some(addresses) = patch["status"]["addresses"].as_array_mut() {
        addresses.push(json!({ "$patch": "replace" }));
    }
    api.send(ApiCall::strategic_patch(format!("{path}/status"), &patch, what)).await.map(drop)
}

fn body(object: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(object).expect("API objects are JSON")
}

/// A patch with the missing taints. It is bound to the resourceVersion because it replaces the
/// whole list.
fn add_taints(there: &Node, wanted: &[Taint]) -> Option<Value> {
    let spec = there.spec.as_ref();
    let mut taints = spec.and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let before = taints.len();
    for taint in wanted {
        if !taints.iter().any(|it| it.key == taint.key && it.effect == taint.effect) {
            taints.push(taint.clone());
        }
    }
    let version = &there.metadata.resource_version;
    (taints.len() > before).then(
        || json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } }),
    )
}

fn object(options: &Options) -> Node {
    let mut labels = options.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", options.node.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let ranges: Vec<String> = options.pod_cidrs.iter().map(ToString::to_string).collect();
    Node {
        metadata: ObjectMeta {
            name: Some(options.node.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: ranges.first().cloned(),
            pod_cidrs: Some(ranges).filter(|ranges| !ranges.is_empty()),
            taints: Some(options.taints.clone()).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        ..Node::default()
    }
}

/// The architecture's name in Go.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn status(options: &Options, before: &[NodeCondition], now: Timestamp) -> NodeStatus {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let mut addresses: Vec<NodeAddress> =
        options.addresses.iter().map(|it| address("InternalIP", it.to_string())).collect();
    addresses.push(address("Hostname", options.node.clone()));
    let amounts: BTreeMap<String, Quantity> = [
        ("cpu", options.cpu.clone()),
        ("memory", options.memory.clone()),
        ("pods", options.pods.to_string()),
    ]
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
    .into();
    NodeStatus {
        addresses: Some(addresses),
        capacity: Some(amounts.clone()),
        allocatable: Some(amounts),
        conditions: Some(conditions(before, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(options.port) }),
        }),
        node_info: Some(node_info()),
        ..NodeStatus::default()
    }
}

fn conditions(before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let all = [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "agent has sufficient memory available",
        ),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "agent has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "agent has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "agent is posting ready status"),
    ];
    all.into_iter()
        .map(|(kind, value, reason, message)| {
            let same = before.iter().find(|it| it.type_ == kind && it.status == value);
            let since = same.and_then(|it| it.last_transition_time.clone());
            NodeCondition {
                type_: kind.to_owned(),
                status: value.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_heartbeat_time: Some(Time(now)),
                last_transition_time: Some(since.unwrap_or(Time(now))),
            }
        })
        .collect()
}

fn node_info() -> NodeSystemInfo {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        operating_system: "linux".to_owned(),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        os_image: "host".to_owned(),
        container_runtime_version: concat!("nearhop://", env!("CARGO_PKG_VERSION")).to_owned(),
        kubelet_version: VERSION.to_owned(),
        ..NodeSystemInfo::default()
    }
}

async fn renew(api: &ApiSender, options: &Options, node: &Node) -> Result<(), ApiFailure> {
    let (path, what) = (format!("{LEASES}/{}", options.node), format!("lease {}", options.node));
    let patch = json!({ "spec": { "renewTime": MicroTime(Timestamp::now()) } });
    let done = match api.send(ApiCall::merge_patch(path, &patch, &what)).await {
        Err(ApiFailure::NotFound { .. }) => {
            api.send(ApiCall::create(LEASES, body(&lease(options, node)), what)).await
        }
        done => done,
    };
    done.map(drop)
}

fn lease(options: &Options, node: &Node) -> Lease {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: options.node.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(options.node.clone()),
            namespace: Some(LEASE_NAMESPACE.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(options.node.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::fake_api::{refusal, start};

    #[test]
    fn a_node_marked_not_ready_is_not_up_to_date() {
        let mut options = Options::new("n", "/".into());
        options.labels.insert("zone".to_owned(), "a".to_owned());
        let mut node = object(&options);
        assert!(!is_up_to_date(&node, &options), "a Node without a status is outdated");
        node.status = Some(status(&options, &[], Timestamp::UNIX_EPOCH));
        assert!(is_up_to_date(&node, &options));
        node.metadata.labels.as_mut().unwrap().insert("zone".to_owned(), "b".to_owned());
        assert!(is_up_to_date(&node, &options), "changed labels stay");
        let conditions = node.status.as_mut().and_then(|it| it.conditions.as_mut()).unwrap();
        let ready = conditions.iter_mut().find(|it| it.type_ == "Ready").unwrap();
        ready.status = "Unknown".to_owned();
        assert!(!is_up_to_date(&node, &options));
    }

    #[tokio::test]
    async fn the_lease_is_renewed_although_the_status_is_rejected() {
        let (api, asked) = start(|line, before| match line {
            "PATCH /api/v1/nodes/n" if before < 2 => refusal(422),
            "PATCH /api/v1/nodes/n" if before < 3 => refusal(409),
            _ => (200, json!({ "metadata": { "name": "n", "uid": "u" }, "spec": {} })),
        });
        let mut options = Options::new("n", "/".into());
        options.heartbeat = Duration::from_millis(10);
        let keeping = tokio::spawn(keep(api, Arc::new(options)));
        let described = async {
            while asked.count("PATCH /api/v1/nodes/n/status") == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), described).await.expect("the agent retries");
        keeping.abort();
        let renewed = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        assert!(asked.count(&format!("PATCH {renewed}")) >= 4, "{:?}", asked.all());
    }

    #[tokio::test]
    async fn a_rejected_lease_does_not_hide_an_outdated_node() {
        let (api, asked) = start(|line, _| match line.contains("/leases/") {
            true => refusal(422),
            false => (200, json!({ "metadata": { "name": "n", "uid": "u" } })),
        });
        let options = Options::new("n", "/".into());
        assert_eq!(renew_and_check(&api, &options).await, Some(false), "{:?}", asked.all());
    }

    #[test]
    fn missing_taints_are_added_and_others_stay() {
        let taint = |key: &str| Taint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let mut node = Node::default();
        node.metadata.resource_version = Some("7".to_owned());
        let spec = NodeSpec { taints: Some(vec![taint("others")]), ..NodeSpec::default() };
        node.spec = Some(spec);
        let patch = add_taints(&node, &[taint("ours")]).expect("a taint is missing");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["taints"], json!([taint("others"), taint("ours")]));
        assert_eq!(add_taints(&node, &[taint("others")]), None);
        assert_eq!(add_taints(&node, &[]), None);
    }
}
