//! The conditions and events of all Services: decides what to write. Pure; `write` sends it.
//!
//! Every plan comes with judgements. The controller writes them after a short delay, so that a
//! state that flaps is written only once. It compares them with the conditions in the Service's
//! status, so a restart writes nothing again. The reply to an own write counts at once; the watch
//! may show the status before it afterwards.

pub(crate) mod write;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nearhop_api::{Meta, Version};
use nearhop_core::condition::{Judgement, REACHABLE, is_no_news, is_reported_elsewhere};
use nearhop_core::hint::{AUTO_DISABLED, AUTO_ENABLED, EventKind};
use nearhop_core::model::Service;
use nearhop_core::{Condition, ConditionStatus, Name, ObjectRef, ServiceKey};
use nearhop_runtime::client::KnownVersions;
use nearhop_runtime::queue::WorkQueue;

use crate::slices::stamp;
use crate::throttle::Throttle;

/// A Service gets at most this many events at once, and then one per [`EVENT_PERIOD`], so that a
/// state that flaps does not fill etcd.
const BURST: u32 = 10;
const EVENT_PERIOD: SignedDuration = SignedDuration::from_secs(60);

/// An event of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceEvent {
    pub(crate) kind: EventKind,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Why slices cannot be written, or do not contain all Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What fails, in a text that stays the same from one attempt to the next.
    pub(crate) responsible: String,
    /// The error.
    pub(crate) message: String,
}

/// What a plan and the attempt to write it mean for the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assessment {
    pub(crate) judgements: Vec<Judgement>,
    pub(crate) problem: Option<Problem>,
}

#[derive(Debug, Default)]
struct Entry {
    uid: Option<Name>,
    generation: i64,
    /// The conditions in the status that nearhop owns.
    seen: Vec<Condition>,
    /// The latest assessment; none before the first plan.
    assessment: Option<Assessment>,
    /// The last assessment that this process wrote.
    reported: Option<Assessment>,
    /// The problem that the Service already had when this process started.
    problem_before: Option<Problem>,
    /// Events that could not be written.
    unsent: Vec<ServiceEvent>,
    /// How many events were written beyond one per [`EVENT_PERIOD`].
    ahead: u32,
    counted: Option<Timestamp>,
}

/// What to write for one Service.
#[derive(Debug, PartialEq)]
pub(crate) struct StatusWrite {
    pub(crate) service: ServiceKey,
    pub(crate) uid: Name,
    /// All conditions that nearhop owns, if they differ from the status.
    pub(crate) conditions: Option<Vec<Condition>>,
    pub(crate) events: Vec<ServiceEvent>,
}

/// When a status must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// It is as it should be.
    Never,
    /// A condition or an event is new.
    Soon,
    /// Only numbers in messages differ.
    Later,
}

/// The queue of Services whose status must be written.
pub(crate) struct StatusWork {
    pub(crate) queue: WorkQueue<ServiceKey>,
    pub(crate) statuses: Statuses,
    pub(crate) throttle: Throttle,
}

/// The assessments of all Services.
#[derive(Debug)]
pub(crate) struct Statuses {
    domain: String,
    /// When this process started: it does not report the first problem of an older Service again.
    started: Timestamp,
    entries: BTreeMap<ServiceKey, Entry>,
    versions: KnownVersions<ServiceKey, Name, Version, Meta>,
}

impl Statuses {
    pub(crate) fn new(domain: &str, started: Timestamp) -> Self {
        let (entries, versions) = (BTreeMap::new(), KnownVersions::default());
        Self { domain: domain.to_owned(), started, entries, versions }
    }

    /// Handles a status that the watch shows. Returns whether it is new and differs from the
    /// assessment.
    pub(crate) fn observe(&mut self, key: &ServiceKey, meta: &Meta) -> bool {
        self.versions.observe(key, stamp(meta), meta) && self.record(key, meta)
    }

    /// Handles a Service that the watch shows as deleted.
    pub(crate) fn observe_deleted(&mut self, key: &ServiceKey, meta: &Meta) {
        self.versions.observe_deleted(key, stamp(meta));
    }

