//! Everything that can happen to a pod, and which run of a container it is about.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::context::ExecTarget;
use super::machine::StartError;
use super::probe::{ProbeKind, ProbeResult};
use super::sandbox::PodSandbox;
use super::volumes::SetupError;
use crate::container::Report;

/// One run of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRun {
    pub(crate) container: String,
    pub(crate) attempt: u32,
}

/// Everything that can happen to a pod.
#[derive(Debug)]
pub(crate) enum Event {
    /// Its object changed.
    Changed(Arc<Pod>),
    /// Its object is gone.
    Gone,
    /// Its place is made, or cannot be.
    SandboxDone(Result<PodSandbox, SetupError>),
    /// A container cannot be started as things are.
    StartFailed(ContainerRun, StartError),
    Started(ContainerRun, ExecTarget),
    Report(ContainerRun, Report),
    /// What a probe found, and whether that is news.
    Probed(ContainerRun, ProbeKind, ProbeResult),
    /// It is time to try to make its place again.
    RetrySandbox,
    /// A container's hook before its end is done.
    HookDone(ContainerRun),
}
