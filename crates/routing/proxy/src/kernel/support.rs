//! Checks at start whether this kernel supports nearhop's rules, and names everything that is
//! missing at once.

use std::fmt;

use nearhop_core::{Family, Name};
use nearhop_netfilter::object::{
    Base, Batch, Chain, ChainKind, CtKey, Expr, FibAddress, Field, Hook, HookPoint, Op, Reg, Rule,
    Set, SetData, SetKind, Table,
};
use nearhop_netfilter::wire::RefusedPart;
use nix::errno::Errno;

use super::error::Refusal;

/// A feature that the kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The kernel's name of the expression, or a description of the feature.
    pub name: String,
    /// The kernel build options that provide it.
    pub option: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} ({})", self.name, self.option)
    }
}

/// The missing feature that the refusal of a rule shows. None if the rule itself may be at fault.
pub(super) fn missing_of(refusal: &Refusal, family: Family) -> Option<Missing> {
    let Some(RefusedPart::Expression { name, .. }) = &refusal.part else { return None };
    if !matches!(refusal.errno, Errno::ENOENT | Errno::EOPNOTSUPP) {
        return None;
    }
    // Other expressions are always present, or refer to an object that may be missing.
    let option = option_of(name, family)?;
    Some(Missing { name: name.clone(), option })
}

/// The build option of an optional nftables expression.
fn option_of(expression: &str, family: Family) -> Option<&'static str> {
    Some(match (expression, family) {
        ("numgen", _) => "CONFIG_NFT_NUMGEN",
        ("fib", Family::Ipv4) => "CONFIG_NFT_FIB_IPV4",
        ("fib", Family::Ipv6) => "CONFIG_NFT_FIB_IPV6",
        ("masq", _) => "CONFIG_NFT_MASQ",
        ("nat", _) => "CONFIG_NFT_NAT",
        ("reject", Family::Ipv4) => "CONFIG_NFT_REJECT and CONFIG_NF_REJECT_IPV4",
        ("reject", Family::Ipv6) => "CONFIG_NFT_REJECT and CONFIG_NF_REJECT_IPV6",
        ("ct", _) => "CONFIG_NFT_CT",
        _ => return None,
    })
}

/// One feature to try.
struct Trial {
    name: &'static str,
    option: &'static str,
    op: Op,
}

/// A batch that tries everything that nearhop's rules need, one feature per change.
pub(super) struct Trials {
    pub(super) batch: Batch,
    names: Vec<(&'static str, &'static str)>,
}

impl Trials {
    /// Creates the trials for a family.
    pub(super) fn new(family: Family) -> Self {
        let mut trials = vec![table(family)];
        trials.extend(sets(family));
        trials.push(nat_chain());
        trials.extend(expressions(family));
        let table = Table { family, name: "nearhop-support".into() };
        let names = trials.iter().map(|trial| (trial.name, trial.option)).collect();
        let ops = trials.into_iter().map(|trial| trial.op).collect();
        Self { batch: Batch { table, ops }, names }
    }

    /// The features that the refusals show to be missing.
    pub(super) fn missing(&self, refusals: &[Refusal]) -> Vec<Missing> {
        let named = |op: usize| {
            let (name, option) = self.names[op];
            Missing { name: name.to_owned(), option }
        };
        // If the table is refused, everything else fails too.
        if refusals.iter().any(|refusal| refusal.op == 0) {
            return vec![named(0)];
        }
        let mut ops: Vec<usize> = refusals.iter().map(|refusal| refusal.op).collect();
        ops.dedup();
        ops.into_iter().map(named).collect()
    }
}

fn table(family: Family) -> Trial {
    let (name, option) = match family {
        Family::Ipv4 => ("tables of family ip", "CONFIG_NF_TABLES_IPV4"),
        Family::Ipv6 => ("tables of family ip6", "CONFIG_NF_TABLES_IPV6"),
    };
    Trial { name, option, op: Op::AddTable { comment: "never committed".into() } }
}

fn sets(family: Family) -> [Trial; 2] {
    let key = vec![Field::Address(family), Field::Port, Field::Address(family)];
    let set = |name: &str, data, kind| {
        Op::AddSet(Set { name: name.into(), key: key.clone(), data, kind, comment: None })
    };
    let value = SetData::Value(vec![Field::Address(family), Field::Port]);
    [
        Trial {
            name: "concatenated interval sets",
            option: "Linux 5.6 or later",
            op: set("interval", SetData::None, SetKind::Interval),
        },
        Trial {
            name: "dynamic maps",
            option: "CONFIG_NF_TABLES, Linux 4.18 or later",
            op: set("dynamic", value, SetKind::Dynamic),
        },
    ]
}

