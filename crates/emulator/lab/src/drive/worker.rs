//! Opens connections from the namespace it runs in and reads which Pod answered.
//!
//! TCP requests `/hostname` by HTTP, UDP sends the word `hostname`. The built-in images and those of
//! Kubernetes' tests answer both with the Pod's name.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{sleep_until, timeout};

use super::lookup::lookup;
use super::{Failure, Tally};

/// Size limit of an answer.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// The job of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Used in turn: `10.96.0.7:80`, or a name, resolved for each connection.
    pub targets: Vec<String>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Number of connections.
    pub connections: u64,
    /// Connections at the same time.
    pub concurrency: usize,
    /// Timeout of a connection in milliseconds.
    pub timeout_ms: u64,
    /// Connections per second; 0 for no limit.
    pub rate: u32,
    /// Address family of names.
    #[serde(default)]
    pub family: Family,
    /// DNS server, if the client has no `/etc/resolv.conf`.
    #[serde(default)]
    pub name_server: Option<SocketAddr>,
}

/// The address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(super) fn contains(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

/// The transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP over a new TCP connection.
    Tcp,
    /// One packet from a new socket.
    Udp,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Time since the start of the job.
    pub at: Duration,
    /// Duration.
    pub took: Duration,
    /// The Pod that answered.
    pub outcome: Result<String, Failure>,
}

/// Performs the job. Calls `on_attempt` for each connection when it ends.
pub async fn work(job: &Job, on_attempt: impl Fn(&Attempt) + Clone + Send + 'static) -> Tally {
    let start = Instant::now();
    let lanes = (job.concurrency.max(1) as u64).min(job.connections);
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..lanes {
        let (job, on_attempt) = (job.clone(), on_attempt.clone());
        tasks.spawn(async move {
            work_lane(&job, lane..job.connections, lanes, start, on_attempt).await
        });
    }
    let mut all = Tally::default();
    while let Some(tally) = tasks.join_next().await {
        all.merge(&tally.expect("a lane does not panic"));
    }
    all
}

async fn work_lane(
    job: &Job,
    turns: std::ops::Range<u64>,
    step: u64,
    start: Instant,
    on_attempt: impl Fn(&Attempt),
) -> Tally {
    let mut tally = Tally::default();
    for turn in turns.step_by(usize::try_from(step).expect("there are fewer lanes than that")) {
        if job.rate > 0 {
            let due = start + Duration::from_secs_f64(turn as f64 / f64::from(job.rate));
            sleep_until(due.into()).await;
        }
        let begun = Instant::now();
        let target = &job.targets[turn as usize % job.targets.len()];
        let patience = Duration::from_millis(job.timeout_ms);
        let outcome = timeout(patience, ask(job, target)).await;
        let outcome = outcome.unwrap_or(Err(Failure::TimedOut));
        let took = begun.elapsed();
        on_attempt(&Attempt { at: begun - start, took, outcome: outcome.clone() });
        tally.count(outcome, took);
    }
    tally
}

async fn ask(job: &Job, target: &str) -> Result<String, Failure> {
    let address = match target.parse::<SocketAddr>() {
        Ok(address) => address,
        Err(_) => look_up(job, target).await?,
    };
    match job.protocol {
        Protocol::Tcp => ask_http(address).await,
        Protocol::Udp => ask_udp(address).await,
    }
}

/// Resolves `NAME:PORT`.
async fn look_up(job: &Job, target: &str) -> Result<SocketAddr, Failure> {
    if let (Some(server), Some((name, port))) = (job.name_server, target.rsplit_once(':')) {
        let port = port.parse().map_err(|_| Failure::Here)?;
        return Ok(SocketAddr::new(lookup(server, name, job.family).await?, port));
    }
    let mut found = lookup_host(target).await.map_err(|_| Failure::NoSuchName)?;
    found.find(|address| job.family.contains(&address.ip())).ok_or(Failure::NoSuchName)
}

async fn ask_http(address: SocketAddr) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| failure(&error))?;
    let request = format!("GET /hostname HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| failure(&error))?;
    let mut answer = Vec::new();
    let read = stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await;
    read.map_err(|error| failure(&error))?;
    if answer.is_empty() {
        return Err(Failure::Closed);
    }
    let text = String::from_utf8(answer).map_err(|_| Failure::NotUnderstood)?;
    parse_http(&text).ok_or(Failure::NotUnderstood)
}

