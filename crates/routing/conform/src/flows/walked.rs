//! Virtual packets through the rules of a case, with every possible random choice.

use std::sync::Arc;

use nearhop_netfilter::desired::DesiredTable;
use nearhop_netfilter::frontend::Program;
use nearhop_netfilter::reconcile::reconcile;
use nearhop_simulator::fake::{Fake, FakeError, Record};
use nearhop_simulator::walk::{
    Host, Outcome, Packet, WalkError, every_outcome, every_walk, walk, walk_untraced,
};

use super::{End, FlowCase, Seen};

/// The rules could not be created, or a packet could not pass them.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// nftables would refuse them.
    #[error("the rules are refused: {0}")]
    Refused(#[from] FakeError),
    /// A packet cannot pass them.
    #[error("the rules cannot be walked: {0}")]
    Walk(#[from] WalkError),
}

/// The rules of a case, and packets through them.
#[derive(Clone, Debug)]
pub struct Walked {
    fake: Fake,
    host: Host,
}

impl Walked {
    /// Compiles the decisions of a case into rules.
    pub fn new(case: &FlowCase) -> Result<Self, RulesError> {
        let config = Arc::new(case.config.clone());
        let desired = DesiredTable::build(&case.routes, config.clone(), &Program::default());
        let mut fake = Fake::new();
        fake.apply(&reconcile(&desired, None).into_batch(&config.table))?;
        Ok(Self::over(fake, case))
    }

    /// Uses existing rules.
    pub fn over(fake: Fake, case: &FlowCase) -> Self {
        Self { fake, host: Host { node_addresses: case.node_addresses.clone() } }
    }

    /// Where a packet can end.
    pub fn ends(&self, packet: &Packet) -> Result<Seen, RulesError> {
        let outcomes = every_outcome(&self.fake, packet, &self.host)?;
        Ok(outcomes.into_iter().map(|(outcome, share)| (end(outcome, packet), share)).collect())
    }

    /// Where one packet ends with these random numbers. Does not store affinity records.
    pub fn look(
        &self,
        packet: &Packet,
        dice: &mut dyn FnMut(u32) -> u32,
    ) -> Result<End, RulesError> {
        let walked = walk_untraced(&self.fake, packet, &self.host, dice)?;
        Ok(end(walked.outcome, packet))
    }

    /// Where one packet ends with these random numbers. Stores its affinity records.
    pub fn send(
        &mut self,
        packet: &Packet,
        dice: &mut dyn FnMut(u32) -> u32,
    ) -> Result<End, RulesError> {
        let walked = walk_untraced(&self.fake, packet, &self.host, dice)?;
        for record in &walked.affinity {
            self.fake.record(record);
        }
        Ok(end(walked.outcome, packet))
    }

    /// For every end of a first packet, where a second one can end.
    pub fn ends_again(&self, packet: &Packet) -> Result<Vec<(End, Seen)>, RulesError> {
        let mut firsts: Vec<(End, Vec<Record>)> = Vec::new();
        every_walk(&self.fake, packet, &self.host, &mut |walked| {
            let first = end(walked.outcome, packet);
            if !firsts.iter().any(|(end, _)| *end == first) {
                firsts.push((first, walked.affinity));
            }
        })?;
        let mut pairs = Vec::new();
        for (first, records) in firsts {
            let mut after = self.clone();
            for record in &records {
                after.fake.record(record);
            }
            pairs.push((first, after.ends(packet)?));
        }
        Ok(pairs)
    }

    /// The path of a packet, for the message of a failing test.
    pub fn trace(&self, packet: &Packet) -> Vec<String> {
        let walked = walk(&self.fake, packet, &self.host, &mut |_| 0);
        walked.map_or_else(|error| vec![error.to_string()], |walked| walked.trace)
    }
}

fn end(outcome: Outcome, packet: &Packet) -> End {
    match outcome {
        Outcome::Rejected => End::Rejected,
        Outcome::Dropped => End::Dropped,
        Outcome::Delivered { destination, masqueraded, translated } => {
            if translated || masqueraded || destination != packet.destination {
                End::To { address: destination, masqueraded }
            } else {
                End::Untouched
            }
        }
    }
}
