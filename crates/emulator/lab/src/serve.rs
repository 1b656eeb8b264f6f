//! The life of a lab: start, readiness, requests on the control socket, end.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nearhop_runtime::shutdown::Shutdown;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::cluster::{Awaited, Cluster, is_ready, name_of, none_missing};
use crate::config::ConfigFile;
use crate::control::{Answer, Request};
use crate::lab::Lab;
use crate::spec::{ConfigText, Spec};
use crate::{LabError, apply, leftovers, objects};

/// How long the nodes may take to get ready without any progress.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two checks.
const POLL: Duration = Duration::from_millis(25);

/// Runs a lab until shutdown or [`Request::Down`]. Calls `on_ready` when it is ready.
pub async fn serve(
    spec: Spec,
    shutdown: &Shutdown,
    on_ready: impl FnOnce(&Lab),
) -> Result<(), LabError> {
    let socket = spec.control_socket();
    let listener =
        UnixListener::bind(&socket).map_err(|cause| LabError::File { path: socket, cause })?;
    let (sender, mut requests) = mpsc::channel(16);
    tokio::spawn(listen(listener, sender));
    let mut lab = tokio::select! {
        lab = Lab::start(spec.clone()) => lab?,
        () = shutdown.wait() => return Ok(()),
    };
    let ready = make_ready(&spec);
    tokio::pin!(ready);
    let mut on_ready = Some(on_ready);
    loop {
        tokio::select! {
            () = shutdown.wait() => return Ok(()),
            done = &mut ready, if on_ready.is_some() => {
                lab.set_up(done.map_err(|error| lab.explain(error))?);
                if let Some(on_ready) = on_ready.take() {
                    on_ready(&lab);
                }
            }
            Some((request, answer)) = requests.recv() => {
                if let Request::Down = request {
                    let _ = answer.send(Reply::Answer(Answer::Done));
                    return Ok(());
                }
                execute(&mut lab, request, answer).await;
            }
        }
    }
}

type Pending = (Request, oneshot::Sender<Reply>);

/// What happens to a connection.
enum Reply {
    /// It gets an answer, and is closed.
    Answer(Answer),
    /// This process takes it over as its standard input.
    HandOver(Box<Command>),
}

async fn execute(lab: &mut Lab, request: Request, mut answer: oneshot::Sender<Reply>) {
    let done = match request {
        Request::Status | Request::Down => Answer::Status(Box::new(lab.status())),
        Request::Fault(fault) => match lab.inject(fault).await {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Refused(error.to_string()),
        },
        Request::Exec(place) => match lab.exec(&place) {
            Ok(command) => {
                // The client may have disconnected.
                let _ = answer.send(Reply::HandOver(Box::new(command)));
                return;
            }
            Err(error) => Answer::Refused(error.to_string()),
        },
        Request::Run(place, program, args) => match lab.command(&place, &program, &args) {
            // A task of its own, so that other requests are answered meanwhile. It ends if the client
            // disconnects.
            Ok(command) => {
                tokio::spawn(async move {
                    tokio::select! {
                        output = run(command) => drop(answer.send(Reply::Answer(output))),
                        () = answer.closed() => {}
                    }
                });
                return;
            }
            Err(error) => Answer::Refused(error.to_string()),
        },
    };
    // The client may have disconnected.
    let _ = answer.send(Reply::Answer(done));
}

async fn run(mut command: tokio::process::Command) -> Answer {
    match command.output().await {
        Ok(output) => Answer::Output {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        },
        Err(error) => Answer::Refused(error.to_string()),
    }
}

async fn listen(listener: UnixListener, requests: mpsc::Sender<Pending>) {
    while let Ok((stream, _)) = listener.accept().await {
        let requests = requests.clone();
        tokio::spawn(async move {
            // The client may disconnect.
            let _ = answer_one(stream, requests).await;
        });
    }
}

