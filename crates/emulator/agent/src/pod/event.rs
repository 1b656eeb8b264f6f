//! Events of a Pod and of its containers' runs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::context::ExecTarget;
use super::machine::StartError;
use super::probe::{ProbeKind, ProbeResult};
use super::sandbox::PodSandbox;
use super::volumes::SetupError;
use crate::container::Report;

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRun {
    pub(crate) container: String,
    pub(crate) attempt: u32,
}

/// An event of a Pod.
#[derive(Debug)]
pub(crate) enum Event {
    /// The Pod object changed.
    Changed(Arc<Pod>),
    /// The Pod object is gone.
    Gone,
    /// The sandbox is ready, or its creation failed.
    SandboxDone(Result<PodSandbox, SetupError>),
    /// A container cannot start.
    StartFailed(ContainerRun, StartError),
    Started(ContainerRun, ExecTarget),
    Report(ContainerRun, Report),
    /// The result of a probe.
    Probed(ContainerRun, ProbeKind, ProbeResult),
    /// Time to retry the creation of the sandbox.
    RetrySandbox,
    /// The preStop hook of a container has finished.
    HookDone(ContainerRun),
}
