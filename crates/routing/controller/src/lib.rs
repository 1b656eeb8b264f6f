//! Writes EndpointSlices with hints, the conditions and events of Services, and PodLocators, as the
//! core plans them, through any Kubernetes API.
//!
//! ```text
//!   feed -> control: World, slices, status, locators: queues and known versions   (pure)
//!             |  a job: what to write for one Service or Pod
//!             v
//!           slices::write, status::write, locators::write -> the API             (effects)
//!             |  the server's reply
//!             +--> control
//! ```
//!
//! [`run`] is the loop around it. Node agents, and decisions about topology (`nearhop-core`), are
//! not here.

mod control;
mod diff;
mod leftovers;
mod locators;
mod metrics;
mod mode;
pub mod rbac;
mod run;
mod slices;
mod status;
mod throttle;
mod writes;

use std::time::Duration;

use nearhop_core::hint::capacity::MaxUnzonedShare;
use nearhop_core::locate::LocatorLabels;
use nearhop_core::world::{KnownNodes, ReadSlicesOf, Settings};
use nearhop_core::{Gates, Name};
use nearhop_runtime::client::Client;
use nearhop_runtime::health::Check;
use nearhop_runtime::lease::LeaseOptions;
use nearhop_runtime::metrics::Metrics;
use nearhop_runtime::shutdown::Shutdown;

pub use leftovers::Removed;
pub use mode::{Mode, NotAMode, SERVICE_PROXY};
pub use run::{CleanUp, DryRun, Ended, Ending, clean_up, dry_run, run};

/// The field manager of everything that the controller writes, and the component of its events.
const FIELD_MANAGER: &str = "nearhop-controller";

/// The flags.
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
    /// `--concurrent-service-endpoint-syncs`.
    pub workers: usize,
    /// `--endpoint-updates-batch-period`.
    pub batch_period: Duration,
    /// `--condition-domain`.
    pub condition_domain: String,
    /// `--locator-labels`.
    pub locator_labels: LocatorLabels,
    /// Leader election; `None` if it is off.
    pub lease: Option<LeaseOptions>,
    /// When the controller ends.
    pub until: Until,
}

/// When the controller ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When it is asked to stop.
    Stopped,
    /// When everything is written, or writes have failed several times (`--once`).
    Settled,
}

impl Options {
    /// The defaults of a mode, without leader election.
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
            read_slices_of: ReadSlicesOf::All,
            nodes: KnownNodes::All,
            locator_labels: self.locator_labels.clone(),
        }
    }
}

/// What the controller needs from the process.
pub struct Deps {
    /// The client of the API.
    pub client: Client,
    /// The metrics registry.
    pub metrics: Metrics,
    /// The readiness check that passes when all lists are received.
    pub synced: Check,
    /// The request to stop.
    pub shutdown: Shutdown,
}
