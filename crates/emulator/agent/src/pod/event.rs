//! Events of a Pod and of its containers' runs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::context::ExecTarget;
use super::machine::StartError;
use super::probe::{ProbeKind, ProbeResult};
use super::sandbox::PodSandbox;
use super::volumes::SetupError;
use crate::container::Report;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRun {
    pub(crate) container: String,
    pub(crate) attempt: u32,
}

#[derive(Debug)]
pub(crate) enum Event {
    Changed(Arc<Pod>),
    Gone,
    /// The sandbox is ready, or its creation failed.
    SandboxDone(Result<PodSandbox, SetupError>),
    StartFailed(ContainerRun, StartError),
    Started(ContainerRun, ExecTarget),
    Report(ContainerRun, Report),
    Probed(ContainerRun, ProbeKind, ProbeResult),
    RetrySandbox,
    /// The preStop hook of a container has finished.
    HookDone(ContainerRun),
}
