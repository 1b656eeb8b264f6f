//! nftables objects as values: tables, sets, chains, rules and the batches that change them.
//!
//! Only what nearhop's layout needs, in nft's words. Nothing here knows what a Service is, and
//! nothing here is bytes for a socket; `wire` makes those.

use std::fmt;
use std::net::IpAddr;

use nearhop_core::{Family, Name};

/// A table: family and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    /// `ip` or `ip6`.
    pub family: Family,
    /// Its name.
    pub name: Name,
}

/// A part of a set's key or data. Each takes whole 32-bit registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// `ipv4_addr` or `ipv6_addr`.
    Address(Family),
    /// `inet_proto`.
    Protocol,
    /// `inet_service`.
    Port,
    /// The result of `numgen`, 32 bits in the machine's byte order.
    Slot,
}

#[expect(clippy::len_without_is_empty, reason = "no field is empty")]
impl Field {
    /// Bytes that carry a value.
    pub fn len(self) -> usize {
        match self {
            Self::Address(Family::Ipv4) | Self::Slot => 4,
            Self::Address(Family::Ipv6) => 16,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }

    /// Bytes in a concatenation: a multiple of four.
    pub fn padded_len(self) -> usize {
        self.len().next_multiple_of(4)
    }
}

/// What a set holds beside its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetData {
    /// Nothing: a set.
    None,
    /// Verdicts: a verdict map.
    Verdict,
    /// Values: a map.
    Value(Vec<Field>),
}

/// How a set's elements come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// Exact keys, written by us.
    Exact,
    /// The last field of the key may be a range (`flags interval`).
    Interval,
    /// Elements are added by rules and expire (`flags dynamic,timeout`).
    Dynamic,
}

/// So many elements a dynamic set takes: the clients of one Service port. Where nothing is said, the
/// kernel stops at 65,535.
pub const MOST_DYNAMIC: u32 = 1 << 16;

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// The fields of its key.
    pub key: Vec<Field>,
    /// What belongs to a key.
    pub data: SetData,
    /// How elements come and go.
    pub kind: SetKind,
    /// For those who read `nft list`.
    pub comment: Option<Name>,
}

/// Most bytes of a key: two IPv6 addresses, a protocol and a port.
const BYTES: usize = 40;

/// Field values one after the other, each padded to whole registers, as the kernel keeps them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes {
    bytes: [u8; BYTES],
    len: u8,
}

impl Bytes {
    /// Nothing yet.
    pub const EMPTY: Self = Self { bytes: [0; BYTES], len: 0 };

    /// Takes bytes as they came from the kernel; none if they are too many for any of our keys.
    pub fn from_slice(slice: &[u8]) -> Option<Self> {
        let mut value = Self::EMPTY;
        value.bytes.get_mut(..slice.len())?.copy_from_slice(slice);
        value.len = slice.len() as u8;
        Some(value)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// With an address after what is there.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.field(&address.octets()),
            IpAddr::V6(address) => self.field(&address.octets()),
        }
    }

    /// With a protocol number after what is there.
    #[must_use]
    pub fn protocol(self, number: u8) -> Self {
        self.field(&[number])
    }

    /// With a port after what is there.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    /// With a slot after what is there.
    #[must_use]
    pub fn slot(self, slot: u32) -> Self {
        self.field(&slot.to_ne_bytes())
    }

    fn field(mut self, value: &[u8]) -> Self {
        let at = usize::from(self.len);
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self.len += value.len().next_multiple_of(4) as u8;
        self
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.as_slice().chunks(4) {
            for byte in word {
                write!(f, "{byte:02x}")?;
            }
            f.write_str(" ")?;
        }
        Ok(())
    }
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Discard it.
    Drop,
    /// Go on in a chain, and come back.
    Jump(Name),
    /// Go on in a chain, and do not come back.
    Goto(Name),
}

/// What belongs to an element's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// Nothing: the element of a set.
    None,
    /// A value.
    Value(Bytes),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// Its key; the lowest one in an interval set.
    pub key: Bytes,
    /// The highest key, in an interval set.
    pub end: Option<Box<Bytes>>,
    /// What belongs to it.
    pub data: Data,
    /// For those who read `nft list`. Does not count as a difference.
    pub comment: Option<Name>,
}

/// An element of a dynamic set, and how long it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// The element.
    pub element: Element,
    /// How long it lives from when it is used, in milliseconds.
    pub timeout_ms: u64,
    /// How long it still lives, in milliseconds.
    pub expires_ms: u64,
}

/// Where a base chain hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `type filter` or `type nat`.
    pub kind: ChainKind,
    /// `hook`.
    pub point: HookPoint,
    /// `priority`.
    pub priority: i32,
}

/// `type` of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// `filter`.
    Filter,
    /// `nat`: sees only the first packet of a connection.
    Nat,
}

impl ChainKind {
    /// The name that nft and the kernel use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// `hook` of a base chain; the numbers are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookPoint {
    /// Before routing.
    Prerouting = 0,
    /// To a local process.
    Input = 1,
    /// Through the machine.
    Forward = 2,
    /// From a local process.
    Output = 3,
    /// After routing.
    Postrouting = 4,
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: Name,
    /// Where it hangs; a regular chain has none.
    pub hook: Option<Hook>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// For those who read `nft list`.
    pub comment: Option<Name>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Rule {
    /// Evaluated in order; the first that does not match ends the rule.
    pub exprs: Vec<Expr>,
    /// For those who read `nft list`.
    pub comment: Option<Name>,
}

/// A 32-bit register, 0 to 15. Four of them hold an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(pub u8);

/// Where `payload` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The IP header.
    Network,
    /// The TCP, UDP or SCTP header.
    Transport,
}

