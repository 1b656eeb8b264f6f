//! DNS servers under test, and a client that uses another library: `hickory-proto` encodes the
//! questions and decodes the answers.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::server::{Server, binary};

/// Time limit for one answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A running `nearhop dns`; killed when dropped.
pub struct DnsProcess {
    process: Child,
    /// Address of the DNS server.
    pub address: SocketAddr,
    /// Address of `/ready`.
    pub ready: SocketAddr,
}

impl DnsProcess {
    /// Starts a DNS server that reads from this API server, and waits until it answers.
    pub fn start(server: &Server, args: &[&str]) -> Result<Self> {
        let mut process = spawn(server, args)?;
        let stdout = process.stdout.take().context("stdout is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let mut ready = None;
        let address = loop {
            let Some(line) = lines.next().transpose()? else {
                let _ = process.kill();
                let _ = process.wait();
                bail!("nearhop dns {args:?} ended before it answered");
            };
            if let Some(address) = line.strip_prefix("serving /ready on http://") {
                ready = Some(address.parse()?);
            }
            if let Some(address) = line.strip_prefix("answering on ") {
                break address.parse()?;
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { process, address, ready: ready.context("no line `serving /ready`")? })
    }
}

/// Starts a DNS server without waiting.
pub fn spawn(server: &Server, args: &[&str]) -> Result<Child> {
    let mut command = Command::new(binary()?);
    command.args(["dns", "--listen", "127.0.0.1:0", "--resolv-conf", "/dev/null"]);
    for flag in ["--health-bind-address", "--ready-bind-address", "--metrics-bind-address"] {
        command.args([flag, "127.0.0.1:0"]);
    }
    command.arg("--kubeconfig").arg(&server.kubeconfig).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start nearhop dns")
}

impl Drop for DnsProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A DNS client with an address of this machine.
pub struct Client {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Client {
    /// A client that asks `server` from the address `from`.
    pub fn at(from: IpAddr, server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((from, 0)).with_context(|| format!("bind to {from}"))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.connect(server)?;
        Ok(Self { socket, server })
    }

    /// Sends one question over UDP and waits for the answer, which may have up to 1232 bytes.
    pub fn ask(&self, name: &str, kind: RecordType) -> Result<Message> {
        let mut question = Message::new(rand::random(), MessageType::Query, OpCode::Query);
        question.metadata.recursion_desired = true;
        question.add_query(Query::query(Name::from_ascii(name)?, kind));
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        question.set_edns(edns);
        self.socket.send(&question.to_vec()?)?;
        let mut buffer = [0; 1500];
        let length =
            self.socket.recv(&mut buffer).with_context(|| format!("ask {}", self.server))?;
        let answer = Message::from_vec(&buffer[..length])?;
        anyhow::ensure!(
            answer.metadata.id == question.metadata.id,
            "the answer has another message id"
        );
        Ok(answer)
    }

    /// The IPv4 addresses of a name, sorted; empty if it has none.
    pub fn addresses(&self, name: &str) -> Result<Vec<IpAddr>> {
        let answer = self.ask(name, RecordType::A)?;
        let address = |record: &Record| match &record.data {
            RData::A(address) => Some(IpAddr::V4(address.0)),
            _ => None,
        };
        let mut found: Vec<IpAddr> = answer.answers.iter().filter_map(address).collect();
        found.sort_unstable();
        Ok(found)
    }
}
