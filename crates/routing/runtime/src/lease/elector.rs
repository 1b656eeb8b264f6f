//! The election: sends the requests, runs the timers, and reports who leads.
//!
//! It needs `get`, `create` and `update` on Leases. It needs no `watch`, because candidates read
//! the Lease regularly anyway.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout, timeout_at};

use super::explain::explain;
use super::record::{Observed, Standing, first};
use super::{JITTER, Leadership, LeaseOptions};
use crate::RuntimeError;
use crate::metrics::{Gauge, Metrics};
use crate::shutdown::Shutdown;

/// A candidate.
pub struct Elector {
    leases: Api<Lease>,
    options: LeaseOptions,
    status: Status,
    observed: Option<Observed>,
    /// The failure that was logged last.
    reported: Option<String>,
}

/// The result of one attempt to get the Lease.
enum Attempt {
    /// This process holds the Lease, by a write that began at `since`.
    Leads { since: Instant },
    /// Another process holds the Lease.
    Follows,
    /// Another client wrote the Lease in between: the next attempt reads it again.
    Outrun,
}

impl Elector {
    /// A candidate. It does nothing until [`run`](Self::run) is called.
    pub fn new(
        client: Client,
        options: LeaseOptions,
        metrics: Option<&Metrics>,
    ) -> Result<Self, RuntimeError> {
        options.validate()?;
        let gauge = metrics.map(|metrics| metrics.leader_election_master_status(&options.name));
        Ok(Self {
            leases: Api::namespaced(client, &options.namespace),
            status: Status::new(gauge, &options),
            options,
            observed: None,
            reported: None,
        })
    }

