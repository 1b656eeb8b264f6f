//! Keeps the EndpointSlices of Services, their hints, conditions and events, and PodLocators, as the
//! core plans them, through any Kubernetes API.
//!
//! ```text
//!   feed -> control: World, what is known of our writes, who waits   (no effects)
//!             |  a job: what to write for one Service
//!             v
//!           write, tell -> the API                                   (effects)
//!             |  what the server has now
//!             +--> control
//! ```
//!
//! [`run`] is the loop around it: one closed set of events and one match. Deliberately absent:
//! anything that a node does, and every decision about topology (`nearhop-core`).

mod call;
mod control;
mod diff;
mod leftovers;
mod locators;
mod metrics;
mod mode;
mod queue;
pub mod rbac;
mod run;
mod sight;
mod status;
mod tell;
mod write;

use std::time::Duration;

use nearhop_core::hint::capacity::MaxUnzonedShare;
use nearhop_core::locate::LocatorLabels;
use nearhop_core::world::{KnownNodes, ReadSlicesOf, Settings};
use nearhop_core::{Gates, Name};
use nearhop_runtime::health::Check;
use nearhop_runtime::lease::LeaseOptions;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::Shutdown;

pub use leftovers::Removed;
pub use mode::{Mode, NotAMode, SERVICE_PROXY};
pub use run::{CleanUp, DryRun, Ended, Ending, clean_up, dry_run, run};

/// What the operator chose.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--mode`.
    pub mode: Mode,
    /// `--feature-gates`.
    pub gates: Gates,
    /// `--default-traffic-distribution`.
    pub default_traffic_distribution: Option<String>,
    /// `--max-unzoned-share`.
    pub max_unzoned: MaxUnzonedShare,
    /// `--max-endpoints-per-slice`.
    pub max_endpoints_per_slice: usize,
    /// `--concurrent-service-syncs`.
    pub workers: usize,
    /// `--endpoint-updates-batch-period`.
    pub batch_period: Duration,
    /// `--condition-domain`.
    pub condition_domain: String,
    /// `--locator-labels`.
    pub locator_labels: LocatorLabels,
    /// Leader election, unless switched off.
    pub lease: Option<LeaseOptions>,
    /// Until when to go on.
    pub until: Until,
}

/// Until when the controller goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until it is told to stop.
    Stopped,
    /// Until everything is written, or has failed several times (`--once`).
    Settled,
}

impl Options {
    /// The usual choices in a mode, without leader election.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            gates: Gates::default(),
            default_traffic_distribution: None,
            max_unzoned: MaxUnzonedShare::default(),
            max_endpoints_per_slice: 100,
            workers: 16,
            batch_period: Duration::ZERO,
            condition_domain: "nearhop.dev".to_owned(),
            locator_labels: LocatorLabels::default(),
            lease: None,
            until: Until::Stopped,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            gates: self.gates.clone(),
            default_traffic_distribution: self
                .default_traffic_distribution
                .as_deref()
                .map(Name::from),
            max_unzoned: self.max_unzoned,
            controller: Name::from(self.mode.managed_by()),
            retired_controller: self.mode.retired().map(Name::from),
            max_endpoints_per_slice: self.max_endpoints_per_slice,
            read_slices_of: ReadSlicesOf::Everybody,
            nodes: KnownNodes::All,
            locator_labels: self.locator_labels.clone(),
        }
    }
}

/// What the process gives the controller to work with.
pub struct Surroundings {
    /// The API.
    pub client: kube::Client,
    /// Where it counts.
    pub metrics: Metrics,
    /// Where it says that every list has arrived. Made before anybody can ask.
    pub synced: Check,
    /// When to stop.
    pub shutdown: Shutdown,
}
