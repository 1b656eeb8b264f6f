//! Runs probes and preStop hooks.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{LifecycleHandler, Probe};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::context::{Context, ExecTarget, make_private};
use super::event::{ContainerRun, Event};
use super::probe::{ProbeAction, ProbeCounter, ProbeKind, ProbeResult, ProbeTiming, host};
use crate::container::{ExecSpec, TIMED_OUT};
use crate::spawn::Streams;

/// The first interval in the first period; it doubles with each attempt. A fresh server usually
/// becomes ready soon.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// How much output a failure message contains.
const MAX_OUTPUT: u64 = 1024;
/// After the command's end, background processes may keep its output open. Reading stops after this
/// long.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// A probe of one run of a container.
#[derive(Debug)]
pub(crate) struct Prober {
    pub(crate) context: Arc<Context>,
    pub(crate) run: ContainerRun,
    pub(crate) kind: ProbeKind,
    pub(crate) action: Result<ProbeAction, String>,
    pub(crate) probe: Probe,
    pub(crate) address: Option<IpAddr>,
    pub(crate) exec: ExecTarget,
    pub(crate) events: mpsc::UnboundedSender<Event>,
}

impl Prober {
    /// Probes for ever.
    pub(crate) async fn go(self) {
        let timing = ProbeTiming::of(&self.probe);
        let mut counter = ProbeCounter::new(self.kind, &self.probe);
        sleep(timing.initial).await;
        if self.kind != ProbeKind::Liveness {
            self.probe_first_period(&timing, &mut counter).await;
        }
        loop {
            let began = Instant::now();
            let failure = self.probe_once(timing.timeout).await.err();
            let change = counter.take(failure.is_none());
            self.send(ProbeResult { change, failure });
            sleep(timing.period.saturating_sub(began.elapsed())).await;
        }
    }

