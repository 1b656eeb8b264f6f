//! A cluster of one node: the API server in this process, the agent in another.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Taint};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use nearhop_agent::{Clients, Options as AgentOptions};
use nearhop_apiserver::{ApiServer, Durability, Options};
use nearhop_net::{Namespace, link};
use nearhop_runtime::client::{ClientOptions, connect};
use nearhop_runtime::pki::KUBELET_CLIENT;
use nearhop_runtime::shutdown::Shutdown;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// A generous deadline, reached only on failure.
pub(crate) const LONG: Duration = Duration::from_secs(30);
pub(crate) const NODE: &str = "n1";
pub(crate) const NODE_IP: &str = "172.18.0.2";
const NODE_IP6: &str = "fd00:18::2";
pub(crate) const PORT: u16 = 10250;

/// The key of the API server's CA, which signs client certificates.
pub(crate) static AUTHORITY: Mutex<String> = Mutex::new(String::new());

fn read_api(directory: &Path, file: &str) -> String {
    std::fs::read_to_string(directory.join("api").join(file)).expect("a file of the API server")
}

pub(crate) type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;

pub(crate) fn in_runtime(test: &Test) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test());
}

/// Runs this binary as an agent.
pub(crate) fn agent(kubeconfig: &Path, root: &Path) -> ExitCode {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).expect("a signal");
    if std::env::var_os("NEARHOP_TEST_LOG").is_some() {
        {
            use nearhop_runtime::log::{Colors, LogFormat, init};
            init(2, LogFormat::Text, Colors::Off);
        }
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = ClientOptions {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: None,
            user_agent: "nearhop-agent/test".to_owned(),
        };
        let client = connect(&options, None).await.expect("a client");
        let authorities = read_api(root.parent().expect("a parent directory"), "ca.crt");
        let taint = Taint {
            key: "nearhop.dev/lab".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let options = AgentOptions {
            clients: Some(Clients { authorities, names: vec![KUBELET_CLIENT.to_owned()] }),
            taints: vec![taint],
            addresses: [NODE_IP, NODE_IP6].map(|it| it.parse().expect("an address")).into(),
            pod_cidrs: ["10.244.1.0/24", "fd00:10:244:1::/64"]
                .map(|it| it.parse().expect("a range"))
                .into(),
            labels: [("topology.kubernetes.io/zone".to_owned(), "zone-a".to_owned())].into(),
            heartbeat: Duration::from_millis(500),
            port: PORT,
            ..AgentOptions::new(NODE, root.to_owned())
        };
        let shutdown = Shutdown::on_signals().expect("signal handlers");
        nearhop_agent::run(options, client, shutdown).await.expect("the agent starts");
    });
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

pub(crate) struct World {
    pub(crate) server: Option<ApiServer>,
    pub(crate) client: Client,
    agent: Option<Child>,
    pub(crate) directory: TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

impl World {
    /// Starts an API server and an agent.
    pub(crate) async fn start() -> Self {
        let here = Namespace::current().expect("/proc is mounted");
        for address in [NODE_IP, NODE_IP6] {
            let address: IpAddr = address.parse().expect("an address");
            link::add_address(&here, "lo", address).expect("an address on lo");
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let server = serve(directory.path(), "127.0.0.1:0".parse().expect("an address")).await;
        let kubeconfig = directory.path().join("kubeconfig");
        server.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
        let options = ClientOptions {
            kubeconfig: Some(kubeconfig),
            context: None,
            user_agent: "nearhop-test/1".to_owned(),
        };
        let client = connect(&options, None).await.expect("a client");
        let key = read_api(directory.path(), "ca.key");
        *AUTHORITY.lock().expect("not poisoned") = key;
        let mut world = Self { server: Some(server), client, agent: None, directory };
        world.start_agent();
        world
    }

    pub(crate) fn kubeconfig(&self) -> std::path::PathBuf {
        self.directory.path().join("kubeconfig")
    }

    pub(crate) fn start_agent(&mut self) {
        let binary = std::env::current_exe().expect("the path of this binary");
        let mut command = Command::new(binary);
        command.arg("agent").arg(self.kubeconfig()).arg(self.directory.path().join("agent"));
        self.agent = Some(command.spawn().expect("an agent process"));
    }

    pub(crate) fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("a running agent").id()
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().expect("a child process");
            agent.wait().expect("a child process");
        }
    }