    /// Handles a list. Returns the Services of which the server lost an own write, and whose status
    /// differs from the assessment.
    pub(crate) fn complete_list(
        &mut self,
        objects: &BTreeSet<ObjectRef>,
        version: &Version,
    ) -> Vec<ServiceKey> {
        let key = |object: &ObjectRef| match object {
            ObjectRef::Service(key) => Some(key.clone()),
            _ => None,
        };
        let mut listed = objects.iter().filter_map(key).collect();
        let lost = self.versions.complete_list(&mut listed, version).into_iter();
        lost.filter_map(|(key, lost)| self.record(&key, &lost.value).then_some(key)).collect()
    }

    /// Handles the reply to an own write. The watch may have shown a later status, or the end of
    /// the Service, before.
    pub(crate) fn record_write(&mut self, key: &ServiceKey, meta: &Meta) {
        if self.entries.contains_key(key) && self.versions.record_write(key, stamp(meta)) {
            // If the server changes the conditions that it receives, another write does not help.
            let _differs = self.record(key, meta);
        }
    }

    /// Records the status that the server has. Returns whether it differs from the assessment.
    fn record(&mut self, key: &ServiceKey, meta: &Meta) -> bool {
        let ours: Vec<Condition> =
            meta.conditions.iter().filter(|c| self.is_ours(&c.kind)).cloned().collect();
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.uid.as_ref() != Some(&meta.uid) {
            *entry = Entry { uid: Some(meta.uid.clone()), ..Entry::default() };
        }
        entry.generation = meta.generation;
        entry.seen = ours;
        entry.assessment.as_ref().is_some_and(|assessment| !entry.shows(&assessment.judgements))
    }

    fn is_ours(&self, kind: &str) -> bool {
        let rest = if self.domain.is_empty() {
            Some(kind)
        } else {
            kind.strip_prefix(&*self.domain).and_then(|rest| rest.strip_prefix('/'))
        };
        let field = rest.and_then(|rest| {
            rest.strip_suffix("Accepted").or_else(|| rest.strip_suffix("Programmed"))
        });
        rest == Some(REACHABLE)
            || matches!(field, Some("TrafficDistribution" | "RoutingPreference"))
    }

    /// Records an assessment.
    pub(crate) fn assess(&mut self, service: &Service, assessment: Assessment) -> Due {
        let entry = self.entries.entry(service.key.clone()).or_default();
        let old = service.created.is_some_and(|created| created < self.started);
        if entry.assessment.is_none() && old {
            entry.problem_before = assessment.problem.clone();
        }
        let due = entry.due(&assessment);
        entry.assessment = Some(assessment);
        due
    }

    /// Replaces one judgement of the assessment. Without an assessment there is nothing to replace:
    /// the first plan makes one.
    pub(crate) fn judge_again(&mut self, key: &ServiceKey, judgement: Judgement) -> Due {
        let Some(entry) = self.entries.get_mut(key) else { return Due::Never };
        let Some(mut assessment) = entry.assessment.take() else { return Due::Never };
        let same = |old: &&mut Judgement| old.question == judgement.question;
        if let Some(old) = assessment.judgements.iter_mut().find(same) {
            *old = judgement;
        }
        let due = entry.due(&assessment);
        entry.assessment = Some(assessment);
        due
    }

    /// Takes what to write for a Service now.
    pub(crate) fn take_write(&mut self, key: &ServiceKey, now: Timestamp) -> Option<StatusWrite> {
        let entry = self.entries.get_mut(key)?;
        let assessment = entry.assessment.clone()?;
        let uid = entry.uid.clone()?;
        let mut events = std::mem::take(&mut entry.unsent);
        events.extend(entry.transitions(&assessment));
        events.truncate(entry.allowance(now, events.len()));
        let conditions = (!entry.shows(&assessment.judgements)).then(|| {
            let write = |judgement: &Judgement| {
                let seen = entry.seen.iter().find(|seen| seen.kind == judgement.kind);
                judgement.condition(seen, entry.generation, now)
            };
            assessment.judgements.iter().map(write).collect()
        });
        entry.reported = Some(assessment);
        if conditions.is_none() && events.is_empty() {
            return None;
        }
        Some(StatusWrite { service: key.clone(), uid, conditions, events })
    }

