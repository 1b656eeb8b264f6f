//! What a Lease means for a candidate, and what a candidate writes into it. Pure: clocks are
//! arguments.
//!
//! Fields that other clients set in the Lease (labels, a strategy) stay unchanged.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use super::LeaseOptions;

/// A Lease, and since when it is unchanged, by our own clock.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    lease: Lease,
    since: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No process holds it, or it has expired: any candidate may take it.
    Free,
    /// This process holds it, even if it never received the reply to its write.
    Own,
    /// Another process holds it, and it has not expired.
    Held,
}

impl Observed {
    /// The Lease as received at `now`. Only a change of the spec counts as a renewal; labels do
    /// not.
    pub(super) fn next(earlier: Option<&Self>, lease: Lease, now: Instant) -> Self {
        let unchanged = earlier.filter(|earlier| earlier.lease.spec == lease.spec);
        Self { since: unchanged.map_or(now, |earlier| earlier.since), lease }
    }

    /// The identity of the holder; empty if there is none.
    pub(super) fn holder(&self) -> &str {
        let spec = self.lease.spec.as_ref();
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    pub(super) fn standing(&self, options: &LeaseOptions, now: Instant) -> Standing {
        let holder = self.holder();
        if holder == options.identity {
            return Standing::Own;
        }
        let silent = now.saturating_duration_since(self.since);
        // The longer of our own duration and the one in the Lease counts.
        let promised = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = u64::try_from(promised.unwrap_or_default()).unwrap_or_default();
        let patience = options.lease_duration.max(Duration::from_secs(promised));
        if holder.is_empty() || silent >= patience { Standing::Free } else { Standing::Held }
    }

    /// The Lease with this process as its holder, and with the resourceVersion that it is based on.
    pub(super) fn taken(&self, options: &LeaseOptions, now: Timestamp) -> Lease {
        let mut lease = self.lease.clone();
        let is_own = self.holder() == options.identity;
        let mut spec = lease.spec.take().unwrap_or_default();
        if !is_own {
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        let acquired = spec.acquire_time.take().filter(|_| is_own);
        lease.spec = Some(LeaseSpec {
            acquire_time: Some(acquired.unwrap_or(MicroTime(now))),
            lease_transitions: spec.lease_transitions.or(Some(0)),
            ..held(spec, options, now)
        });
        lease
    }

    /// The Lease without a holder, as client-go's `ReleaseOnCancel` leaves it.
    pub(super) fn released(&self, now: Timestamp) -> Lease {
        let mut lease = self.lease.clone();
        let spec = lease.spec.take().unwrap_or_default();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            ..spec
        });
        lease
    }
}

/// The Lease to create if there is none.
pub(super) fn first(options: &LeaseOptions, now: Timestamp) -> Lease {
    let spec = LeaseSpec {
        acquire_time: Some(MicroTime(now)),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    };
    Lease {
        metadata: ObjectMeta {
            namespace: Some(options.namespace.clone()),
            name: Some(options.name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(held(spec, options, now)),
    }
}

fn held(spec: LeaseSpec, options: &LeaseOptions, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(options.identity.clone()),
        lease_duration_seconds: Some(whole_seconds(options.lease_duration)),
        renew_time: Some(MicroTime(now)),
        ..spec
    }
}

/// Rounds up: other candidates must never wait less than the holder expects.
fn whole_seconds(duration: Duration) -> i32 {
    let more = u64::from(duration.subsec_nanos() > 0);
    i32::try_from(duration.as_secs().saturating_add(more)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn options(identity: &str) -> LeaseOptions {
        LeaseOptions { identity: identity.to_owned(), ..LeaseOptions::new("ns", "lease", "host") }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn spec(lease: &Lease) -> &LeaseSpec {
        lease.spec.as_ref().unwrap()
    }

    #[test]
    fn lease_is_free_after_its_duration_without_a_renewal() {
        let (a, b) = (options("a"), options("b"));
        let start = Instant::now();
        let held = Observed::next(None, first(&a, at(0)), start);
        assert_eq!(held.standing(&a, start), Standing::Own);
        assert_eq!(held.standing(&b, start + 14 * SECOND), Standing::Held);
        assert_eq!(held.standing(&b, start + 15 * SECOND), Standing::Free);
        // An unchanged Lease does not restart the wait; a renewed one does.
        let again = Observed::next(Some(&held), first(&a, at(0)), start + 9 * SECOND);
        assert_eq!(again.standing(&b, start + 15 * SECOND), Standing::Free);
        let renewed = Observed::next(Some(&again), held.taken(&a, at(2)), start + 9 * SECOND);
        assert_eq!(renewed.standing(&b, start + 23 * SECOND), Standing::Held);
        assert_eq!(renewed.standing(&b, start + 24 * SECOND), Standing::Free);
    }

    #[test]
    fn longer_duration_of_the_holder_is_respected() {
        let a = LeaseOptions { lease_duration: Duration::from_millis(59_001), ..options("a") };
        let start = Instant::now();
        let held = Observed::next(None, first(&a, at(0)), start);
        assert_eq!(held.standing(&options("b"), start + 59 * SECOND), Standing::Held);
        assert_eq!(held.standing(&options("b"), start + 60 * SECOND), Standing::Free);
    }

    #[test]
    fn transitions_count_changes_of_holder() {
        let now = Instant::now();
        let fresh = Observed::next(None, first(&options("a"), at(1)), now);
        let renewed = fresh.taken(&options("a"), at(2));
        assert_eq!(spec(&renewed).lease_transitions, Some(0));
        assert_eq!(spec(&renewed).acquire_time, Some(MicroTime(at(1))));
        assert_eq!(spec(&renewed).renew_time, Some(MicroTime(at(2))));
        let taken = Observed::next(None, renewed, now).taken(&options("b"), at(3));
        assert_eq!(spec(&taken).lease_transitions, Some(1));
        assert_eq!(spec(&taken).acquire_time, Some(MicroTime(at(3))));
        assert_eq!(spec(&taken).holder_identity.as_deref(), Some("b"));
    }

    #[test]
    fn released_lease_is_free_at_once_and_keeps_its_transitions() {
        let now = Instant::now();
        let mut held = first(&options("a"), at(1));
        held.metadata.resource_version = Some("7".to_owned());
        let released = Observed::next(None, held, now).released(at(2));
        assert_eq!(spec(&released).lease_duration_seconds, Some(1));
        let observed = Observed::next(None, released, now);
        assert_eq!(observed.standing(&options("b"), now), Standing::Free);
        let taken = observed.taken(&options("b"), at(3));
        assert_eq!(spec(&taken).lease_transitions, Some(1));
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn an_empty_lease_is_free() {
        let observed = Observed::next(None, Lease::default(), Instant::now());
        assert_eq!(observed.standing(&options("a"), Instant::now()), Standing::Free);
        assert_eq!(spec(&observed.taken(&options("a"), at(1))).lease_transitions, Some(1));
    }
}
