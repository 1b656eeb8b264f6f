//! A client of exec, by WebSocket.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::world::{NODE_IP, PORT};

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: Value,
}

/// Runs a command in a container, with this for its standard input.
pub(crate) async fn exec(
    pod: &str,
    container: &str,
    protocol: &str,
    command: &[&str],
    input: Option<&str>,
) -> Ran {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("output", "1").append_pair("error", "1");
    if input.is_some() {
        query.append_pair("input", "1");
    }
    for word in command {
        query.append_pair("command", word);
    }
    let url = format!("ws://{NODE_IP}:{PORT}/exec/default/{pod}/{container}?{}", query.finish());
    let mut request = url.into_client_request().expect("a good address");
    let header = protocol.parse().expect("a good header");
    request.headers_mut().insert("sec-websocket-protocol", header);
    let stream = TcpStream::connect((NODE_IP, PORT)).await.expect("the agent listens");
    let (mut socket, _) = client_async(request, stream).await.expect("the agent speaks it");
    if let Some(input) = input {
        let message = [&[0], input.as_bytes()].concat();
        socket.send(Message::Binary(message.into())).await.expect("it listens");
        socket.send(Message::Binary(vec![255, 0].into())).await.expect("it listens");
    }
    let mut streams = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            let (channel, rest) = bytes.split_first().expect("each message names its stream");
            streams[usize::from(*channel)].extend_from_slice(rest);
        }
    }
    let [_, out, err, status] = streams;
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    let status = serde_json::from_slice(&status).expect("the end is told as JSON");
    Ran { out: text(out), err: text(err), status }
}
