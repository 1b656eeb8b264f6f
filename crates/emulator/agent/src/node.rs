//! The Node: made or adopted, described, and kept alive by a Lease.
//!
//! Taints are others' business, but for those with which the agent was told to register; and so is
//! the Node's end: an agent that stops leaves it.

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

/// The Kubernetes version that the agent behaves like.
const VERSION: &str = "v1.36.2-nearhop";
/// How often the Node's status is written although nothing changed.
const STATUS_PERIOD: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
const LEASES: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;

/// Registers the Node; returns when it is there.
pub(crate) async fn register(client: &Client, options: &Options) {
    for attempt in 0.. {
        let Err(why) = patiently(put(client, options, Labels::Given)).await else { return };
        tracing::warn!("the Node is not registered yet: {why}");
        sleep(BACKOFF.delay(attempt, rand::random())).await;
    }
}

async fn patiently<T>(asking: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    let answer = timeout(PATIENCE, asking).await.map_err(|_| "no answer".to_owned())?;
    answer.map_err(|error| error.to_string())
}

/// Renews the Lease, and corrects the Node where somebody has changed what it says, for ever.
///
/// Neither waits for the other: a Node whose description is refused is alive all the same.
pub(crate) async fn keep(client: Client, options: Arc<Options>) {
    let (mut written, mut failures) = (Instant::now(), 0);
    loop {
        let right = beat(&client, &options).await;
        let due = right == Some(false) || failures > 0 || written.elapsed() >= STATUS_PERIOD;
        let put = put(&client, &options, Labels::Missing);
        let done = if due { patiently(put).await } else { Ok(()) };
        match done {
            Ok(()) => {
                if due {
                    (written, failures) = (Instant::now(), 0);
                }
                sleep(options.heartbeat).await;
            }
            Err(why) => {
                tracing::warn!("the Node is not described: {why}");
                sleep(BACKOFF.delay(failures, rand::random()).min(options.heartbeat)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// Renews the Lease; whether the Node is right, as far as that is known.
async fn beat(client: &Client, options: &Options) -> Option<bool> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = match patiently(nodes.get_opt(&options.node)).await {
        Ok(Some(node)) => node,
        Ok(None) => {
            tracing::warn!("somebody has deleted the Node; it is registered again");
            return Some(false);
        }
        Err(why) => {
            tracing::warn!("the Lease was not renewed: {why}");
            return None;
        }
    };
    if let Err(why) = patiently(renew(client, options, &node)).await {
        tracing::warn!("the Lease was not renewed: {why}");
    }
    Some(is_right(&node, options))
}

/// Whether the Node says what it should: whoever misses an agent writes that it is not ready, and
/// the agent that is back has to say otherwise.
fn is_right(node: &Node, options: &Options) -> bool {
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

/// Which labels are written to a Node that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Labels {
    /// All that the agent was given: it has just been started.
    Given,
    /// Those that are missing: whoever has changed one since had a reason.
    Missing,
}

async fn put(client: &Client, options: &Options, labels: Labels) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let name = &options.node;
    let there = match api.get_opt(name).await? {
        Some(node) => node,
        None => match api.create(&PostParams::default(), &object(options)).await {
            // Another was faster: adopt it with the next attempt.
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
    // Merged by their type, two InternalIPs would become one.
    if let Some(addresses) = patch["status"]["addresses"].as_array_mut() {
        addresses.push(json!({ "$patch": "replace" }));
    }
    api.patch_status(name, &params, &Patch::Strategic(patch)).await?;
    Ok(())
}

/// What gives a Node that is there the taints it lacks. It is refused if somebody else has changed
/// the Node meanwhile: taints are one list, and it replaces all of it.
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

/// As Go calls it.
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
        os_image: "the host's".to_owned(),
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
    fn a_node_that_somebody_thinks_dead_is_not_right() {
        let mut options = Options::new("n", "/".into());
        options.labels.insert("zone".to_owned(), "a".to_owned());
        let mut node = object(&options);
        assert!(!is_right(&node, &options), "it says nothing yet");
        node.status = Some(status(&options, &[], Timestamp::UNIX_EPOCH));
        assert!(is_right(&node, &options));
        node.metadata.labels.as_mut().unwrap().insert("zone".to_owned(), "b".to_owned());
        assert!(is_right(&node, &options), "whoever moves a node has a reason");
        let conditions = node.status.as_mut().and_then(|it| it.conditions.as_mut()).unwrap();
        let ready = conditions.iter_mut().find(|it| it.type_ == "Ready").unwrap();
        ready.status = "Unknown".to_owned();
        assert!(!is_right(&node, &options));
    }

    #[tokio::test]
    async fn a_node_whose_description_is_refused_is_alive_all_the_same() {
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
        timeout(Duration::from_secs(30), described).await.expect("it is tried again");
        keeping.abort();
        let renewed = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        assert!(asked.count(&format!("PATCH {renewed}")) >= 4, "{:?}", asked.all());
    }

    #[tokio::test]
    async fn a_lease_that_is_refused_does_not_hide_a_wrong_node() {
        let (client, asked) = start(|line, _| match line.contains("/leases/") {
            true => refusal(422),
            false => (200, json!({ "metadata": { "name": "n", "uid": "u" } })),
        })
        .await;
        let options = Options::new("n", "/".into());
        assert_eq!(beat(&client, &options).await, Some(false), "{:?}", asked.all());
    }

    #[test]
    fn a_node_that_is_there_gets_the_taints_it_lacks_and_keeps_its_own() {
        let taint = |key: &str| Taint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let mut node = Node::default();
        node.metadata.resource_version = Some("7".to_owned());
        let spec = NodeSpec { taints: Some(vec![taint("others")]), ..NodeSpec::default() };
        node.spec = Some(spec);
        let patch = add_taints(&node, &[taint("ours")]).expect("one is missing");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["taints"], json!([taint("others"), taint("ours")]));
        assert_eq!(add_taints(&node, &[taint("others")]), None);
        assert_eq!(add_taints(&node, &[]), None);
    }
}
