//! Work items, and how long a failed one waits.

use std::time::Duration;

use nearhop_runtime::backoff::Backoff;
use nearhop_runtime::queue::{Cause, WorkQueue};

use crate::object::ObjectKey;

/// A work item: one decision about one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Deployment(ObjectKey),
    ReplicaSet(ObjectKey),
    DaemonSet(ObjectKey),
    /// Binds a Pod to a node.
    Schedule(ObjectKey),
    /// Sets conditions and taints of a node.
    Node(String),
    /// Evicts a Pod.
    Pod(ObjectKey),
    /// Creates the default objects of a namespace.
    Namespace(String),
}

/// More concurrent requests would only queue up in the server.
const WORKERS: usize = 64;
/// The next watch event resolves a conflict; other rejections last.
const REJECTED: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(30));
/// Short, so that all work resumes soon after an outage of the server.
const UNAVAILABLE: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(1500));

pub(crate) fn queue() -> WorkQueue<Work> {
    WorkQueue::new(WORKERS)
}

/// The delay after this many earlier failures of the cause.
pub(crate) fn delay(cause: Cause, failures: u32) -> Duration {
    let backoff = match cause {
        Cause::Object => REJECTED,
        Cause::Server => UNAVAILABLE,
    };
    backoff.delay(failures, rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_delays_work_by_no_more_than_1500_ms() {
        assert!((0..40).all(|failures| delay(Cause::Server, failures).as_millis() <= 1500));
        assert!(delay(Cause::Object, 40) >= Duration::from_secs(15));
    }
}
