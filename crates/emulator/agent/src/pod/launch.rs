//! One run of a container: its specification, its processes, and their reports.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use nearhop_runtime::client::EventType;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::mpsc;

use super::context::{Context, ExecTarget};
use super::env::{self, Facts};
use super::event::{ContainerRun, Event};
use super::log::{self, Stream};
use super::machine::{Retry, StartError};
use super::sandbox::{PodSandbox, fetch};
use super::volumes;
use crate::container::{ContainerSpec, Report};

/// The default `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The inputs of a run.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) context: Arc<Context>,
    pub(crate) pod: Arc<Pod>,
    pub(crate) sandbox: Arc<PodSandbox>,
    pub(crate) container: Container,
    pub(crate) run: ContainerRun,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    /// Signal numbers for the program.
    pub(crate) signals: mpsc::UnboundedReceiver<i32>,
}

impl Launch {
    /// Runs the container to its end and sends all events.
    pub(crate) async fn go(mut self) {
        let (spec, file) = match self.specify().await {
            Ok(specified) => specified,
            Err(error) => return self.send(Event::StartFailed(self.run.clone(), error)),
        };
        let image = self.container.image.as_deref().unwrap_or_default();
        let name = &self.run.container;
        self.emit_event("Pulled", format!("Container image {image:?} already present on machine"));
        self.emit_event("Created", format!("Created container {name}"));
        let started = self.start(&file).await;
        let (child, socket, writer) = match started {
            Ok(started) => started,
            Err(error) => {
                let why = format!("cannot start the container's processes: {error}");
                return self.send(Event::Report(self.run.clone(), Report::Failed { why }));
            }
        };
        self.attend(spec, child, socket, writer).await;
    }

    fn emit_event(&self, reason: &'static str, message: String) {
        let container = Some(self.run.container.as_str());
        self.context.emit_event(&self.pod, container, EventType::Normal, reason, message);
    }

    fn send(&self, event: Event) {
        // The worker may have ended.
        let _ended = self.events.send(event);
    }

    async fn specify(&self) -> Result<(ContainerSpec, PathBuf), StartError> {
        let start_failed = |reason, retry| move |message| StartError { reason, message, retry };
        let config = start_failed("CreateContainerConfigError", Retry::Soon);
        let namespace = self.pod.metadata.namespace.clone().unwrap_or_default();
        let needed = env::needs(&self.container);
        let sources = fetch(&self.context.api, &namespace, needed).await;
        let sources = sources.map_err(start_failed("CreateContainerConfigError", Retry::Soon))?;
        let facts = Facts {
            pod: &self.pod,
            pod_addresses: &self.sandbox.addresses,
            node_addresses: &self.context.options.addresses,
        };
        let env = env::environment(&self.container, facts, &sources, self.base());
        let env = env.map_err(config)?;
        let program = env::program(&self.container, &env)
            .map_err(start_failed("ErrImagePull", Retry::Never))?;
        let mounts = volumes::mounts(&self.container, &self.pod, &self.sandbox.volumes(), &env);
        let mounts = mounts.map_err(start_failed("CreateContainerConfigError", Retry::Never))?;
        let broken = |error: io::Error| StartError {
            reason: "CreateContainerError",
            message: format!("cannot write the container's files: {error}"),
            retry: Retry::Soon,
        };
        let spec = ContainerSpec {
            hostname: self.sandbox.hostname.clone(),
            root: self.sandbox.directory.join("root"),
            user_namespace: self.sandbox.user_namespace().map_err(broken)?,
            identity: self.sandbox.identity,
            binary: self.context.binary.clone(),
            files: self.sandbox.own_files(),
            mounts,
            program,
            env,
            directory: self.container.working_dir.clone().map(PathBuf::from),
        };
        let file = self.write(&spec).map_err(broken)?;
        Ok((spec, file))
    }

