//! One port of the machine for the health checks and metrics of all processes:
//! `http://127.0.0.1:PORT/proxy/node-a1/metrics`.
//!
//! The processes listen on the loopback of the control plane or of their node, as in a cluster. The
//! path's first words name the process. Each connection carries one request, which is GET or HEAD:
//! the admin ports are read-only.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nearhop_runtime::server::accept;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::relay::Target;

/// The size limit of a request.
const MAX_HEAD: usize = 16 * 1024;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the rest may take: a paused process accepts connections and does not answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Connections at the same time. Each needs two file descriptors of the supervisor; more wait.
const MAX_CONNECTIONS: usize = 64;

type Targets = BTreeMap<String, Target>;

/// The running port. Dropping it closes the listener.
#[derive(Debug)]
pub(crate) struct AdminPort {
    address: SocketAddr,
    targets: Arc<Targets>,
    task: JoinHandle<()>,
}

impl Drop for AdminPort {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AdminPort {
    /// Serves these processes.
    pub(crate) async fn open(
        targets: impl IntoIterator<Item = (String, Target)>,
    ) -> io::Result<Self> {
        let targets: Arc<Targets> = Arc::new(targets.into_iter().collect());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let all = Arc::clone(&targets);
        let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let task = tokio::spawn(async move {
            loop {
                let slot = Arc::clone(&free).acquire_owned().await;
                let (client, _) = accept(&listener).await;
                let targets = Arc::clone(&all);
                tokio::spawn(async move {
                    // The client may disconnect.
                    let _ = answer(client, &targets, LIMIT).await;
                    drop(slot);
                });
            }
        });
        Ok(Self { address, targets, task })
    }

    /// Whether the process has a URL.
    pub(crate) fn serves(&self, process: &str) -> bool {
        self.targets.contains_key(process)
    }

    /// The URL of a process.
    pub(crate) fn url(&self, process: &str) -> String {
        format!("http://{}/{process}", self.address)
    }
}

async fn answer(mut client: TcpStream, targets: &Targets, limit: Duration) -> io::Result<()> {
    let head = timeout(PATIENCE, read_head(&mut client)).await??;
    let (target, request) = match route(&head, targets) {
        Ok(found) => found,
        Err((status, text)) => return refuse(&mut client, status, &text).await,
    };
    let (mut reader, mut writer) = client.split();
    tokio::select! {
        done = exchange(target, &request, &mut writer, limit) => done,
        // The process may answer much later, or never.
        () = closed(&mut reader) => Ok(()),
    }
}

/// Passes the request to the process, and its answer to the client.
async fn exchange(
    target: &Target,
    request: &str,
    client: &mut (impl AsyncWrite + Unpin),
    limit: Duration,
) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let begun = timeout_at(deadline, send(target, request)).await;
    let (mut server, beginning) = match begun.unwrap_or_else(|late| Err(late.into())) {
        Ok(begun) => begun,
        Err(error) => {
            let text = format!(
                "the process does not answer: {error}. Cure: `nearhop lab status` shows whether it \
                 runs"
            );
            return refuse(client, "502 Bad Gateway", &text).await;
        }
    };
    let rest = async {
        client.write_all(&beginning).await?;
        copy(&mut server, client).await?;
        client.shutdown().await
    };
    timeout_at(deadline, rest).await?
}

/// Sends a request; returns the connection and the first bytes of the answer.
async fn send(target: &Target, request: &str) -> io::Result<(TcpStream, Vec<u8>)> {
    let mut server = target.connect().await?;
    server.write_all(request.as_bytes()).await?;
    let mut beginning = Vec::with_capacity(MAX_HEAD);
    if server.read_buf(&mut beginning).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((server, beginning))
}

/// Returns when the client has closed its connection. What it sends after its request is ignored.
async fn closed(client: &mut (impl AsyncRead + Unpin)) {
    let mut ignored = [0; 1024];
    while client.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
}

async fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || client.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn refuse(
    client: &mut (impl AsyncWrite + Unpin),
    status: &str,
    text: &str,
) -> io::Result<()> {
    let length = text.len() + 1;
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
    );
    client.write_all(reply.as_bytes()).await?;
    client.shutdown().await
}

