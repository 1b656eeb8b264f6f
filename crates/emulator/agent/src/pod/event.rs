//! Everything that can happen to a pod, and which run of a container it is about.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::context::ExecPlace;
use super::machine::Hindrance;
use super::place::Place;
use super::probe::{Finding, ProbeKind};
use super::volumes::Trouble;
use crate::container::Report;

/// One run of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
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
    Placed(Result<Place, Trouble>),
    /// A container cannot be started as things are.
    Hindered(Run, Hindrance),
    Started(Run, ExecPlace),
    Report(Run, Report),
    /// What a probe found, and whether that is news.
    Probed(Run, ProbeKind, Finding),
    /// It is time to try to make its place again.
    Again,
    /// A container's hook before its end is done.
    Hooked(Run),
}
