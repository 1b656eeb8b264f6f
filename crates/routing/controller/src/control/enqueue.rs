//! Who is worked on because of an event, and when.

use std::time::Instant;

use nearhop_core::{Affected, Kind, ServiceKey};
use tracing::warn;

use super::{Acting, Control, Now, ORPHAN_DELAY, REFUSED_PAUSE, REPAIR_PERIOD};
use crate::mode::Mode;
use crate::queue::{Urgency, later};

impl Control {
    pub(super) fn enqueue_all(&mut self, now: Now) {
        if self.acting == Acting::No || !self.is_synced() {
            return;
        }
        let services: Vec<ServiceKey> =
            self.world.services().map(|service| service.key.clone()).collect();
        for key in services {
            self.add(&key, now.instant, Urgency::Usual);
        }
        let orphans: Vec<ServiceKey> = self.world.orphans().cloned().collect();
        for key in orphans {
            self.add(&key, now.instant + ORPHAN_DELAY, Urgency::Usual);
        }
        self.enqueue_all_locators(now);
    }

    /// Enqueues what a change of an object of this kind affects.
    pub(super) fn enqueue(&mut self, touched: Affected, kind: Kind, now: Now) {
        self.enqueue_locators(&touched.locators, kind, now);
        for key in touched.plan {
            let gone = self.world.service(&key).is_none();
            if gone {
                self.forget(&key);
            }
            if self.acting == Acting::No || !self.is_synced() {
                continue;
            }
            let (at, urgency) = match kind {
                _ if gone => (now.instant + ORPHAN_DELAY, Urgency::Usual),
                Kind::Service => (now.instant, Urgency::Fresh),
                Kind::Pod => (later(now.instant, self.choices.batch_period), Urgency::Usual),
                // Our own write, perhaps: its answer will tell.
                Kind::Slice if self.pending.contains_key(&key) => continue,
                Kind::Slice => (self.repair_time(&key, now), Urgency::Usual),
                Kind::Node | Kind::Namespace | Kind::ServiceCidr | Kind::Locator => {
                    (now.instant, Urgency::Usual)
                }
            };
            self.add(&key, at, urgency);
        }
    }

    pub(super) fn add(&mut self, key: &ServiceKey, at: Instant, urgency: Urgency) {
        if self.queue.add(key, at, urgency) {
            self.work_metrics.add();
        }
    }

    /// When slices that somebody else changed are put right.
    pub(super) fn repair_time(&mut self, key: &ServiceKey, now: Now) -> Instant {
        self.metrics.foreign_write();
        let last = self.repaired.insert(key.clone(), now.instant);
        let too_soon = last.map(|last| last + REPAIR_PERIOD).filter(|at| *at > now.instant);
        let Some(at) = too_soon else { return now.instant };
        let quiet = self.foreign_warned.is_some_and(|at| now.instant < at + REFUSED_PAUSE);
        if !quiet {
            self.foreign_warned = Some(now.instant);
            warn!(
                "Service {key}: somebody else keeps writing its EndpointSlices labelled \
                 managed-by {}; run one such controller only (kube-controller-manager \
                 --controllers=-endpointslice-controller), or use --mode=labelled",
                self.choices.mode.managed_by()
            );
        }
        at
    }

    fn forget(&mut self, key: &ServiceKey) {
        self.triggers.forget(key);
        self.unwritten.remove(key);
        self.repaired.remove(key);
        self.metrics.forget(key);
        if self.statuses.forget(key) && self.choices.mode == Mode::Labelled {
            self.released.insert(key.clone());
        }
    }
}
