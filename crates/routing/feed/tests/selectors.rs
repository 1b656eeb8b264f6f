//! The feed with the embedded API server: the selectors of a proxy, in lists and in watches.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nearhop_core::{Change, Kind, Object, ObjectRef};
use nearhop_feed::{Event, Feed, Lists, Options, Selectors};
use serde_json::{Value, json};
use support::Cluster;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Longer than any wait in these tests, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const NODES: &str = "/api/v1/nodes";

/// The watches of the proxy on node `n1`.
fn proxy(lists: Lists) -> Options {
    let some = |labels: Option<&str>, fields: Option<&str>| Selectors {
        labels: labels.map(str::to_owned),
        fields: fields.map(str::to_owned),
    };
    let own = "!service.kubernetes.io/service-proxy-name";
    let watches = [
        (Kind::Service, some(Some(own), Some("spec.clusterIP!=None"))),
        (Kind::Slice, some(Some("!service.kubernetes.io/headless"), None)),
        (Kind::Node, some(None, Some("metadata.name=n1"))),
    ];
    Options {
        watches: BTreeMap::from(watches),
        watch: nearhop_feed::watch::Options { lists, ..Default::default() },
    }
}

/// A feed and its events so far.
struct Seen {
    events: Receiver<Vec<Event>>,
    /// Names of the existing objects of all kinds.
    names: BTreeSet<String>,
    listed: BTreeSet<Kind>,
    changes: Vec<Change>,
    _feed: Feed,
}

impl Seen {
    fn start(cluster: &Cluster, lists: Lists) -> Self {
        let (feed, events) = Feed::start(cluster.client.clone(), proxy(lists));
        let (names, listed) = (BTreeSet::new(), BTreeSet::new());
        Self { events, names, listed, changes: Vec::new(), _feed: feed }
    }

    async fn until(&mut self, names: &[&str]) {
        let names: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
        while self.listed.len() < 3 || self.names != names {
            let batch = timeout(PATIENCE, self.events.recv()).await;
            let batch = batch.unwrap_or_else(|_| panic!("{:?}, not {names:?}", self.names));
            batch.expect("the feed runs").into_iter().for_each(|event| self.take(event));
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Listed { kind, .. } => _ = self.listed.insert(kind),
            Event::Changed(changed) => {
                assert_eq!(changed.problems, []);
                let change = changed.change.expect("the object is valid");
                match &change {
                    Change::Put(Object::Service(service)) => {
                        self.names.insert(format!("{}", service.key.name))
                    }
                    Change::Gone(ObjectRef::Service(key)) => self.names.remove(key.name.as_str()),
                    Change::Put(Object::Slice(slice)) => {
                        self.names.insert(format!("{}", slice.name))
                    }
                    Change::Gone(ObjectRef::Slice(_, name)) => self.names.remove(name.as_str()),
                    Change::Put(Object::Node(node)) => self.names.insert(format!("{}", node.name)),
                    Change::Gone(ObjectRef::Node(name)) => self.names.remove(name.as_str()),
                    other => panic!("{other:?}"),
                };
                self.changes.push(change);
            }
        }
    }
}

async fn create(cluster: &Cluster, path: &str, object: &Value) {
    cluster.ask(http::Request::post(path), object).await.expect("the object is created");
}

async fn relabel(cluster: &Cluster, path: &str, label: &str, value: Value) {
    let patch = json!({"metadata": {"labels": {label: value}}});
    merge(cluster, path, &patch).await;
}

async fn merge(cluster: &Cluster, path: &str, patch: &Value) {
    let body = serde_json::to_vec(patch).expect("the patch is JSON");
    let request = http::Request::patch(path).header("Content-Type", "application/merge-patch+json");
    let request = request.body(body).expect("the request is valid");
    cluster.client.request_text(request).await.expect("the object is patched");
}

