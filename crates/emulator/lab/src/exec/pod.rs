//! The caller's side of a command in a Pod, over the WebSocket of the API server. The first byte of a
//! message is the number of the stream.
//!
//! Not kube's `AttachedProcess`: it stops to read while it sends, so a command that prints much while
//! it gets much input, such as `cat`, would wait for ever.

use std::io::{self, Read as _};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams};
use kube::core::Request;
use nearhop_net::program::SIGNALLED;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::terminal::{self, RawMode};
use super::{Input, Screen, Session};
use crate::LabError;
use crate::cluster::{Cluster, describe};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Messages of input that wait for the connection.
const QUEUE: usize = 4;

/// How often an idle connection is checked.
const PING: Duration = Duration::from_secs(30);

/// How long closing the connection may take.
const GRACE: Duration = Duration::from_secs(5);

/// The annotation that names the container for commands, as kubectl reads it.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// A container of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub pod: String,
    /// Name of the container. Default: the Pod's default container, or its first.
    pub container: Option<String>,
}

/// Runs a command; returns its exit code.
pub async fn run(
    cluster: &Cluster,
    place: &Container,
    session: &Session,
) -> Result<u8, PodExecError> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), &place.namespace);
    let pod = pods.get(&place.pod).await.map_err(|error| PodExecError::of(place, error))?;
    let has_terminal = session.screen == Screen::Terminal;
    let params = AttachParams {
        container: place.container.clone().or_else(|| default_container(&pod)),
        stdin: session.input == Input::Passed,
        stdout: true,
        // A terminal has one stream.
        stderr: !has_terminal,
        tty: has_terminal,
        ..AttachParams::default()
    };
    let request = Request::new(format!("/api/v1/namespaces/{}/pods", place.namespace))
        .exec(&place.pod, &session.command, &params)
        .map_err(|error| PodExecError::Lab(LabError::ExecRefused(error.to_string())))?;
    let connection = cluster.client().connect(request).await;
    let connection = connection.map_err(|error| PodExecError::of(place, error))?;
    let end = if connection.supports_stream_close() { EndOfInput::Sent } else { EndOfInput::Kept };
    let caller = Caller::start(session, end)
        .map_err(|cause| LabError::Exec { what: "connect the command to this terminal", cause })?;
    Ok(caller.follow(connection.into_stream()).await?)
}

/// A command in a Pod failed before it started.
#[derive(Debug, thiserror::Error)]
pub enum PodExecError {
    /// The API has no such Pod.
    #[error("Pod {namespace}/{pod} does not exist. Cure: `kubectl get pods -A` lists the Pods")]
    NoPod {
        /// Namespace.
        namespace: String,
        /// Name.
        pod: String,
    },
    /// Another failure.
    #[error(transparent)]
    Lab(#[from] LabError),
}

impl PodExecError {
    fn of(place: &Container, error: kube::Error) -> Self {
        let Container { namespace, pod, .. } = place;
        match &error {
            kube::Error::Api(status) if status.is_not_found() => {
                Self::NoPod { namespace: namespace.clone(), pod: pod.clone() }
            }
            _ => {
                let why = format!("Pod {namespace}/{pod}: {}", describe(&error));
                Self::Lab(LabError::ExecRefused(why))
            }
        }
    }
}

fn default_container(pod: &Pod) -> Option<String> {
    let annotated = pod.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    let first = || Some(&pod.spec.as_ref()?.containers.first()?.name);
    annotated.or_else(first).cloned()
}

/// Whether the server understands the end of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndOfInput {
    Sent,
    /// Only closing the connection would say it, and would lose output.
    Kept,
}

struct Caller {
    screen: Screen,
    raw: Option<RawMode>,
    input: mpsc::Receiver<Message>,
}

impl Caller {
    fn start(session: &Session, end: EndOfInput) -> io::Result<Self> {
        let (sender, input) = mpsc::channel(QUEUE);
        let mut raw = None;
        if session.input == Input::Passed {
            if session.screen == Screen::Terminal {
                raw = Some(RawMode::enter()?);
            }
            // It ends with the process: a read of a terminal cannot be interrupted.
            thread::Builder::new()
                .name("input".to_owned())
                .spawn(move || read_input(&sender, end))?;
        }
        Ok(Self { screen: session.screen, raw, input })
    }

    /// Copies both directions until the command ends.
    async fn follow(self, socket: Socket) -> Result<u8, LabError> {
        let (mut sink, mut stream) = socket.split();
        let code = {
            let signal = pin!(ending_signal());
            tokio::select! {
                code = receive(&mut stream) => code,
                () = send(&mut sink, self.input, self.screen, self.raw.as_ref()) => {
                    unreachable!("sending never ends")
                }
                signal = signal => Ok(End::Killed(signal)),
            }
        };
        let code = match code {
            Ok(End::Exited(code)) => code,
            Ok(End::Killed(signal)) => SIGNALLED + u8::try_from(signal as i32).unwrap_or(0),
            Err(error) => return Err(error),
        };
        // The node ends the command and everything that it started when the connection closes.
        let closing = async {
            let _gone = sink.close().await;
            while let Some(Ok(_)) = stream.next().await {}
        };
        let _late = timeout(GRACE, closing).await;
        Ok(code)
    }
}

/// What ends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exited(u8),
    Killed(Signal),
}

