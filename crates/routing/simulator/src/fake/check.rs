//! The kernel's checks of a single element, rule or hook when it is added, and references between
//! objects.

use std::collections::BTreeMap;

use nearhop_core::Name;

use super::code::Refusal;
use super::{Code, SetState, TableState};
use nearhop_netfilter::object::{
    Bytes, Chain, ChainKind, Data, Element, Expr, Field, Hit, HookPoint, MetaKey, Reg, Rule, Set,
    SetData, SetKind, Table, Verdict,
};

/// Whether an element that may be added already exists.
pub(super) enum Checked {
    New,
    There,
}

/// The priority of connection tracking; nat chains must have a higher one.
const CONNTRACK_PRIORITY: i32 = -200;
/// Number of 32-bit registers.
const REGISTERS: usize = 16;

fn padded(fields: &[Field]) -> usize {
    fields.iter().map(|field| field.padded_len()).sum()
}

/// Length of a set's key in bytes.
pub(crate) fn key_len(set: &Set) -> usize {
    padded(&set.key)
}

/// Length of a set's data in bytes.
pub(crate) fn data_len(set: &Set) -> usize {
    match &set.data {
        SetData::Value(fields) => padded(fields),
        SetData::None | SetData::Verdict => 0,
    }
}

/// Checks whether an element can be added to a set.
pub(super) fn check_element(
    chains: &BTreeMap<Name, Chain>,
    state: &SetState,
    element: &Element,
) -> Result<Checked, Code> {
    if !fits(&state.set, element) {
        return Err(Code::Invalid);
    }
    if let Data::Verdict(verdict) = &element.data {
        check_verdict(chains, verdict)?;
    }
    match clash(state, element) {
        None => Ok(Checked::New),
        Some(there) => {
            let same =
                (there.key, &there.end, &there.data) == (element.key, &element.end, &element.data);
            if same { Ok(Checked::There) } else { Err(Code::Exists) }
        }
    }
}

/// The existing element that conflicts with a new one. Like the kernel, it compares only the two
/// ends: an interval around a smaller one is accepted.
fn clash<'a>(state: &'a SetState, element: &Element) -> Option<&'a Element> {
    let end = element.end.as_deref().unwrap_or(&element.key);
    state.hit(&element.key).or_else(|| state.hit(end))
}

fn fits(set: &Set, element: &Element) -> bool {
    let len = key_len(set);
    let long_enough = |bytes: &Bytes| bytes.as_slice().len() == len;
    let end_fits = match (&element.end, set.kind) {
        (Some(end), SetKind::Interval) => long_enough(end) && ascending(set, &element.key, end),
        (None, SetKind::Exact | SetKind::Dynamic) => true,
        _ => false,
    };
    let data_fits = match (&element.data, &set.data) {
        (Data::None, SetData::None) | (Data::Verdict(_), SetData::Verdict) => true,
        (Data::Value(value), SetData::Value(fields)) => value.as_slice().len() == padded(fields),
        _ => false,
    };
    long_enough(&element.key) && end_fits && data_fits
}

fn ascending(set: &Set, key: &Bytes, end: &Bytes) -> bool {
    parts(set, key).zip(parts(set, end)).all(|(low, high)| low <= high)
}

/// The fields of a key, one by one.
pub(super) fn parts<'a>(set: &'a Set, key: &'a Bytes) -> impl Iterator<Item = &'a [u8]> {
    set.key.iter().scan(key.as_slice(), |rest, field| {
        let (part, after) = rest.split_at_checked(field.padded_len())?;
        *rest = after;
        Some(part)
    })
}

fn check_verdict(chains: &BTreeMap<Name, Chain>, verdict: &Verdict) -> Result<(), Code> {
    match target(verdict).map(|name| chains.get(name)) {
        Some(None) => Err(Code::NotFound),
        Some(Some(chain)) if chain.hook.is_some() => Err(Code::NotSupported),
        _ => Ok(()),
    }
}

/// The chain that a verdict refers to.
pub(super) fn target(verdict: &Verdict) -> Option<&Name> {
    match verdict {
        Verdict::Drop => None,
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
    }
}

/// Checks whether a chain can have its hook.
pub(super) fn check_hook(chain: &Chain) -> Result<(), Refusal> {
    let nat = chain.hook.filter(|hook| hook.kind == ChainKind::Nat);
    let impossible = nat.is_some_and(|hook| {
        hook.point == HookPoint::Forward || hook.priority <= CONNTRACK_PRIORITY
    });
    if impossible {
        let about = format!("chain {}: no nat there (forward, or before conntrack)", chain.name);
        return Err(Refusal::new(Code::NotSupported, about));
    }
    Ok(())
}

