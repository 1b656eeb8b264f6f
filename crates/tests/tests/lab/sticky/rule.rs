//! Which flows are wrong: new ones to an endpoint that is gone for more than a second.
//!
//! All times are milliseconds since the epoch. Each is taken on the side that excuses the proxy:
//! an endpoint is gone when the test has seen that, and a flow is as old as the moment before it
//! was opened. So a flow that is found wrong was wrong, however slow the test is.
//!
//! A machine may be too busy for the proxy. The test polls the API server all the time, and adds the
//! delays of its polls to the second, up to [`MOST_STALLED`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

/// How long a proxy may take.
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
pub(super) struct Excuse {
    pub(super) node: String,
    pub(super) from: f64,
    /// When the proxy was seen to have everything that was written until then.
    pub(super) until: f64,
}

/// What the test saw of a Service's EndpointSlices.
#[derive(Debug, Default)]
pub(super) struct Seen {
    listed: BTreeSet<IpAddr>,
    pub(super) gone: BTreeMap<IpAddr, Vec<Absence>>,
    /// When a look was late, and by how much.
    pub(super) stalls: Vec<(f64, f64)>,
}

/// The clock of this test and of its clients on the nodes.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64() * 1000.0
}

impl Seen {
    /// A look from `began` to `done` found these endpoints.
    pub(super) fn look(&mut self, began: f64, done: f64, listed: BTreeSet<IpAddr>) {
        for address in self.listed.difference(&listed) {
            let absence = Absence { since: done, until: done };
            self.gone.entry(*address).or_default().push(absence);
        }
        for (address, absences) in &mut self.gone {
            // It may have come back while the answer was on its way.
            if let Some(last) = absences.last_mut().filter(|_| !listed.contains(address)) {
                last.until = last.until.max(began);
            }
        }
        self.listed = listed;
    }

    /// By how much polls were late in this time, bounded.
    fn stalled(&self, from: f64, until: f64) -> f64 {
        let inside = self.stalls.iter().filter(|(at, _)| (from..=until).contains(at));
        inside.map(|(_, late)| late).sum::<f64>().min(MOST_STALLED)
    }

    /// Whether this is a flow to an endpoint that was gone for too long.
    pub(super) fn is_wrong(&self, flow: &Flow, excuses: &[Excuse]) -> bool {
        let enough = |since: f64| since + ALLOWED + self.stalled(since, flow.from);
        let excused = excuses.iter().any(|excuse| {
            excuse.node == flow.node
                && flow.until >= excuse.from
                && flow.from <= enough(excuse.until)
        });
        let absences = self.gone.get(&flow.endpoint).into_iter().flatten();
        let mut gone = absences
            .filter(|absence| flow.from > enough(absence.since) && flow.until <= absence.until);
        !excused && gone.next().is_some()
    }
}

#[test]
fn a_flow_is_wrong_a_second_after_its_endpoint_went() {
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
    let wrong = |seen: &Seen, from, excuses: &[Excuse]| seen.is_wrong(&flow(from, one), excuses);
    assert!(!wrong(&seen, 500.0, &[]), "it was there");
    assert!(!wrong(&seen, 2000.0, &[]), "within a second");
    assert!(wrong(&seen, 2100.0, &[]));
    assert!(wrong(&seen, 4800.0, &[]));
    assert!(!wrong(&seen, 5500.0, &[]), "it may have been back");
    assert!(!seen.is_wrong(&flow(2100.0, two), &[]), "another one");
    let excuse = |node: &str| Excuse { node: node.into(), from: 1500.0, until: 2500.0 };
    assert!(!wrong(&seen, 3400.0, &[excuse("n")]), "the proxy has just come back");
    assert!(wrong(&seen, 3600.0, &[excuse("n")]));
    assert!(wrong(&seen, 3400.0, &[excuse("other")]));
    seen.stalls.push((1900.0, 500.0));
    assert!(!wrong(&seen, 2400.0, &[]), "the machine stood still for half of a second");
    assert!(wrong(&seen, 2600.0, &[]));
    seen.stalls.push((61_000.0, 1e9));
    seen.look(60_000.0, 60_010.0, [two].into());
    seen.look(90_000.0, 90_010.0, [two].into());
    assert!(!wrong(&seen, 65_000.0, &[]), "late polls excuse at most five seconds");
    assert!(wrong(&seen, 66_100.0, &[]), "and no more");
}