fn service(name: &str, labels: Value, cluster_ip: Option<&str>) -> Value {
    let ports = json!([{"port": 80}]);
    let mut object =
        json!({"metadata": {"name": name, "labels": labels}, "spec": {"ports": ports}});
    if let Some(cluster_ip) = cluster_ip {
        object["spec"]["clusterIP"] = json!(cluster_ip);
    }
    object
}

fn slice(name: &str, headless: bool) -> Value {
    let mut labels = json!({"kubernetes.io/service-name": "web"});
    if headless {
        labels["service.kubernetes.io/headless"] = json!("");
    }
    let metadata = json!({"name": name, "labels": labels});
    json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [], "ports": []})
}

async fn fill(cluster: &Cluster) {
    let other = json!({"service.kubernetes.io/service-proxy-name": "other"});
    create(cluster, SERVICES, &service("web", json!({}), None)).await;
    create(cluster, SERVICES, &service("headless", json!({}), Some("None"))).await;
    create(cluster, SERVICES, &service("foreign", other, None)).await;
    create(cluster, SLICES, &slice("web-1", false)).await;
    create(cluster, SLICES, &slice("headless-1", true)).await;
    for name in ["n1", "n2"] {
        create(cluster, NODES, &json!({"metadata": {"name": name}})).await;
    }
}

#[tokio::test]
async fn a_proxy_receives_only_selected_objects() {
    for lists in [Lists::Streaming, Lists::Paged] {
        let cluster = Cluster::start().await;
        fill(&cluster).await;
        let mut seen = Seen::start(&cluster, lists);
        // `kubernetes` is the Service of the API server.
        seen.until(&["kubernetes", "web", "web-1", "n1"]).await;

        // Objects that are created later are selected in the same way.
        create(&cluster, SERVICES, &service("late-headless", json!({}), Some("None"))).await;
        create(&cluster, SLICES, &slice("late-headless-1", true)).await;
        create(&cluster, NODES, &json!({"metadata": {"name": "n10"}})).await;
        create(&cluster, SERVICES, &service("late", json!({}), None)).await;
        create(&cluster, SLICES, &slice("late-1", false)).await;
        seen.until(&["kubernetes", "web", "web-1", "n1", "late", "late-1"]).await;

        // An object with the label, with any value, is not selected; without the label it is.
        let label = "service.kubernetes.io/service-proxy-name";
        relabel(&cluster, &format!("{SERVICES}/web"), label, json!("")).await;
        relabel(&cluster, &format!("{SERVICES}/foreign"), label, Value::Null).await;
        let label = "service.kubernetes.io/headless";
        relabel(&cluster, &format!("{SLICES}/web-1"), label, json!("")).await;
        relabel(&cluster, &format!("{SLICES}/headless-1"), label, Value::Null).await;
        seen.until(&["kubernetes", "foreign", "headless-1", "n1", "late", "late-1"]).await;
    }
}

#[tokio::test]
async fn a_proxy_receives_changes_of_its_own_node_only() {
    let cluster = Cluster::start().await;
    fill(&cluster).await;
    let mut seen = Seen::start(&cluster, Lists::Streaming);
    seen.until(&["kubernetes", "web", "web-1", "n1"]).await;
    let addresses = |address: &str| json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    seen.changes.clear();
    merge(&cluster, &format!("{NODES}/n2/status"), &addresses("192.0.2.2")).await;
    merge(&cluster, &format!("{NODES}/n1/status"), &addresses("192.0.2.1")).await;
    cluster.ask(http::Request::delete(format!("{NODES}/n2")), &json!({})).await.unwrap();
    cluster.ask(http::Request::delete(format!("{NODES}/n1")), &json!({})).await.unwrap();
    seen.until(&["kubernetes", "web", "web-1"]).await;
    let [Change::Put(Object::Node(node)), Change::Gone(ObjectRef::Node(name))] = &seen.changes[..]
    else {
        panic!("{:?}", seen.changes)
    };
    assert_eq!(node.addresses, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(name, "n1");
}