/// The name in a successful response.
fn parse_http(text: &str) -> Option<String> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?;
    let good = head.starts_with("HTTP/1.") && status == "200";
    name_in(body).filter(|_| good)
}

/// One word, or the JSON object of `nearhop/echo` with the Pod's name.
fn name_in(body: &str) -> Option<String> {
    let word = body.trim();
    if word.starts_with('{') {
        let object: serde_json::Value = serde_json::from_str(word).ok()?;
        return Some(object["pod"].as_str()?.to_owned());
    }
    let named = !word.is_empty() && !word.contains(char::is_whitespace);
    named.then(|| word.to_owned())
}

async fn ask_udp(address: SocketAddr) -> Result<String, Failure> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let wrong = |error: io::Error| failure(&error);
    let socket = UdpSocket::bind((any, 0)).await.map_err(wrong)?;
    socket.connect(address).await.map_err(wrong)?;
    socket.send(b"hostname").await.map_err(wrong)?;
    let mut answer = vec![0; 1500];
    let length = socket.recv(&mut answer).await.map_err(wrong)?;
    name_in(&String::from_utf8_lossy(&answer[..length])).ok_or(Failure::NotUnderstood)
}

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::ConnectionRefused => Failure::Refused,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Failure::Reset,
        ErrorKind::TimedOut => Failure::TimedOut,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Failure::Unreachable,
        ErrorKind::UnexpectedEof => Failure::Closed,
        _ => Failure::Here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_successful_response_of_one_word_is_a_hostname() {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\necho-1\n";
        assert_eq!(parse_http(ok).as_deref(), Some("echo-1"));
        assert_eq!(name_in("{\"pod\":\"echo-2\",\"node\":\"n\"}\n").as_deref(), Some("echo-2"));
        assert_eq!(name_in("{\"node\":\"n\"}"), None);
        for bad in [
            "HTTP/1.1 503 Service Unavailable\r\n\r\necho-1",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nsome long page",
            "SSH-2.0-OpenSSH 200\r\n\r\nhello",
            "HTTP/1.1 200 OK",
        ] {
            assert_eq!(parse_http(bad), None, "{bad:?}");
        }
    }

    fn job(targets: &[String], protocol: Protocol) -> Job {
        Job {
            targets: targets.to_vec(),
            protocol,
            connections: 10,
            concurrency: 3,
            timeout_ms: 300,
            rate: 0,
            family: Family::V4,
            name_server: None,
        }
    }

    #[tokio::test]
    async fn failures_are_classified() {
        let silent_listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = free.local_addr().unwrap().to_string();
        drop(free);
        let silent = silent_listener.local_addr().unwrap().to_string();
        let tally = work(&job(&[closed.clone(), silent], Protocol::Tcp), |_| {}).await;
        let expected = BTreeMap::from([(Failure::Refused, 5), (Failure::TimedOut, 5)]);
        assert_eq!(tally.failures, expected);
        assert_eq!(tally.answered(), 0);
        let tally = work(&job(&[closed], Protocol::Udp), |_| {}).await;
        assert_eq!(tally.failures, BTreeMap::from([(Failure::Refused, 10)]));
        let unknown = "unknown.invalid:80".to_owned();
        let tally = work(&job(&[unknown], Protocol::Tcp), |_| {}).await;
        assert_eq!(tally.failed(), 10, "{tally:?}");
    }

    use std::collections::BTreeMap;

    #[tokio::test]
    async fn targets_are_used_in_turn_and_answers_counted() {
        let mut targets = Vec::new();
        for name in ["a", "b"] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            targets.push(listener.local_addr().unwrap().to_string());
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut request = [0; 512];
                    let _ = stream.read(&mut request).await;
                    let answer = format!("HTTP/1.1 200 OK\r\n\r\n{name}");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
        let tally = work(&job(&targets, Protocol::Tcp), |_| {}).await;
        let expected = BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 5)]);
        assert_eq!((tally.answers.clone(), tally.failed()), (expected, 0));
        assert_eq!(tally.latencies.len(), 10);
    }
}
