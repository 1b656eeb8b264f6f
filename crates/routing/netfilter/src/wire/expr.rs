//! Encodes expressions and verdicts. An expression refers to sets and chains by name; ids within a
//! batch are not needed.
//!
//! Attributes are in nft's order, and defaults are omitted.

use nearhop_core::Family;

use super::abi::{data, family_number, list};
use super::attr::Writer;
use crate::object::{Base, CmpOp, CtKey, Expr, FibAddress, Hit, MetaKey, Reg, Verdict};

/// The register that holds a verdict.
const VERDICT_REGISTER: u32 = 0;

/// `NFT_META_*`.
const META_MARK: u32 = 3;
const META_IIF_NAME: u32 = 6;
const META_L4_PROTO: u32 = 16;

/// Writes an expression of a rule in a table of `family`.
pub(super) fn write_expr(w: &mut Writer, family: Family, expr: &Expr) {
    write_item(w, name_of(expr), |w| write_data(w, family, expr));
    if let Expr::Chance { part, .. } = expr {
        write_less(w, *part);
    }
}

fn write_item(w: &mut Writer, name: &str, data: impl FnOnce(&mut Writer)) {
    w.nest(list::ITEM, |w| {
        w.text(list::EXPR_NAME, name);
        w.nest(list::EXPR_DATA, data);
    });
}

/// `register 0 < number`. The kernel compares bytes from left to right, so they must be big-endian.
fn write_less(w: &mut Writer, number: u32) {
    const HTON: u32 = 1;
    const LESS: u32 = 2;
    let at = register(Reg(0));
    write_item(w, "byteorder", |w| {
        w.be32(1, at);
        w.be32(2, at);
        w.be32(3, HTON);
        // A value of 4 bytes, converted in units of 4 bytes.
        w.be32(4, 4);
        w.be32(5, 4);
    });
    write_item(w, "cmp", |w| {
        w.be32(1, at);
        w.be32(2, LESS);
        w.nest(3, |w| w.put(data::VALUE, &number.to_be_bytes()));
    });
}

/// The kernel's name of an expression.
fn name_of(expr: &Expr) -> &'static str {
    match expr {
        Expr::Payload { .. } => "payload",
        Expr::Meta { .. } | Expr::SetMark { .. } => "meta",
        Expr::Ct { .. } => "ct",
        Expr::FibType { .. } => "fib",
        Expr::Cmp { .. } => "cmp",
        Expr::Bitwise { .. } => "bitwise",
        Expr::Random { .. } | Expr::Chance { .. } => "numgen",
        Expr::Lookup { .. } => "lookup",
        Expr::Dnat { .. } => "nat",
        Expr::Masquerade => "masq",
        Expr::Reject(_) => "reject",
        Expr::Verdict(_) => "immediate",
        Expr::Update { .. } => "dynset",
    }
}

fn write_data(w: &mut Writer, family: Family, expr: &Expr) {
    match expr {
        Expr::Payload { base, offset, len, to } => payload(w, *base, *offset, *len, *to),
        Expr::Meta { key, to } => meta(w, *key, *to),
        Expr::SetMark { from } => {
            w.be32(2, META_MARK);
            w.be32(3, register(*from));
        }
        Expr::Ct { key, to } => ct(w, family, *key, *to),
        Expr::FibType { address, to } => fib(w, *address, *to),
        Expr::Cmp { from, op, with } => cmp(w, *from, *op, with),
        Expr::Bitwise { from, to, mask, xor } => bitwise(w, *from, *to, mask, xor),
        Expr::Random { modulus, offset, to } => random(w, *modulus, *offset, *to),
        Expr::Chance { whole, .. } => random(w, *whole, 0, Reg(0)),
        Expr::Lookup { set, from, then } => lookup(w, set, *from, *then),
        Expr::Dnat { family, address, port } => dnat(w, *family, *address, *port),
        // NF_NAT_RANGE_PROTO_RANDOM_FULLY.
        Expr::Masquerade => w.be32(1, 0x10),
        Expr::Reject(family) => reject(w, *family),
        Expr::Verdict(verdict) => {
            w.be32(1, VERDICT_REGISTER);
            w.nest(2, |w| write_verdict(w, verdict));
        }
        Expr::Update { set, key, data, timeout_ms } => update(w, set, *key, *data, *timeout_ms),
    }
}

/// The number of a register. A register at the start of one of the four 128-bit registers has that
/// register's number, as in nft and in the kernel's lists.
fn register(reg: Reg) -> u32 {
    let index = u32::from(reg.0);
    if index.is_multiple_of(4) { 1 + index / 4 } else { 8 + index }
}

fn payload(w: &mut Writer, base: Base, offset: u32, len: u32, to: Reg) {
    w.be32(1, register(to));
    w.be32(
        2,
        match base {
            Base::Network => 1,
            Base::Transport => 2,
        },
    );
    w.be32(3, offset);
    w.be32(4, len);
}

