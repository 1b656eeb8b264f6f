//! Applies the feed's events to the shared state. No socket, no clock.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use nearhop_api::Changed;
use nearhop_core::answer::Synced;
use nearhop_core::model::{ClusterIps, Slice};
use nearhop_core::{Change, Kind, Object, World};
use nearhop_feed::Event;

use crate::metrics::DnsMetrics;
use crate::state::Shared;

/// Applies events, and tracks which kinds have not been listed yet.
pub(crate) struct StateUpdater {
    shared: Shared,
    unlisted: BTreeSet<Kind>,
    /// Changes triggered before the process started are not measured.
    started: Timestamp,
    metrics: DnsMetrics,
}

impl StateUpdater {
    pub(crate) fn new(
        shared: Shared,
        kinds: &[Kind],
        started: Timestamp,
        metrics: DnsMetrics,
    ) -> Self {
        Self { shared, unlisted: kinds.iter().copied().collect(), started, metrics }
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// Applies a batch. When this returns, answers show it.
    pub(crate) fn on_feed(&mut self, events: Vec<Event>, now: Timestamp) {
        let mut changes = Vec::new();
        for event in events {
            match event {
                Event::Changed(Changed { change, problems, .. }) => {
                    for problem in problems {
                        tracing::warn!(%problem, "invalid object");
                    }
                    changes.extend(change);
                }
                Event::Listed { kind, objects, .. } => {
                    changes.extend(objects.map(|objects| Change::Listed(kind, objects)));
                    if self.unlisted.remove(&kind) && self.unlisted.is_empty() {
                        tracing::info!("initial lists complete");
                    }
                }
            }
        }
        let triggers = self.triggers(&changes);
        let synced = if self.is_listed() { Synced::Yes } else { Synced::No };
        let seconds = u32::try_from(now.as_second()).unwrap_or_default();
        self.shared.change(|state| {
            state.apply(changes, seconds);
            state.synced = synced;
        });
        self.observe_programming(&triggers, now);
    }

    /// Slices with a new trigger time (`endpoints.kubernetes.io/last-change-trigger-time`).
    fn triggers(&self, changes: &[Change]) -> Vec<(Box<Slice>, Timestamp)> {
        let state = self.shared.read();
        let triggered = changes.iter().filter_map(|change| match change {
            Change::Put(Object::Slice(slice)) => {
                let time = slice.trigger_time.as_deref()?.parse::<Timestamp>().ok()?;
                let known = state.world.slice(&slice.namespace, &slice.name);
                let same = known.is_some_and(|known| known.trigger_time == slice.trigger_time);
                (time > self.started && !same).then(|| (slice.clone(), time))
            }
            _ => None,
        });
        triggered.collect()
    }

    fn observe_programming(&self, triggers: &[(Box<Slice>, Timestamp)], now: Timestamp) {
        if triggers.is_empty() {
            return;
        }
        let state = self.shared.read();
        for (slice, time) in triggers {
            if let Some(kind) = service_kind(&state.world, slice) {
                let took = now.duration_since(*time).max(jiff::SignedDuration::ZERO);
                self.metrics.programmed(kind, Duration::try_from(took).unwrap_or_default());
            }
        }
    }
}

/// CoreDNS' `service_kind` label; None if no answer uses the slice.
fn service_kind(world: &World, slice: &Slice) -> Option<&'static str> {
    let key = slice.service()?;
    let service = world.service(&key)?;
    world.routed_slices(&key).find(|routed| routed.name == slice.name)?;
    Some(match service.cluster_ips {
        ClusterIps::Headless => "headless_with_selector",
        _ => "cluster_ip",
    })
}