async fn answer_one(stream: UnixStream, requests: mpsc::Sender<Pending>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = String::new();
    read.read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => {
            let (answer, answered) = oneshot::channel();
            // Fails only if the lab ends.
            let _ = requests.send((request, answer)).await;
            let mut more = [0];
            tokio::select! {
                reply = answered => match reply {
                    Ok(Reply::Answer(answer)) => answer,
                    Ok(Reply::HandOver(command)) => {
                        let stream = read.into_inner().reunite(write).map_err(io::Error::other)?;
                        return hand_over(stream, *command).await;
                    }
                    Err(_) => Answer::Refused("the lab is stopping".to_owned()),
                },
                _ = read.read(&mut more) => return Ok(()),
            }
        }
        Err(error) => Answer::Refused(format!("not a request: {error}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await
}

/// Runs a process on the connection. The client sends nothing until this process has answered, so
/// nothing that was sent is lost.
async fn hand_over(stream: UnixStream, mut command: Command) -> io::Result<()> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let mut failed = stream.try_clone()?;
    command.stdin(OwnedFd::from(stream));
    let spawned = tokio::process::Command::from(command).kill_on_drop(true).spawn();
    match spawned {
        Ok(mut child) => {
            drop(failed);
            child.wait().await.map(drop)
        }
        Err(error) => {
            let refused = Answer::Refused(format!("cannot start a process: {error}"));
            writeln!(failed, "{}", serde_json::to_string(&refused)?)
        }
    }
}

/// Waits until all nodes are ready, creates the objects of the file and waits for its Pods. Returns
/// the fields that were kept as other clients have set them, in words.
pub async fn make_ready(spec: &Spec) -> Result<Vec<String>, LabError> {
    let cluster = Cluster::connect(&spec.kubeconfig()).await?;
    wait_for_nodes(&cluster, spec).await?;
    let Some(ConfigText { name, text }) = &spec.config else { return Ok(Vec::new()) };
    let config = ConfigFile::parse(name, text)?;
    let mut objects = config.objects()?;
    if spec.has_tainted_nodes() {
        objects::tolerate_taint(&mut objects);
    }
    let earlier =
        if spec.keeps_objects() { leftovers::earlier_objects(&cluster).await? } else { Vec::new() };
    let kept = apply::apply_config(&cluster, &config, &objects, &earlier).await?;
    if spec.keeps_objects() {
        leftovers::record(&cluster, text).await?;
    }
    apply::wait_for_pods(&cluster, &objects).await?;
    Ok(kept)
}

/// Waits until all nodes are ready. Fails if no further node gets ready for a while: a large lab on a
/// slow machine may take longer than any fixed limit.
async fn wait_for_nodes(cluster: &Cluster, spec: &Spec) -> Result<(), LabError> {
    let names = || spec.topology.nodes.iter().map(|node| node.name.as_str());
    let mut missing: Vec<String> = names().map(str::to_owned).collect();
    let mut since = Instant::now();
    loop {
        let look = tokio::time::timeout(PATIENCE, missing_nodes(cluster, names())).await;
        let why = match look {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(still))) => {
                if still.len() < missing.len() {
                    since = Instant::now();
                }
                missing = still;
                String::new()
            }
            Ok(Err(error)) => format!(" ({error})"),
            Err(_) => " (the API server does not answer)".to_owned(),
        };
        if since.elapsed() > PATIENCE {
            return Err(LabError::NodesMissing { seconds: PATIENCE.as_secs(), missing, why });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The nodes that are not ready.
pub(crate) async fn missing_nodes(
    cluster: &Cluster,
    wanted: impl Iterator<Item = &str>,
) -> Result<Awaited<()>, LabError> {
    let found = cluster.list("/api/v1/nodes").await?;
    let ready = |name: &str| found.iter().any(|node| name_of(node) == name && is_ready(node));
    Ok(none_missing(wanted.filter(|name| !ready(name)).map(str::to_owned).collect()))
}
