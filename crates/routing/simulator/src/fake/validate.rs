//! The kernel's validation of a whole table: every path from a base chain.
//!
//! Chains that no base chain leads to are not validated, so a loop among them is no error.

use std::collections::{BTreeMap, BTreeSet};

use nearhop_core::Name;

use super::check::target;
use super::code::Refusal;
use super::{Code, SetState, TableState};
use nearhop_netfilter::object::{Chain, ChainKind, Data, Expr, Hit, Hook, HookPoint};

/// Maximum depth of jumps between chains.
const DEPTH: usize = 16;

/// Validates all paths from base chains.
pub(super) fn validate(state: &TableState) -> Result<(), Refusal> {
    let maps = state.sets.iter().map(|(name, set)| (name, targets(set))).collect();
    for chain in state.chains.values() {
        if let Some(hook) = chain.hook {
            let mut ways = Ways { state, maps: &maps, hook, deepest: BTreeMap::new() };
            ways.follow(chain, 0)?;
        }
    }
    Ok(())
}

fn targets(set: &SetState) -> BTreeSet<&Name> {
    let elements = set.elements.values();
    let verdicts = elements.filter_map(|element| match &element.data {
        Data::Verdict(verdict) => Some(verdict),
        Data::None | Data::Value(_) => None,
    });
    verdicts.filter_map(target).collect()
}

/// The paths from one base chain.
struct Ways<'a> {
    state: &'a TableState,
    maps: &'a BTreeMap<&'a Name, BTreeSet<&'a Name>>,
    hook: Hook,
    /// The depth at which a chain was followed: it is followed again only at a greater depth.
    deepest: BTreeMap<&'a Name, usize>,
}

impl<'a> Ways<'a> {
    fn follow(&mut self, chain: &'a Chain, depth: usize) -> Result<(), Refusal> {
        if depth == DEPTH {
            let about = format!("chain {} is {DEPTH} steps from a base chain", chain.name);
            return Err(Refusal::new(Code::Loop, about));
        }
        if self.deepest.get(&chain.name).is_some_and(|before| *before >= depth) {
            return Ok(());
        }
        self.deepest.insert(&chain.name, depth);
        for expr in chain.rules.iter().flat_map(|rule| &rule.exprs) {
            self.check_place(chain, expr)?;
            for name in self.leads_to(expr) {
                if let Some(next) = self.state.chains.get(name) {
                    self.follow(next, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    fn leads_to(&self, expr: &'a Expr) -> Vec<&'a Name> {
        match expr {
            Expr::Verdict(verdict) => target(verdict).into_iter().collect(),
            Expr::Lookup { set, then: Hit::Verdict, .. } => {
                self.maps.get(set).into_iter().flatten().copied().collect()
            }
            _ => Vec::new(),
        }
    }

    fn check_place(&self, chain: &Chain, expr: &Expr) -> Result<(), Refusal> {
        let nat = self.hook.kind == ChainKind::Nat;
        let point = self.hook.point;
        let (word, allowed) = match expr {
            Expr::Dnat { .. } => {
                ("dnat", nat && matches!(point, HookPoint::Prerouting | HookPoint::Output))
            }
            Expr::Masquerade => ("masquerade", nat && point == HookPoint::Postrouting),
            Expr::Reject(_) => ("reject", point != HookPoint::Postrouting),
            _ => return Ok(()),
        };
        if allowed {
            return Ok(());
        }
        let at = format!("type {} hook {point:?}", self.hook.kind.as_str());
        let about = format!("chain {}: {word} cannot be reached from {at}", chain.name);
        Err(Refusal::new(Code::NotSupported, about))
    }
}