    /// Puts back events that could not be written.
    pub(crate) fn put_back(&mut self, key: &ServiceKey, events: Vec<ServiceEvent>) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.unsent = events;
        }
    }

    /// Forgets a Service that is gone. Returns whether its status had conditions that nearhop owns.
    pub(crate) fn forget(&mut self, key: &ServiceKey) -> bool {
        self.entries.remove(key).is_some_and(|entry| !entry.seen.is_empty())
    }
}

impl Entry {
    /// Whether the status has these conditions.
    fn shows(&self, judgements: &[Judgement]) -> bool {
        let shown = |judgement: &Judgement| {
            self.seen.iter().any(|seen| {
                judgement.condition(Some(seen), self.generation, Timestamp::UNIX_EPOCH)
                    == Condition {
                        since: seen.since.or(Some(Timestamp::UNIX_EPOCH)),
                        ..seen.clone()
                    }
            })
        };
        self.seen.len() == judgements.len() && judgements.iter().all(shown)
    }

    /// When to write an assessment.
    fn due(&self, assessment: &Assessment) -> Due {
        if self.shows(&assessment.judgements) && self.transitions(assessment).is_empty() {
            return Due::Never;
        }
        let agrees = |judgement: &Judgement| {
            self.seen.iter().any(|seen| {
                seen.observed_generation == self.generation && judgement.agrees_with(seen)
            })
        };
        let only_numbers = self.seen.len() == assessment.judgements.len()
            && assessment.judgements.iter().all(agrees)
            && self.transitions(assessment).is_empty();
        if only_numbers { Due::Later } else { Due::Soon }
    }

    /// How many of the `wanted` events may be written now.
    fn allowance(&mut self, now: Timestamp, wanted: usize) -> usize {
        let since = self.counted.map_or(0, |at| now.duration_since(at).as_secs());
        let regained = u32::try_from(since / EVENT_PERIOD.as_secs()).unwrap_or(0);
        if regained > 0 || self.counted.is_none() {
            self.ahead = self.ahead.saturating_sub(regained);
            self.counted = Some(now);
        }
        let allowed = wanted.min((BURST - self.ahead.min(BURST)) as usize);
        self.ahead += allowed as u32;
        allowed
    }

    /// The events for all changes since the last report.
    fn transitions(&self, assessment: &Assessment) -> Vec<ServiceEvent> {
        let mut events: Vec<ServiceEvent> = assessment
            .judgements
            .iter()
            .filter_map(|judgement| self.transition(judgement))
            .collect();
        events.extend(self.auto_gone(assessment));
        let reported = self.reported.as_ref();
        let before =
            reported.map_or(self.problem_before.as_ref(), |reported| reported.problem.as_ref());
        if let Some(problem) = &assessment.problem
            && before.is_none_or(|before| before.responsible != problem.responsible)
        {
            events.push(ServiceEvent {
                kind: EventKind::Warning,
                reason: "FailedToUpdateEndpointSlices",
                message: problem.message.clone(),
            });
        }
        events
    }

    /// The event for a Service that no longer requests `Auto`, after its hints were written.
    fn auto_gone(&self, assessment: &Assessment) -> Option<ServiceEvent> {
        let auto = |judgement: &&Judgement, reasons: &[&str]| {
            judgement.event.as_ref().is_some_and(|(reason, _)| reasons.contains(reason))
        };
        let reported = self.reported.iter().flat_map(|reported| &reported.judgements);
        reported.into_iter().find(|judgement| auto(judgement, &[AUTO_ENABLED]))?;
        let mut now = assessment.judgements.iter();
        let gone = !now.any(|judgement| auto(&judgement, &[AUTO_ENABLED, AUTO_DISABLED]));
        gone.then(|| ServiceEvent {
            kind: EventKind::Warning,
            reason: AUTO_DISABLED,
            message: "Topology Aware Hints has been disabled".to_owned(),
        })
    }

