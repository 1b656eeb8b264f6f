//! Leader election by a `coordination.k8s.io/v1` Lease, with client-go's rules.
//!
//! ```text
//!   record    what a Lease says, and what to write into it     (pure)
//!   explain   what a failure means and how to cure it          (pure)
//!   elector   get, create, update; timers; who is told         (effect)
//! ```
//!
//! Why two never lead at once, if clocks run at about the same rate: a holder counts its time from
//! before it *sent* the last update that it knows to have succeeded, and stops after
//! `renew_deadline`. A candidate counts from after it *received* the record, and waits for the
//! longer `lease_duration`. No machine compares its clock with another's. Every write carries the
//! resourceVersion it was decided upon, so one that arrives late changes nothing. An update that
//! succeeded while its answer was lost makes candidates wait longer, and its sender not lead longer.
//!
//! Deliberately not here: fencing at the API. A holder asks [`Leadership::is_valid`] before each
//! write; a process that was stopped in between finds its time over when it wakes. Whoever deletes
//! the Lease by hand takes it from its holder without warning.

mod elector;
mod explain;
mod record;

use std::time::{Duration, Instant};

use crate::RuntimeError;
pub use crate::lease::elector::Elector;

/// client-go's: waits are longer by chance by up to a fifth, so that candidates spread.
const JITTER: f64 = 0.2;

/// Which Lease, who wants it, and the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// Who we are. No other process may have the same: two with one identity take each other for
    /// themselves, and both lead.
    pub identity: String,
    /// How long candidates wait after the last sign of life of the holder.
    pub lease_duration: Duration,
    /// How long the holder acts after the last renewal that it knows of.
    pub renew_deadline: Duration,
    /// How often the holder renews and candidates look.
    pub retry_period: Duration,
}

impl LeaseOptions {
    /// Kubernetes' own times, and an identity of `host` with a random end: two processes on one
    /// host, and two lives of one Pod, are two candidates.
    #[must_use]
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

    /// Whether an election can work like this.
    ///
    /// # Errors
    /// The first thing that contradicts another.
    pub fn validate(&self) -> Result<(), RuntimeError> {
        let wrong = |text: String| Err(RuntimeError::LeaseOptions(text));
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if self.namespace.is_empty() || self.name.is_empty() || self.identity.is_empty() {
            return wrong("the Lease's namespace, its name and the identity must be given".into());
        }
        if retry.is_zero() {
            return wrong("the retry period must be longer than nothing".into());
        }
        if renew <= retry.mul_f64(1.0 + JITTER) {
            return wrong(format!(
                "the renew deadline ({renew:?}) must be longer than 1.2 times the retry period \
                 ({retry:?}), or a holder never gets to renew"
            ));
        }
        if lease <= renew {
            return wrong(format!(
                "the lease duration ({lease:?}) must be longer than the renew deadline ({renew:?}), \
                 or another leads before the holder has stopped"
            ));
        }
        if i32::try_from(lease.as_secs()).is_err() {
            return wrong(format!("the lease duration ({lease:?}) is too long to be written down"));
        }
        Ok(())
    }

    /// Two attempts fit into the deadline, so that one request that hangs does not cost the lease.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// Whether this process leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another does, or nobody.
    Standby,
    /// This one does.
    Leading {
        /// When it must have stopped acting, unless it has been renewed by then.
        until: Instant,
    },
}

impl Leadership {
    /// Whether acting at `now` is allowed. To be asked before every write: the change to
    /// [`Leadership::Standby`] comes late to a process that was stopped or starved.
    #[must_use]
    pub fn is_valid(self, now: Instant) -> bool {
        matches!(self, Self::Leading { until } if now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_must_nest() {
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
    fn identities_differ() {
        let identity = || LeaseOptions::new("a", "b", "node-1").identity;
        assert!(identity().starts_with("node-1_"));
        assert_ne!(identity(), identity());
    }

    #[test]
    fn leadership_ends_by_itself() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let leading = Leadership::Leading { until: now + second };
        assert!(leading.is_valid(now));
        assert!(!leading.is_valid(now + second));
        assert!(!Leadership::Standby.is_valid(now));
    }
}
