//! Sends a virtual packet through the rules of a [`Fake`], expression by expression, as the kernel
//! handles the first packet of a new connection.
//!
//! It evaluates the rules as the kernel sees them, independent of the routes: a test that compares
//! its outcome with a route tests the compiler. It does not handle later packets of a connection,
//! replies or fragments, and it changes nothing: it returns what `update` would write as
//! [`Record`]s for [`Fake::record`].

mod dice;
mod eval;
mod hooks;
mod packet;
mod registers;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use nearhop_core::Name;
use thiserror::Error;

use crate::fake::{Fake, Record};
use nearhop_netfilter::object::{Base, Reg};

use dice::{Odds, Script, Thrown};
use hooks::Journey;

pub use packet::{Host, Packet};

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Delivered to an address, on this machine or elsewhere.
    Delivered {
        /// The destination after translation.
        destination: SocketAddr,
        /// Whether its source is translated to this machine's address.
        masqueraded: bool,
        /// Whether its destination is translated.
        translated: bool,
    },
    /// Rejected: its sender gets an ICMP error.
    Rejected,
    /// Dropped without an answer.
    Dropped,
}

/// The result of a walk.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// What happened to the packet.
    pub outcome: Outcome,
    /// The final packet mark.
    pub mark: u32,
    /// Chains and rules that the packet passed, for messages of failed tests.
    pub trace: Vec<String>,
    /// The elements that `update` wrote: the affinity of the packet's connection.
    pub affinity: Vec<Record>,
}

/// Why a packet cannot be walked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalkError {
    /// Source and destination of the packet have different families.
    #[error("a packet from {0} to {1}: both must be of one family")]
    Families(IpAddr, IpAddr),
    /// A rule is invalid.
    #[error("table {table}, chain {chain}, rule {rule}: {fault}")]
    Rule {
        /// Family and name of the table.
        table: String,
        /// The chain.
        chain: Name,
        /// The index of the rule, from 0.
        rule: usize,
        /// The fault.
        fault: Fault,
    },
}

/// The fault of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The rule reads a register that it has not written.
    #[error("{register:?} is read, but nothing in this rule writes it")]
    Undefined {
        /// The register.
        register: Reg,
    },
    /// The rule uses a register beyond the last one; there are 16.
    #[error("{len} bytes do not fit from {first:?} on")]
    NoSuchRegister {
        /// The first register.
        first: Reg,
        /// Length in bytes.
        len: usize,
    },
    /// Mask and xor of `bitwise` have the wrong length.
    #[error("mask and xor differ in length")]
    MaskLength,
    /// The rule reads bytes that a virtual packet lacks: it has only addresses, protocol and ports.
    #[error("{base:?} header, {len} bytes from {offset}: the virtual packet has no such bytes")]
    NoSuchBytes {
        /// The header.
        base: Base,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// The set does not exist in this table.
    #[error("set {0} does not exist")]
    NoSuchSet(Name),
    /// The chain does not exist in this table.
    #[error("chain {0} does not exist")]
    NoSuchChain(Name),
    /// A lookup needs data that the set does not have.
    #[error("set {0} does not have the type that the rule needs")]
    WrongData(Name),
    /// The expression is not allowed in this hook.
    #[error("{0} is not possible in this hook")]
    WrongHook(&'static str),
    /// `numgen random mod 0`.
    #[error("numgen modulo 0")]
    NoSlots,
    /// Jumps between chains are too deep, or form a loop.
    #[error("chain {0} is too many steps from the base chain")]
    TooDeep(Name),
}

/// Sends a packet through the rules. `dice` returns a number below its argument N.
pub fn walk(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
    dice: &mut dyn FnMut(u32) -> u32,
) -> Result<Walk, WalkError> {
    Journey::start(fake, packet, host, &mut Thrown(dice), Some(Vec::new()))?.finish()
}

/// Like [`walk`], without a trace, for many packets.
pub fn walk_untraced(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
    dice: &mut dyn FnMut(u32) -> u32,
) -> Result<Walk, WalkError> {
    Journey::start(fake, packet, host, &mut Thrown(dice), None)?.finish()
}

/// Every possible outcome, with its probability.
pub fn every_outcome(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
) -> Result<BTreeMap<Outcome, f64>, WalkError> {
    // Count the walks of each probability and multiply once, to avoid rounding errors.
    let mut counts: BTreeMap<(Outcome, Odds), u64> = BTreeMap::new();
    explore(fake, packet, host, &mut |walk, odds| {
        *counts.entry((walk.outcome, odds)).or_default() += 1;
    })?;
    let mut shares = BTreeMap::new();
    for ((outcome, odds), count) in counts {
        *shares.entry(outcome).or_default() += odds.times(count);
    }
    Ok(shares)
}

/// Every possible walk.
pub fn every_walk(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
    visit: &mut dyn FnMut(Walk),
) -> Result<(), WalkError> {
    explore(fake, packet, host, &mut |walk, _| visit(walk))
}

fn explore(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
    visit: &mut dyn FnMut(Walk, Odds),
) -> Result<(), WalkError> {
    let mut script = Script::default();
    loop {
        let walk = Journey::start(fake, packet, host, &mut script, None)?.finish()?;
        visit(walk, script.odds());
        if !script.next() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