    fn transition(&self, judgement: &Judgement) -> Option<ServiceEvent> {
        let before = match &self.reported {
            Some(reported) => {
                let before =
                    reported.judgements.iter().find(|reported| reported.kind == judgement.kind);
                if before.is_some_and(|before| before.same_as(judgement)) {
                    return None;
                }
                before.map(|before| (before.status, before.reason))
            }
            None => {
                let seen = self.seen.iter().find(|seen| seen.kind == judgement.kind);
                if seen.is_some_and(|seen| judgement.agrees_with(seen)) {
                    return None;
                }
                seen.map(|seen| (seen.status, seen.reason.as_str()))
            }
        };
        // A condition that is True from the start causes no event. An exception is `Auto`:
        // Kubernetes' own controller reports its first hints, too.
        let is_news = judgement.status == ConditionStatus::False
            || before.is_some_and(|(status, reason)| {
                status == ConditionStatus::False && !is_no_news(reason)
            })
            || judgement.event.is_some();
        let own = || (judgement.reason, judgement.message.clone());
        let (reason, message) = judgement.event.clone().unwrap_or_else(own);
        let silent = is_no_news(judgement.reason) || is_reported_elsewhere(judgement.reason);
        (is_news && !silent).then(|| ServiceEvent { kind: judgement.event_kind(), reason, message })
    }
}

#[cfg(test)]
mod tests {
    use nearhop_core::condition::Question;

    use super::*;

    const PROGRAMMED: &str = "nearhop.dev/TrafficDistributionProgrammed";

    fn key() -> ServiceKey {
        ServiceKey::new("ns", "web")
    }

    fn judgement(status: ConditionStatus, reason: &'static str, responsible: &str) -> Judgement {
        Judgement {
            question: Question::Programmed,
            kind: Name::from(PROGRAMMED),
            status,
            reason,
            message: format!("{responsible}: 3 of them"),
            responsible: responsible.to_owned(),
            event: None,
        }
    }

    fn service() -> Service {
        Service { created: Some(now()), ..Service::new(key()) }
    }

    fn assessment(judgement: Judgement) -> Assessment {
        Assessment { judgements: vec![judgement], problem: None }
    }

    fn meta(conditions: Vec<Condition>) -> Meta {
        meta_at("1", conditions)
    }

