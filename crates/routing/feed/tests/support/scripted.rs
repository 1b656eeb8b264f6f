//! A small HTTP server whose replies come from a script, for faults that a real API server does not
//! have.

use std::sync::{Arc, Mutex};

use kube::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A reply.
pub(crate) enum Answer {
    /// A status code, headers and a complete body.
    Whole(u16, &'static str, String),
    /// A stream that stays open after this text.
    Quiet(String),
    /// A stream that ends correctly.
    Ended(String),
    /// A stream whose connection closes before its end.
    Broken(String),
    /// No reply; the connection stays open.
    Nothing,
}

/// A running server and its requests.
pub(crate) struct Scripted {
    pub(crate) client: Client,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// The script gets the request's number and its path with query.
    pub(crate) async fn start(
        script: impl Fn(usize, &str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut config = kube::Config::new(url.parse().unwrap());
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (script, seen) = (Arc::new(script), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), seen.clone()));
            }
        });
        Self { client, requests }
    }

    /// Paths with query of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: Arc<impl Fn(usize, &str) -> Answer>,
    requests: Arc<Mutex<Vec<String>>>,
) {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8(text).unwrap();
    let path = text.split(' ').nth(1).unwrap().to_owned();
    let number = {
        let mut requests = requests.lock().unwrap();
        requests.push(path.clone());
        requests.len() - 1
    };
    let answer = script(number, &path);
    write_answer(&mut stream, answer).await;
}

async fn write_answer(stream: &mut TcpStream, answer: Answer) {
    let chunked = |text: &str| {
        let chunk =
            if text.is_empty() { String::new() } else { format!("{:x}\r\n{text}\r\n", text.len()) };
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}")
    };
    let text = match &answer {
        Answer::Whole(code, headers, body) => format!(
            "HTTP/1.1 {code} X\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        Answer::Quiet(text) | Answer::Broken(text) => chunked(text),
        Answer::Ended(text) => chunked(text) + "0\r\n\r\n",
        Answer::Nothing => String::new(),
    };
    let _ = stream.write_all(text.as_bytes()).await;
    if matches!(answer, Answer::Quiet(_) | Answer::Nothing) {
        // Wait until the client disconnects.
        let _ = stream.read_u8().await;
    }
}

/// A Pod as JSON.
pub(crate) fn pod(name: &str, version: u32) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"default","name":"{name}","uid":"u","resourceVersion":"{version}"}}}}"#
    )
}

/// A line of a watch.
pub(crate) fn line(event: &str, object: &str) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")
}

/// The bookmark that ends a streaming list.
pub(crate) fn end(version: u32) -> String {
    let mark = r#""annotations":{"k8s.io/initial-events-end":"true"}"#;
    line("BOOKMARK", &format!(r#"{{"metadata":{{"resourceVersion":"{version}",{mark}}}}}"#))
}

/// A page of a list.
pub(crate) fn page(version: u32, next: &str, items: &[String]) -> Answer {
    let metadata = format!(r#"{{"resourceVersion":"{version}","continue":"{next}"}}"#);
    let body =
        format!(r#"{{"kind":"PodList","metadata":{metadata},"items":[{}]}}"#, items.join(","));
    Answer::Whole(200, "", body)
}

/// An error reply with a Status.
pub(crate) fn refusal(code: u16, reason: &str) -> Answer {
    Answer::Whole(code, "", status(code, reason))
}

/// A Status as JSON.
pub(crate) fn status(code: u16, reason: &str) -> String {
    format!(r#"{{"kind":"Status","message":"by script","reason":"{reason}","code":{code}}}"#)
}
