//! The trigger time of a plan: the time of the change that caused it.
//!
//! Consumers measure programming latency from the annotation
//! `endpoints.kubernetes.io/last-change-trigger-time`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::key::{Name, ServiceKey};
use crate::model::{Pod, Service};

/// The last seen times of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    service: Option<Timestamp>,
    pods: BTreeMap<Name, Timestamp>,
}

/// The last seen times of all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TriggerTimes(BTreeMap<ServiceKey, Seen>);

impl TriggerTimes {
    /// Returns the earliest change since the last call for this Service, and stores the current
    /// times. A new Service counts from its creation.
    pub fn observe<'a>(
        &mut self,
        service: &Service,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Option<Timestamp> {
        let pods = pods.into_iter();
        let pods: BTreeMap<Name, Timestamp> =
            pods.filter_map(|pod| Some((pod.key.name.clone(), pod.ready_since?.into()))).collect();
        let now = Seen { service: service.created, pods };
        let Some(before) = self.0.insert(service.key.clone(), now.clone()) else {
            return service.created;
        };
        let newer_pods = now.pods.iter().filter(|(name, time)| {
            before.pods.get(*name).is_none_or(|remembered| *time > remembered)
        });
        let newer_service = now.service.filter(|time| Some(*time) > before.service);
        newer_pods.map(|(_, time)| *time).chain(newer_service).min()
    }

    /// Removes a deleted Service.
    pub fn forget(&mut self, service: &ServiceKey) {
        self.0.remove(service);
    }
}