/// Checks whether a rule can be added: the objects that it refers to exist and have the right
/// types.
pub(super) fn check_rule(table: &Table, state: &TableState, rule: &Rule) -> Result<(), Refusal> {
    for (index, expr) in rule.exprs.iter().enumerate() {
        check_expr(table, state, expr)
            .map_err(|(code, why)| Refusal::new(code, format!("expression {index}: {why}")))?;
    }
    Ok(())
}

fn check_expr(table: &Table, state: &TableState, expr: &Expr) -> Result<(), (Code, String)> {
    match expr {
        Expr::Payload { len, to, .. } => registers(*to, *len as usize),
        Expr::Meta { key, to } => registers(*to, if *key == MetaKey::IifName { 16 } else { 4 }),
        Expr::Cmp { from, with, .. } => registers(*from, with.len()),
        Expr::Bitwise { from, to, mask, xor } if mask.len() == xor.len() => {
            registers(*from, mask.len()).and_then(|()| registers(*to, mask.len()))
        }
        Expr::Bitwise { .. } => Err((Code::Invalid, "mask and xor differ in length".into())),
        Expr::Random { modulus: 0, .. } | Expr::Chance { whole: 0, .. } => {
            Err((Code::Range, "numgen modulo 0".into()))
        }
        Expr::Lookup { set, from, then } => check_lookup(state, set, *from, *then),
        Expr::Update { set, key, data, .. } => check_update(state, set, *key, *data),
        Expr::Dnat { family, .. } if *family != table.family => {
            Err((Code::NotSupported, "dnat to the other family".into()))
        }
        Expr::Verdict(verdict) => check_verdict(&state.chains, verdict)
            .map_err(|code| (code, format!("invalid verdict {verdict:?}"))),
        _ => Ok(()),
    }
}

fn registers(first: Reg, len: usize) -> Result<(), (Code, String)> {
    if len == 0 {
        return Err((Code::Invalid, "no bytes".into()));
    }
    if usize::from(first.0) + len.div_ceil(4) > REGISTERS {
        return Err((Code::Range, format!("{len} bytes do not fit from {first:?} on")));
    }
    Ok(())
}

fn find<'a>(state: &'a TableState, set: &Name) -> Result<&'a Set, (Code, String)> {
    let found = state.sets.get(set).map(|state| &state.set);
    found.ok_or_else(|| (Code::NotFound, format!("set {set} does not exist")))
}

fn check_lookup(
    state: &TableState,
    name: &Name,
    from: Reg,
    then: Hit,
) -> Result<(), (Code, String)> {
    let set = find(state, name)?;
    registers(from, key_len(set))?;
    match (then, &set.data) {
        (Hit::Match | Hit::Mismatch, SetData::None) | (Hit::Verdict, SetData::Verdict) => Ok(()),
        (Hit::Load(to), SetData::Value(_)) => registers(to, data_len(set)),
        _ => Err((Code::Invalid, format!("{then:?} does not fit what {name} holds"))),
    }
}

fn check_update(
    state: &TableState,
    name: &Name,
    key: Reg,
    data: Reg,
) -> Result<(), (Code, String)> {
    let set = find(state, name)?;
    if set.kind != SetKind::Dynamic {
        return Err((Code::NotSupported, format!("{name} is not dynamic")));
    }
    if !matches!(set.data, SetData::Value(_)) {
        return Err((Code::NotSupported, format!("{name} holds no values")));
    }
    registers(key, key_len(set)).and_then(|()| registers(data, data_len(set)))
}

impl TableState {
    /// A chain with a rule that refers to a set.
    pub(super) fn user_of_set(&self, name: &Name) -> Option<&Name> {
        let uses = |expr: &Expr| match expr {
            Expr::Lookup { set, .. } | Expr::Update { set, .. } => set == name,
            _ => false,
        };
        let mut chains = self.chains.values();
        let user = chains.find(|chain| chain.rules.iter().flat_map(|r| &r.exprs).any(uses));
        user.map(|chain| &chain.name)
    }

    /// A description of an object that refers to a chain.
    pub(super) fn user_of_chain(&self, name: &Name) -> Option<String> {
        let leads = |verdict: &Verdict| target(verdict) == Some(name);
        let by_rule = self.chains.values().find(|chain| {
            let mut exprs = chain.rules.iter().flat_map(|rule| &rule.exprs);
            exprs.any(|expr| matches!(expr, Expr::Verdict(verdict) if leads(verdict)))
        });
        if let Some(chain) = by_rule {
            return Some(format!("a rule in chain {}", chain.name));
        }
        let by_element = self.sets.values().find(|set| {
            let mut elements = set.elements.values();
            elements.any(|element| matches!(&element.data, Data::Verdict(v) if leads(v)))
        });
        by_element.map(|set| format!("an element of map {}", set.set.name))
    }
}
