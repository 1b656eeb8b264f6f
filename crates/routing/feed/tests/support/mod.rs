//! A cluster to watch, and a listener that keeps the events of a feed. Each test uses a part of it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and a test may panic"
)]

pub(crate) mod gate;
pub(crate) mod scripted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nearhop_apiserver::{ApiServer, Faults};
use nearhop_core::{Change, Kind, Object, ObjectRef};
use nearhop_feed::{Event, Feed, Lists, Options, Selectors, watch};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// Longer than any wait in these tests, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options that watch Pods of the namespace `default`, with short back-offs.
pub(crate) fn pods(lists: Lists) -> Options {
    let fields = Some("metadata.namespace=default".to_owned());
    let selectors = Selectors { labels: None, fields };
    Options {
        watches: BTreeMap::from([(Kind::Pod, selectors)]),
        watch: watch::Options {
            lists,
            backoff: Duration::from_millis(20),
            backoff_cap: Duration::from_millis(200),
            ..Default::default()
        },
    }
}

/// An embedded API server.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let options = nearhop_apiserver::Options { faults: Faults::OnDemand, ..Default::default() };
        let server = ApiServer::start(options).await.unwrap();
        let client = client(&server, &server.url()).await;
        Self { server, client }
    }

    pub(crate) async fn create_pod(&self, name: &str) {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        });
        let request = http::Request::post("/api/v1/namespaces/default/pods");
        self.ask(request, &pod).await.unwrap();
    }

    pub(crate) async fn create_pods(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.create_pod(&name).await;
        }
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        let request = http::Request::delete(format!("/api/v1/namespaces/default/pods/{name}"));
        self.ask(request, &json!({"gracePeriodSeconds": 0})).await.unwrap();
    }

    pub(crate) async fn fault(&self, order: Value) {
        self.ask(http::Request::post("/nearhop/faults"), &order).await.unwrap();
    }

    pub(crate) async fn ask(
        &self,
        request: http::request::Builder,
        body: &Value,
    ) -> kube::Result<String> {
        let body = serde_json::to_vec(body).unwrap();
        let request = request.header("Content-Type", "application/json").body(body).unwrap();
        self.client.request_text(request).await
    }
}

/// A client that connects to this URL.
pub(crate) async fn client(server: &ApiServer, url: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let usual = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &usual).await.unwrap();
    config.cluster_url = url.parse().unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// A feed of Pods and its events so far.
pub(crate) struct Listener {
    pub(crate) feed: Feed,
    events: Receiver<Vec<Event>>,
    /// Received events that the test has not read yet.
    waiting: VecDeque<Event>,
    /// Names of the existing Pods.
    pub(crate) pods: BTreeSet<String>,
    /// The names in each list; `None` if the list has none.
    pub(crate) lists: Vec<Option<BTreeSet<String>>>,
    /// Names of deleted Pods.
    pub(crate) gone: Vec<String>,
    pub(crate) problems: Vec<String>,
}

impl Listener {
    pub(crate) fn start(client: &Client, options: Options) -> Self {
        let (feed, events) = Feed::start(client.clone(), options);
        let (lists, gone, problems) = (Vec::new(), Vec::new(), Vec::new());
        let (waiting, pods) = (VecDeque::new(), BTreeSet::new());
        Self { feed, events, waiting, pods, lists, gone, problems }
    }

    /// Reads events until `done` returns true.
    pub(crate) async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            if let Some(event) = self.waiting.pop_front() {
                self.take(event);
                continue;
            }
            let batch = timeout(PATIENCE, self.events.recv()).await;
            let batch = batch
                .unwrap_or_else(|_| panic!("timeout: expected {what}, found {:?}", self.summary()));
            self.waiting.extend(batch.expect("the feed runs"));
        }
    }

    pub(crate) async fn until_pods(&mut self, names: &BTreeSet<String>) {
        let what = format!("the Pods {names:?}");
        self.until(&what, |seen| seen.pods == *names && !seen.lists.is_empty()).await;
    }

    /// Waits for a status; a status change has no event.
    pub(crate) async fn until_status(&self, done: impl Fn(&nearhop_feed::Status) -> bool) {
        let reached = async {
            while !done(&self.feed.status()[0]) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{:?}", self.feed.status());
    }

    fn summary(&self) -> impl std::fmt::Debug + '_ {
        (&self.pods, &self.lists, &self.problems, self.feed.status())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Changed(changed) => {
                self.problems.extend(changed.problems.iter().map(ToString::to_string));
                match changed.change {
                    Some(Change::Put(Object::Pod(pod))) => {
                        _ = self.pods.insert(pod.key.name.to_string());
                    }
                    Some(Change::Gone(ObjectRef::Pod(key))) => {
                        self.pods.remove(key.name.as_str());
                        self.gone.push(key.name.to_string());
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
            Event::Listed { objects, .. } => {
                let name = |object| match object {
                    ObjectRef::Pod(key) => key.name.to_string(),
                    other => panic!("{other:?}"),
                };
                let names: Option<BTreeSet<String>> =
                    objects.map(|objects| objects.into_iter().map(name).collect());
                if let Some(names) = &names {
                    self.pods.retain(|pod| names.contains(pod));
                }
                self.lists.push(names);
            }
        }
    }
}

/// `prefix-0`, `prefix-1`, …
pub(crate) fn names(prefix: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|i| format!("{prefix}-{i}")).collect()
}