fn meta(w: &mut Writer, key: MetaKey, to: Reg) {
    w.be32(
        2,
        match key {
            MetaKey::L4Proto => META_L4_PROTO,
            MetaKey::Mark => META_MARK,
            MetaKey::IifName => META_IIF_NAME,
        },
    );
    w.be32(1, register(to));
}

/// `NFT_CT_*`: the key, and the direction of the connection.
fn ct(w: &mut Writer, family: Family, key: CtKey, to: Reg) {
    const ORIGINAL: Option<u8> = Some(0);
    const REPLY: Option<u8> = Some(1);
    let address = |v4, v6| if family == Family::Ipv4 { v4 } else { v6 };
    let (key, direction) = match key {
        CtKey::State => (0, None),
        CtKey::Status => (2, None),
        CtKey::OriginalSource => (address(19, 21), ORIGINAL),
        CtKey::OriginalDestination => (address(20, 22), ORIGINAL),
        CtKey::OriginalPort => (12, ORIGINAL),
        CtKey::ReplySource => (address(19, 21), REPLY),
        CtKey::ReplyPort => (11, REPLY),
    };
    w.be32(2, key);
    w.be32(1, register(to));
    if let Some(direction) = direction {
        w.byte(3, direction);
    }
}

fn fib(w: &mut Writer, address: FibAddress, to: Reg) {
    const ADDRESS_TYPE: u32 = 3;
    w.be32(
        3,
        match address {
            FibAddress::Source => 1,
            FibAddress::Destination => 2,
        },
    );
    w.be32(2, ADDRESS_TYPE);
    w.be32(1, register(to));
}

fn cmp(w: &mut Writer, from: Reg, op: CmpOp, with: &[u8]) {
    w.be32(1, register(from));
    w.be32(
        2,
        match op {
            CmpOp::Eq => 0,
            CmpOp::Neq => 1,
        },
    );
    w.nest(3, |w| w.put(data::VALUE, with));
}

fn bitwise(w: &mut Writer, from: Reg, to: Reg, mask: &[u8], xor: &[u8]) {
    w.be32(1, register(from));
    w.be32(2, register(to));
    w.be32(3, mask.len() as u32);
    w.nest(4, |w| w.put(data::VALUE, mask));
    w.nest(5, |w| w.put(data::VALUE, xor));
}

fn random(w: &mut Writer, modulus: u32, offset: u32, to: Reg) {
    const RANDOM: u32 = 1;
    w.be32(1, register(to));
    w.be32(2, modulus);
    w.be32(3, RANDOM);
    w.be32(4, offset);
}

fn lookup(w: &mut Writer, set: &str, from: Reg, then: Hit) {
    const INVERTED: u32 = 1;
    w.be32(2, register(from));
    match then {
        Hit::Load(to) => w.be32(3, register(to)),
        Hit::Verdict => w.be32(3, VERDICT_REGISTER),
        Hit::Match | Hit::Mismatch => {}
    }
    w.text(1, set);
    if then == Hit::Mismatch {
        w.be32(5, INVERTED);
    }
}

fn dnat(w: &mut Writer, family: Family, address: Reg, port: Reg) {
    const DNAT: u32 = 1;
    w.be32(1, DNAT);
    w.be32(2, u32::from(family_number(family)));
    // The highest address and port, which default to the lowest.
    w.be32(3, register(address));
    w.be32(5, register(port));
}

fn reject(w: &mut Writer, family: Family) {
    const ICMP: u32 = 0;
    w.be32(1, ICMP);
    w.byte(
        2,
        match family {
            Family::Ipv4 => 3,
            Family::Ipv6 => 4,
        },
    );
}

fn update(w: &mut Writer, set: &str, key: Reg, data: Reg, timeout_ms: u64) {
    const UPDATE: u32 = 1;
    w.be32(4, register(key));
    w.be32(5, register(data));
    w.be32(3, UPDATE);
    w.be64(6, timeout_ms);
    w.text(1, set);
}

/// Writes the verdict in an element's or an expression's data.
pub(super) fn write_verdict(w: &mut Writer, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (data::DROP, None),
        Verdict::Jump(chain) => (data::JUMP, Some(chain)),
        Verdict::Goto(chain) => (data::GOTO, Some(chain)),
    };
    w.nest(data::VERDICT, |w| {
        w.put(data::VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            w.text(data::VERDICT_CHAIN, chain);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_numbers_match_nft() {
        let numbers: Vec<u32> = (0..16).map(|index| register(Reg(index))).collect();
        assert_eq!(numbers, [1, 9, 10, 11, 2, 13, 14, 15, 3, 17, 18, 19, 4, 21, 22, 23]);
    }
}
