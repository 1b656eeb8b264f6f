//! The stream of one client: its counts while it runs, and the request to stop.
//!
//! A client on a node is a process that the lab starts. It connects to a socket in the lab's
//! directory. A client in a Pod is a process of `exec` and uses its standard input and output.
//! Both send lines of JSON, and stop when their input is closed. However `lab drive` ends, the lab
//! ends a process whose request is closed, and the process itself ends when it cannot write: no
//! client runs on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use nearhop_runtime::shutdown::Shutdown;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::WORKER;
use super::origin::{Origin, Where};
use super::tally::Tally;
use super::worker::{Job, Message, Times};
use crate::LabError;
use crate::cluster::{Cluster, describe};
use crate::control::{Answer, Place, Request, send};

/// Path of the `nearhop` binary in every container.
const IN_CONTAINERS: &str = "/.nearhop";

/// How long a client may take to start, and between two lines.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait for the reason of a client that ended too early.
const REASON: Duration = Duration::from_secs(1);

/// Where the clients on nodes connect to.
#[derive(Debug)]
pub(super) struct Meeting {
    path: PathBuf,
    waiting: Arc<Mutex<Waiting>>,
    accepting: tokio::task::JoinHandle<()>,
}

/// Clients that have not connected yet, by number.
type Waiting = BTreeMap<usize, oneshot::Sender<BufReader<UnixStream>>>;

impl Meeting {
    /// Opens a socket in the lab's directory for this many clients. It is removed when all of them have
    /// connected, so that a killed drive leaves no file.
    pub(super) fn open(state: &Path, clients: usize) -> Result<Self, LabError> {
        let path = state.join(format!("drive-{}.sock", std::process::id()));
        let failed = |cause| LabError::File { path: path.clone(), cause };
        // A killed process with the same number may have left it.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let waiting = Arc::<Mutex<Waiting>>::default();
        let (theirs, remove) = (Arc::clone(&waiting), path.clone());
        let accepting = tokio::spawn(async move {
            for _ in 0..clients {
                let Ok((stream, _)) = listener.accept().await else { break };
                tokio::spawn(introduce(stream, Arc::clone(&theirs)));
            }
            let _ = std::fs::remove_file(remove);
        });
        Ok(Self { path, waiting, accepting })
    }

    fn expect(&self, number: usize) -> oneshot::Receiver<BufReader<UnixStream>> {
        let (sender, receiver) = oneshot::channel();
        lock(&self.waiting).insert(number, sender);
        receiver
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.accepting.abort();
        // It may be removed already, or the lab may have ended and its directory with it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the number of a client that has connected.
async fn introduce(stream: UnixStream, waiting: Arc<Mutex<Waiting>>) {
    let mut stream = BufReader::new(stream);
    let mut number = String::new();
    let read = timeout(SILENCE, stream.read_line(&mut number)).await;
    let expected = number.trim().parse().ok().and_then(|number| lock(&waiting).remove(&number));
    if let (Ok(Ok(_)), Some(expected)) = (read, expected) {
        // The drive may have ended.
        let _ = expected.send(stream);
    }
}

/// Runs a client until its end, and passes its counts on.
pub(super) async fn run(
    number: usize,
    origin: &Origin,
    (state, cluster): (&Path, &Cluster),
    meeting: &Meeting,
    stop: &Shutdown,
    on_counts: impl FnMut(Tally),
) -> Result<Times, String> {
    match &origin.place {
        Where::Lab(place) => {
            let connected = meeting.expect(number);
            let process = in_lab(state, place, &origin.job, (&meeting.path, number));
            tokio::pin!(process);
            let stream = tokio::select! {
                stream = timeout(SILENCE, connected) => stream,
                ended = &mut process => return Err(reason(ended)),
            };
            let stream = stream.map_err(|_| "it does not start".to_owned())?;
            let stream = stream.map_err(|_| "the lab ended".to_owned())?;
            let (read, write) = tokio::io::split(stream);
            match follow(BufReader::new(read), write, stop, on_counts).await {
                Err(why) => Err(timeout(REASON, process).await.map_or(why, reason)),
                done => done,
            }
        }
        Where::Pod { namespace, name } => {
            in_pod(cluster, (namespace, name), &origin.job, stop, on_counts).await
        }
    }
}

/// The arguments of a worker that prints its counts at its end.
pub(crate) fn command_line(job: &Job) -> Vec<String> {
    let job = serde_json::to_string(job).expect("a job is plain data");
    vec![WORKER.to_owned(), "--job".to_owned(), job]
}

/// Runs the process of a client on a node. Returns at its end, with its standard error. If this is
/// dropped, the lab ends the process.
async fn in_lab(
    state: &Path,
    place: &Place,
    job: &Job,
    (socket, number): (&Path, usize),
) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut args = command_line(job);
    args.extend(["--report-to".to_owned(), socket.display().to_string()]);
    args.extend(["--number".to_owned(), number.to_string()]);
    let request = Request::Run(place.clone(), program, args);
    let answer = send(state, &request).await.map_err(|error| error.to_string())?;
    match answer {
        Answer::Output { stderr, .. } => Ok(stderr),
        Answer::Refused(why) => Err(why),
        _ => Err("unexpected answer from the lab".to_owned()),
    }
}

/// Why a client ended too early.
fn reason(ended: Result<String, String>) -> String {
    match ended {
        Ok(stderr) if stderr.trim().is_empty() => "its process ended without a result".to_owned(),
        Ok(text) | Err(text) => text.trim().trim_start_matches("error: ").to_owned(),
    }
}

async fn in_pod(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    job: &Job,
    stop: &Shutdown,
    on_counts: impl FnMut(Tally),
) -> Result<Times, String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), namespace);
    let arguments = command_line(job).into_iter().chain(["--report-to", "-"].map(str::to_owned));
    let command = std::iter::once(IN_CONTAINERS.to_owned()).chain(arguments);
    let params = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let started = timeout(SILENCE, pods.exec(name, command, &params)).await;
    let started = started.map_err(|_| "it does not start".to_owned())?;
    let mut process = started.map_err(|error| describe(&error))?;
    let closed = || "the API server closed a stream".to_owned();
    let (stdin, stdout) =
        (process.stdin().ok_or_else(closed)?, process.stdout().ok_or_else(closed)?);
    let (stderr, status) = (process.stderr(), process.take_status());
    match follow(BufReader::new(stdout), stdin, stop, on_counts).await {
        Err(why) => {
            let reported = async {
                let mut text = String::new();
                if let Some(mut stderr) = stderr {
                    let _ = stderr.read_to_string(&mut text).await;
                }
                if let (true, Some(status)) = (text.is_empty(), status) {
                    text = status.await.and_then(|status| status.message).unwrap_or_default();
                }
                text
            };
            let reported = timeout(REASON, reported).await.unwrap_or_default();
            Err(if reported.is_empty() { why } else { reason(Ok(reported)) })
        }
        done => done,
    }
}