    /// The variables of every container.
    fn base(&self) -> Vec<(String, String)> {
        let options = &self.context.options;
        let pod = self.pod.metadata.name.clone().unwrap_or_default();
        let mut base = vec![
            ("PATH".to_owned(), PATH.to_owned()),
            ("HOME".to_owned(), "/root".to_owned()),
            ("HOSTNAME".to_owned(), self.sandbox.hostname.clone()),
        ];
        let image = self.container.image.as_deref().unwrap_or_default();
        if env::built_in(image).is_some() {
            base.push(("NEARHOP_POD".to_owned(), pod));
            base.push(("NEARHOP_NODE".to_owned(), options.node.clone()));
            base.push(("NEARHOP_ZONE".to_owned(), options.zone().to_owned()));
        }
        base
    }

    fn directory(&self) -> PathBuf {
        self.sandbox.directory.join("containers").join(&self.run.container)
    }

    fn write(&self, spec: &ContainerSpec) -> io::Result<PathBuf> {
        fs::create_dir_all(self.directory())?;
        let file = self.directory().join("spec.json");
        fs::write(&file, serde_json::to_vec(spec)?)?;
        Ok(file)
    }

    async fn start(
        &self,
        file: &std::path::Path,
    ) -> io::Result<(Child, UnixStream, log::LogWriter)> {
        let number = self.run.attempt;
        let (writer, reader) = log::create(&self.directory().join(format!("{number}.log"))).await?;
        let registry = &self.context.registry;
        registry.update(&self.pod, &self.run.container, |view| {
            view.previous = view.log.replace(reader);
            view.restarting = false;
        });
        if let Some(old) = number.checked_sub(2) {
            let _not_there = log::remove(&self.directory().join(format!("{old}.log")));
        }
        let (child, socket) = self.context.spawner.shim(&self.sandbox.namespace, file).await?;
        Ok((child, socket, writer))
    }

    async fn attend(
        &mut self,
        spec: ContainerSpec,
        mut child: Child,
        socket: UnixStream,
        writer: log::LogWriter,
    ) {
        let streams = (child.stdout.take(), child.stderr.take());
        let (Some(out), Some(err)) = streams else { unreachable!("both are pipes") };
        let copying = {
            let (out_writer, err_writer) = (writer.clone(), writer.clone());
            let out = tokio::spawn(async move { out_writer.copy(Stream::Out, out).await });
            let err = tokio::spawn(async move { err_writer.copy(Stream::Err, err).await });
            async move { (out.await.ok(), err.await.ok()) }
        };
        let last = self.listen(&spec, socket).await;
        // The log is complete before the end is reported.
        copying.await;
        writer.close();
        let _reaped = child.wait().await;
        let lost = || Report::Failed { why: "the container's shim was killed".to_owned() };
        self.send(Event::Report(self.run.clone(), last.unwrap_or_else(lost)));
    }

    /// Forwards reports and signals until the last report.
    async fn listen(&mut self, spec: &ContainerSpec, socket: UnixStream) -> Option<Report> {
        let (reader, mut writer) = socket.into_split();
        let mut lines = BufReader::new(reader).lines();
        let mut failed = None;
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Ok(Some(line)) = line else { return failed };
                    match serde_json::from_str(&line) {
                        Ok(Report::Started { pid }) => self.started(spec, pid),
                        Ok(Report::Failed { why }) => failed = Some(Report::Failed { why }),
                        // The exit code of a program that never started is meaningless.
                        Ok(ended) => return failed.or(Some(ended)),
                        Err(_) => {}
                    }
                }
                Some(signal) = self.signals.recv() => {
                    let _ended = writer.write_all(format!("{signal}\n").as_bytes()).await;
                }
            }
        }
    }

    fn started(&self, spec: &ContainerSpec, pid: u32) {
        self.send(Event::Started(self.run.clone(), self.exec_place(spec, pid)));
    }

    fn exec_place(&self, spec: &ContainerSpec, pid: u32) -> ExecTarget {
        ExecTarget {
            pid,
            identity: spec.identity,
            namespace: self.sandbox.namespace.clone(),
            env: spec.env.clone(),
            directory: spec.directory.clone(),
        }
    }
}
