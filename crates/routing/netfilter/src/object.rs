//! nftables objects as values: tables, sets, chains, rules and batches of changes.
//!
//! Only what nearhop's layout needs, with nft's names. This module does not know Services, and does
//! not encode bytes; `wire` does.

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

/// A field of a set's key or data. Each field takes whole 32-bit registers.
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
    /// Number of bytes of a value.
    pub fn len(self) -> usize {
        match self {
            Self::Address(Family::Ipv4) | Self::Slot => 4,
            Self::Address(Family::Ipv6) => 16,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }

    /// Number of bytes in a concatenation: a multiple of four.
    pub fn padded_len(self) -> usize {
        self.len().next_multiple_of(4)
    }
}

/// The data of a set's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetData {
    /// No data: a set.
    None,
    /// Verdicts: a verdict map.
    Verdict,
    /// Values: a map.
    Value(Vec<Field>),
}

/// How elements are added to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// Exact keys, written by the proxy.
    Exact,
    /// The last field of the key may be a range (`flags interval`).
    Interval,
    /// Rules add elements, which expire (`flags dynamic,timeout`).
    Dynamic,
}

/// Maximum size of a dynamic set: the clients of one Service port. The kernel's default is 65,535.
pub const MOST_DYNAMIC: u32 = 1 << 16;

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// The fields of its key.
    pub key: Vec<Field>,
    /// The data of its elements.
    pub data: SetData,
    /// How elements are added.
    pub kind: SetKind,
    /// Shown by `nft list`.
    pub comment: Option<Name>,
}

/// Maximum length of a key: two IPv6 addresses, a protocol and a port.
const BYTES: usize = 40;

/// Concatenated field values, each padded to whole registers, as the kernel stores them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes {
    bytes: [u8; BYTES],
    len: u8,
}

impl Bytes {
    /// No fields.
    pub const EMPTY: Self = Self { bytes: [0; BYTES], len: 0 };

    /// Bytes from the kernel; none if they are longer than any of our keys.
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

    /// Appends an address.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.field(&address.octets()),
            IpAddr::V6(address) => self.field(&address.octets()),
        }
    }

    /// Appends a protocol number.
    #[must_use]
    pub fn protocol(self, number: u8) -> Self {
        self.field(&[number])
    }

    /// Appends a port.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.field(&port.to_be_bytes())
    }

    /// Appends a slot.
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

/// The decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Discard it.
    Drop,
    /// Continue in a chain, and return.
    Jump(Name),
    /// Continue in a chain, and do not return.
    Goto(Name),
}

/// The data of an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// No data: the element of a set.
    None,
    /// A value.
    Value(Bytes),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// The key; in an interval set, the lowest key.
    pub key: Bytes,
    /// The highest key, in an interval set.
    pub end: Option<Box<Bytes>>,
    /// The data.
    pub data: Data,
    /// Shown by `nft list`. Ignored in comparisons.
    pub comment: Option<Name>,
}

/// An element of a dynamic set, with its timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// The element.
    pub element: Element,
    /// Timeout after the last use, in milliseconds.
    pub timeout_ms: u64,
    /// Time until it expires, in milliseconds.
    pub expires_ms: u64,
}

/// The hook of a base chain.
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
    /// The hook of a base chain; a regular chain has none.
    pub hook: Option<Hook>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// Shown by `nft list`.
    pub comment: Option<Name>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Rule {
    /// The expressions, evaluated in order; the first one that does not match ends the rule.
    pub exprs: Vec<Expr>,
    /// Shown by `nft list`.
    pub comment: Option<Name>,
}

/// A 32-bit register, 0 to 15. Four of them hold an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(pub u8);

/// The header that `payload` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The IP header.
    Network,
    /// The TCP, UDP or SCTP header.
    Transport,
}

/// The key that `meta` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// `meta l4proto`: one byte.
    L4Proto,
    /// `meta mark`: 32 bits in the machine's byte order.
    Mark,
    /// `meta iifname`: 16 bytes, padded with zeros.
    IifName,
}

/// The key that `ct` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// `ct state`: a bit mask, 32 bits in the machine's byte order.
    State,
    /// `ct status`: a bit mask, 32 bits in the machine's byte order.
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

