//! The expected end of a packet, and its comparison with the actual end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::services::socket;
use super::{Flow, FlowCase};
use crate::check::laid_over_row;
use crate::diff::{Rule, diff};
use crate::read::{CaseError, Field};
use crate::report::What;

/// Where a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// At an endpoint.
    To {
        /// Which one.
        address: SocketAddr,
        /// Whether it saw the node's address instead of the client's.
        masqueraded: bool,
    },
    /// Refused.
    Rejected,
    /// Dropped.
    Dropped,
    /// The original destination: no rule has rewritten it.
    Untouched,
}

/// Where connections of one flow ended, with their shares.
pub type Seen = BTreeMap<End, f64>;

/// The expected end of a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Where it ends.
    pub out: Out,
    /// The endpoints that see the node's address instead of the client's, if the case has them.
    pub masquerade: Option<Masquerade>,
    /// Whether a second connection ends at the same endpoint as the first.
    pub stays: bool,
    /// The share of each endpoint, if the case has shares.
    pub shares: BTreeMap<SocketAddr, f64>,
}

/// The endpoints that see the node's address instead of the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// All endpoints.
    All,
    /// None of them.
    None,
    /// These and no others.
    Only(BTreeSet<SocketAddr>),
}

/// Where a packet ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// At one of these endpoints; each of them gets connections.
    To(BTreeSet<SocketAddr>),
    /// `REJECT`.
    Reject,
    /// `DROP`.
    Drop,
    /// `NONE`: at its original destination.
    Untouched,
}

impl Out {
    fn value(&self) -> Value {
        match self {
            Self::To(addresses) => texts(addresses),
            Self::Reject => json!("REJECT"),
            Self::Drop => json!("DROP"),
            Self::Untouched => json!("NONE"),
        }
    }
}

impl End {
    fn word(self) -> String {
        match self {
            Self::To { address, .. } => address.to_string(),
            Self::Rejected => "REJECT".to_owned(),
            Self::Dropped => "DROP".to_owned(),
            Self::Untouched => "NONE".to_owned(),
        }
    }
}

impl Expected {
    /// Reads the expectation of a flow; `nearhop` overrides it.
    pub(super) fn read(flow: &Field<'_>, case: &Field<'_>) -> Result<Self, CaseError> {
        let value = laid_over_row(flow, case)?;
        let flow = flow.with(&value);
        let (out, masq) = (flow.get("out")?, flow.get("masq")?);
        let mut shares = BTreeMap::new();
        for (address, share) in flow.get("shares")?.entries()? {
            let number = share.value().as_f64().filter(|number| (0.0..=1.0).contains(number));
            let number = number.ok_or_else(|| share.error("is not a number from 0 to 1"))?;
            let address = address.parse().map_err(|_| share.error("has no address as its key"))?;
            shares.insert(address, number);
        }
        Ok(Self {
            out: read_out(&out)?,
            masquerade: read_masquerade(&masq)?,
            stays: flow.get("stays")?.flag()?,
            shares,
        })
    }
}

fn read_masquerade(field: &Field<'_>) -> Result<Option<Masquerade>, CaseError> {
    if field.value().is_array() {
        return Ok(Some(Masquerade::Only(field.each(socket)?)));
    }
    let all = field.condition()?;
    Ok(all.map(|all| if all { Masquerade::All } else { Masquerade::None }))
}

fn read_out(field: &Field<'_>) -> Result<Out, CaseError> {
    match field.value() {
        Value::Array(_) => Ok(Out::To(field.each(socket)?)),
        word if word == "REJECT" => Ok(Out::Reject),
        word if word == "DROP" => Ok(Out::Drop),
        word if word == "NONE" => Ok(Out::Untouched),
        _ => Err(field.error("is not REJECT, DROP, NONE or a list of endpoints")),
    }
}

impl Flow {
    /// The differences between the expected and the actual ends, as paths in the flow. Shares may
    /// differ by `tolerance`.
    pub fn compare(&self, seen: &Seen, tolerance: f64) -> Vec<(String, What)> {
        let mut found = Vec::new();
        let words: BTreeSet<String> = seen.keys().map(|end| end.word()).collect();
        let actual = match seen.keys().next() {
            Some(end) if words.len() == 1 && !matches!(end, End::To { .. }) => json!(end.word()),
            _ => json!(words),
        };
        diff(Rule::Bag(&Rule::Exact), "out", &self.expected.out.value(), &actual, &mut found);
        if found.is_empty() && matches!(self.expected.out, Out::To(_)) {
            self.compare_masquerade(seen, &mut found);
            self.compare_shares(seen, tolerance, &mut found);
        }
        found
    }

    /// An endpoint that connects to itself is always masqueraded. If the flow has several endpoints,
    /// its single value for masquerading may apply to this endpoint or to the others.
    fn compare_masquerade(&self, seen: &Seen, found: &mut Vec<(String, What)>) {
        let Some(expected) = &self.expected.masquerade else { return };
        let (masked, open) = sides(seen);
        let source = self.packet.source.ip();
        let right = match expected {
            Masquerade::Only(only) => masked == *only && masked.is_disjoint(&open),
            _ if masked.iter().all(|at| at.ip() == source)
                && !masked.is_empty()
                && !open.is_empty()
                && open.iter().all(|at| at.ip() != source) =>
            {
                true
            }
            Masquerade::All => open.is_empty(),
            Masquerade::None => masked.is_empty(),
        };
        if !right {
            let expected = match expected {
                Masquerade::All => json!(true),
                Masquerade::None => json!(false),
                Masquerade::Only(only) => texts(only),
            };
            let actual = match (masked.is_empty(), open.is_empty()) {
                (true, _) => json!(false),
                (false, true) => json!(true),
                (false, false) => texts(&masked),
            };
            found.push(("masq".to_owned(), What::Differs { expected, actual }));
        }
    }

    fn compare_shares(&self, seen: &Seen, tolerance: f64, found: &mut Vec<(String, What)>) {
        for (address, expected) in &self.expected.shares {
            let of = |end: &End| matches!(end, End::To { address: at, .. } if at == address);
            let share: f64 = seen.iter().filter(|(end, _)| of(end)).map(|(_, share)| share).sum();
            if (share - expected).abs() > tolerance {
                let what = What::Differs { expected: json!(expected), actual: json!(share) };
                found.push((format!("shares[\"{address}\"]"), what));
            }
        }
    }

    /// The differences of the end of a second connection, if the first one ended at `first`.
    pub fn compare_stay(&self, first: End, second: &Seen) -> Vec<(String, What)> {
        let ends: BTreeSet<End> = second.keys().copied().collect();
        if ends == BTreeSet::from([first]) {
            return Vec::new();
        }
        let words: Vec<String> = ends.into_iter().map(End::word).collect();
        let what = What::Differs { expected: json!([first.word()]), actual: json!(words) };
        vec![("stays".to_owned(), what)]
    }
}

fn texts(addresses: &BTreeSet<SocketAddr>) -> Value {
    addresses.iter().map(ToString::to_string).collect()
}

/// Endpoints that saw the node's address, and those that saw the client's.
fn sides(seen: &Seen) -> (BTreeSet<SocketAddr>, BTreeSet<SocketAddr>) {
    let (mut masked, mut open) = (BTreeSet::new(), BTreeSet::new());
    for end in seen.keys() {
        if let End::To { address, masqueraded } = end {
            if *masqueraded {
                masked.insert(*address)
            } else {
                open.insert(*address)
            };
        }
    }
    (masked, open)
}

impl FlowCase {
    /// Whether an address belongs to the node.
    pub fn is_node(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node_addresses.contains(&address)
    }
}
