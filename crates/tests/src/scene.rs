//! A cluster for the controller's tests: an embedded API server, nodes and pods that a test changes as
//! the scheduler and kubelets do, and the controller under test.
//!
//! The published slices are checked in two ways, from the objects in the API: a plan from scratch must
//! leave nothing to write, and the hints must match the [`oracle`], which shares no code with core.

use std::future::Future;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use nearhop_api::convert_json;
use nearhop_controller::{Deps, DryRun, Ended, Mode, Options, SERVICE_PROXY};
use nearhop_core::labels::well_known;
use nearhop_core::model::{Endpoint, Slice};
use nearhop_core::route::{Place, RouteTable, Verdict};
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Change, Name, ServiceKey, World};
use nearhop_runtime::client::{ClientOptions, connect_recorded};
use nearhop_runtime::health::{Health, Purpose};
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::{Shutdown, Trigger};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, version};
use crate::http::{Open, Request};
use crate::oracle;
use crate::server::{Server, binary, start_daemon};

/// Time limit for a condition that should take milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Paths of the collections that the controller reads.
const READ: [&str; 5] = [
    "/api/v1/nodes",
    "/api/v1/namespaces",
    "/api/v1/services",
    "/api/v1/pods",
    "/apis/discovery.k8s.io/v1/endpointslices",
];

/// A cluster, with helpers to change and check it.
pub struct Scene {
    /// The cluster; its namespace is where pods and Services go.
    pub cluster: Cluster,
    /// Settings of the controller whose slices are checked.
    pub settings: Settings,
    /// Mode of that controller: it selects the Services that are checked.
    pub mode: Mode,
}

impl Scene {
    /// A new embedded cluster without nodes.
    pub async fn new() -> Result<Self> {
        let cluster = Cluster::embedded().await?;
        Ok(Self { cluster, settings: Settings::default(), mode: Mode::Replace })
    }