/// Reads lines until the last one. Closes the client's input when the drive stops.
async fn follow(
    reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    stop: &Shutdown,
    mut on_counts: impl FnMut(Tally),
) -> Result<Times, String> {
    let mut lines = BufReader::new(reader).lines();
    let mut stopping = false;
    loop {
        let line = tokio::select! {
            line = timeout(SILENCE, lines.next_line()) => line,
            () = stop.wait(), if !stopping => {
                stopping = true;
                // Some API servers cannot close the input of a process, so a line is sent first.
                let _ = writer.write_all(b"stop\n").await;
                let _ = writer.shutdown().await;
                continue;
            }
        };
        let line = line.map_err(|_| format!("no report for {} s", SILENCE.as_secs()))?;
        let line = line.map_err(|error| error.to_string())?;
        let line = line.ok_or_else(|| "its process ended without a result".to_owned())?;
        match serde_json::from_str(&line).map_err(|_| line.clone())? {
            Message::Counts(tally) => on_counts(*tally),
            Message::Done(times) => return Ok(times),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn counts_are_passed_on_until_the_last_line() {
        let (mut theirs, ours) = tokio::io::duplex(4096);
        let lines = "{\"counts\":{\"answers\":{\"web-0\":2}}}\n{\"done\":{\"lastBegun\":1.0,\"ended\":2.0}}\n";
        theirs.write_all(lines.as_bytes()).await.unwrap();
        let (_trigger, stop) = Shutdown::manual();
        let (read, write) = tokio::io::split(ours);
        let mut answered = 0;
        let done = follow(read, write, &stop, |tally| answered += tally.answered()).await;
        assert_eq!(done, Ok(Times { last_begun: 1.0, ended: 2.0 }));
        assert_eq!(answered, 2);
    }

    #[tokio::test]
    async fn a_client_that_ends_too_early_is_an_error() {
        let (theirs, ours) = tokio::io::duplex(64);
        drop(theirs);
        let (_trigger, stop) = Shutdown::manual();
        let (read, write) = tokio::io::split(ours);
        let error = follow(read, write, &stop, |_| {}).await.unwrap_err();
        assert_eq!(error, "its process ended without a result");
    }

    #[tokio::test]
    async fn the_input_of_a_client_is_closed_when_the_drive_stops() {
        let (mut theirs, ours) = tokio::io::duplex(64);
        let (trigger, stop) = Shutdown::manual();
        let (read, write) = tokio::io::split(ours);
        let following = tokio::spawn(async move { follow(read, write, &stop, |_| {}).await });
        trigger.request();
        let mut line = [0; 5];
        theirs.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"stop\n");
        theirs.write_all(b"{\"done\":{\"lastBegun\":0.0,\"ended\":0.5}}\n").await.unwrap();
        assert!(following.await.unwrap().is_ok());
    }

    #[test]
    fn the_reason_of_an_early_end_is_its_error() {
        assert_eq!(reason(Ok("error: no targets\n".to_owned())), "no targets");
        assert_eq!(reason(Err("no node n9".to_owned())), "no node n9");
        assert_eq!(reason(Ok(String::new())), "its process ended without a result");
    }
}
