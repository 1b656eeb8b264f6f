//! Trigger times of the changes that the next sync writes to the kernel.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nearhop_core::ServiceKey;

/// Trigger times of slices that are not in the kernel yet, by Service.
#[derive(Clone, Debug)]
pub(crate) struct Triggers {
    /// Start of this process; earlier trigger times are ignored.
    started: Timestamp,
    waiting: BTreeMap<ServiceKey, Vec<Timestamp>>,
}

impl Triggers {
    /// Creates it without trigger times.
    pub(crate) fn new(started: Timestamp) -> Self {
        Self { started, waiting: BTreeMap::new() }
    }

    /// Records the trigger time of a changed slice.
    pub(crate) fn changed(&mut self, service: ServiceKey, trigger_time: Option<&str>) {
        let time = trigger_time.and_then(|text| text.parse::<Timestamp>().ok());
        if let Some(time) = time.filter(|time| *time > self.started) {
            self.waiting.entry(service).or_default().push(time);
        }
    }

    /// Forgets the trigger times of a Service with a deleted slice.
    pub(crate) fn gone(&mut self, service: &ServiceKey) {
        self.waiting.remove(service);
    }

    /// Takes all trigger times after a sync: the latencies in seconds.
    pub(crate) fn take(&mut self, now: Timestamp) -> Vec<f64> {
        let times = std::mem::take(&mut self.waiting).into_values().flatten();
        times.map(|time| now.duration_since(time).as_secs_f64().max(0.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_triggers_after_the_start_are_measured() {
        let mut triggers = Triggers::new(at(100));
        let service = ServiceKey::new("default", "web");
        triggers.changed(service.clone(), Some("1970-01-01T00:01:39Z"));
        triggers.changed(service.clone(), Some("yesterday"));
        triggers.changed(service.clone(), None);
        assert!(triggers.take(at(200)).is_empty());
        triggers.changed(service.clone(), Some("1970-01-01T00:03:20Z"));
        triggers.changed(service.clone(), Some("1970-01-01T00:03:30Z"));
        assert_eq!(triggers.take(at(220)), [20.0, 10.0]);
        assert!(triggers.take(at(230)).is_empty());
        triggers.changed(service.clone(), Some("1970-01-01T00:05:00Z"));
        triggers.gone(&service);
        assert!(triggers.take(at(400)).is_empty());
    }
}