fn nat_chain() -> Trial {
    let hook = Hook { kind: ChainKind::Nat, point: HookPoint::Prerouting, priority: -100 };
    let chain = Chain { name: "nat".into(), hook: Some(hook), rules: Vec::new(), comment: None };
    Trial {
        name: "chains of type nat",
        option: "CONFIG_NFT_NAT and CONFIG_NF_NAT",
        op: Op::AddChain(chain),
    }
}

fn expressions(family: Family) -> Vec<Trial> {
    let (to, after) = (Reg(0), Reg(if family == Family::Ipv4 { 1 } else { 4 }));
    let load = |offset, len, to| Expr::Payload { base: Base::Network, offset, len, to };
    let address = if family == Family::Ipv4 { load(16, 4, to) } else { load(24, 16, to) };
    let port = Expr::Payload { base: Base::Transport, offset: 2, len: 2, to: after };
    let dnat = Expr::Dnat { family, address: to, port: after };
    let tries = [
        ("numgen", vec![Expr::Random { modulus: 2, offset: 0, to }]),
        ("fib", vec![Expr::FibType { address: FibAddress::Destination, to }]),
        ("masq", vec![Expr::Masquerade]),
        ("nat", vec![address, port, dnat]),
        ("reject", vec![Expr::Reject(family)]),
        ("ct", vec![Expr::Ct { key: CtKey::ReplySource, to }]),
    ];
    let mut trials: Vec<Trial> = tries
        .into_iter()
        .map(|(name, exprs)| {
            let option = option_of(name, family).expect("each of these can be missing");
            Trial { name, option, op: rule(name, exprs) }
        })
        .collect();
    trials.push(Trial {
        name: "dynset",
        option: "CONFIG_NF_TABLES, Linux 4.18 or later",
        op: rule("dynset", record(family)),
    });
    trials
}

/// `update @dynamic`: two addresses and two ports, in the order of the registers.
fn record(family: Family) -> Vec<Expr> {
    let step = if family == Family::Ipv4 { 1 } else { 4 };
    let source = |to| Expr::Ct { key: CtKey::OriginalSource, to };
    let port = |to| Expr::Ct { key: CtKey::OriginalPort, to };
    let data = Reg(2 * step + 1);
    let timeout_ms = 10_000;
    vec![
        source(Reg(0)),
        port(Reg(step)),
        source(Reg(step + 1)),
        source(data),
        port(Reg(data.0 + step)),
        Expr::Update { set: "dynamic".into(), key: Reg(0), data, timeout_ms },
    ]
}

fn rule(name: &str, exprs: Vec<Expr>) -> Op {
    let rules = vec![Rule { exprs, comment: None }];
    Op::AddChain(Chain { name: Name::from(name), hook: None, rules, comment: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(op: usize, errno: Errno, expression: Option<&str>) -> Refusal {
        let part = expression.map(|name| RefusedPart::Expression { rule: 0, name: name.into() });
        Refusal { op, errno, message: None, part, what: String::new() }
    }

    #[test]
    fn all_missing_features_are_named() {
        let trials = Trials::new(Family::Ipv6);
        let all: Vec<_> =
            (1..trials.batch.ops.len()).map(|op| refusal(op, Errno::ENOENT, None)).collect();
        let missing = trials.missing(&all);
        let names: Vec<_> = missing.iter().map(|missing| missing.name.as_str()).collect();
        let sets = ["concatenated interval sets", "dynamic maps", "chains of type nat"];
        let exprs = ["numgen", "fib", "masq", "nat", "reject", "ct", "dynset"];
        assert_eq!(names, [&sets[..], &exprs].concat());
        assert_eq!(missing[4].to_string(), "no fib (CONFIG_NFT_FIB_IPV6)");
        // The kernel may refuse a rule twice: for its chain and for the rule itself.
        let twice = [refusal(4, Errno::ENOENT, None), refusal(4, Errno::ENOENT, None)];
        assert_eq!(trials.missing(&twice).len(), 1);
    }

    #[test]
    fn without_tables_no_other_feature_is_named() {
        let trials = Trials::new(Family::Ipv4);
        let refusals = [refusal(0, Errno::EOPNOTSUPP, None), refusal(3, Errno::ENOENT, None)];
        let missing = trials.missing(&refusals);
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].option, "CONFIG_NF_TABLES_IPV4");
    }

    #[test]
    fn a_missing_set_or_chain_is_not_a_missing_feature() {
        let of = |errno, name| missing_of(&refusal(0, errno, name), Family::Ipv4);
        assert_eq!(of(Errno::ENOENT, Some("numgen")).unwrap().option, "CONFIG_NFT_NUMGEN");
        assert_eq!(of(Errno::EOPNOTSUPP, Some("fib")).unwrap().name, "fib");
        assert_eq!(of(Errno::ENOENT, Some("lookup")), None);
        assert_eq!(of(Errno::ENOENT, Some("immediate")), None);
        assert_eq!(of(Errno::EINVAL, Some("numgen")), None);
        assert_eq!(of(Errno::ENOENT, None), None);
    }
}
