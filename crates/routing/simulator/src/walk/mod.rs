//! A virtual packet through the rules of a [`Fake`], expression by expression, as the kernel would
//! take the first packet of a new connection.
//!
//! It looks at rules as the kernel sees them, not at what they were made from: a test that
//! compares its outcome with a decision tests the compiler. Later packets of a connection, answers
//! and fragments are not its subject, and it changes nothing: what `update` would write is handed
//! back as [`Record`]s for [`Fake::record`].

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

/// How a packet's way ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It goes to an address, on this machine or elsewhere.
    Delivered {
        /// Where it goes.
        destination: SocketAddr,
        /// Whether it goes with this machine's address as its source.
        masqueraded: bool,
        /// Whether that is another destination than it wanted.
        translated: bool,
    },
    /// Its sender gets an ICMP error.
    Rejected,
    /// It vanishes.
    Dropped,
}

/// A packet's way.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// How it ended.
    pub outcome: Outcome,
    /// The mark with which it ended.
    pub mark: u32,
    /// Chains and rules passed, for messages of failed tests.
    pub trace: Vec<String>,
    /// What `update` wrote: the affinity of the packet's connection.
    pub affinity: Vec<Record>,
}

/// Rules that cannot be walked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalkError {
    /// The packet itself.
    #[error("a packet from {0} to {1}: both must be of one family")]
    Families(IpAddr, IpAddr),
    /// A rule.
    #[error("table {table}, chain {chain}, rule {rule}: {fault}")]
    Rule {
        /// Family and name of the table.
        table: String,
        /// The chain.
        chain: Name,
        /// The rule, counted from 0.
        rule: usize,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Nothing was written there in this rule.
    #[error("{register:?} is read, but nothing in this rule writes it")]
    Undefined {
        /// The register.
        register: Reg,
    },
    /// There are 16.
    #[error("{len} bytes do not fit from {first:?} on")]
    NoSuchRegister {
        /// The first one.
        first: Reg,
        /// Bytes.
        len: usize,
    },
    /// Mask and xor of `bitwise`.
    #[error("mask and xor differ in length")]
    MaskLength,
    /// The virtual packet has addresses, protocol and ports only.
    #[error("{base:?} header, {len} bytes from {offset}: the virtual packet has no such bytes")]
    NoSuchBytes {
        /// The header.
        base: Base,
        /// First byte.
        offset: u32,
        /// How many.
        len: u32,
    },
    /// Not in this table.
    #[error("set {0} is not there")]
    NoSuchSet(Name),
    /// Not in this table.
    #[error("chain {0} is not there")]
    NoSuchChain(Name),
    /// A lookup wants data that the set does not hold.
    #[error("set {0} does not hold what the rule wants of it")]
    WrongData(Name),
    /// Where the hook is not one for it.
    #[error("{0} is not possible in this hook")]
    WrongHook(&'static str),
    /// `numgen random mod 0`.
    #[error("numgen modulo 0")]
    NoSlots,
    /// Chains that lead to each other without end.
    #[error("chain {0} is too many steps from the base chain")]
    TooDeep(Name),
}

/// Takes a packet through the rules. `dice` answers a modulus N with a number below N.
pub fn walk(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
    dice: &mut dyn FnMut(u32) -> u32,
) -> Result<Walk, WalkError> {
    Journey::start(fake, packet, host, &mut Thrown(dice), Some(Vec::new()))?.finish()
}

/// Like [`walk`], without a trace: for many packets.
pub fn walk_untraced(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
    dice: &mut dyn FnMut(u32) -> u32,
) -> Result<Walk, WalkError> {
    Journey::start(fake, packet, host, &mut Thrown(dice), None)?.finish()
}

/// Every outcome that chance can bring, with its probability.
pub fn every_outcome(
    fake: &Fake,
    packet: &Packet,
    host: &Host,
) -> Result<BTreeMap<Outcome, f64>, WalkError> {
    // Counted for each probability and multiplied once, so that shares come out as round as they
    // are.
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

/// Every way that chance can bring.
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
