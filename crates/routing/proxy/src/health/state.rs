//! Health of the proxy, with kube-proxy's semantics. Pure: time is an argument.
//!
//! A family is unhealthy if a change of its rules has been pending for more than two sync periods.
//! The age of the last change does not matter: a cluster without changes is healthy. Whether the
//! node should receive traffic at all is a separate question, which only `/healthz` answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nearhop_core::Family;
use nearhop_core::model::Node;
use serde::Serialize;

/// The value for "never": Go's zero time, as in kube-proxy's answer.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// A moment on the wall clock, for display, and on the monotonic clock, for measurement. The wall
/// clock may jump, for example on nodes that have just booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall clock time.
    pub wall: Timestamp,
    /// Monotonic time.
    pub steady: Instant,
}

/// Whether load balancers should send new connections to this node, according to its Node object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eligibility {
    /// The Node does not exist, or the proxy has not seen it yet.
    #[default]
    Unknown,
    /// The Node is being deleted.
    Deleting,
    /// The cluster autoscaler is about to delete the Node.
    Tainted,
    /// The node may receive traffic.
    Eligible,
}

impl Eligibility {
    /// The eligibility of a Node, if it exists.
    #[must_use]
    pub(crate) fn of_node(node: Option<&Node>) -> Self {
        match node {
            None => Self::Unknown,
            Some(node) if node.deleting => Self::Deleting,
            Some(node) if node.tainted_for_deletion => Self::Tainted,
            Some(_) => Self::Eligible,
        }
    }

    fn is_eligible(self) -> bool {
        self == Self::Eligible
    }
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Healthy: 200.
    Healthy,
    /// Unhealthy: 503.
    Unhealthy,
}

impl Verdict {
    /// The HTTP status code.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Healthy => 200,
            Self::Unhealthy => 503,
        }
    }
}

/// Health of one family.
#[derive(Clone, Copy, Debug, Default)]
struct FamilyHealth {
    /// Since when a change is pending; none if no change is pending.
    waiting_since: Option<Instant>,
    /// When the rules were last up to date; none before the first sync.
    updated: Option<Moment>,
}

/// Health of the proxy.
#[derive(Clone, Debug)]
pub struct ProxyHealth {
    patience: Duration,
    families: BTreeMap<Family, FamilyHealth>,
    node: Eligibility,
}

impl ProxyHealth {
    /// Health of a proxy that has just started: healthy, on a node that is not eligible because it
    /// has not been seen yet.
    #[must_use]
    pub fn new(sync_period: Duration) -> Self {
        let patience = sync_period.saturating_mul(2);
        Self { patience, families: BTreeMap::new(), node: Eligibility::Unknown }
    }

    /// Notes a pending change of a family's rules. The oldest pending change counts.
    pub fn queued(&mut self, family: Family, at: Instant) {
        self.families.entry(family).or_default().waiting_since.get_or_insert(at);
    }

    /// Notes that a family's rules are up to date.
    pub fn updated(&mut self, family: Family, at: Moment) {
        let updated = FamilyHealth { waiting_since: None, updated: Some(at) };
        self.families.insert(family, updated);
    }

    /// Sets the eligibility of the Node.
    pub fn node(&mut self, node: Eligibility) {
        self.node = node;
    }