type Refusal = (&'static str, String);

/// The process that a request is for, and the request to send to it.
fn route<'a>(head: &str, targets: &'a Targets) -> Result<(&'a Target, String), Refusal> {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !matches!(method, "GET" | "HEAD") {
        return Err(("405 Method Not Allowed", "only GET and HEAD are served".to_owned()));
    }
    let rest_after = |name: &str| {
        let rest = path.strip_prefix('/')?.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
    };
    let found = targets.iter().find_map(|(name, target)| Some((target, rest_after(name)?)));
    let Some((target, rest)) = found else {
        let known: Vec<String> = targets.keys().map(|name| format!("/{name}/metrics")).collect();
        return Err(("404 Not Found", format!("try one of:\n{}", known.join("\n"))));
    };
    let rest = if rest.is_empty() { "/" } else { &rest };
    let accept = head.lines().find(|line| line.to_ascii_lowercase().starts_with("accept:"));
    let accept = accept.map_or(String::new(), |line| format!("{line}\r\n"));
    let request =
        format!("{method} {rest} HTTP/1.1\r\nHost: localhost\r\n{accept}Connection: close\r\n\r\n");
    Ok((target, request))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> Targets {
        let target = |port| Target { namespace: None, address: (Ipv4Addr::LOCALHOST, port).into() };
        let names = [("proxy/n1", 1), ("proxy/n10", 2), ("controller", 3)];
        names.map(|(name, port)| (name.to_owned(), target(port))).into()
    }

    #[test]
    fn a_path_names_the_process() {
        let targets = targets();
        for (line, port, wanted) in [
            ("GET /proxy/n1/metrics HTTP/1.1", 1, "GET /metrics "),
            ("GET /proxy/n10/readyz?verbose HTTP/1.1", 2, "GET /readyz?verbose "),
            ("HEAD /controller HTTP/1.0", 3, "HEAD / "),
        ] {
            let head = format!("{line}\r\nHost: x\r\nAccept: a/b\r\nCookie: c\r\n\r\n");
            let (target, request) = route(&head, &targets).expect(line);
            assert_eq!(target.address.port(), port, "{line}");
            assert!(request.starts_with(wanted), "{line}: {request}");
            assert!(request.contains("\r\nAccept: a/b\r\n") && !request.contains("Cookie"));
        }
    }

    fn only(address: SocketAddr) -> Targets {
        [("controller".to_owned(), Target { namespace: None, address })].into()
    }

    /// A process that accepts connections and does not answer, as a paused one.
    async fn paused() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("free");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    const REQUEST: &[u8] = b"GET /controller/metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    const GENEROUS: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn connections_of_clients_that_left_are_closed() {
        let (process, address) = paused().await;
        let port = AdminPort::open(only(address)).await.expect("a free port");
        // One after the other: more than may be open at the same time.
        for n in 0..=MAX_CONNECTIONS {
            let mut client = TcpStream::connect(port.address).await.expect("it listens");
            client.write_all(REQUEST).await.expect("open");
            let accepted = timeout(GENEROUS, process.accept()).await.expect("a free slot");
            let (mut connection, _) = accepted.expect("it listens");
            drop(client);
            let mut request = Vec::new();
            let closed = timeout(GENEROUS, connection.read_to_end(&mut request)).await;
            assert!(closed.is_ok(), "connection {n} to the process stays open");
        }
    }

    #[tokio::test]
    async fn a_process_that_does_not_answer_is_named_with_a_cure() {
        let (_process, silent) = paused().await;
        let (closed, refusing) = paused().await;
        drop(closed);
        for address in [silent, refusing] {
            let (listener, here) = paused().await;
            let mut client = TcpStream::connect(here).await.expect("it listens");
            client.write_all(REQUEST).await.expect("open");
            let (accepted, _) = listener.accept().await.expect("connected");
            let limit = Duration::from_millis(200);
            let answered = timeout(GENEROUS, answer(accepted, &only(address), limit)).await;
            answered.expect("it has a limit").expect("the client is there");
            let mut text = String::new();
            client.read_to_string(&mut text).await.expect("UTF-8");
            assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
            assert!(text.contains("Cure: `nearhop lab status`"), "{text}");
        }
    }

    #[test]
    fn other_requests_are_refused() {
        let targets = targets();
        for (line, status, text) in [
            ("POST /controller/metrics HTTP/1.1", "405", "only GET"),
            ("GET / HTTP/1.1", "404", "/proxy/n10/metrics"),
            ("GET /proxy/n2/metrics HTTP/1.1", "404", "/controller/metrics"),
            ("nonsense", "405", ""),
        ] {
            let (found, said) = route(&format!("{line}\r\n\r\n"), &targets).expect_err(line);
            assert!(found.starts_with(status) && said.contains(text), "{line}: {found} {said}");
        }
    }
}
