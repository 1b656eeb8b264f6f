//! Registers the Node, keeps its status up to date, and renews its Lease.
//!
//! The agent changes no taints except those that it registers with, and it does not delete the Node
//! when it stops.

use std::collections::BTreeMap;
use std::future::Future;
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
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nearhop_runtime::backoff::Backoff;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::options::Options;

/// The Kubernetes version that the agent reports.
const VERSION: &str = "v1.36.2-nearhop";
/// How often the Node's status is written without a change.
const STATUS_PERIOD: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
const LEASES: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;

/// Registers the Node; returns when it exists.
pub(crate) async fn register(client: &Client, options: &Options) {
    for attempt in 0.. {
        let Err(why) = with_timeout(put(client, options, Labels::Given)).await else { return };
        tracing::warn!(error = why, "node registration failed; will retry");
        sleep(BACKOFF.delay(attempt, rand::random())).await;
    }
}

async fn with_timeout<T>(
    asking: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, String> {
    let answer = timeout(PATIENCE, asking).await.map_err(|_| "no answer".to_owned())?;
    answer.map_err(|error| error.to_string())
}

/// Renews the Lease and repairs the Node, for ever.
///
/// The two are independent: the Lease is renewed even if the Node's status is rejected.
pub(crate) async fn keep(client: Client, options: Arc<Options>) {
    let (mut written, mut failures) = (Instant::now(), 0);
    loop {
        let right = renew_and_check(&client, &options).await;
        let due = right == Some(false) || failures > 0 || written.elapsed() >= STATUS_PERIOD;
        let put = put(&client, &options, Labels::Missing);
        let done = if due { with_timeout(put).await } else { Ok(()) };
        match done {
            Ok(()) => {
                if due {
                    (written, failures) = (Instant::now(), 0);
                }
                sleep(options.heartbeat).await;
            }
            Err(why) => {
                tracing::warn!(error = why, "node status not written; will retry");
                sleep(BACKOFF.next_delay(&mut failures).min(options.heartbeat)).await;
            }
        }
    }
}

/// Renews the Lease; returns whether the Node is up to date, if known.
async fn renew_and_check(client: &Client, options: &Options) -> Option<bool> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = match with_timeout(nodes.get_opt(&options.node)).await {
        Ok(Some(node)) => node,
        Ok(None) => {
            tracing::warn!("node object deleted; registering again");
            return Some(false);
        }
        Err(why) => {
            tracing::warn!(error = why, "lease not renewed");
            return None;
        }
    };
    if let Err(why) = with_timeout(renew(client, options, &node)).await {
        tracing::warn!(error = why, "lease not renewed");
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

async fn put(client: &Client, options: &Options, labels: Labels) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let name = &options.node;
    let there = match api.get_opt(name).await? {
        Some(node) => node,
        None => match api.create(&PostParams::default(), &object(options)).await {
            // Another client created it first.
            Err(kube::Error::Api(refused)) if refused.code == 409 => api.get(name).await?,
            done => done?,
        },
    };
    let params = PatchParams::default();
    let wanted = object(options);
    let mut given = wanted.metadata.labels.clone().unwrap_or_default();
    if labels == Labels::Missing {
        let known = there.metadata.labels.clone().unwrap_or_default();
        given.retain(|key, _| !known.contains_key(key));
    }
    let patch = json!({ "metadata": { "labels": given } });
    let there = api.patch(name, &params, &Patch::Merge(patch)).await?;
    if let (Labels::Given, Some(patch)) = (labels, add_taints(&there, &options.taints)) {
        api.patch(name, &params, &Patch::Merge(patch)).await?;
    }
    if there.spec.and_then(|spec| spec.pod_cidrs).is_none_or(|ranges| ranges.is_empty()) {
        let spec = wanted.spec.unwrap_or_default();
        let ranges = json!({ "podCIDR": spec.pod_cidr, "podCIDRs": spec.pod_cidrs });
        api.patch(name, &params, &Patch::Merge(json!({ "spec": ranges }))).await?;
    }
    let before = there.status.and_then(|status| status.conditions).unwrap_or_default();
    let status = status(options, &before, Timestamp::now());
    let mut patch = json!({ "status": status });
    // A strategic merge by type would merge two InternalIPs into one.
    if let Some(addresses) = patch["status"]["addresses"].as_array_mut() {
        addresses.push(json!({ "$patch": "replace" }));
    }
    api.patch_status(name, &params, &Patch::Strategic(patch)).await?;
    Ok(())
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

async fn renew(client: &Client, options: &Options, node: &Node) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let patch = json!({ "spec": { "renewTime": MicroTime(Timestamp::now()) } });
    let done = api.patch(&options.node, &PatchParams::default(), &Patch::Merge(patch)).await;
    match done {
        Err(kube::Error::Api(refused)) if refused.code == 404 => {
            api.create(&PostParams::default(), &lease(options, node)).await.map(drop)
        }
        done => done.map(drop),
    }
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
            namespace: Some(LEASES.to_owned()),
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
        let (client, asked) = start(|line, before| match line {
            "PATCH /api/v1/nodes/n" if before < 2 => refusal(422),
            "PATCH /api/v1/nodes/n" if before < 3 => refusal(409),
            _ => (200, json!({ "metadata": { "name": "n", "uid": "u" }, "spec": {} })),
        })
        .await;
        let mut options = Options::new("n", "/".into());
        options.heartbeat = Duration::from_millis(10);
        let keeping = tokio::spawn(keep(client, Arc::new(options)));
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
        let (client, asked) = start(|line, _| match line.contains("/leases/") {
            true => refusal(422),
            false => (200, json!({ "metadata": { "name": "n", "uid": "u" } })),
        })
        .await;
        let options = Options::new("n", "/".into());
        assert_eq!(renew_and_check(&client, &options).await, Some(false), "{:?}", asked.all());
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
