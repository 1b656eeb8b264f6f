//! Which flows are wrong: new ones to an endpoint that is gone for more than a second.
//!
//! All times are milliseconds since the epoch. Each is taken in favour of the proxy: an endpoint is
//! gone when the test has seen that, and the time of a flow is taken before it is opened. So a flow
//! that is found wrong is wrong, even if the test is slow.
//!
//! The machine may be too busy for the proxy. So the test polls the API server all the time, and adds
//! the delays of its polls to the second, up to [`MOST_STALLED`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

/// How long a proxy may take to remove an endpoint.
const ALLOWED: f64 = 1000.0;
/// What delays of the polls add to it at most.
const MOST_STALLED: f64 = 5000.0;

/// A new flow of a client.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) node: String,
    /// Before it was opened.
    pub(super) from: f64,
    /// After it was seen.
    pub(super) until: f64,
    pub(super) protocol: String,
    pub(super) source: IpAddr,
    pub(super) endpoint: IpAddr,
}

/// A time when an endpoint was certainly in no EndpointSlice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    since: f64,
    until: f64,
}

/// A time when a node's proxy was not running, or could not reach the API server.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub(super) node: String,
    pub(super) from: f64,
    /// When the proxy was in sync again.
    pub(super) until: f64,
}

/// What the test saw of a Service's EndpointSlices.
#[derive(Debug, Default)]
pub(super) struct Seen {
    listed: BTreeSet<IpAddr>,
    pub(super) gone: BTreeMap<IpAddr, Vec<Absence>>,
    /// When a poll was late, and by how much.
    pub(super) stalls: Vec<(f64, f64)>,
}

/// The clock of this test and of its clients on the nodes.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64() * 1000.0
}

impl Seen {
    /// Records the endpoints that a poll from `began` to `done` found.
    pub(super) fn look(&mut self, began: f64, done: f64, listed: BTreeSet<IpAddr>) {
        for address in self.listed.difference(&listed) {
            let absence = Absence { since: done, until: done };
            self.gone.entry(*address).or_default().push(absence);
        }
        for (address, absences) in &mut self.gone {
            // It may be listed again before the answer has arrived.
            if let Some(last) = absences.last_mut().filter(|_| !listed.contains(address)) {
                last.until = last.until.max(began);
            }
        }
        self.listed = listed;
    }

    /// By how much polls were late in this time, up to [`MOST_STALLED`].
    fn stalled(&self, from: f64, until: f64) -> f64 {
        let inside = self.stalls.iter().filter(|(at, _)| (from..=until).contains(at));
        inside.map(|(_, late)| late).sum::<f64>().min(MOST_STALLED)
    }

    /// Whether this is a flow to an endpoint that was gone for too long.
    pub(super) fn is_wrong(&self, flow: &Flow, outages: &[Outage]) -> bool {
        let enough = |since: f64| since + ALLOWED + self.stalled(since, flow.from);
        let in_outage = outages.iter().any(|outage| {
            outage.node == flow.node
                && flow.until >= outage.from
                && flow.from <= enough(outage.until)
        });
        let absences = self.gone.get(&flow.endpoint).into_iter().flatten();
        let mut gone = absences
            .filter(|absence| flow.from > enough(absence.since) && flow.until <= absence.until);
        !in_outage && gone.next().is_some()
    }
}

#[test]
fn a_flow_is_wrong_a_second_after_its_endpoint_is_gone() {
    let [one, two]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let mut seen = Seen::default();
    seen.look(0.0, 10.0, [one, two].into());
    for at in [1000.0, 3000.0, 5000.0] {
        seen.look(at, at + 10.0, [two].into());
    }
    seen.look(7000.0, 7010.0, [one, two].into());
    let flow = |from: f64, endpoint| Flow {
        node: "n".into(),
        from,
        until: from + 100.0,
        protocol: "TCP".into(),
        source: two,
        endpoint,
    };
    let wrong = |seen: &Seen, from, outages: &[Outage]| seen.is_wrong(&flow(from, one), outages);
    assert!(!wrong(&seen, 500.0, &[]), "the endpoint was listed");
    assert!(!wrong(&seen, 2000.0, &[]), "within a second");
    assert!(wrong(&seen, 2100.0, &[]));
    assert!(wrong(&seen, 4800.0, &[]));
    assert!(!wrong(&seen, 5500.0, &[]), "the endpoint may be listed again");
    assert!(!seen.is_wrong(&flow(2100.0, two), &[]), "another endpoint");
    let outage = |node: &str| Outage { node: node.into(), from: 1500.0, until: 2500.0 };
    assert!(!wrong(&seen, 3400.0, &[outage("n")]), "the proxy has just come back");
    assert!(wrong(&seen, 3600.0, &[outage("n")]));
    assert!(wrong(&seen, 3400.0, &[outage("other")]));
    seen.stalls.push((1900.0, 500.0));
    assert!(!wrong(&seen, 2400.0, &[]), "polls were late by half a second");
    assert!(wrong(&seen, 2600.0, &[]));
    seen.stalls.push((61_000.0, 1e9));
    seen.look(60_000.0, 60_010.0, [two].into());
    seen.look(90_000.0, 90_010.0, [two].into());
    assert!(!wrong(&seen, 65_000.0, &[]), "late polls add at most five seconds");
    assert!(wrong(&seen, 66_100.0, &[]), "and no more");
}
