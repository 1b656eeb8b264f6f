//! Virtual packets: every random choice of the rules, and random packets.

use std::collections::BTreeMap;

use nearhop_conform::flows::{End, Flow, FlowCase, Seen, Walked};
use nearhop_core::Name;
use nearhop_netfilter::object::{Batch, Table, Timed};
use nearhop_netfilter::reconcile::KernelState;
use nearhop_proxy::engine::{ApplyError, Engine, ReadChain, Scope, Tables};
use nearhop_simulator::fake::Fake;

use crate::Driver;

/// Every possible end of a packet, through rules compiled for the case.
pub(crate) struct EveryChoice(Walked);

impl EveryChoice {
    pub(crate) fn new(case: &FlowCase) -> Self {
        Self(Walked::new(case).unwrap_or_else(|error| panic!("{}: {error}", case.id)))
    }
}

impl Driver for EveryChoice {
    fn ends(&mut self, flow: &Flow) -> Result<Seen, String> {
        self.0.ends(&flow.packet).map_err(|error| error.to_string())
    }

    fn ends_again(&mut self, flow: &Flow) -> Result<Vec<(End, Seen)>, String> {
        self.0.ends_again(&flow.packet).map_err(|error| error.to_string())
    }

    /// Tolerance for rounding to whole slots.
    fn tolerance(&self) -> f64 {
        0.02
    }
}

/// A fake without earlier content.
#[derive(Default)]
struct Fresh(Fake);

impl Tables for Fresh {
    fn apply(&mut self, batch: &Batch) -> Result<(), ApplyError> {
        self.0.apply(batch).map_err(|error| ApplyError::Refused(error.to_string()))
    }

    fn has(&mut self, _: &Table) -> Result<bool, ApplyError> {
        Ok(false)
    }

    fn read(&mut self, _: &Table) -> Result<Option<KernelState>, ApplyError> {
        Ok(None)
    }

    fn read_chains(&mut self, _: &Table) -> Result<BTreeMap<Name, ReadChain>, ApplyError> {
        Ok(BTreeMap::new())
    }

    fn read_records(&mut self, _: &Table, _: &str) -> Result<Vec<Timed>, ApplyError> {
        Ok(Vec::new())
    }

    fn generation(&mut self) -> Result<u32, ApplyError> {
        Ok(self.0.generation() as u32)
    }

    fn elements_per_batch(&self) -> usize {
        usize::MAX
    }
}

/// Random packets through the rules that the engine wrote, with a fixed seed.
pub(crate) struct Random {
    rules: Walked,
    state: u64,
}

impl Random {
    /// Packets of each flow. The rarest endpoint of all cases gets a tenth of them.
    const THROWS: u32 = 150;

    pub(crate) fn new(case: &FlowCase) -> Self {
        let mut tables = Fresh::default();
        let mut engine = Engine::new(case.config.clone());
        engine.sync(&mut tables, &case.routes, Scope::All).unwrap();
        Self { rules: Walked::over(tables.0, case), state: 0x9e37_79b9_7f4a_7c15 }
    }

    /// xorshift64: random enough for these tests.
    fn random_number(state: &mut u64, modulus: u32) -> u32 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u32 % modulus
    }
}

impl Driver for Random {
    fn ends(&mut self, flow: &Flow) -> Result<Seen, String> {
        let Self { rules, state } = self;
        let mut dice = |modulus| Self::random_number(state, modulus);
        let mut seen = Seen::new();
        for _ in 0..Self::THROWS {
            let end = rules.look(&flow.packet, &mut dice).map_err(|error| error.to_string())?;
            *seen.entry(end).or_default() += 1.0 / f64::from(Self::THROWS);
        }
        Ok(seen)
    }

    fn ends_again(&mut self, flow: &Flow) -> Result<Vec<(End, Seen)>, String> {
        let Self { rules, state } = self;
        let mut dice = |modulus| Self::random_number(state, modulus);
        let mut pairs = Vec::new();
        for _ in 0..8 {
            let mut rules = rules.clone();
            let mut send = || {
                let end = rules.send(&flow.packet, &mut dice);
                end.map_err(|error| error.to_string())
            };
            let first = send()?;
            let later = (0..8).map(|_| Ok((send()?, 1.0))).collect::<Result<Seen, String>>()?;
            pairs.push((first, later));
        }
        Ok(pairs)
    }

    /// Four standard deviations of a share of one half in this many packets. The seed is fixed, so
    /// the result is the same in every run.
    fn tolerance(&self) -> f64 {
        4.0 * 0.5 / f64::from(Self::THROWS).sqrt()
    }
}
