//! Exec over WebSocket with the protocols `v5.channel.k8s.io` and `v4.channel.k8s.io`: the first
//! byte of a message is the stream's number.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

use super::{Reply, RequestError};
use crate::pod::context::{ContainerView, Context, ExecTarget};
use crate::pod::prober::write_exec;
use crate::spawn::Streams;

const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// After the command's end, background processes may keep its streams open. Reading stops after
/// this long without output.
const IDLE_AFTER_EXIT: Duration = Duration::from_millis(500);
/// How long a client may take to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a client is checked whose messages are not read: the command does not read its input, so
/// the end of the connection is not seen either.
const PING: Duration = Duration::from_secs(2);
const QUEUE: usize = 16;

/// The parameters of an exec request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExecRequest {
    command: Vec<String>,
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl ExecRequest {
    fn parse(query: &str) -> Self {
        let mut wanted = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let switch = matches!(&*value, "1" | "true");
            match &*key {
                "command" => wanted.command.push(value.into_owned()),
                "input" | "stdin" => wanted.stdin = switch,
                "output" | "stdout" => wanted.stdout = switch,
                "error" | "stderr" => wanted.stderr = switch,
                "tty" => wanted.tty = switch,
                _ => {}
            }
        }
        wanted
    }
}

pub(super) fn answer(
    context: Arc<Context>,
    container: &str,
    view: ContainerView,
    mut request: Request<Incoming>,
) -> Result<Reply, RequestError> {
    let wanted = ExecRequest::parse(request.uri().query().unwrap_or_default());
    if wanted.command.is_empty() {
        return Err(RequestError::bad_request("you must specify at least 1 command"));
    }
    let missing = || RequestError::bad_request(format!("container not found (\"{container}\")"));
    let place = view.exec.ok_or_else(missing)?;
    let (key, protocol) = negotiate(request.headers())?;
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let stream = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        // If the client disconnects, the command's streams close.
        let _gone = run(&context, &place, wanted, socket).await;
    });
    let mut reply = Response::new(Empty::new().boxed_unsync());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    let accept = derive_accept_key(key.as_bytes());
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept.parse().expect("a key is plain text"));
    Ok(reply)
}

/// The client's key, and our first protocol that the client supports.
fn negotiate(headers: &HeaderMap) -> Result<(HeaderValue, &'static str), RequestError> {
    let spoken = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|it| it.to_str().ok());
    let spoken: Vec<&str> = spoken.flat_map(|it| it.split(',')).map(str::trim).collect();
    let key = headers.get(SEC_WEBSOCKET_KEY).cloned();
    let protocol = PROTOCOLS.into_iter().find(|ours| spoken.contains(ours));
    match (key, protocol) {
        (Some(key), Some(protocol)) => Ok((key, protocol)),
        _ => Err(RequestError::bad_request(format!(
            "exec needs a WebSocket with one of the protocols {} (kubectl 1.31 and newer)",
            PROTOCOLS.join(", ")
        ))),
    }
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A running command.
struct Running {
    child: Child,
    /// Input for the command; closed on drop.
    stdin: Option<mpsc::Sender<Bytes>>,
    /// Input that the queue has no room for; until then nothing is read from the client.
    unsent: Option<Bytes>,
    /// To resize the terminal. Its last descriptor hangs it up.
    terminal: Option<OwnedFd>,
    /// Tasks that copy output and input.
    copying: JoinSet<()>,
    written: mpsc::Receiver<Vec<u8>>,
}

async fn run(
    context: &Context,
    place: &ExecTarget,
    wanted: ExecRequest,
    mut socket: Socket,
) -> io::Result<()> {
    let gone = |_| io::Error::other("the client has disconnected");
    let status = match start(context, place, &wanted).await {
        Ok(running) => attend(running, &mut socket).await?,
        Err(error) => failure(&format!("cannot start the command: {error}"), None),
    };
    let mut message = vec![ERROR];
    message.extend_from_slice(status.to_string().as_bytes());
    socket.send(Message::Binary(message.into())).await.map_err(gone)?;
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    socket.close(Some(frame)).await.map_err(gone)?;
    // Closing with unread data would reset the connection and lose output.
    let unread = async { while let Some(Ok(_)) = socket.next().await {} };
    let _silent = timeout(CLOSE_TIMEOUT, unread).await;
    Ok(())
}

