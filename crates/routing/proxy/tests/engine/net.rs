//! A node with real packets: clients, and four pods that serve; the first pod is on the node.

use std::net::{IpAddr, SocketAddr};

use nearhop_net::traffic::{Protocol, Server, connect_many};
use nearhop_net::{Namespace, Star};
use nearhop_proxy::kernel::Kernel;

/// The Service in [`CLUSTER`].
pub(crate) const SERVICE: &str = "10.96.0.1:80";

/// The cluster of the node.
pub(crate) const CLUSTER: &str = "
node n1 zone=a
node n2 zone=b
service web cluster-ip=10.96.0.1
service other cluster-ip=10.96.0.2
pod web-1 for=web on=n1 ip=10.244.0.1
pod web-2 for=web on=n2 ip=10.244.0.2
pod web-3 for=web on=n2 ip=10.244.0.3
pod web-4 for=web on=n2 ip=10.244.0.4
";

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The address of a pod's server.
pub(crate) fn pod(i: usize) -> SocketAddr {
    SocketAddr::new(ip(&format!("10.244.0.{i}")), 8080)
}

/// The node and its neighbours.
pub(crate) struct Net {
    pub(crate) client: Namespace,
    /// The client's addresses.
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) star: Star,
    _servers: Vec<Server>,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::with_clients(8)
    }

    /// Creates it with this many clients.
    pub(crate) fn with_clients(clients: u8) -> Self {
        let mut star = Star::new(&[ip("192.0.2.250")]).unwrap();
        let sources: Vec<IpAddr> = (1..=clients).map(|i| ip(&format!("10.244.9.{i}"))).collect();
        let client = star.host("client", &sources).unwrap();
        let mut servers = Vec::new();
        for i in 1..=4 {
            let host = star.host(&format!("pod-{i}"), &[pod(i).ip()]).unwrap();
            servers.push(Server::start(&host, Protocol::Tcp, pod(i)).unwrap());
            servers.push(Server::start(&host, Protocol::Udp, pod(i)).unwrap());
        }
        Self { client, sources, star, _servers: servers }
    }

    /// The node's nftables.
    pub(crate) fn kernel(&self) -> Kernel {
        self.star.node().run(|| Kernel::open().unwrap())
    }

    /// The endpoints that answer `count` connections from one source, one or several at a time.
    pub(crate) fn reached(
        &self,
        source: IpAddr,
        count: usize,
        concurrency: usize,
    ) -> Vec<SocketAddr> {
        self.reached_at(SERVICE, source, count, concurrency)
    }

    /// The same, for one of the Service's addresses.
    pub(crate) fn reached_at(
        &self,
        to: &str,
        source: IpAddr,
        count: usize,
        concurrency: usize,
    ) -> Vec<SocketAddr> {
        let to = to.parse().unwrap();
        let answered = connect_many(&self.client, &[source], to, count, concurrency).unwrap();
        answered.into_keys().collect()
    }
}