    /// Whether this process leads. The value changes with every renewal, too.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.status.sender.subscribe()
    }

    /// Takes part in the election until `shutdown`, then releases the Lease, so that another
    /// process can lead at once.
    ///
    /// Pass a [`Shutdown`] that is requested when the work under the lease has *ended*, not the
    /// process's own: the next holder starts as soon as the Lease is released. If the task is
    /// aborted, it does not release the Lease, and other candidates wait until it expires.
    pub async fn run(mut self, shutdown: Shutdown) {
        tokio::select! {
            biased;
            () = shutdown.wait() => {}
            () = self.campaign() => {}
        }
        self.status.end();
        let released = timeout(self.options.request_timeout(), self.release()).await;
        match released {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.report(explain(&error, &self.options)),
            Err(_) => {
                self.report("the API server does not reply in time to the release".to_owned());
            }
        }
    }

    /// Tries to get and renew the Lease. Never returns.
    async fn campaign(&mut self) {
        loop {
            self.stand_down_if_over();
            let limit = self.status.no_later(Instant::now() + self.options.request_timeout());
            match timeout_at(limit.into(), self.attempt()).await {
                Ok(Ok(attempt)) => self.conclude(&attempt),
                Ok(Err(error)) => self.report(explain(&error, &self.options)),
                Err(_) => self.report("the API server does not reply in time".to_owned()),
            }
            self.stand_down_if_over();
            let chance = 1.0 + JITTER * rand::random::<f64>();
            let pause = self.options.retry_period.mul_f64(chance);
            sleep_until(self.status.no_later(Instant::now() + pause).into()).await;
        }
    }

    /// Reads the Lease and takes it if possible.
    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        // The holder knows the Lease that it wrote and does not read it again.
        if self.status.is_leading()
            && let Some(observed) = self.observed.clone()
            && let attempt @ Attempt::Leads { .. } = self.take(&observed).await?
        {
            return Ok(attempt);
        }
        let Some(found) = self.leases.get_opt(&self.options.name).await? else {
            return self.create().await;
        };
        let now = Instant::now();
        let observed = self.observe(found, now);
        match observed.standing(&self.options, now) {
            Standing::Held => Ok(Attempt::Follows),
            Standing::Own | Standing::Free => self.take(&observed).await,
        }
    }

    async fn take(&mut self, observed: &Observed) -> Result<Attempt, kube::Error> {
        let since = Instant::now();
        let lease = observed.taken(&self.options, Timestamp::now());
        let written = self.leases.replace(&self.options.name, &PostParams::default(), &lease).await;
        self.written(written, since)
    }

    async fn create(&mut self) -> Result<Attempt, kube::Error> {
        let since = Instant::now();
        let lease = first(&self.options, Timestamp::now());
        match self.leases.create(&PostParams::default(), &lease).await {
            // The namespace is missing. For `take`, 404 means that the Lease is missing.
            Err(error) if code(&error) == Some(404) => Err(error),
            created => self.written(created, since),
        }
    }

    fn written(
        &mut self,
        written: Result<Lease, kube::Error>,
        since: Instant,
    ) -> Result<Attempt, kube::Error> {
        match written {
            Ok(lease) => {
                self.observe(lease, Instant::now());
                Ok(Attempt::Leads { since })
            }
            // Another client changed, deleted or created the Lease in the meantime.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(Attempt::Outrun),
            Err(error) => Err(error),
        }
    }

    fn observe(&mut self, lease: Lease, now: Instant) -> Observed {
        let next = Observed::next(self.observed.as_ref(), lease, now);
        let before = self.observed.as_ref().map(Observed::holder);
        if before != Some(next.holder()) {
            self.log_holder(next.holder());
        }
        self.observed = Some(next.clone());
        next
    }

    fn log_holder(&self, holder: &str) {
        let lease = &self.options.name;
        if holder.is_empty() {
            tracing::info!(%lease, "the lease is free");
        } else {
            tracing::info!(%lease, holder, "lease holder changed");
        }
    }

    fn conclude(&mut self, attempt: &Attempt) {
        if self.reported.take().is_some() {
            tracing::info!(lease = %self.options.name, "leader election works again");
        }
        match *attempt {
            Attempt::Leads { since } => {
                let until = since + self.options.renew_deadline;
                // The time may be over already, if the process was paused.
                if Instant::now() < until {
                    self.status.set(Leadership::Leading { until });
                }
            }
            Attempt::Follows => self.status.set(Leadership::Standby),
            Attempt::Outrun => {}
        }
    }

    fn stand_down_if_over(&mut self) {
        if self.status.is_leading() && !self.status.current().is_valid(Instant::now()) {
            tracing::warn!(lease = %self.options.name, "lease not renewed in time");
            self.status.set(Leadership::Standby);
        }
    }

    /// Reads the Lease first: this process may hold it by a write whose reply was lost.
    async fn release(&mut self) -> Result<(), kube::Error> {
        let Some(found) = self.leases.get_opt(&self.options.name).await? else { return Ok(()) };
        let observed = self.observe(found, Instant::now());
        if observed.holder() != self.options.identity {
            return Ok(());
        }
        let lease = observed.released(Timestamp::now());
        self.leases.replace(&self.options.name, &PostParams::default(), &lease).await?;
        tracing::info!(lease = %self.options.name, "done, lease released");
        Ok(())
    }

    /// Logs a failure once, until it changes.
    fn report(&mut self, text: String) {
        if self.reported.as_ref() != Some(&text) {
            let LeaseOptions { namespace, name, .. } = &self.options;
            tracing::warn!(%namespace, lease = %name, error = %text, "cannot get or renew the lease");
            self.reported = Some(text);
        }
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The published leadership. Dropping it publishes Standby, so that an aborted task does not seem
/// to lead.
struct Status {
    sender: watch::Sender<Leadership>,
    gauge: Option<Gauge>,
    lease: String,
}

impl Status {
    fn new(gauge: Option<Gauge>, options: &LeaseOptions) -> Self {
        if let Some(gauge) = &gauge {
            gauge.set(0.0);
        }
        Self { sender: watch::Sender::new(Leadership::Standby), gauge, lease: options.name.clone() }
    }

    fn current(&self) -> Leadership {
        *self.sender.borrow()
    }

    fn is_leading(&self) -> bool {
        matches!(self.current(), Leadership::Leading { .. })
    }

    /// `when`, or the end of this process's leadership if that is earlier.
    fn no_later(&self, when: Instant) -> Instant {
        match self.current() {
            Leadership::Leading { until } => when.min(until),
            Leadership::Standby => when,
        }
    }

    /// The work under the lease is done. That another process may lead now is no change of roles
    /// that an operator should look into, so it is not logged.
    fn end(&mut self) {
        if self.is_leading() {
            if let Some(gauge) = &self.gauge {
                gauge.set(0.0);
            }
            self.sender.send_replace(Leadership::Standby);
        }
    }

    /// Sets the metric before it notifies the receivers, so that they read the new value.
    fn set(&self, next: Leadership) {
        let led = self.is_leading();
        let leads = matches!(next, Leadership::Leading { .. });
        if led != leads {
            tracing::info!(lease = %self.lease, leads, "leadership changed");
            if let Some(gauge) = &self.gauge {
                gauge.set(f64::from(u8::from(leads)));
            }
        }
        if leads || led {
            self.sender.send_replace(next);
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.set(Leadership::Standby);
    }
}
