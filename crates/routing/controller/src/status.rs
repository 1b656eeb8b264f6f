//! What is to be said about each Service, and what has been said already. Pure.
//!
//! Judgements come with every plan; they are told a moment later, so that what flaps in between is
//! told once. Conditions are compared with those that stand in the Service's status, which
//! outlives this process: a restart repeats nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nearhop_api::Meta;
use nearhop_core::condition::Judgement;
use nearhop_core::hint::{AUTO_DISABLED, AUTO_ENABLED, EventKind};
use nearhop_core::model::Service;
use nearhop_core::{Condition, ConditionStatus, Name, ServiceKey};

/// A Service gets so many events at once, and then one per [`ANOTHER`]: what flaps must not fill
/// the cluster's store.
const BURST: u32 = 10;
const ANOTHER: SignedDuration = SignedDuration::from_secs(60);

/// An event to be raised on a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) kind: EventKind,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// What stands in the way of writing, or of publishing all Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Who is to blame.
    pub(crate) culprit: String,
    /// The whole story.
    pub(crate) message: String,
}

/// Everything a plan and its writing gave to say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) judgements: Vec<Judgement>,
    pub(crate) trouble: Option<Trouble>,
}

#[derive(Debug, Default)]
struct Entry {
    uid: Option<Name>,
    generation: i64,
    /// Our conditions as they stand in the status.
    seen: Vec<Condition>,
    /// What is to be said now; none before the first plan.
    verdict: Option<Verdict>,
    /// What was said last by this process.
    told: Option<Verdict>,
    /// What stood in its way when this process began.
    trouble_before: Option<Trouble>,
    /// Events that could not be raised.
    left: Vec<Note>,
    /// How many events were raised more than one per [`ANOTHER`] since then.
    ahead: u32,
    counted: Option<Timestamp>,
}

/// What is to be written about one Service.
#[derive(Debug, PartialEq)]
pub(crate) struct Tell {
    pub(crate) service: ServiceKey,
    pub(crate) uid: Name,
    /// All our conditions, if they are to be written.
    pub(crate) conditions: Option<Vec<Condition>>,
    pub(crate) notes: Vec<Note>,
}

/// What is to be said about all Services.
#[derive(Debug)]
pub(crate) struct Statuses {
    domain: String,
    /// What stood in the way of older Services at the start was told before it.
    started: Timestamp,
    entries: BTreeMap<ServiceKey, Entry>,
}

impl Statuses {
    pub(crate) fn new(domain: &str, started: Timestamp) -> Self {
        Self { domain: domain.to_owned(), started, entries: BTreeMap::new() }
    }

    /// Takes in what the server says. Says whether it is not what should be there.
    pub(crate) fn see(&mut self, key: &ServiceKey, meta: &Meta) -> bool {
        let ours: Vec<Condition> =
            meta.conditions.iter().filter(|c| self.is_ours(&c.kind)).cloned().collect();
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.uid.as_ref() != Some(&meta.uid) {
            *entry = Entry { uid: Some(meta.uid.clone()), ..Entry::default() };
        }
        entry.generation = meta.generation;
        entry.seen = ours;
        entry.verdict.as_ref().is_some_and(|verdict| !entry.shows(&verdict.judgements))
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
        matches!(field, Some("TrafficDistribution" | "RoutingPreference"))
    }

    /// Takes in what a plan gave. Says whether there is something to tell.
    pub(crate) fn judge(&mut self, service: &Service, verdict: Verdict) -> bool {
        let entry = self.entries.entry(service.key.clone()).or_default();
        let old = service.created.is_some_and(|created| created < self.started);
        if entry.verdict.is_none() && old {
            entry.trouble_before = verdict.trouble.clone();
        }
        let something =
            !entry.shows(&verdict.judgements) || !entry.transitions(&verdict).is_empty();
        entry.verdict = Some(verdict);
        something
    }

