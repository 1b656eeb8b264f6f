//! A server on real sockets with a fixture as its state, and a client that uses `hickory-proto`.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking, and each test file uses some of the helpers"
)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use nearhop_core::answer::{Config, Index, PodMode, Synced, Zone};
use nearhop_core::fixture::Fixture;
use nearhop_core::model::{ClusterIps, ServiceType};
use nearhop_core::{Change, World};
use nearhop_dns::metrics::DnsMetrics;
use nearhop_dns::options::{Listen, Options};
use nearhop_dns::serve::Server;
use nearhop_dns::state::{Shared, State};
use nearhop_runtime::metrics::Metrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

/// Deadline for anything that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster with every kind of Service.
pub(crate) const CLUSTER: &str = r#"
namespace default
namespace data
node a zone=za address=192.168.0.1 pod-cidr=10.244.1.0/24
node b zone=zb address=192.168.0.2 pod-cidr=10.244.2.0/24
service web port=http:80->8080 port=dns:53/udp cluster-ip=10.96.0.10
pod web-a for=web on=a ip=10.244.1.10
pod web-b for=web on=b ip=10.244.2.10
service data/db port=pg:5432 cluster-ip=None
pod data/db-0 for=db on=a ip=10.244.1.20 hostname=db-0 subdomain=db
pod data/db-1 for=db on=b ip=10.244.2.20 hostname=db-1 subdomain=db
service near port=http:80 cluster-ip=None topology-keys=topology.kubernetes.io/zone
pod near-a for=near on=a ip=127.0.0.1
pod near-b for=near on=b ip=10.244.2.30
service many port=http:80 cluster-ip=None
pods many x60 for=many on=a
service outside type=ExternalName no-ports cluster-ip=""
"#;

/// A running server, its state and metrics.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) shared: Shared,
    pub(crate) metrics: Metrics,
    pub(crate) address: SocketAddr,
}

/// Options for tests.
pub(crate) fn options() -> Options {
    let mut answers = Config::new(Zone::parse("cluster.local").unwrap());
    for zone in ["in-addr.arpa", "ip6.arpa"] {
        answers.zones.push(Zone::parse(zone).unwrap());
        answers.fallthrough.push(Zone::parse(zone).unwrap().name().clone());
    }
    answers.pods = PodMode::Insecure;
    answers.local_ips = vec!["10.244.1.53".parse().unwrap()];
    let listen = Listen::At(vec!["127.0.0.1:0".parse().unwrap()]);
    Options { listen, threads: 2, ..Options::new(answers) }
}

/// The state of a cluster that a text describes.
pub(crate) fn state(text: &str, options: &Options) -> State {
    let mut fixture = Fixture::parse(text).unwrap_or_else(|error| panic!("{error}"));
    for service in &mut fixture.services {
        if service.service_type == ServiceType::ExternalName {
            service.external_name = Some("www.example.com".into());
            service.cluster_ips = ClusterIps::Unset;
        }
    }
    let world: World = fixture.world(options.settings());
    let index = Index::build(&world);
    State { world, index, serial: 1_700_000_000, synced: Synced::Yes }
}

/// Starts a server.
pub(crate) fn start(text: &str, options: &Options) -> Cluster {
    let shared = Shared::new(state(text, options));
    let metrics = Metrics::new();
    let own = DnsMetrics::new(&metrics, "dns://:53");
    let server = Server::start(options, shared.clone(), own).unwrap();
    let address = server.addresses()[0];
    Cluster { server, shared, metrics, address }
}

impl Cluster {
    /// Applies a change.
    pub(crate) fn apply(&self, change: Change) {
        self.shared.change(|state| state.apply(vec![change], 1_700_000_001));
    }

    /// Waits until the metrics have this line.
    pub(crate) async fn wait_for_metric(&self, line: &str) {
        let found = async {
            while !self.metrics.encode().contains(line) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("{line}\n{}", self.metrics.encode()));
    }
}

/// Binds a port that is free for both UDP and TCP.
pub(crate) async fn bind_both() -> (UdpSocket, TcpListener) {
    loop {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
        if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()).await {
            return (socket, listener);
        }
    }
}

/// A query.
pub(crate) fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(rand::random(), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

/// A query with an OPT record of this UDP size.
pub(crate) fn long_question(name: &str, kind: RecordType, size: u16) -> Message {
    let mut message = question(name, kind);
    let mut edns = Edns::new();
    edns.set_max_payload(size);
    message.set_edns(edns);
    message
}

/// Sends by UDP; None without a reply within the time given.
pub(crate) async fn send_udp(to: SocketAddr, bytes: &[u8], patience: Duration) -> Option<Vec<u8>> {
    let here = if to.is_ipv4() { "127.0.0.1" } else { "::1" };
    let socket = UdpSocket::bind((here, 0)).await.unwrap();
    socket.connect(to).await.unwrap();
    socket.send(bytes).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let length = timeout(patience, socket.recv(&mut buffer)).await.ok()?.unwrap();
    buffer.truncate(length);
    Some(buffer)
}

/// Queries by UDP, and checks that the reply matches the query.
pub(crate) async fn ask(to: SocketAddr, message: &Message) -> Message {
    let bytes = send_udp(to, &message.to_vec().unwrap(), PATIENCE).await.expect("an answer");
    let answer = Message::from_vec(&bytes).unwrap();
    check(message, &answer);
    answer
}

/// Queries by TCP.
pub(crate) async fn ask_tcp(to: SocketAddr, message: &Message) -> Message {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let answer = timeout(PATIENCE, exchange(&mut stream, message)).await.unwrap().unwrap();
    check(message, &answer);
    answer
}

/// One query on a connection.
pub(crate) async fn exchange(
    stream: &mut TcpStream,
    message: &Message,
) -> std::io::Result<Message> {
    let bytes = message.to_vec().unwrap();
    let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
    framed.extend(bytes);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    Ok(Message::from_vec(&buffer).unwrap())
}

fn check(question: &Message, answer: &Message) {
    assert_eq!(answer.metadata.id, question.metadata.id);
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(answer.metadata.recursion_desired, question.metadata.recursion_desired);
    assert_eq!(answer.edns.is_some(), question.edns.is_some());
    let spelled = |message: &Message| message.queries[0].name().to_ascii();
    assert_eq!(spelled(answer), spelled(question), "the case is kept");
}

/// Queries a name and returns the answer section as text, sorted.
pub(crate) async fn look_up(to: SocketAddr, name: &str, kind: RecordType) -> Vec<String> {
    texts(&ask(to, &question(name, kind)).await)
}

/// The answer section as text, sorted.
pub(crate) fn texts(message: &Message) -> Vec<String> {
    let mut texts: Vec<String> =
        message.answers.iter().map(|record| record.data.to_string()).collect();
    texts.sort();
    texts
}

/// The addresses in an answer section.
pub(crate) fn addresses(message: &Message) -> Vec<IpAddr> {
    let address = |data: &RData| match data {
        RData::A(a) => Some(IpAddr::from(a.0)),
        RData::AAAA(aaaa) => Some(IpAddr::from(aaaa.0)),
        _ => None,
    };
    message.answers.iter().filter_map(|record| address(&record.data)).collect()
}