    fn meta_at(version: &str, conditions: Vec<Condition>) -> Meta {
        let (uid, version) = (Name::from("u"), Version::from(version));
        Meta { uid, version, generation: 0, conditions }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// Statuses that have observed the Service with these conditions.
    fn seen(conditions: Vec<Condition>) -> Statuses {
        let mut statuses = Statuses::new("nearhop.dev", now());
        statuses.observe(&key(), &meta(conditions));
        statuses
    }

    fn report(statuses: &mut Statuses, assessment: Assessment) -> Option<StatusWrite> {
        let due = statuses.assess(&service(), assessment);
        let write = statuses.take_write(&key(), now());
        assert_eq!(due != Due::Never, write.is_some());
        // The watch returns the written conditions.
        if let Some(StatusWrite { conditions: Some(conditions), .. }) = &write {
            assert!(!statuses.observe(&key(), &meta(conditions.clone())));
        }
        write
    }

    #[test]
    fn a_condition_that_is_true_from_the_start_raises_no_event() {
        let mut statuses = seen(Vec::new());
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let reported = report(&mut statuses, assessment(fine.clone())).unwrap();
        assert_eq!(reported.conditions.unwrap().len(), 1);
        assert_eq!(reported.events, []);
        assert_eq!(report(&mut statuses, assessment(fine)), None);
    }

    #[test]
    fn only_transitions_raise_events() {
        let mut statuses = seen(Vec::new());
        let bad = |nodes: &str| judgement(ConditionStatus::False, "EndpointsWithoutZone", nodes);
        assert_eq!(report(&mut statuses, assessment(bad("nodes a"))).unwrap().events.len(), 1);
        let mut numbers = bad("nodes a");
        numbers.message = "nodes a: 4 of them".to_owned();
        let reported = report(&mut statuses, assessment(numbers)).unwrap();
        assert!(reported.conditions.is_some(), "the condition has the new message");
        assert_eq!(reported.events, [], "a changed count alone raises no event");
        assert_eq!(report(&mut statuses, assessment(bad("nodes b"))).unwrap().events.len(), 1);
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let reported = report(&mut statuses, assessment(fine)).unwrap();
        assert_eq!(reported.events[0].kind, EventKind::Normal);
    }

    #[test]
    fn changed_numbers_are_written_later_and_transitions_soon() {
        let mut statuses = seen(Vec::new());
        let zones = |zones: &str, nodes: u32| {
            let mut judgement = judgement(ConditionStatus::False, "NoEndpointInZone", zones);
            judgement.message = format!("{zones}: {nodes} nodes");
            assessment(judgement)
        };
        report(&mut statuses, zones("zones b, c", 4)).unwrap();
        assert_eq!(statuses.assess(&service(), zones("zones b, c", 5)), Due::Later);
        assert_eq!(statuses.assess(&service(), zones("zones b, c", 4)), Due::Never);
        assert_eq!(statuses.assess(&service(), zones("zones b", 4)), Due::Soon);
        // After a restart, too: `zones b` is not about the zones of `zones b, c`.
        let shown = zones("zones b, c", 4).judgements[0].condition(None, 0, now());
        let mut restarted = seen(vec![shown]);
        assert_eq!(restarted.assess(&service(), zones("zones b, c", 5)), Due::Later);
        assert_eq!(report(&mut restarted, zones("zones b", 4)).unwrap().events.len(), 1);
    }

    #[test]
    fn a_service_without_endpoints_is_no_news() {
        let mut statuses = seen(Vec::new());
        let none = judgement(ConditionStatus::False, "NoEndpoint", "endpoints");
        assert_eq!(report(&mut statuses, assessment(none)).unwrap().events, []);
        let fine = judgement(ConditionStatus::True, "EndpointForEveryNode", "");
        assert_eq!(report(&mut statuses, assessment(fine)).unwrap().events, []);
    }

    /// Statuses that wrote a condition as version 8 of the Service.
    fn written() -> Statuses {
        let mut statuses = seen(Vec::new());
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        statuses.assess(&service(), assessment(fine));
        let conditions = statuses.take_write(&key(), now()).unwrap().conditions.unwrap();
        statuses.record_write(&key(), &meta_at("8", conditions));
        statuses
    }

    #[test]
    fn a_late_watch_event_does_not_replace_an_own_write() {
        let mut statuses = written();
        assert!(!statuses.observe(&key(), &meta_at("6", Vec::new())), "the watch is behind");
        assert_eq!(statuses.take_write(&key(), now()), None, "the condition is not written again");
        assert!(statuses.observe(&key(), &meta_at("9", Vec::new())), "another client removed it");
        assert!(statuses.take_write(&key(), now()).unwrap().conditions.is_some());
    }

    #[test]
    fn a_late_reply_does_not_replace_what_the_watch_shows() {
        let mut statuses = written();
        let conditions = statuses.entries[&key()].seen.clone();
        assert!(statuses.observe(&key(), &meta_at("9", Vec::new())));
        statuses.record_write(&key(), &meta_at("8", conditions.clone()));
        assert!(statuses.take_write(&key(), now()).unwrap().conditions.is_some());
        statuses.observe_deleted(&key(), &meta_at("10", Vec::new()));
        statuses.forget(&key());
        statuses.record_write(&key(), &meta_at("9", conditions));
        assert!(statuses.entries.is_empty(), "the Service is gone");
    }

    #[test]
    fn conditions_that_a_restored_server_lost_are_written_again() {
        let mut statuses = written();
        assert!(!statuses.observe(&key(), &meta_at("1", Vec::new())), "an object of the list");
        let objects = BTreeSet::from([ObjectRef::Service(key())]);
        assert_eq!(statuses.complete_list(&objects, &Version::from("9")), [key()]);
        assert!(statuses.take_write(&key(), now()).unwrap().conditions.is_some());
    }

    #[test]
    fn a_restart_does_not_repeat_writes_or_events() {
        let bad = judgement(ConditionStatus::False, "TooFewEndpoints", "endpoints");
        let mut first = seen(Vec::new());
        let conditions = report(&mut first, assessment(bad.clone())).unwrap().conditions.unwrap();
        let mut second = seen(conditions);
        assert_eq!(report(&mut second, assessment(bad)), None);
    }

    #[test]
    fn a_problem_from_before_the_start_is_not_reported_again() {
        let problem = Problem { responsible: "Pod a".to_owned(), message: "m".to_owned() };
        let assessment = || Assessment { judgements: Vec::new(), problem: Some(problem.clone()) };
        let mut statuses = seen(Vec::new());
        let old = Service { created: Some(Timestamp::UNIX_EPOCH), ..service() };
        assert_eq!(statuses.assess(&old, assessment()), Due::Never);
        let mut statuses = seen(Vec::new());
        assert_eq!(
            statuses.assess(&service(), assessment()),
            Due::Soon,
            "the problem of a new Service is reported"
        );
    }

    #[test]
    fn events_of_auto_have_the_reasons_of_the_kubernetes_controller() {
        let mut statuses = seen(Vec::new());
        let mut on = judgement(ConditionStatus::True, "HintsWritten", "");
        on.event = Some((AUTO_ENABLED, "enabled, addressType: IPv4".to_owned()));
        let reported = report(&mut statuses, assessment(on)).unwrap();
        assert_eq!(
            (reported.events[0].kind, reported.events[0].reason),
            (EventKind::Normal, AUTO_ENABLED)
        );
        let reported = report(&mut statuses, Assessment::default()).unwrap();
        assert_eq!(
            (reported.events[0].kind, reported.events[0].reason),
            (EventKind::Warning, AUTO_DISABLED)
        );
    }

    #[test]
    fn a_state_that_flaps_raises_few_events() {
        let mut statuses = seen(Vec::new());
        let mut raised = 0;
        for i in 0..100 {
            let bad = judgement(ConditionStatus::False, "TooFewEndpoints", &format!("node {i}"));
            raised +=
                report(&mut statuses, assessment(bad)).map_or(0, |reported| reported.events.len());
        }
        assert_eq!(raised, 10);
        let later = now() + SignedDuration::from_secs(125);
        let bad = judgement(ConditionStatus::False, "TooFewEndpoints", "another");
        statuses.assess(&service(), assessment(bad));
        assert_eq!(statuses.take_write(&key(), later).unwrap().events.len(), 1);
    }

    #[test]
    fn own_conditions_are_removed_and_others_stay() {
        let mut statuses = seen(Vec::new());
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let mut conditions = report(&mut statuses, assessment(fine)).unwrap().conditions.unwrap();
        conditions.push(Condition { kind: Name::from("other.io/Ready"), ..conditions[0].clone() });
        let mut statuses = seen(conditions);
        let reported = report(&mut statuses, Assessment::default()).unwrap();
        assert_eq!(
            reported.conditions,
            Some(Vec::new()),
            "the apply contains none of our conditions"
        );
    }

    #[test]
    fn the_last_transition_time_is_kept() {
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let long_ago = Timestamp::from_second(1_700_000_000).unwrap();
        let mut old = fine.condition(None, 0, long_ago);
        old.reason = Name::from("Older");
        let mut statuses = seen(vec![old]);
        let reported = report(&mut statuses, assessment(fine)).unwrap();
        assert_eq!(reported.conditions.unwrap()[0].since, Some(long_ago));
    }

    #[test]
    fn a_problem_is_reported_once_per_responsible_object() {
        let mut statuses = seen(Vec::new());
        let problem = |responsible: &str| Assessment {
            judgements: Vec::new(),
            problem: Some(Problem { responsible: responsible.to_owned(), message: "m".to_owned() }),
        };
        assert_eq!(report(&mut statuses, problem("RBAC")).unwrap().events.len(), 1);
        assert_eq!(report(&mut statuses, problem("RBAC")), None);
        assert_eq!(report(&mut statuses, problem("the API server")).unwrap().events.len(), 1);
    }
}