    /// The same, checked as a controller in this mode sees it.
    #[must_use]
    pub fn in_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self.settings.controller = Name::from(mode.managed_by());
        self
    }

    /// As [`Scene::new`], with other options of the server.
    pub async fn with(options: &crate::server::Options) -> Result<Self> {
        let server = Arc::new(crate::server::start(options).await?);
        let (admin, namespace) = (server.admin.clone(), "scene".to_owned());
        let body = json!({"metadata": {"name": namespace}});
        admin.post("/api/v1/namespaces", &body).await?.expect(201)?;
        let cluster = Cluster { server, admin, namespace };
        Ok(Self { cluster, settings: Settings::default(), mode: Mode::Replace })
    }

    /// Creates a ready Node with 4 cores.
    pub async fn node(&self, name: &str, zone: Option<&str>) -> Result<()> {
        let mut labels = json!({"kubernetes.io/hostname": name});
        if let Some(zone) = zone {
            labels["topology.kubernetes.io/zone"] = zone.into();
        }
        let node = json!({
            "metadata": {"name": name, "labels": labels},
            "status": {
                "allocatable": {"cpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.cluster.admin.post("/api/v1/nodes", &node).await?.expect(201)?;
        Ok(())
    }

    /// Creates a Pod as the scheduler leaves it: bound to a node, without an address.
    pub async fn pending_pod(&self, name: &str, node: &str, labels: &Value) -> Result<()> {
        let pod = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "main", "image": "nearhop/echo", "ports": [{"name": "http", "containerPort": 8080}]}],
            },
        });
        self.cluster.create("pods", &pod).await?;
        Ok(())
    }

    /// Writes a Pod's status as its kubelet does.
    pub async fn report_pod(&self, name: &str, ip: &str, ready: bool) -> Result<()> {
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{
                "type": "Ready", "status": if ready { "True" } else { "False" },
                "lastTransitionTime": Timestamp::from_second(Timestamp::now().as_second())?.to_string(),
            }],
        }});
        let path = self.cluster.core(&format!("pods/{name}/status"));
        self.cluster.admin.merge(&path, &status).await?.ok()?;
        Ok(())
    }

    /// Creates a ready Pod labelled `app: APP`.
    pub async fn pod(&self, name: &str, node: &str, ip: &str, app: &str) -> Result<()> {
        self.pending_pod(name, node, &json!({"app": app})).await?;
        self.report_pod(name, ip, true).await
    }

    /// Deletes a Pod gracefully: it gets a deletionTimestamp and its grace period.
    pub async fn terminate_pod(&self, name: &str) -> Result<()> {
        self.cluster.admin.delete(&self.cluster.core(&format!("pods/{name}"))).await?.ok()?;
        Ok(())
    }

    /// Removes a Pod, as its kubelet does when the containers have ended.
    pub async fn remove_pod(&self, name: &str) -> Result<()> {
        let path = self.cluster.core(&format!("pods/{name}?gracePeriodSeconds=0"));
        self.cluster.admin.delete(&path).await?.ok()?;
        Ok(())
    }

    /// Creates a Service with port 80 to 8080 that selects `app: NAME`; `spec` is merged in.
    pub async fn service(&self, name: &str, spec: Value) -> Result<()> {
        let mut full = json!({
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        });
        merge(&mut full, spec);
        let service = json!({"metadata": {"name": name}, "spec": full});
        self.cluster.create("services", &service).await?;
        Ok(())
    }

    /// Merges a patch into a Service.
    pub async fn patch_service(&self, name: &str, patch: &Value) -> Result<()> {
        let path = self.cluster.core(&format!("services/{name}"));
        self.cluster.admin.merge(&path, patch).await?.ok()?;
        Ok(())
    }

    /// Merges a patch into a Node.
    pub async fn patch_node(&self, name: &str, patch: &Value) -> Result<()> {
        self.cluster.admin.merge(&format!("/api/v1/nodes/{name}"), patch).await?.ok()?;
        Ok(())
    }

    /// Sets or removes the zone of a Node.
    pub async fn move_node(&self, name: &str, zone: Option<&str>) -> Result<()> {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        self.patch_node(name, &json!({"metadata": {"labels": labels}})).await
    }

    /// Merges a patch into a Node's status, as its kubelet does.
    pub async fn report_node(&self, name: &str, status: &Value) -> Result<()> {
        let path = format!("/api/v1/nodes/{name}/status");
        self.cluster.admin.merge(&path, &json!({"status": status})).await?.ok()?;
        Ok(())
    }

    /// The conditions in a Service's status.
    pub async fn conditions(&self, service: &str) -> Result<Vec<Value>> {
        let found = self.cluster.read(&format!("services/{service}")).await?.ok()?.json();
        Ok(found["status"]["conditions"].as_array().cloned().unwrap_or_default())
    }

    /// The events about a Service, oldest first.
    pub async fn events(&self, service: &str) -> Result<Vec<Value>> {
        let list = self.cluster.read("events").await?.ok()?.json();
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let about = |event: &Value| event["involvedObject"]["name"] == service;
        let mut events: Vec<Value> = all.into_iter().filter(about).collect();
        // The name of an Event ends with its time.
        events.sort_by_key(|event| event["metadata"]["name"].to_string());
        Ok(events)
    }

    /// Key of a Service of this test.
    pub fn key(&self, service: &str) -> ServiceKey {
        ServiceKey::new(&*self.cluster.namespace, service)
    }

    /// All objects that a controller in this mode reads.
    async fn objects(&self) -> Result<Vec<Value>> {
        let mut objects = Vec::new();
        for path in READ {
            let list = self.cluster.admin.get(&self.selecting(path)).await?.ok()?.json();
            let version = if path.starts_with("/apis/") { "discovery.k8s.io/v1" } else { "v1" };
            let kind =
                list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
            for item in list["items"].as_array().into_iter().flatten() {
                let mut item = item.clone();
                item["apiVersion"] = version.into();
                item["kind"] = kind.clone().into();
                objects.push(item);
            }
        }
        Ok(objects)
    }

    /// A new world with the objects in the API.
    pub async fn world(&self) -> Result<World> {
        Ok(self.world_of(&self.objects().await?))
    }

    fn world_of(&self, objects: &[Value]) -> World {
        let mut world = World::new(self.settings.clone());
        let found = objects.iter().filter_map(|o| convert_json(o.to_string().as_bytes()).0);
        world.apply_all(found.map(Change::Put));
        world
    }

    /// Path of a collection with the label selector of a controller in this mode.
    fn selecting(&self, path: &str) -> String {
        let selector = match (self.mode, path) {
            (Mode::Replace, _) => return path.to_owned(),
            (Mode::Labelled, "/api/v1/services") => {
                format!("{}={SERVICE_PROXY}", well_known::SERVICE_PROXY_NAME)
            }
            (Mode::Labelled, path) if path == READ[4] => {
                format!("{}={}", well_known::MANAGED_BY, self.mode.managed_by())
            }
            (Mode::Labelled, _) => return path.to_owned(),
        };
        format!("{path}?labelSelector={selector}")
    }

    /// The slices of a Service in the API.
    pub async fn slices(&self, service: &str) -> Result<Vec<Slice>> {
        let world = self.world().await?;
        Ok(world.slices(&self.key(service)).map(|slice| Slice::clone(slice)).collect())
    }

    /// The hints of a Service's endpoints, sorted by address: `10.0.0.1 zone node/name`, or
    /// `10.0.0.1 -` where there are none.
    pub async fn hints(&self, service: &str) -> Result<Vec<String>> {
        let slices = self.slices(service).await?;
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        let mut hints: Vec<String> = endpoints.map(describe_hints).collect();
        hints.sort();
        Ok(hints)
    }

    /// Waits until the hints of a Service's endpoints are these.
    pub async fn until_hints(&self, service: &str, wanted: &[&str]) -> Result<()> {
        let what = format!("hints {wanted:?} of {service}");
        self.until(&what, TIMEOUT, || async {
            let found = self.hints(service).await?;
            Ok(if found == wanted { Ok(()) } else { Err(format!("they are {found:?}")) })
        })
        .await
    }

    /// The slices of a Service as the API shows them, of all controllers; sorted by name.
    pub async fn slice_objects(&self, service: &str) -> Result<Vec<Value>> {
        let selector = format!("?labelSelector={}={service}", well_known::SERVICE_NAME);
        let path = self.cluster.group("discovery.k8s.io/v1", &format!("endpointslices{selector}"));
        let list = self.cluster.admin.get(&path).await?.ok()?.json();
        let mut slices = list["items"].as_array().cloned().unwrap_or_default();
        slices.sort_by_key(|slice| slice["metadata"]["name"].as_str().map(str::to_owned));
        Ok(slices)
    }

    /// Differences of the slices from a plan from scratch, and of their hints from the KEPs; empty when
    /// all slices are correct.
    pub async fn differences(&self) -> Result<Vec<String>> {
        let objects = self.objects().await?;
        let world = self.world_of(&objects);
        let now = PlanTime::at(Timestamp::now());
        // Slices of other managers are not checked.
        let ours = |slice: &Arc<Slice>| slice.managed_by() == Some(&self.settings.controller);
        let orphans = world.orphans().filter(|key| world.slices(key).any(ours));
        let mut wrong: Vec<String> =
            orphans.map(|key| format!("{key}: slices without a Service")).collect();
        for service in world.services() {
            let plan = world.plan(&service.key, now).context("a Service without a plan")?;
            if !plan.is_noop() {
                let counts = (plan.create.len(), plan.update.len(), plan.delete.len());
                wrong.push(format!("{}: create, update, delete: {counts:?}", service.key));
            }
        }
        // The oracle implements only the default settings.
        let usual =
            Settings { controller: self.settings.controller.clone(), ..Settings::default() };
        if self.settings == usual {
            wrong.extend(oracle::judge_cluster(&objects, &self.settings.controller));
        }
        Ok(wrong)
    }

    /// Waits until every slice equals a plan from scratch and the hints match the oracle.
    pub async fn settled(&self) -> Result<()> {
        self.until("slices equal a plan from scratch", TIMEOUT, || async {
            let wrong = self.differences().await?;
            Ok(if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) })
        })
        .await
    }

    /// Waits for a condition; the error at the deadline has the reason of the last check.
    pub async fn until<F>(&self, what: &str, limit: Duration, look: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<Result<(), String>>>,
    {
        let deadline = Instant::now() + limit;
        loop {
            match look().await? {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() > deadline => bail!("waited for: {what}; but {why}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// The addresses that a client on a node reaches, sorted: what that node's proxy would choose.
    /// The oracle must agree.
    pub async fn reached_from(&self, service: &str, node: &str) -> Result<Vec<String>> {
        let objects = self.objects().await?;
        let world = self.world_of(&objects);
        let key = self.key(service);
        let node = world.node(node).with_context(|| format!("no node {node}"))?;
        let table = RouteTable::build(&world, Place::of(node));
        let mut reached = Vec::new();
        for (port, route) in table.iter().filter(|(port, _)| port.port.service == key) {
            let decision = &route.decision;
            anyhow::ensure!(decision.internal == Verdict::Cluster, "{port:?}: {decision:?}");
            let backends = decision.cluster.iter().flat_map(|set| &set.backends);
            reached.extend(backends.map(|backend| backend.key.ip.to_string()));
        }
        reached.sort();
        let wanted = oracle::reached_from(&objects, &key.namespace, service, &node.name);
        anyhow::ensure!(reached == wanted, "{reached:?}, but by the KEPs {wanted:?}");
        Ok(reached)
    }

    /// Counts writes of slices from now on.
    pub async fn count_writes(&self) -> Result<SliceWrites> {
        let list = self.cluster.admin.get(READ[4]).await?.ok()?.json();
        let path = format!("{}?watch=1&resourceVersion={}", READ[4], version(&list));
        let watch = self.cluster.admin.open(Request::new("GET", &path)).await?;
        Ok(SliceWrites { watch, events: Vec::new() })
    }

    /// The changes that the controller would make; it writes nothing.
    pub async fn dry_run(&self, options: Options) -> Result<DryRun> {
        let (trigger, shutdown) = Shutdown::manual();
        let metrics = Metrics::new();
        let synced = Health::new().check("informer-sync", Purpose::Ready);
        let client = self.cluster.client().await?;
        let deps = Deps { client, metrics, synced, shutdown };
        let result = nearhop_controller::dry_run(options, deps).await;
        drop(trigger);
        result.context("the dry run was stopped")
    }

    /// Starts the controller in this process.
    pub async fn start(&self, options: Options) -> Result<RunningController> {
        start(&self.cluster.server, options).await
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Writes of slices, as a watch shows them.
pub struct SliceWrites {
    watch: Open,
    /// Events so far: type and slice.
    pub events: Vec<(String, Value)>,
}

impl SliceWrites {
    /// Reads events until none arrives for 500 ms; returns the number of all events.
    pub async fn catch_up(&mut self) -> usize {
        while let Some(event) = self.watch.event(Duration::from_millis(500)).await {
            if event["type"] != "BOOKMARK" {
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                self.events.push((kind, event["object"].clone()));
            }
        }
        self.events.len()
    }
}

/// A controller that runs in this process.
pub struct RunningController {
    /// Its metrics.
    pub metrics: Metrics,
    trigger: Trigger,
    task: JoinHandle<Result<Ended, nearhop_runtime::RuntimeError>>,
}

/// Default options in replace mode, without leader election.
pub fn replace() -> Options {
    Options::new(Mode::Replace)
}

/// Starts a controller in this process.
pub async fn start(server: &Server, options: Options) -> Result<RunningController> {
    start_recorded(server, options, |_| {}).await
}

/// Starts a controller in this process; it calls `record` for each request.
pub async fn start_recorded(
    server: &Server,
    options: Options,
    record: impl Fn(&http::request::Parts) + Clone + Send + Sync + 'static,
) -> Result<RunningController> {
    let metrics = Metrics::new();
    let client = ClientOptions {
        kubeconfig: Some(server.kubeconfig.clone()),
        context: None,
        user_agent: "nearhop-controller/test".to_owned(),
    };
    let client = connect_recorded(&client, Some(&metrics), record).await?;
    let (trigger, shutdown) = Shutdown::manual();
    let synced = Health::new().check("informer-sync", Purpose::Ready);
    let deps = Deps { client, metrics: metrics.clone(), synced, shutdown };
    let task = tokio::spawn(nearhop_controller::run(options, deps));
    Ok(RunningController { metrics, trigger, task })
}

impl RunningController {
    /// Stops it gracefully.
    pub async fn stop(self) -> Result<Ended> {
        self.trigger.request();
        Ok(self.task.await??)
    }

    /// Waits for it to end by itself.
    pub async fn ended(self) -> Result<Ended> {
        Ok(self.task.await??)
    }

    /// Whether it has not ended by itself.
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// The value of a metric, given its name and labels as in the text format; 0 if it is not
    /// there.
    pub fn metric(&self, series: &str) -> f64 {
        read_metric(&self.metrics.encode(), series)
    }

    /// Writes of slices so far.
    pub fn writes(&self) -> f64 {
        read_writes(&self.metrics.encode())
    }
}

/// Writes of slices, in Prometheus' text format.
pub fn read_writes(text: &str) -> f64 {
    let operations = ["create", "update", "delete"].into_iter();
    let series =
        operations.map(|op| format!("endpoint_slice_controller_changes{{operation=\"{op}\"}}"));
    series.map(|series| read_metric(text, &series)).sum()
}

/// The value of a series in Prometheus' text format; 0 if it is not there.
pub fn read_metric(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
}

/// A `nearhop controller` process.
pub struct ControllerProcess {
    /// The process; killed when dropped.
    pub process: Child,
    /// Address of its admin port (health and metrics).
    pub admin: SocketAddr,
}

impl ControllerProcess {
    /// Starts the command with further arguments; its log goes to the stderr of this process.
    pub fn start(server: &Server, arguments: &[&str]) -> Result<Self> {
        Self::start_logged(server, arguments, Stdio::inherit())
    }

    /// Starts the command with further arguments; its log goes to `log`.
    pub fn start_logged(server: &Server, arguments: &[&str], log: Stdio) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.args(["controller", "--bind-address", "127.0.0.1:0", "--kubeconfig"]);
        command.arg(&server.kubeconfig).args(arguments);
        let (process, admin) = start_daemon(command.stderr(log))?;
        Ok(Self { process, admin })
    }

    /// Sends it a signal by name: `STOP`, `CONT`, `TERM`.
    pub fn signal(&self, name: &str) -> Result<()> {
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}")).arg(self.process.id().to_string());
        anyhow::ensure!(kill.status()?.success(), "kill -{name} failed");
        Ok(())
    }

    /// Writes of slices so far.
    pub async fn writes(&self) -> Result<f64> {
        Ok(read_writes(&self.get("/metrics").await?))
    }

    /// Sends a GET request to its admin port; returns the body.
    pub async fn get(&self, path: &str) -> Result<String> {
        Ok(crate::http::get_plain(self.admin, path).await?.1)
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn describe_hints(endpoint: &Endpoint) -> String {
    let zones = endpoint.hint_zones().iter().map(Name::to_string);
    let nodes = endpoint.hint_nodes().iter().map(|node| format!("node/{node}"));
    let mut words: Vec<String> = zones.chain(nodes).collect();
    if words.is_empty() {
        words.push("-".to_owned());
    }
    let address = endpoint.addresses.first().map(|ip| ip.to_string()).unwrap_or_default();
    format!("{address} {}", words.join(" "))
}

/// Names as text, for comparing.
pub fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}
