//! A client of the agent's port: exec over WebSocket, and GET requests.

use std::io;
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use nearhop_runtime::pki::{Authority, KUBELET_CLIENT, Pair};
use nearhop_runtime::tls::{Trust, client_config};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::world::{AUTHORITY, NODE_IP, PORT};

/// The output and the status of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: Value,
}

/// A client certificate of the agent's client CA.
pub(crate) fn certificate(name: &str) -> Pair {
    let key = AUTHORITY.lock().expect("not poisoned").clone();
    let authority = Authority::of_key("nearhop", &key).expect("a key");
    authority.issue_client(name).expect("a certificate")
}

async fn connect(shown: Option<&Pair>) -> io::Result<TlsStream<TcpStream>> {
    let config = client_config(shown, &Trust::AnyServer).expect("a certificate");
    let stream = TcpStream::connect((NODE_IP, PORT)).await?;
    let name = ServerName::try_from(NODE_IP).expect("an address");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The response to a GET with this client certificate.
pub(crate) async fn ask(shown: Option<&Pair>, path: &str) -> io::Result<String> {
    let mut stream = connect(shown).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Runs a command in a container with this input.
pub(crate) async fn exec(
    pod: &str,
    container: &str,
    protocol: &str,
    command: &[&str],
    input: Option<&str>,
) -> Ran {
    let mut messages = Vec::new();
    let mut query = vec![("output", "1"), ("error", "1")];
    if let Some(input) = input {
        query.push(("input", "1"));
        messages.extend(input.as_bytes().chunks(32 * 1024).map(|part| [&[0], part].concat()));
        messages.push(vec![255, 0]);
    }
    query.extend(command.iter().map(|word| ("command", *word)));
    converse(&format!("{pod}/{container}"), protocol, &query, messages).await
}

/// Runs a shell in a terminal of 99 columns and 33 rows.
pub(crate) async fn exec_in_terminal(pod: &str, container: &str, input: &str) -> Ran {
    let query = [("output", "1"), ("input", "1"), ("tty", "1"), ("command", "sh")];
    let size = [&[4][..], br#"{"Width":99,"Height":33}"#].concat();
    let messages = vec![size, [&[0], input.as_bytes()].concat()];
    converse(&format!("{pod}/{container}"), "v5.channel.k8s.io", &query, messages).await
}

/// Sends messages and collects all output.
async fn converse(
    place: &str,
    protocol: &str,
    query: &[(&str, &str)],
    messages: Vec<Vec<u8>>,
) -> Ran {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    let url = format!("ws://{NODE_IP}:{PORT}/exec/default/{place}?{query}");
    let mut request = url.into_client_request().expect("a URL");
    let header = protocol.parse().expect("a header value");
    request.headers_mut().insert("sec-websocket-protocol", header);
    let stream = connect(Some(&certificate(KUBELET_CLIENT))).await.expect("a connection");
    let (socket, _) = client_async(request, stream).await.expect("a WebSocket");
    let (mut to, mut from) = socket.split();
    // Concurrently: the command may write before it reads, and may end before it has read all
    // input.
    let sending = tokio::spawn(async move {
        for message in messages {
            if to.send(Message::Binary(message.into())).await.is_err() {
                break;
            }
        }
        to
    });
    let mut streams = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    while let Some(Ok(message)) = from.next().await {
        if let Message::Binary(bytes) = message {
            let (channel, rest) = bytes.split_first().expect("a channel number");
            streams[usize::from(*channel)].extend_from_slice(rest);
        }
    }
    let _still_open = sending.await.expect("no panic");
    let [_, out, err, status] = streams;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let status = serde_json::from_slice(&status).expect("a JSON status");
    Ran { out: text(out), err: text(err), status }
}