/// The bit for `new` in `ct state`.
pub const CT_STATE_NEW: u32 = 8;
/// The bit for `confirmed` in `ct status`: the first packet of a connection has passed.
pub(crate) const CT_STATUS_CONFIRMED: u32 = 1 << 3;
/// The bit for `dnat` in `ct status`.
pub const CT_STATUS_DNAT: u32 = 1 << 5;

/// `==` or `!=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Neq,
}

/// The address that `fib` looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibAddress {
    /// `fib saddr type`.
    Source,
    /// `fib daddr type`.
    Destination,
}

/// The result of `fib … type` for an address of this machine, 32 bits in the machine's byte order.
pub const FIB_LOCAL: u32 = 2;

/// An nftables expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        /// The header.
        base: Base,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
        /// Destination register.
        to: Reg,
    },
    /// Loads metadata of the packet.
    Meta {
        /// The key.
        key: MetaKey,
        /// Destination register.
        to: Reg,
    },
    /// `meta mark set`.
    SetMark {
        /// Source register.
        from: Reg,
    },
    /// Loads a property of the connection.
    Ct {
        /// The key.
        key: CtKey,
        /// Destination register.
        to: Reg,
    },
    /// Loads the type of an address from the routing table.
    FibType {
        /// The address.
        address: FibAddress,
        /// Destination register.
        to: Reg,
    },
    /// Compares a register with a value.
    Cmp {
        /// Source register.
        from: Reg,
        /// The operator.
        op: CmpOp,
        /// The value. If shorter than the register, a prefix comparison.
        with: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// Source register.
        from: Reg,
        /// Destination register.
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
        /// K, added to the result.
        offset: u32,
        /// Destination register.
        to: Reg,
    },
    /// `numgen random mod N < K`: the rule continues with probability K/N. Encoded as three kernel
    /// expressions, in register 0.
    Chance {
        /// K.
        part: u32,
        /// N.
        whole: u32,
    },
    /// Looks up a key; the rule ends if the key is not found.
    Lookup {
        /// The set.
        set: Name,
        /// Register of the key.
        from: Reg,
        /// What to do if the key is found.
        then: Hit,
    },
    /// `dnat`: address and port from registers.
    Dnat {
        /// The family.
        family: Family,
        /// Register of the address.
        address: Reg,
        /// Register of the port.
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
        /// Register of the key.
        key: Reg,
        /// Register of the data.
        data: Reg,
        /// Timeout in milliseconds.
        timeout_ms: u64,
    },
}

/// What a lookup does if the key is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// The rule continues (`@set`).
    Match,
    /// The rule ends (`!= @set`).
    Mismatch,
    /// The data is loaded into a register (`map @set`).
    Load(Reg),
    /// The data is the verdict (`vmap @set`).
    Verdict,
}

/// One change. A batch applies all its changes or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Adds the table, unless it exists.
    AddTable {
        /// Shown by `nft list`.
        comment: Name,
    },
    /// Deletes the table with everything in it.
    DeleteTable,
    /// Adds a set; an equal one may exist.
    AddSet(Set),
    /// Deletes a set that no rule uses.
    DeleteSet(Name),
    /// Adds a chain, and appends its rules.
    AddChain(Chain),
    /// Deletes all rules of a chain.
    FlushChain(Name),
    /// Deletes a chain without rules that no rule or element refers to.
    DeleteChain(Name),
    /// Adds elements. An existing element with other data is an error.
    AddElements {
        /// The set.
        set: Name,
        /// The elements to add.
        elements: Vec<Element>,
    },
    /// Adds elements with a timeout. An existing element with other data is an error.
    AddTimed {
        /// The set.
        set: Name,
        /// The elements to add.
        elements: Vec<Timed>,
    },
    /// Deletes elements. A missing element is an error.
    DeleteElements {
        /// The set.
        set: Name,
        /// The elements to delete; only their keys are used.
        elements: Vec<Element>,
    },
}

/// Changes of one table that the kernel applies all or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The table.
    pub table: Table,
    /// The changes, in order.
    pub ops: Vec<Op>,
}
