//! Runs the hooks that a packet passes, in the kernel's order.
//!
//! Within a hook, chains run by priority. Nat chains are special: the kernel runs all nat chains of
//! a hook at one fixed priority (`dstnat` or `srcnat`), ordered by their own priorities, until one
//! decides; and each of the two translations is decided once per connection. Therefore a packet
//! from a local process to a local address passes no nat chain in prerouting: output has already
//! decided. Chains of equal priority run here by table and name; in the kernel their order depends
//! on which was added first.

use std::net::SocketAddr;

use nearhop_core::{Family, Protocol};

use super::dice::Dice;
use super::eval::Flow;
use super::{Host, Outcome, Packet, Walk, WalkError};
use crate::fake::{Fake, Record, TableState, label};
use nearhop_netfilter::object::{Chain, ChainKind, HookPoint, Table};

/// The priority at which the kernel translates destinations.
const DSTNAT: i32 = -100;
/// The priority at which the kernel translates sources.
const SRCNAT: i32 = 100;

/// The translation that a nat hook decides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manip {
    Source,
    Destination,
}

impl Manip {
    pub(super) fn of(point: HookPoint) -> Self {
        match point {
            HookPoint::Prerouting | HookPoint::Output => Self::Destination,
            HookPoint::Input | HookPoint::Forward | HookPoint::Postrouting => Self::Source,
        }
    }

    fn priority(self) -> i32 {
        match self {
            Self::Destination => DSTNAT,
            Self::Source => SRCNAT,
        }
    }
}

/// The state of a translation, which is decided once per connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nat {
    /// Not decided yet.
    Open,
    /// Decided: not translated.
    Kept,
    /// Decided: translated.
    Changed,
}

/// A packet and its state while it passes the hooks.
pub(super) struct Journey<'a> {
    pub(super) fake: &'a Fake,
    pub(super) host: &'a Host,
    pub(super) dice: &'a mut dyn Dice,
    pub(super) family: Family,
    pub(super) protocol: Protocol,
    /// Source and destination of the connection's original direction.
    pub(super) original: (SocketAddr, SocketAddr),
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) iif: &'a str,
    pub(super) mark: u32,
    pub(super) point: HookPoint,
    pub(super) kind: ChainKind,
    pub(super) source_nat: Nat,
    pub(super) destination_nat: Nat,
    /// None if no trace is wanted.
    pub(super) trace: Option<Vec<String>>,
    pub(super) affinity: Vec<Record>,
}

/// A base chain in its table.
type Base<'a> = (&'a Table, &'a TableState, &'a Chain);

