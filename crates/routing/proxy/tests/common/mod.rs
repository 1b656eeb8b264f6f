//! Helpers for tests of HTTP ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Much longer than any test step: a test that reaches it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A parsed HTTP answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) code: u16,
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

impl Heard {
    pub(crate) fn has(&self, header: &str) -> bool {
        self.headers.iter().any(|line| line.eq_ignore_ascii_case(header))
    }
}

/// Sends a request without a body and reads the whole answer.
pub(crate) async fn ask(address: SocketAddr, line: &str) -> Heard {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("the answer is text");
    let (head, body) =
        text.split_once("\r\n\r\n").expect("the answer has a blank line after the headers");
    let mut lines = head.lines();
    let code = lines
        .next()
        .and_then(|status| status.split(' ').nth(1))
        .expect("the answer has a status line");
    Heard {
        code: code.parse().expect("the status code is a number"),
        headers: lines.map(str::to_owned).collect(),
        body: body.to_owned(),
    }
}