async fn start(context: &Context, place: &ExecTarget, wanted: &ExecRequest) -> io::Result<Running> {
    let mut spec = place.spec(&wanted.command);
    spec.terminal = wanted.tty;
    if wanted.tty && !spec.env.iter().any(|(name, _)| name == "TERM") {
        spec.env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let file = write_exec(context, &spec)?;
    let (sender, written) = mpsc::channel(QUEUE);
    let mut copying = JoinSet::new();
    if wanted.tty {
        let (ours, theirs) = open_terminal(place.pid)?;
        let streams = Streams::Terminal(theirs);
        let child = context.spawner.exec(&place.namespace, &file, streams).await?;
        // Works with any pollable descriptor.
        let reader = pipe::Receiver::from_owned_fd_unchecked(ours.try_clone()?)?;
        let writer = pipe::Sender::from_owned_fd_unchecked(ours.try_clone()?)?;
        copying.spawn(copy(STDOUT, reader, sender));
        let stdin = Some(spawn_writer(Box::new(writer), &mut copying));
        let terminal = Some(ours);
        return Ok(Running { child, stdin, unsent: None, terminal, copying, written });
    }
    let mut child = context.spawner.exec(&place.namespace, &file, Streams::Pipes).await?;
    if let Some(out) = child.stdout.take().filter(|_| wanted.stdout) {
        copying.spawn(copy(STDOUT, out, sender.clone()));
    }
    if let Some(err) = child.stderr.take().filter(|_| wanted.stderr) {
        copying.spawn(copy(STDERR, err, sender));
    }
    let stdin = child.stdin.take().filter(|_| wanted.stdin);
    let stdin = stdin.map(|it| spawn_writer(Box::new(it), &mut copying));
    Ok(Running { child, stdin, unsent: None, terminal: None, copying, written })
}

/// A separate task, because a command may block on its output before it reads its input.
fn spawn_writer(mut stdin: Writer, tasks: &mut JoinSet<()>) -> mpsc::Sender<Bytes> {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(QUEUE);
    tasks.spawn(async move {
        while let Some(bytes) = receiver.recv().await {
            if stdin.write_all(&bytes).await.is_err() || stdin.flush().await.is_err() {
                return;
            }
        }
    });
    sender
}

/// Opens a new terminal of the container's own devpts. Symbolic links of the container are not
/// followed.
fn open_terminal(pid: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let root = File::open(format!("/proc/{pid}/root"))?;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let open = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::openat2(root, "dev/pts/ptmx", open, Mode::empty(), inside)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

async fn copy(channel: u8, mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; 32 * 1024];
    // Reading a terminal whose other end is closed fails.
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if to.send([&[channel], &buffer[..read]].concat()).await.is_err() {
            return;
        }
    }
}

/// Copies both directions until the command ends; returns its status.
async fn attend(mut running: Running, socket: &mut Socket) -> io::Result<Value> {
    let gone = |_| io::Error::other("the client has disconnected");
    let status = loop {
        tokio::select! {
            Some(message) = running.written.recv() => {
                socket.send(Message::Binary(message.into())).await.map_err(gone)?;
            }
            () = feed(&mut running.stdin, &mut running.unsent), if running.unsent.is_some() => {}
            () = sleep(PING), if running.unsent.is_some() => {
                socket.send(Message::Ping(Bytes::new())).await.map_err(gone)?;
            }
            message = socket.next(), if running.unsent.is_none() => match message {
                Some(Ok(Message::Binary(message))) => running.take(&message),
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    return Err(io::Error::other("the client has disconnected"));
                }
                Some(Ok(_)) => {}
            },
            status = running.child.wait() => break status?,
        }
    };
    drop(running.stdin.take());
    // Background processes may keep the streams open for ever, but a slow client gets all output.
    while let Ok(Some(message)) = timeout(IDLE_AFTER_EXIT, running.written.recv()).await {
        socket.send(Message::Binary(message.into())).await.map_err(gone)?;
    }
    running.copying.abort_all();
    Ok(match status.code() {
        Some(0) => json!({ "metadata": {}, "status": "Success" }),
        code => failure("command terminated with non-zero exit code", code),
    })
}

/// Passes pending input on when the queue has room; drops it if the command has closed its input.
async fn feed(stdin: &mut Option<mpsc::Sender<Bytes>>, unsent: &mut Option<Bytes>) {
    let fed = match &*stdin {
        Some(sender) => sender.reserve().await.map(|room| unsent.take().map(|it| room.send(it))),
        None => Ok(None),
    };
    if fed.is_err() {
        *stdin = None;
    }
    *unsent = None;
}

impl Running {
    fn take(&mut self, message: &Bytes) {
        match message.split_first() {
            Some((&STDIN, _)) => self.unsent = Some(message.slice(1..)),
            Some((&RESIZE, bytes)) => self.resize(bytes),
            Some((&CLOSE, [STDIN])) if self.terminal.is_none() => self.stdin = None,
            _ => {}
        }
    }

    fn resize(&self, bytes: &[u8]) {
        let Some(terminal) = &self.terminal else { return };
        let size: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let number = |name: &str| size[name].as_u64().and_then(|it| u16::try_from(it).ok());
        if let (Some(width), Some(height)) = (number("Width"), number("Height")) {
            let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
            let _closed = tcsetwinsize(terminal, size);
        }
    }
}

fn failure(message: &str, code: Option<i32>) -> Value {
    let Some(code) = code else {
        return json!({
            "metadata": {}, "status": "Failure", "reason": "InternalError", "message": message,
        });
    };
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("{message}: {code}"),
        "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_protocol_is_chosen() {
        let asked = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("k"));
            headers.insert(SEC_WEBSOCKET_PROTOCOL, text.parse().unwrap());
            negotiate(&headers).map(|(_, protocol)| protocol).ok()
        };
        assert_eq!(asked("v4.channel.k8s.io, v5.channel.k8s.io"), Some(PROTOCOLS[0]));
        assert_eq!(asked("v4.channel.k8s.io"), Some(PROTOCOLS[1]));
        assert_eq!(asked("base64.channel.k8s.io"), None);
        assert!(negotiate(&HeaderMap::new()).is_err());
    }

    #[test]
    fn kubelet_and_api_parameters_are_parsed() {
        let wanted =
            ExecRequest::parse("command=sh&command=-c&command=a%20b&input=1&output=true&tty=0");
        assert_eq!(wanted.command, ["sh", "-c", "a b"]);
        assert!(wanted.stdin && wanted.stdout && !wanted.stderr && !wanted.tty);
    }
}