    pub(crate) async fn stop_api(&mut self) -> SocketAddr {
        let server = self.server.take().expect("a running API server");
        let address = server.address();
        server.stop().await;
        address
    }

    pub(crate) async fn start_api(&mut self, address: SocketAddr) {
        self.server = Some(serve(self.directory.path(), address).await);
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Creates a Pod on the node.
    pub(crate) async fn create(&self, name: &str, mut spec: Value) {
        spec["nodeName"] = NODE.into();
        let pod = json!({ "metadata": { "name": name, "labels": { "app": name } }, "spec": spec });
        let pod: Pod = serde_json::from_value(pod).expect("a Pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("a successful create");
    }

    pub(crate) async fn config_map(&self, name: &str, data: Value) {
        let map = json!({ "metadata": { "name": name }, "data": data });
        let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
        let api: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        api.create(&PostParams::default(), &map).await.expect("a successful create");
    }

    pub(crate) async fn delete(&self, name: &str, grace: u32) {
        let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
        self.pods().delete(name, &params).await.expect("a successful delete");
    }

    /// Waits for a state of the Pod; returns it as JSON.
    pub(crate) async fn until(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LONG;
        let mut last = Value::Null;
        while Instant::now() < deadline {
            if let Ok(pod) = self.pods().get(name).await {
                last = serde_json::to_value(pod).expect("JSON");
                if is(&last) {
                    return last;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("pod {name} does not become {what}: {:#}", last["status"]);
    }

    pub(crate) async fn ready(&self, name: &str) -> Value {
        self.until(name, "ready", |pod| condition(pod, "Ready") == "True").await
    }

    pub(crate) async fn gone(&self, name: &str) {
        let deadline = Instant::now() + LONG;
        while self.pods().get_opt(name).await.expect("a response").is_some() {
            assert!(Instant::now() < deadline, "pod {name} is not removed");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn event(&self, name: &str, reason: &str) -> String {
        let api: Api<Event> = Api::default_namespaced(self.client.clone());
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            let events = api.list(&ListParams::default()).await.expect("a response");
            let found = events.items.into_iter().find(|event| {
                event.involved_object.name.as_deref() == Some(name)
                    && event.reason.as_deref() == Some(reason)
            });
            if let Some(event) = found {
                return event.message.unwrap_or_default();
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("there is no event {reason} about pod {name}");
    }

    /// Waits until the log contains this text.
    pub(crate) async fn log(&self, name: &str, holds: &str) -> String {
        let deadline = Instant::now() + LONG;
        let mut last = String::new();
        while Instant::now() < deadline {
            if let Ok(log) = self.pods().logs(name, &kube::api::LogParams::default()).await {
                if log.contains(holds) {
                    return log;
                }
                last = log;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("the log of {name} does not contain {holds:?}: {last:?}");
    }
}

async fn serve(directory: &Path, listen: SocketAddr) -> ApiServer {
    let durability = Durability::Directory(directory.join("api"));
    let options = Options { listen, durability, ..Options::default() };
    ApiServer::start(options).await.expect("the API server starts")
}

pub(crate) fn condition(pod: &Value, kind: &str) -> String {
    let all = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = all.filter(|it| it["type"] == kind);
    found.next().and_then(|it| it["status"].as_str()).unwrap_or_default().to_owned()
}

/// The body of a GET; `None` without a response.
pub(crate) async fn get(address: &str, port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect((address, port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}
