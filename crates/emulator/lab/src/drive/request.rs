//! One connection: a request, and the name in its answer.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket, lookup_host};

use super::Failure;
use super::chosen::Flow;
use super::lookup::lookup;
use super::ports::Ports;
use super::worker::{Job, Protocol};

/// Size limit of an answer.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// Asks a target for its Pod. Sets `flow` before the first packet, so that it is known also if the
/// caller drops this future at the timeout.
pub(super) async fn ask(
    job: &Job,
    target: &str,
    ports: &Ports,
    flow: &mut Option<Flow>,
) -> Result<String, Failure> {
    let to = match target.parse::<SocketAddr>() {
        Ok(address) => address,
        Err(_) => look_up(job, target).await?,
    };
    match job.protocol {
        Protocol::Tcp => {
            let (socket, port) = tcp_socket(to, ports).map_err(|error| failure(&error))?;
            *flow = Some(Flow { port, to });
            ask_http(socket.connect(to).await.map_err(|error| failure(&error))?, to).await
        }
        Protocol::Udp => {
            let (socket, port) = udp_socket(to, ports).await.map_err(|error| failure(&error))?;
            *flow = Some(Flow { port, to });
            ask_udp(&socket).await
        }
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

/// A socket that resets its connection when it is closed.
///
/// A closed connection occupies its ports for a minute (TIME_WAIT), at the side that closed first. The
/// server does, and the next connection from these ports may then wait a second or more for its SYN
/// to be sent again. After a reset neither side waits, and conntrack accepts a new SYN at once.
///
/// The reset hides no failure: the client sends it only after it has read the answer and the
/// server's FIN, so both directions have worked to the end. Only the client's own FIN is missing.
fn tcp_socket(to: SocketAddr, ports: &Ports) -> io::Result<(TcpSocket, u16)> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_zero_linger()?;
    let port = ports.bind(|port| socket.bind((unspecified(to), port).into()))?;
    Ok((socket, port))
}

async fn udp_socket(to: SocketAddr, ports: &Ports) -> io::Result<(UdpSocket, u16)> {
    let bound = std::cell::Cell::new(None);
    let port = ports.bind(|port| {
        bound.set(Some(std::net::UdpSocket::bind((unspecified(to), port))?));
        Ok(())
    })?;
    let socket = bound.take().ok_or(ErrorKind::AddrInUse)?;
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    socket.connect(to).await?;
    Ok((socket, port))
}

fn unspecified(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

async fn ask_http(mut stream: TcpStream, to: SocketAddr) -> Result<String, Failure> {
    let request = format!("GET /hostname HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
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

async fn ask_udp(socket: &UdpSocket) -> Result<String, Failure> {
    let wrong = |error: io::Error| failure(&error);
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
    use crate::drive::worker::Family;

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

    #[tokio::test]
    async fn an_answered_connection_leaves_no_port_in_time_wait() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let job = Job { targets: vec![to.to_string()], ..Job::new(Protocol::Tcp, Family::V4) };
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nweb-0").await.unwrap();
            // The server closes first.
            stream.shutdown().await.unwrap();
            stream.read(&mut request).await.unwrap_err().kind()
        });
        let mut flow = None;
        let answer = ask(&job, &to.to_string(), &Ports::new(), &mut flow).await;
        assert_eq!(answer.as_deref(), Ok("web-0"));
        assert_eq!(server.await.unwrap(), ErrorKind::ConnectionReset);
        let port = format!(":{:04X} ", flow.expect("a packet was sent").port);
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let left: Vec<&str> = sockets.lines().filter(|line| line.contains(&port)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