impl<'a> Journey<'a> {
    pub(super) fn start(
        fake: &'a Fake,
        packet: &'a Packet,
        host: &'a Host,
        dice: &'a mut dyn Dice,
        trace: Option<Vec<String>>,
    ) -> Result<Self, WalkError> {
        let (source, destination) = (packet.source, packet.destination);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(WalkError::Families(source.ip(), destination.ip()));
        }
        Ok(Self {
            fake,
            host,
            dice,
            family: Family::of(source.ip()),
            protocol: packet.protocol,
            original: (source, destination),
            source,
            destination,
            iif: &packet.iif,
            mark: packet.mark,
            point: HookPoint::Prerouting,
            kind: ChainKind::Filter,
            source_nat: Nat::Open,
            destination_nat: Nat::Open,
            trace,
            affinity: Vec::new(),
        })
    }

    pub(super) fn finish(mut self) -> Result<Walk, WalkError> {
        let end = if self.host.is_local(self.source.ip()) {
            self.sent_here()?
        } else {
            self.sent_elsewhere()?
        };
        let outcome = match end {
            Flow::Drop => Outcome::Dropped,
            Flow::Reject => Outcome::Rejected,
            Flow::Accept | Flow::Return => Outcome::Delivered {
                destination: self.destination,
                masqueraded: self.source_nat == Nat::Changed,
                translated: self.destination_nat == Nat::Changed,
            },
        };
        let mut trace = self.trace.unwrap_or_default();
        trace.push(format!("{outcome:?}"));
        Ok(Walk { outcome, mark: self.mark, trace, affinity: self.affinity })
    }

    /// A packet from a local process. If it goes to a local address, it leaves and enters again
    /// through `lo`.
    fn sent_here(&mut self) -> Result<Flow, WalkError> {
        self.iif = "";
        let leaving = self.through(&[HookPoint::Output, HookPoint::Postrouting])?;
        if leaving != Flow::Accept || !self.host.is_local(self.destination.ip()) {
            return Ok(leaving);
        }
        self.iif = "lo";
        self.through(&[HookPoint::Prerouting, HookPoint::Input])
    }

    fn sent_elsewhere(&mut self) -> Result<Flow, WalkError> {
        let arriving = self.through(&[HookPoint::Prerouting])?;
        if arriving != Flow::Accept {
            return Ok(arriving);
        }
        if self.host.is_local(self.destination.ip()) {
            return self.through(&[HookPoint::Input]);
        }
        self.through(&[HookPoint::Forward, HookPoint::Postrouting])
    }

    fn through(&mut self, points: &[HookPoint]) -> Result<Flow, WalkError> {
        for point in points {
            let flow = self.hook(*point)?;
            if flow != Flow::Accept {
                return Ok(flow);
            }
        }
        Ok(Flow::Accept)
    }

    fn hook(&mut self, point: HookPoint) -> Result<Flow, WalkError> {
        self.point = point;
        let manip = Manip::of(point);
        let nat = self.bases(point, ChainKind::Nat);
        let (before, after): (Vec<_>, Vec<_>) = self
            .bases(point, ChainKind::Filter)
            .into_iter()
            .partition(|(_, _, chain)| priority(chain) < manip.priority());
        let flow = self.filter(&before)?;
        if flow != Flow::Accept {
            return Ok(flow);
        }
        let flow = self.nat(manip, &nat)?;
        if flow != Flow::Accept { Ok(flow) } else { self.filter(&after) }
    }

    fn bases(&self, point: HookPoint, kind: ChainKind) -> Vec<Base<'a>> {
        let tables = self.fake.states().filter(|(table, _)| table.family == self.family);
        let mut bases: Vec<Base<'a>> = tables
            .flat_map(|(table, state)| {
                state.chains.values().map(move |chain| (table, state, chain))
            })
            .filter(|(_, _, chain)| {
                chain.hook.is_some_and(|hook| hook.point == point && hook.kind == kind)
            })
            .collect();
        bases.sort_by_key(|(_, _, chain)| priority(chain));
        bases
    }

    fn filter(&mut self, bases: &[Base<'a>]) -> Result<Flow, WalkError> {
        self.kind = ChainKind::Filter;
        for base in bases {
            let flow = self.base(base)?;
            if flow != Flow::Accept {
                return Ok(flow);
            }
        }
        Ok(Flow::Accept)
    }

    fn nat(&mut self, manip: Manip, bases: &[Base<'a>]) -> Result<Flow, WalkError> {
        self.kind = ChainKind::Nat;
        for base in bases {
            if *self.decided(manip) != Nat::Open {
                break;
            }
            let flow = self.base(base)?;
            if flow != Flow::Accept {
                return Ok(flow);
            }
        }
        // The hook also decides if no chain did, but only a hook that can translate.
        if self.point != HookPoint::Forward && *self.decided(manip) == Nat::Open {
            *self.decided(manip) = Nat::Kept;
        }
        Ok(Flow::Accept)
    }

    pub(super) fn decided(&mut self, manip: Manip) -> &mut Nat {
        match manip {
            Manip::Source => &mut self.source_nat,
            Manip::Destination => &mut self.destination_nat,
        }
    }

    fn base(&mut self, (table, state, chain): &Base<'a>) -> Result<Flow, WalkError> {
        let hook = chain.hook.expect("bases() takes only chains with a hook");
        if let Some(trace) = &mut self.trace {
            let (kind, point, priority) = (hook.kind.as_str(), hook.point, hook.priority);
            trace.push(format!("{point:?}: {} {} ({kind} {priority})", label(table), chain.name));
        }
        // The policy of the base chain is accept.
        match self.chain(table, state, chain, 0)? {
            Flow::Return => Ok(Flow::Accept),
            flow => Ok(flow),
        }
    }
}

fn priority(chain: &Chain) -> i32 {
    chain.hook.map_or(0, |hook| hook.priority)
}
