//! A node with a proxy on it, for tests with real processes and real packets.
//!
//! ```text
//!   mod       the site: node, pods, a client outside, the API server
//!   objects   objects in the API
//!   process   `nearhop proxy`
//!   traffic   datagrams, and the endpoint that received each
//! ```
//!
//! The network namespace of the test is the node. The API server and the proxy are child processes
//! in the same namespace, so they use the node's loopback. No controllers run: the tests write the
//! slices.

pub mod objects;
pub mod process;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nearhop_core::{Family, Protocol};
use nearhop_net::traffic::{Client, Protocol as Transport, Server as Answering};
use nearhop_net::{Namespace, Star, sandbox};
use nearhop_netfilter::conntrack::{Ends, Flow};
use nearhop_proxy::conntrack::{Conntrack, Extent};
use nearhop_proxy::kernel::Kernel;
use serde_json::json;
use tempfile::TempDir;

use crate::http::Target;
use crate::server::{self, Server, start_process};
use traffic::{Arrivals, Datagrams};

/// Name of the node on which the proxy runs.
pub const NODE: &str = "node-a";
/// Another node, for which no proxy runs.
pub const OTHER_NODE: &str = "node-b";
/// The node's address.
pub const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Range of the pods' addresses.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";
/// Address of the client pod.
pub const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 244, 9, 1);
/// Address of the client outside of the cluster.
pub const OUTSIDE_IP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Load balancer address of the Services.
pub const BALANCER_IP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// The namespace of all objects.
pub const NAMESPACE: &str = "site";
/// Time limit for a condition that should take milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two checks of a condition.
const POLL: Duration = Duration::from_millis(10);

/// Where the API server keeps its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// In memory.
    Memory,
    /// On disk, for tests that kill the server and start it again.
    Disk,
}

/// A node with its pods and an outside host, and the API server.
pub struct Site {
    /// The node and its hosts.
    pub star: Star,
    /// A pod on the node that is not an endpoint.
    pub client: Namespace,
    /// A host outside of the cluster.
    pub outside: Namespace,
    /// Which endpoint received which datagram.
    pub arrivals: Arrivals,
    /// The API server, unless it was killed.
    pub server: Option<Server>,
    /// Client with the administrator's credentials.
    pub api: Target,
    /// Path of a kubeconfig.
    pub kubeconfig: PathBuf,
    pods: BTreeMap<IpAddr, Pod>,
    options: server::Options,
    _scratch: TempDir,
}

/// A pod with its servers: they answer on TCP 8080 and UDP 5353, and do not answer on UDP 5140.
pub struct Pod {
    /// Its network namespace.
    pub namespace: Namespace,
    _servers: (Answering, Datagrams, Datagrams),
}

/// Runs a test's body on a new node; `test` is the name of the test in the harness.
///
/// # Panics
///
/// If the body fails.
pub fn run(test: &str, api: Api, body: impl AsyncFnOnce(&mut Site) -> Result<()> + Send) {
    // Before the sandbox starts: it has no network, which a build may need.
    crate::server::binary().expect("the nearhop command");
    sandbox::run(test, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let done = runtime.block_on(async {
            let mut site = Site::new(api).await?;
            body(&mut site).await
        });
        done.unwrap_or_else(|error| panic!("{error:#}"));
    });
}

impl Site {
    /// Makes the calling thread's namespace the node. There is no Node object and no proxy yet.
    async fn new(api: Api) -> Result<Self> {
        let mut star = Star::around(Namespace::current()?, &[NODE_IP.into()])?;
        let client = star.host("client", &[CLIENT_IP.into()])?;
        let outside = star.host_at("ext0", "outside", &[OUTSIDE_IP.into()])?;
        let scratch = tempfile::tempdir()?;
        let data_dir = (api == Api::Disk).then(|| scratch.path().join("data"));
        let options = server::Options { data_dir, ..Default::default() };
        let server = start_process(&options)?;
        let target = server.admin.clone();
        // Copied, because a restarted server writes a new one.
        let kubeconfig = scratch.path().join("kubeconfig");
        std::fs::copy(&server.kubeconfig, &kubeconfig)?;
        let options = server::Options { listen: Some(target.address.clone()), ..options };
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        target.post("/api/v1/namespaces", &namespace).await?.expect(201)?;
        let site = Self {
            star,
            client,
            outside,
            arrivals: Arrivals::default(),
            server: Some(server),
            api: target,
            kubeconfig,
            pods: BTreeMap::new(),
            options,
            _scratch: scratch,
        };
        Ok(site)
    }

    /// Kills the API server.
    pub fn stop_api(&mut self) {
        self.server = None;
    }

    /// Starts the API server again at the same address.
    pub fn start_api(&mut self) -> Result<()> {
        self.server = Some(start_process(&self.options)?);
        Ok(())
    }

    /// Path of a file in the temporary directory of the test.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self._scratch.path().join(name)
    }

    /// Adds a pod with this address.
    pub fn pod(&mut self, ip: &str) -> Result<IpAddr> {
        let address: IpAddr = ip.parse()?;
        let namespace = self.star.host(ip, &[address])?;
        let at = |port| SocketAddr::new(address, port);
        let servers = (
            Answering::start(&namespace, Transport::Tcp, at(8080))?,
            Datagrams::answering(&namespace, at(5353), &self.arrivals)?,
            Datagrams::silent(&namespace, at(5140), &self.arrivals)?,
        );
        self.pods.insert(address, Pod { namespace, _servers: servers });
        Ok(address)
    }

    /// A pod by its address.
    pub fn at(&self, ip: IpAddr) -> Result<&Pod> {
        self.pods.get(&ip).with_context(|| format!("no pod {ip}"))
    }

    /// Removes a pod and its network link.
    pub fn cut(&mut self, ip: IpAddr) -> Result<()> {
        self.pods.remove(&ip);
        Ok(self.star.remove(&ip.to_string())?)
    }

    /// Which pod a new TCP connection from a namespace reaches; an error if it reaches none.
    pub fn connect(&self, from: &Namespace, to: SocketAddr) -> Result<IpAddr> {
        let mut client = Client::new(from, Transport::Tcp, to, TIMEOUT, None)?;
        let outcome = client.ask()?;
        let server = outcome.server().with_context(|| format!("connect to {to}: {outcome:?}"))?;
        Ok(server.ip())
    }

    /// The pods that `n` new TCP connections from a namespace reach.
    pub fn reached(&self, from: &Namespace, to: SocketAddr, n: u32) -> Result<BTreeSet<IpAddr>> {
        (0..n).map(|_| self.connect(from, to)).collect()
    }
}

/// The conntrack entries of a protocol on the node.
pub fn flows(protocol: Protocol) -> Result<Vec<Flow>> {
    let mut table = Conntrack::open()?;
    let dump = table.dump(Family::Ipv4, protocol, Vec::new, |all, flow| all.push(*flow))?;
    anyhow::ensure!(
        (dump.extent, dump.unreadable) == (Extent::Whole, 0),
        "the conntrack dump is incomplete"
    );
    Ok(dump.value)
}

/// Identity of a flow: its conntrack id, and the addresses of both directions.
pub type FlowId = (u32, Ends, Ends);

/// See [`FlowId`].
pub fn id_of(flow: &Flow) -> FlowId {
    (flow.id, flow.original, flow.reply)
}

/// The nftables generation of the node, which counts changes.
pub fn generation() -> Result<u32> {
    Ok(Kernel::open()?.generation()?)
}

/// Waits for a condition; the error at the deadline has the reason of the last check.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Result<T, String>>) -> Result<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() > deadline => bail!("waited for: {what}; but {why}"),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}