    /// Whether all families are healthy. A family that was never updated is still starting and
    /// counts as healthy.
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.families.values().all(|family| self.is_well(family, now))
    }

    /// The answer of `/healthz`: verdict and body.
    #[must_use]
    pub fn healthz(&self, now: Moment) -> (Verdict, String) {
        self.answer(now, Some(self.node))
    }

    /// The answer of `/livez`: verdict and body. A Node that is being deleted is no reason to
    /// restart the proxy.
    #[must_use]
    pub fn livez(&self, now: Moment) -> (Verdict, String) {
        self.answer(now, None)
    }

    fn is_well(&self, family: &FamilyHealth, now: Instant) -> bool {
        let late = |since| now.saturating_duration_since(since) >= self.patience;
        family.updated.is_none() || !family.waiting_since.is_some_and(late)
    }

    fn answer(&self, now: Moment, node: Option<Eligibility>) -> (Verdict, String) {
        let healthy = self.is_healthy(now.steady);
        let serves = healthy && node.is_none_or(Eligibility::is_eligible);
        let updates = self.families.values().filter_map(|family| family.updated);
        // A healthy proxy is up to date, even without changes for a long time.
        let last = if serves { Some(now) } else { updates.max_by_key(|moment| moment.steady) };
        let status = self.families.iter().filter_map(|(family, state)| {
            let last_updated = state.updated?.wall.to_string();
            let healthy = self.is_well(state, now.steady);
            Some((family.as_str(), FamilyBody { last_updated, healthy }))
        });
        let body = Body {
            last_updated: last.map_or_else(|| NEVER.to_owned(), |last| last.wall.to_string()),
            current_time: now.wall.to_string(),
            node_eligible: node.map(Eligibility::is_eligible),
            healthy,
            status: status.collect(),
        };
        let body = serde_json::to_string(&body).expect("text and flags have a JSON form");
        (if serves { Verdict::Healthy } else { Verdict::Unhealthy }, body)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    /// A clock that starts at 12:00:00.
    struct Clock(Moment);

    impl Clock {
        fn new() -> Self {
            let wall = "2026-03-01T12:00:00Z".parse().unwrap();
            Self(Moment { wall, steady: Instant::now() })
        }

        fn at(&self, seconds: u64) -> Moment {
            let passed = Duration::from_secs(seconds);
            Moment { wall: self.0.wall + passed, steady: self.0.steady + passed }
        }
    }

    fn eligible() -> ProxyHealth {
        let mut health = ProxyHealth::new(PERIOD);
        health.node(Eligibility::Eligible);
        health
    }

    #[test]
    fn a_change_pending_for_two_periods_is_unhealthy() {
        let clock = Clock::new();
        let mut health = eligible();
        health.updated(Family::Ipv4, clock.at(0));
        assert!(health.is_healthy(clock.at(100_000).steady), "no change is pending");
        health.queued(Family::Ipv4, clock.at(10).steady);
        health.queued(Family::Ipv4, clock.at(60).steady);
        assert!(health.is_healthy(clock.at(69).steady));
        assert!(!health.is_healthy(clock.at(70).steady), "the oldest change is pending for 60 s");
        health.updated(Family::Ipv4, clock.at(71));
        assert!(health.is_healthy(clock.at(500).steady));
    }

    #[test]
    fn a_family_without_updates_is_absent_and_healthy() {
        let clock = Clock::new();
        let mut health = eligible();
        health.queued(Family::Ipv6, clock.at(0).steady);
        assert!(health.is_healthy(clock.at(1000).steady));
        let (verdict, body) = health.livez(clock.at(1000));
        assert_eq!(verdict, Verdict::Healthy);
        let now = "2026-03-01T12:16:40Z";
        assert_eq!(
            body,
            format!(r#"{{"lastUpdated":"{now}","currentTime":"{now}","healthy":true}}"#)
        );
        // After its first update, a family can be late.
        health.updated(Family::Ipv6, clock.at(1000));
        health.queued(Family::Ipv6, clock.at(1001).steady);
        assert!(!health.is_healthy(clock.at(1061).steady));
    }

    #[test]
    fn each_family_has_its_own_health() {
        let clock = Clock::new();
        let mut health = eligible();
        health.updated(Family::Ipv4, clock.at(1));
        health.updated(Family::Ipv6, clock.at(2));
        health.queued(Family::Ipv6, clock.at(3).steady);
        health.queued(Family::Ipv4, clock.at(3).steady);
        health.updated(Family::Ipv4, clock.at(5));
        let (verdict, body) = health.healthz(clock.at(120));
        assert_eq!(verdict.code(), 503);
        assert_eq!(
            body,
            concat!(
                r#"{"lastUpdated":"2026-03-01T12:00:05Z","currentTime":"2026-03-01T12:02:00Z","#,
                r#""nodeEligible":true,"healthy":false,"status":{"#,
                r#""IPv4":{"lastUpdated":"2026-03-01T12:00:05Z","healthy":true},"#,
                r#""IPv6":{"lastUpdated":"2026-03-01T12:00:02Z","healthy":false}}}"#
            )
        );
        assert_eq!(health.livez(clock.at(120)).0, Verdict::Unhealthy);
    }

    #[test]
    fn the_node_affects_only_healthz() {
        let clock = Clock::new();
        let mut health = ProxyHealth::new(PERIOD);
        let (verdict, body) = health.healthz(clock.at(0));
        assert_eq!(verdict, Verdict::Unhealthy, "the Node is unknown");
        assert_eq!(
            body,
            concat!(
                r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-03-01T12:00:00Z","#,
                r#""nodeEligible":false,"healthy":true}"#
            )
        );
        let node = Node::new("worker-3");
        let deleting = Node { deleting: true, ..node.clone() };
        let tainted = Node { tainted_for_deletion: true, ..node.clone() };
        for (node, expected) in [
            (Some(&node), Verdict::Healthy),
            (Some(&tainted), Verdict::Unhealthy),
            (Some(&node), Verdict::Healthy),
            (Some(&deleting), Verdict::Unhealthy),
            (None, Verdict::Unhealthy),
        ] {
            health.node(Eligibility::of_node(node));
            assert_eq!(health.healthz(clock.at(0)).0, expected, "{node:?}");
            assert_eq!(health.livez(clock.at(0)).0, Verdict::Healthy, "{node:?}");
        }
    }

    #[test]
    fn a_wall_clock_change_does_not_affect_health() {
        let clock = Clock::new();
        let mut health = eligible();
        health.updated(Family::Ipv4, clock.at(0));
        health.queued(Family::Ipv4, clock.at(1).steady);
        let jumped = Moment { wall: clock.at(90_000).wall, steady: clock.at(2).steady };
        assert_eq!(health.healthz(jumped).0, Verdict::Healthy);
        // A time before the change was queued is accepted too.
        assert!(health.is_healthy(clock.at(0).steady));
    }
}