/// What `meta` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// `meta l4proto`: one byte.
    L4Proto,
    /// `meta mark`: 32 bits in the machine's byte order.
    Mark,
    /// `meta iifname`: 16 bytes, padded with zeros.
    IifName,
}

/// What `ct` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// `ct state`: a bit mask, 32 bits in the machine's byte order.
    State,
    /// `ct status`: likewise.
    Status,
    /// `ct original ip saddr`.
    OriginalSource,
    /// `ct original ip daddr`.
    OriginalDestination,
    /// `ct original proto-dst`: two bytes.
    OriginalPort,
    /// `ct reply ip saddr`: after DNAT, the endpoint.
    ReplySource,
    /// `ct reply proto-src`: two bytes.
    ReplyPort,
}

/// The bit of `ct state` that says `new`.
pub const CT_STATE_NEW: u32 = 8;
/// The bit of `ct status` that says `confirmed`: the first packet of a connection has passed.
pub const CT_STATUS_CONFIRMED: u32 = 1 << 3;
/// The bit of `ct status` that says `dnat`.
pub const CT_STATUS_DNAT: u32 = 1 << 5;

/// `==` or `!=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Neq,
}

/// Which address `fib` asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibAddress {
    /// `fib saddr type`.
    Source,
    /// `fib daddr type`.
    Destination,
}

/// The result of `fib … type` for an address of this machine, 32 bits in the machine's byte order.
pub const FIB_LOCAL: u32 = 2;

/// An expression: nftables' instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Reads from the packet.
    Payload {
        /// From which header.
        base: Base,
        /// First byte.
        offset: u32,
        /// How many.
        len: u32,
        /// To where.
        to: Reg,
    },
    /// Reads about the packet.
    Meta {
        /// What.
        key: MetaKey,
        /// To where.
        to: Reg,
    },
    /// `meta mark set`.
    SetMark {
        /// From where.
        from: Reg,
    },
    /// Reads about the connection.
    Ct {
        /// What.
        key: CtKey,
        /// To where.
        to: Reg,
    },
    /// Asks the routing table what an address is.
    FibType {
        /// Whose.
        address: FibAddress,
        /// To where.
        to: Reg,
    },
    /// Compares.
    Cmp {
        /// What.
        from: Reg,
        /// How.
        op: CmpOp,
        /// With what. Shorter than the register: a prefix.
        with: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// From where.
        from: Reg,
        /// To where.
        to: Reg,
        /// Mask.
        mask: Vec<u8>,
        /// As long as the mask.
        xor: Vec<u8>,
    },
    /// `numgen random mod N offset K`.
    Random {
        /// N.
        modulus: u32,
        /// K: what is added.
        offset: u32,
        /// To where.
        to: Reg,
    },
    /// `numgen random mod N < K`: a rule goes on K times in N. Three of the kernel's expressions,
    /// in register 0.
    Chance {
        /// K.
        part: u32,
        /// N.
        whole: u32,
    },
    /// Looks a key up; without a hit the rule ends.
    Lookup {
        /// The set.
        set: Name,
        /// The key.
        from: Reg,
        /// What to do with a hit.
        then: Hit,
    },
    /// `dnat`: address and port from registers.
    Dnat {
        /// The family.
        family: Family,
        /// Address.
        address: Reg,
        /// Port.
        port: Reg,
    },
    /// `masquerade fully-random`.
    Masquerade,
    /// `reject`: port unreachable.
    Reject(Family),
    /// A verdict.
    Verdict(Verdict),
    /// `update @set { key timeout T : data }`.
    Update {
        /// The set.
        set: Name,
        /// The key.
        key: Reg,
        /// The data.
        data: Reg,
        /// Milliseconds.
        timeout_ms: u64,
    },
}

/// What a lookup does with a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// The rule goes on (`@set`).
    Match,
    /// The rule ends (`!= @set`).
    Mismatch,
    /// The data goes to a register (`map @set`).
    Load(Reg),
    /// The data is the verdict (`vmap @set`).
    Verdict,
}

/// One change. A batch of them happens as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Adds the table, unless it is there.
    AddTable {
        /// For those who read `nft list`.
        comment: Name,
    },
    /// Deletes the table with everything in it.
    DeleteTable,
    /// Adds a set; an equal one may be there.
    AddSet(Set),
    /// Deletes a set that no rule uses.
    DeleteSet(Name),
    /// Adds a chain, and its rules after those it has.
    AddChain(Chain),
    /// Deletes all rules of a chain.
    FlushChain(Name),
    /// Deletes a chain without rules that no rule or element goes to.
    DeleteChain(Name),
    /// Adds elements. One that is there with other data is an error.
    AddElements {
        /// The set.
        set: Name,
        /// What to add.
        elements: Vec<Element>,
    },
    /// Adds elements that expire. One that is there with other data is an error.
    AddTimed {
        /// The set.
        set: Name,
        /// What to add.
        elements: Vec<Timed>,
    },
    /// Deletes elements. One that is not there is an error.
    DeleteElements {
        /// The set.
        set: Name,
        /// What to delete; only keys count.
        elements: Vec<Element>,
    },
}

/// Changes of one table that happen as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The table.
    pub table: Table,
    /// In order.
    pub ops: Vec<Op>,
}
