//! Leader election by a `coordination.k8s.io/v1` Lease, with client-go's rules.
//!
//! ```text
//!   record    reads a Lease, and computes what to write into it  (pure)
//!   explain   what a failure means and how to fix it            (pure)
//!   elector   get, create, update; timers; reports the leader   (effect)
//! ```
//!
//! Two processes never lead at the same time, if clocks run at about the same rate. The holder
//! counts from the time before it *sent* its last successful update, and stops after
//! `renew_deadline`. A candidate counts from the time after it *received* the record, and waits for
//! the longer `lease_duration`. No process compares its clock with that of another. Every write
//! carries the resourceVersion that it is based on, so a late write changes nothing. If an update
//! succeeds but its reply is lost, candidates wait longer, but the holder does not lead longer.
//!
//! The API server does not enforce the lease. The holder checks [`Leadership::is_valid`] before
//! each write; a process that was paused finds that its time is over when it continues. If a user
//! deletes the Lease, its holder loses it without warning.

mod elector;
mod explain;
mod record;

use std::time::{Duration, Instant};

use crate::RuntimeError;
pub use crate::lease::elector::Elector;

/// client-go's jitter: waits are up to a fifth longer, at random, so that candidates spread.
const JITTER: f64 = 0.2;

/// The Lease, the identity of this candidate, and the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// The identity of this process. It must be unique: two processes with the same identity would
    /// both lead.
    pub identity: String,
    /// How long candidates wait after the last renewal that they see.
    pub lease_duration: Duration,
    /// How long the holder acts after its last successful renewal.
    pub renew_deadline: Duration,
    /// How often the holder renews, and how often candidates read the Lease.
    pub retry_period: Duration,
}

impl LeaseOptions {
    /// Kubernetes' default times, and an identity made of `host` and a random suffix, so that two
    /// processes on one host, and two runs of one Pod, are different candidates.
    pub fn new(namespace: &str, name: &str, host: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: format!("{host}_{:016x}", rand::random::<u64>()),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Checks that the options fit together.
    pub fn validate(&self) -> Result<(), RuntimeError> {
        let wrong = |text: String| Err(RuntimeError::LeaseOptions(text));
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if self.namespace.is_empty() || self.name.is_empty() || self.identity.is_empty() {
            return wrong("the Lease needs a namespace, a name and an identity".into());
        }
        if retry.is_zero() {
            return wrong("the retry period must be longer than 0".into());
        }
        if renew <= retry.mul_f64(1.0 + JITTER) {
            return wrong(format!(
                "the renew deadline ({renew:?}) must be longer than 1.2 times the retry period \
                 ({retry:?}), or the holder has no time to renew"
            ));
        }
        if lease <= renew {
            return wrong(format!(
                "the lease duration ({lease:?}) must be longer than the renew deadline ({renew:?}), \
                 or another process leads before the holder has stopped"
            ));
        }
        if i32::try_from(lease.as_secs()).is_err() {
            return wrong(format!("the lease duration ({lease:?}) is too long for a Lease"));
        }
        Ok(())
    }

    /// Two attempts fit into the deadline, so that one request without a reply does not lose the
    /// lease.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// Whether this process leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another process leads, or none does.
    Standby,
    /// This process leads.
    Leading {
        /// When this process must stop acting, unless it renews the lease before.
        until: Instant,
    },
}

impl Leadership {
    /// Whether this process may act at `now`. Check it before every write: a process that was
    /// paused, or that gets little CPU time, sees the change to [`Leadership::Standby`] late.
    pub fn is_valid(self, now: Instant) -> bool {
        matches!(self, Self::Leading { until } if now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_rejected() {
        let good = LeaseOptions::new("kube-system", "nearhop", "node-1");
        assert!(good.validate().is_ok());
        let second = Duration::from_secs(1);
        for bad in [
            LeaseOptions { lease_duration: 10 * second, ..good.clone() },
            LeaseOptions { renew_deadline: Duration::from_millis(2400), ..good.clone() },
            LeaseOptions { retry_period: Duration::ZERO, ..good.clone() },
            LeaseOptions { lease_duration: Duration::MAX, ..good.clone() },
            LeaseOptions { name: String::new(), ..good },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn identities_are_unique() {
        let identity = || LeaseOptions::new("a", "b", "node-1").identity;
        assert!(identity().starts_with("node-1_"));
        assert_ne!(identity(), identity());
    }

    #[test]
    fn leadership_expires() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let leading = Leadership::Leading { until: now + second };
        assert!(leading.is_valid(now));
        assert!(!leading.is_valid(now + second));
        assert!(!Leadership::Standby.is_valid(now));
    }
}