    /// Takes out what is to be told about a Service now.
    pub(crate) fn tell(&mut self, key: &ServiceKey, now: Timestamp) -> Option<Tell> {
        let entry = self.entries.get_mut(key)?;
        let verdict = entry.verdict.clone()?;
        let uid = entry.uid.clone()?;
        let mut notes = std::mem::take(&mut entry.left);
        notes.extend(entry.transitions(&verdict));
        notes.truncate(entry.allowance(now, notes.len()));
        let conditions = (!entry.shows(&verdict.judgements)).then(|| {
            let write = |judgement: &Judgement| {
                let seen = entry.seen.iter().find(|seen| seen.kind == judgement.kind);
                judgement.condition(seen, entry.generation, now)
            };
            verdict.judgements.iter().map(write).collect()
        });
        entry.told = Some(verdict);
        if conditions.is_none() && notes.is_empty() {
            return None;
        }
        Some(Tell { service: key.clone(), uid, conditions, notes })
    }

    /// Puts back events that could not be raised.
    pub(crate) fn put_back(&mut self, key: &ServiceKey, notes: Vec<Note>) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.left = notes;
        }
    }

    /// Forgets a Service that is gone. Says whether conditions of ours stood in its status.
    pub(crate) fn forget(&mut self, key: &ServiceKey) -> bool {
        self.entries.remove(key).is_some_and(|entry| !entry.seen.is_empty())
    }
}

impl Entry {
    /// Whether the status says what is to be said.
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

    /// How many of so many events may be raised now.
    fn allowance(&mut self, now: Timestamp, wanted: usize) -> usize {
        let since = self.counted.map_or(0, |at| now.duration_since(at).as_secs());
        let regained = u32::try_from(since / ANOTHER.as_secs()).unwrap_or(0);
        if regained > 0 || self.counted.is_none() {
            self.ahead = self.ahead.saturating_sub(regained);
            self.counted = Some(now);
        }
        let allowed = wanted.min((BURST - self.ahead.min(BURST)) as usize);
        self.ahead += allowed as u32;
        allowed
    }

    /// The events that tell of what changed since it was last told.
    fn transitions(&self, verdict: &Verdict) -> Vec<Note> {
        let mut notes: Vec<Note> =
            verdict.judgements.iter().filter_map(|judgement| self.transition(judgement)).collect();
        notes.extend(self.auto_gone(verdict));
        let told = self.told.as_ref();
        let before = told.map_or(self.trouble_before.as_ref(), |told| told.trouble.as_ref());
        if let Some(trouble) = &verdict.trouble
            && before.is_none_or(|before| before.culprit != trouble.culprit)
        {
            notes.push(Note {
                kind: EventKind::Warning,
                reason: "FailedToUpdateEndpointSlices",
                message: trouble.message.clone(),
            });
        }
        notes
    }

    /// Auto's hints were there and are no longer asked for.
    fn auto_gone(&self, verdict: &Verdict) -> Option<Note> {
        let auto = |judgement: &&Judgement, reasons: &[&str]| {
            judgement.event.as_ref().is_some_and(|(reason, _)| reasons.contains(reason))
        };
        let told = self.told.iter().flat_map(|told| &told.judgements);
        told.into_iter().find(|judgement| auto(judgement, &[AUTO_ENABLED]))?;
        let mut now = verdict.judgements.iter();
        let gone = !now.any(|judgement| auto(&judgement, &[AUTO_ENABLED, AUTO_DISABLED]));
        gone.then(|| Note {
            kind: EventKind::Warning,
            reason: AUTO_DISABLED,
            message: "Topology Aware Hints has been disabled".to_owned(),
        })
    }