fn read_input(sender: &mpsc::Sender<Message>, end: EndOfInput) {
    let mut buffer = [0; 32 * 1024];
    let mut input = io::stdin().lock();
    loop {
        match input.read(&mut buffer) {
            Ok(count @ 1..) => {
                let bytes = Bytes::from([&[STDIN], &buffer[..count]].concat());
                if sender.blocking_send(Message::Binary(bytes)).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
        }
    }
    if end == EndOfInput::Sent {
        // The command may have ended.
        let _ = sender.blocking_send(Message::Binary(Bytes::from_static(&[CLOSE, STDIN])));
    }
}

/// Sends input, the size of the terminal and pings. Never returns: the other direction reports the end
/// of the connection, after the output before it.
async fn send(
    sink: &mut SplitSink<Socket, Message>,
    mut input: mpsc::Receiver<Message>,
    screen: Screen,
    raw: Option<&RawMode>,
) {
    let mut resized = signal(SignalKind::window_change()).ok();
    let mut continued = signal(SignalKind::from_raw(Signal::SIGCONT as i32)).ok();
    let mut size = (screen == Screen::Terminal).then(size_message);
    loop {
        let message = match size.take() {
            Some(size) => size,
            None => tokio::select! {
                Some(message) = input.recv() => message,
                Some(()) = next(&mut resized), if screen == Screen::Terminal => size_message(),
                Some(()) = next(&mut continued), if screen == Screen::Terminal => {
                    // A shell has changed the mode. The terminal may be closed.
                    let _ = raw.map(RawMode::set);
                    size_message()
                }
                () = tokio::time::sleep(PING) => Message::Ping(Bytes::new()),
            },
        };
        if sink.send(message).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn next(signal: &mut Option<tokio::signal::unix::Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

fn size_message() -> Message {
    let size = terminal::size();
    let text = json!({"Width": size.ws_col, "Height": size.ws_row}).to_string();
    Message::Binary(Bytes::from([&[RESIZE], text.as_bytes()].concat()))
}

/// Writes output until the status of the command arrives.
async fn receive(stream: &mut SplitStream<Socket>) -> Result<End, LabError> {
    let (mut output, mut errors) = (tokio::io::stdout(), tokio::io::stderr());
    while let Some(Ok(message)) = stream.next().await {
        let Message::Binary(message) = message else { continue };
        let Some((channel, bytes)) = message.split_first() else { continue };
        let written = match *channel {
            STDOUT => write(&mut output, bytes).await,
            STDERR => write(&mut errors, bytes).await,
            ERROR => return read_status(bytes).map(End::Exited),
            _ => Ok(()),
        };
        if written.is_err() {
            // As a local command whose reader has gone.
            return Ok(End::Killed(Signal::SIGPIPE));
        }
    }
    Err(LabError::ExecRefused(
        "the connection to the Pod ended before the command did. Cure: `nearhop lab status` shows \
         whether the lab, its API server and the agent of the Pod's node run"
            .to_owned(),
    ))
}

async fn write(to: &mut (impl tokio::io::AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// The exit code of a failed command is in the status cause `ExitCode`.
fn read_status(text: &[u8]) -> Result<u8, LabError> {
    let unreadable = |error| LabError::ExecRefused(format!("unreadable status: {error}"));
    let status: Status = serde_json::from_slice(text).map_err(unreadable)?;
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
    let mut causes = causes.into_iter().flatten();
    let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    match code.and_then(|cause| cause.message.as_deref()?.parse().ok()) {
        Some(code) => Ok(code),
        None => {
            let why = status.message.unwrap_or_else(|| "the command failed".to_owned());
            Err(LabError::ExecRefused(why))
        }
    }
}

/// The first signal that ends the caller.
async fn ending_signal() -> Signal {
    let kinds = [
        (SignalKind::interrupt(), Signal::SIGINT),
        (SignalKind::terminate(), Signal::SIGTERM),
        (SignalKind::hangup(), Signal::SIGHUP),
        (SignalKind::quit(), Signal::SIGQUIT),
    ];
    let waiting = kinds.map(|(kind, number)| {
        Box::pin(async move {
            match signal(kind) {
                Ok(mut signal) => drop(signal.recv().await),
                Err(_) => std::future::pending().await,
            }
            number
        })
    });
    futures_util::future::select_all(waiting).await.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_in_the_status() {
        let read = |value: serde_json::Value| read_status(value.to_string().as_bytes());
        assert_eq!(read(json!({"status": "Success"})).ok(), Some(0));
        let failed = json!({
            "status": "Failure", "reason": "NonZeroExitCode", "message": "exit code 7",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
        });
        assert_eq!(read(failed).ok(), Some(7));
        let refused = json!({"status": "Failure", "message": "cannot start the command: x"});
        let why = read(refused).expect_err("no exit code").to_string();
        assert_eq!(why, "cannot start the command: x");
    }

    #[test]
    fn the_annotation_names_the_default_container() {
        let pod = |annotations: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "first"}, {"name": "second"}]},
            }))
            .expect("a Pod")
        };
        assert_eq!(default_container(&pod(json!({}))).as_deref(), Some("first"));
        let annotated = pod(json!({DEFAULT_CONTAINER: "second"}));
        assert_eq!(default_container(&annotated).as_deref(), Some("second"));
    }
}
