//! Real packets: the engine writes to the kernel of a node's namespace, and clients connect.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use nearhop_conform::flows::{End, Flow, FlowCase, Out, Seen};
use nearhop_net::traffic::{Outcome, connect};
use nearhop_netfilter::object::{Batch, Element, Op};
use nearhop_proxy::engine::{Engine, Scope, Tables};
use nearhop_proxy::kernel::Kernel;

use crate::Driver;
use crate::node::{Node, by};

/// Number of threads; they mostly wait for packets that must not arrive.
const WORKERS: usize = 8;
/// Timeout for packets that must arrive; it passes only if the test fails.
const LONG: Duration = Duration::from_secs(10);
/// Timeout for packets that must not arrive.
const SHORT: Duration = Duration::from_millis(400);
/// Maximum number of connections for one flow, until all its endpoints are seen.
const MOST: usize = 200;

/// Checks cases in several threads and collects the results.
pub(crate) fn in_parallel(
    cases: &[FlowCase],
    check: impl Fn(&FlowCase) -> Vec<String> + Sync,
) -> Vec<String> {
    let next = Mutex::new(cases.iter());
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS.min(cases.len()) {
            scope.spawn(|| {
                let take = || next.lock().unwrap().next();
                while let Some(case) = take() {
                    let wrong = check(case);
                    found.lock().unwrap().extend(wrong);
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// A node with rules in its kernel.
pub(crate) struct Real {
    node: Node,
    kernel: Kernel,
    engine: Engine,
    /// Timeout for packets that must not arrive.
    short: Duration,
}

impl Real {
    pub(crate) fn new(case: &FlowCase) -> Self {
        let mut real = Self { short: SHORT, ..Self::without_rules(case) };
        real.engine.sync(&mut real.kernel, &case.routes, Scope::All).unwrap();
        assert!(real.engine.isolated().is_empty(), "{}: {:?}", case.id, real.engine.isolated());
        real
    }

    /// The network without rules, in which every packet gets an answer.
    pub(crate) fn without_rules(case: &FlowCase) -> Self {
        let node = Node::new(case);
        // A socket stays in the namespace in which it was opened.
        let kernel = node.namespace().run(Kernel::open).unwrap();
        Self { node, kernel, engine: Engine::new(case.config.clone()), short: LONG }
    }

    /// Where one connection ends. The expectation decides only the timeout.
    fn send(&self, flow: &Flow) -> Result<End, String> {
        let patience = if flow.expected.out == Out::Drop { self.short } else { LONG };
        let (namespace, source) = self.node.client(flow);
        let (to, protocol) = (flow.packet.destination, by(flow.packet.protocol));
        let outcome = connect(namespace, protocol, to, patience, source);
        match outcome.map_err(|error| error.to_string())? {
            Outcome::Answered { server, seen } => self.answered(flow, server, seen),
            Outcome::Refused => Ok(End::Rejected),
            Outcome::TimedOut => Ok(End::Dropped),
            Outcome::Unreachable => Err("the destination is unreachable".to_owned()),
        }
    }

    fn answered(&self, flow: &Flow, server: SocketAddr, seen: SocketAddr) -> Result<End, String> {
        let masqueraded = seen.ip() != flow.packet.source.ip();
        if masqueraded && !self.node.has(seen.ip()) {
            return Err(format!("{server} saw {seen}, neither the client nor the node"));
        }
        if server == flow.packet.destination && !masqueraded {
            return Ok(End::Untouched);
        }
        Ok(End::To { address: server, masqueraded })
    }

    /// Deletes all affinity records, so that the next connection is a first one again.
    fn forget(&mut self) {
        let table = self.engine.config().table.clone();
        for set in self.engine.desired().maps() {
            let records = self.kernel.read_records(&table, set).unwrap();
            let elements: Vec<Element> = records.into_iter().map(|record| record.element).collect();
            if !elements.is_empty() {
                let ops = vec![Op::DeleteElements { set: set.clone(), elements }];
                let batch = Batch { table: table.clone(), ops };
                Tables::apply(&mut self.kernel, &batch).unwrap();
            }
        }
    }
}

impl Driver for Real {
    fn ends(&mut self, flow: &Flow) -> Result<Seen, String> {
        let expected = expected_ends(&flow.expected.out);
        let least = match (&flow.expected.out, flow.expected.shares.is_empty()) {
            (_, false) => MOST,
            (Out::To(addresses), true) => 8 * addresses.len(),
            (Out::Drop, true) => 1,
            (Out::Reject | Out::Untouched, true) => 3,
        };
        let mut ends: Vec<End> = Vec::new();
        let mut missing = expected.clone();
        while ends.len() < least || (!missing.is_empty() && ends.len() < MOST) {
            self.forget();
            let end = self.send(flow)?;
            ends.push(end);
            let word = wanted(end);
            missing.remove(&word);
            if !expected.contains(&word) {
                break;
            }
        }
        let share = 1.0 / ends.len() as f64;
        let mut seen = Seen::new();
        for end in ends {
            *seen.entry(end).or_default() += share;
        }
        Ok(seen)
    }

    fn ends_again(&mut self, flow: &Flow) -> Result<Vec<(End, Seen)>, String> {
        let mut pairs = Vec::new();
        for _ in 0..4 {
            self.forget();
            let first = self.send(flow)?;
            let later = (0..8).map(|_| Ok((self.send(flow)?, 1.0)));
            let later = later.collect::<Result<Seen, String>>()?;
            pairs.push((first, later));
        }
        Ok(pairs)
    }

    /// Six standard deviations of a share of one half in this many connections.
    fn tolerance(&self) -> f64 {
        6.0 * 0.5 / (MOST as f64).sqrt()
    }
}

/// An end without the fields that are compared later.
fn wanted(end: End) -> End {
    match end {
        End::To { address, .. } => End::To { address, masqueraded: false },
        other => other,
    }
}

fn expected_ends(out: &Out) -> BTreeSet<End> {
    match out {
        Out::To(addresses) => {
            let at = |address: &SocketAddr| End::To { address: *address, masqueraded: false };
            addresses.iter().map(at).collect()
        }
        Out::Reject => BTreeSet::from([End::Rejected]),
        Out::Drop => BTreeSet::from([End::Dropped]),
        Out::Untouched => BTreeSet::from([End::Untouched]),
    }
}