    fn transition(&self, judgement: &Judgement) -> Option<Note> {
        let was_false = match &self.told {
            Some(told) => {
                let before = told.judgements.iter().find(|told| told.kind == judgement.kind);
                if before.is_some_and(|before| before.same_as(judgement)) {
                    return None;
                }
                before.map(|before| before.status)
            }
            None => {
                let seen = self.seen.iter().find(|seen| seen.kind == judgement.kind);
                if seen.is_some_and(|seen| judgement.agrees_with(seen)) {
                    return None;
                }
                seen.map(|seen| seen.status)
            }
        };
        // That all is well from the start, or for another reason, is no news; but upstream tells
        // of Auto's first hints too.
        let news = judgement.status == ConditionStatus::False
            || was_false == Some(ConditionStatus::False)
            || judgement.event.is_some();
        // What fails is told as upstream tells it (see `trouble`), and that what is not accepted
        // is not programmed either goes without saying.
        let told_otherwise =
            matches!(judgement.reason, "WriteFailed" | "NodeUnknown" | "NotAccepted");
        let own = || (judgement.reason, judgement.message.clone());
        let (reason, message) = judgement.event.clone().unwrap_or_else(own);
        (news && !told_otherwise).then(|| Note { kind: judgement.event_kind(), reason, message })
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

    fn judgement(status: ConditionStatus, reason: &'static str, culprit: &str) -> Judgement {
        Judgement {
            question: Question::Programmed,
            kind: Name::from(PROGRAMMED),
            status,
            reason,
            message: format!("{culprit}: 3 of them"),
            culprit: culprit.to_owned(),
            event: None,
        }
    }

    fn service() -> Service {
        Service { created: Some(now()), ..Service::new(key()) }
    }

    fn verdict(judgement: Judgement) -> Verdict {
        Verdict { judgements: vec![judgement], trouble: None }
    }

    fn meta(conditions: Vec<Condition>) -> Meta {
        let (uid, version) = (Name::from("u"), nearhop_api::Version::from("1"));
        Meta { uid, version, generation: 0, conditions }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// Statuses that have seen the Service with these conditions.
    fn seen(conditions: Vec<Condition>) -> Statuses {
        let mut statuses = Statuses::new("nearhop.dev", now());
        statuses.see(&key(), &meta(conditions));
        statuses
    }

    fn tell(statuses: &mut Statuses, verdict: Verdict) -> Option<Tell> {
        let something = statuses.judge(&service(), verdict);
        let tell = statuses.tell(&key(), now());
        assert_eq!(something, tell.is_some());
        // What was written comes back.
        if let Some(Tell { conditions: Some(conditions), .. }) = &tell {
            assert!(!statuses.see(&key(), &meta(conditions.clone())));
        }
        tell
    }

    #[test]
    fn a_wish_fulfilled_from_the_start_is_a_condition_and_no_event() {
        let mut statuses = seen(Vec::new());
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let told = tell(&mut statuses, verdict(fine.clone())).unwrap();
        assert_eq!(told.conditions.unwrap().len(), 1);
        assert_eq!(told.notes, []);
        assert_eq!(tell(&mut statuses, verdict(fine)), None);
    }

    #[test]
    fn events_tell_of_transitions_only() {
        let mut statuses = seen(Vec::new());
        let bad =
            |culprit: &str| judgement(ConditionStatus::False, "EndpointsWithoutZone", culprit);
        assert_eq!(tell(&mut statuses, verdict(bad("nodes a"))).unwrap().notes.len(), 1);
        let mut numbers = bad("nodes a");
        numbers.message = "nodes a: 4 of them".to_owned();
        let told = tell(&mut statuses, verdict(numbers)).unwrap();
        assert!(told.conditions.is_some(), "the message is kept up to date");
        assert_eq!(told.notes, [], "but numbers are no news");
        assert_eq!(tell(&mut statuses, verdict(bad("nodes b"))).unwrap().notes.len(), 1);
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let told = tell(&mut statuses, verdict(fine)).unwrap();
        assert_eq!(told.notes[0].kind, EventKind::Normal);
    }

    #[test]
    fn a_restart_repeats_nothing() {
        let bad = judgement(ConditionStatus::False, "TooFewEndpoints", "endpoints");
        let mut first = seen(Vec::new());
        let conditions = tell(&mut first, verdict(bad.clone())).unwrap().conditions.unwrap();
        let mut second = seen(conditions);
        assert_eq!(tell(&mut second, verdict(bad)), None);
    }

    #[test]
    fn trouble_that_was_there_at_the_start_is_not_told_again() {
        let trouble = Trouble { culprit: "Pod a".to_owned(), message: "m".to_owned() };
        let verdict = || Verdict { judgements: Vec::new(), trouble: Some(trouble.clone()) };
        let mut statuses = seen(Vec::new());
        let old = Service { created: Some(Timestamp::UNIX_EPOCH), ..service() };
        assert!(!statuses.judge(&old, verdict()));
        let mut statuses = seen(Vec::new());
        assert!(statuses.judge(&service(), verdict()), "a new Service's is news");
    }

    #[test]
    fn autos_events_have_upstreams_names() {
        let mut statuses = seen(Vec::new());
        let mut on = judgement(ConditionStatus::True, "HintsWritten", "");
        on.event = Some((AUTO_ENABLED, "enabled, addressType: IPv4".to_owned()));
        let told = tell(&mut statuses, verdict(on)).unwrap();
        assert_eq!((told.notes[0].kind, told.notes[0].reason), (EventKind::Normal, AUTO_ENABLED));
        let told = tell(&mut statuses, Verdict::default()).unwrap();
        assert_eq!((told.notes[0].kind, told.notes[0].reason), (EventKind::Warning, AUTO_DISABLED));
    }

    #[test]
    fn what_flaps_does_not_fill_the_store() {
        let mut statuses = seen(Vec::new());
        let mut raised = 0;
        for i in 0..100 {
            let bad = judgement(ConditionStatus::False, "TooFewEndpoints", &format!("culprit {i}"));
            raised += tell(&mut statuses, verdict(bad)).map_or(0, |told| told.notes.len());
        }
        assert_eq!(raised, 10);
        let later = now() + SignedDuration::from_secs(125);
        let bad = judgement(ConditionStatus::False, "TooFewEndpoints", "another");
        statuses.judge(&service(), verdict(bad));
        assert_eq!(statuses.tell(&key(), later).unwrap().notes.len(), 1);
    }

    #[test]
    fn conditions_go_with_the_wish_and_those_of_others_stay() {
        let mut statuses = seen(Vec::new());
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let mut conditions = tell(&mut statuses, verdict(fine)).unwrap().conditions.unwrap();
        conditions.push(Condition { kind: Name::from("other.io/Ready"), ..conditions[0].clone() });
        let mut statuses = seen(conditions);
        let told = tell(&mut statuses, Verdict::default()).unwrap();
        assert_eq!(told.conditions, Some(Vec::new()), "an apply of none of ours");
    }

    #[test]
    fn the_time_of_the_last_change_is_kept() {
        let fine = judgement(ConditionStatus::True, "HintsWritten", "");
        let long_ago = Timestamp::from_second(1_700_000_000).unwrap();
        let mut old = fine.condition(None, 0, long_ago);
        old.reason = Name::from("Older");
        let mut statuses = seen(vec![old]);
        let told = tell(&mut statuses, verdict(fine)).unwrap();
        assert_eq!(told.conditions.unwrap()[0].since, Some(long_ago));
    }

    #[test]
    fn trouble_is_told_once_per_culprit() {
        let mut statuses = seen(Vec::new());
        let trouble = |culprit: &str| Verdict {
            judgements: Vec::new(),
            trouble: Some(Trouble { culprit: culprit.to_owned(), message: "m".to_owned() }),
        };
        assert_eq!(tell(&mut statuses, trouble("RBAC")).unwrap().notes.len(), 1);
        assert_eq!(tell(&mut statuses, trouble("RBAC")), None);
        assert_eq!(tell(&mut statuses, trouble("the API server")).unwrap().notes.len(), 1);
    }
}