    /// In the first period only a success counts.
    async fn probe_first_period(&self, timing: &ProbeTiming, counter: &mut ProbeCounter) {
        let end = Instant::now() + timing.period;
        let mut pause = FIRST_RETRY;
        while Instant::now() + pause < end {
            let began = Instant::now();
            if self.probe_once(timing.timeout).await.is_ok() {
                let change = counter.take(true);
                self.send(ProbeResult { change, failure: None });
                sleep(timing.period.saturating_sub(began.elapsed())).await;
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    fn send(&self, result: ProbeResult) {
        if result.change.is_some() || result.failure.is_some() {
            let _ended = self.events.send(Event::Probed(self.run.clone(), self.kind, result));
        }
    }

    async fn probe_once(&self, patience: Duration) -> Result<(), String> {
        match &self.action {
            Err(why) => Err(why.clone()),
            Ok(ProbeAction::Exec(command)) => {
                run_command(&self.context, &self.exec, command, patience).await
            }
            Ok(action) => {
                let asked = timeout(patience, probe_network(action, self.address)).await;
                asked
                    .unwrap_or_else(|_| Err(format!("no response within {} s", patience.as_secs())))
            }
        }
    }
}

async fn probe_network(action: &ProbeAction, pod: Option<IpAddr>) -> Result<(), String> {
    let (ProbeAction::Http { host: named, port, .. } | ProbeAction::Tcp { host: named, port }) =
        action
    else {
        return Err("not a network probe".to_owned());
    };
    let host = host(named.as_deref(), pod).ok_or("the pod has no address")?;
    let stream = TcpStream::connect((host.as_str(), *port)).await;
    let stream = stream.map_err(|error| format!("dial {host} port {port}: {error}"))?;
    let ProbeAction::Http { path, headers, .. } = action else { return Ok(()) };
    let failed =
        |error: &dyn std::fmt::Display| format!("Get \"http://{host}:{port}{path}\": {error}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    tokio::spawn(connection);
    let authority =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = http::Request::get(path.as_str()).header("user-agent", "kube-probe/1.36");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", authority);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|error| failed(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let code = answer.status().as_u16();
    let _unread = answer.into_body().frame().await;
    if (200..400).contains(&code) {
        return Ok(());
    }
    Err(format!("HTTP probe failed with statuscode: {code}"))
}

/// Writes the spec of an exec; returns its path.
pub(crate) fn write_exec(context: &Context, spec: &ExecSpec) -> std::io::Result<PathBuf> {
    let directory = context.options.root_dir.join("exec");
    make_private(&directory)?;
    let file = directory.join(format!("{:032x}.json", rand::random::<u128>()));
    std::fs::write(&file, serde_json::to_vec(spec)?)?;
    Ok(file)
}

/// Runs a command in a container; the error is its output.
async fn run_command(
    context: &Context,
    place: &ExecTarget,
    command: &[String],
    patience: Duration,
) -> Result<(), String> {
    let mut spec = place.spec(command);
    spec.timeout_ms = u64::try_from(patience.as_millis()).ok();
    let failed = |error: std::io::Error| format!("exec: {error}");
    let file = write_exec(context, &spec).map_err(failed)?;
    let spawned = context.spawner.exec(&place.namespace, &file, Streams::Pipes).await;
    let (status, said) = output_of(spawned.map_err(failed)?).await.map_err(failed)?;
    match status.code() {
        Some(0) => Ok(()),
        Some(TIMED_OUT) => Err(format!("command timed out after {} s", patience.as_secs())),
        _ => Err(said.trim().to_owned()),
    }
}

/// The exit status of a command and the beginning of its output.
///
/// Background processes may keep the output open after the command's end.
async fn output_of(mut child: Child) -> std::io::Result<(ExitStatus, String)> {
    drop(child.stdin.take());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (mut from_out, mut from_err) = (Vec::new(), Vec::new());
    let (ended, end) = oneshot::channel::<()>();
    let waiting = async {
        let status = child.wait().await;
        drop(ended);
        status
    };
    let reading = async {
        let streams =
            async { tokio::join!(read_some(out, &mut from_out), read_some(err, &mut from_err)) };
        let enough = async {
            let _dropped = end.await;
            sleep(OUTPUT_GRACE).await;
        };
        tokio::select! {
            _both = streams => {}
            () = enough => {}
        }
    };
    let (status, ()) = tokio::join!(waiting, reading);
    from_out.append(&mut from_err);
    Ok((status?, String::from_utf8_lossy(&from_out).into_owned()))
}

/// Reads the beginning of a stream and discards the rest, so that the writer neither blocks nor
/// gets SIGPIPE.
async fn read_some(stream: Option<impl AsyncRead + Unpin>, bytes: &mut Vec<u8>) {
    let Some(mut stream) = stream else { return };
    if (&mut stream).take(MAX_OUTPUT).read_to_end(bytes).await.is_ok() {
        let _unread = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}

/// Runs a preStop hook. A failure does not prevent the stop.
pub(crate) async fn run_hook(
    context: &Context,
    place: &ExecTarget,
    hook: &LifecycleHandler,
    patience: Duration,
) {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        if let Err(why) = run_command(context, place, &command, patience).await {
            tracing::warn!(error = why, "preStop hook failed");
        }
    }
    if let Some(pause) = &hook.sleep {
        sleep(Duration::from_secs(u64::try_from(pause.seconds).unwrap_or(0)).min(patience)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::process::Command;

    use super::*;

    async fn run(script: &str) -> (Option<i32>, String) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (status, said) = output_of(command.spawn().unwrap()).await.unwrap();
        (status.code(), said)
    }

    #[tokio::test]
    async fn long_output_is_truncated() {
        let (code, said) = run("head -c 1000000 /dev/zero && head -c 1000000 /dev/zero >&2").await;
        assert_eq!((code, said.len()), (Some(0), 2 * usize::try_from(MAX_OUTPUT).unwrap()));
    }

    #[tokio::test]
    async fn background_processes_do_not_delay_the_result() {
        let output = timeout(Duration::from_secs(30), run("sleep 60 & echo so; exit 3")).await;
        let (code, said) = output.expect("the result comes with the command's end");
        assert_eq!((code, said.as_str()), (Some(3), "so\n"));
    }
}
