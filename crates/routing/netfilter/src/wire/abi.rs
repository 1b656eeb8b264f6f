//! The numbers of the kernel's netlink interface that nearhop uses. Names are the kernel's, without
//! the prefix that the module name replaces.

use nearhop_core::Family;

/// `nlmsghdr` and what follows it.
pub(crate) mod message {
    /// Bytes of `nlmsghdr`.
    pub(crate) const HEADER: usize = 16;
    /// Bytes of `nfgenmsg`, which follows in every netfilter message.
    pub(crate) const FAMILY_HEADER: usize = 4;

    pub(crate) const ERROR: u16 = 2;
    pub(crate) const DONE: u16 = 3;
    pub(crate) const OVERRUN: u16 = 4;
    pub(crate) const BATCH_BEGIN: u16 = 16;
    pub(crate) const BATCH_END: u16 = 17;

    pub(crate) const REQUEST: u16 = 0x1;
    pub(crate) const ACK: u16 = 0x4;
    pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
    pub(crate) const DUMP: u16 = 0x300;
    pub(crate) const CREATE: u16 = 0x400;
    pub(crate) const APPEND: u16 = 0x800;
    /// The answer contains only the header of the answered message.
    pub(crate) const CAPPED: u16 = 0x100;
    /// The answer has extended attributes.
    pub(crate) const ACK_ATTRS: u16 = 0x200;

    /// The subsystem number of conntrack in a message type.
    pub(crate) const CONNTRACK: u16 = 1;
    /// The subsystem number of nftables in a message type.
    pub(crate) const NFTABLES: u16 = 10;
    pub(crate) const NEW_TABLE: u16 = NFTABLES << 8;
    pub(crate) const GET_TABLE: u16 = NEW_TABLE | 1;
    pub(crate) const DELETE_TABLE: u16 = NEW_TABLE | 2;
    pub(crate) const NEW_CHAIN: u16 = NEW_TABLE | 3;
    pub(crate) const GET_CHAIN: u16 = NEW_TABLE | 4;
    pub(crate) const DELETE_CHAIN: u16 = NEW_TABLE | 5;
    pub(crate) const NEW_RULE: u16 = NEW_TABLE | 6;
    pub(crate) const GET_RULE: u16 = NEW_TABLE | 7;
    pub(crate) const DELETE_RULE: u16 = NEW_TABLE | 8;
    pub(crate) const NEW_SET: u16 = NEW_TABLE | 9;
    pub(crate) const GET_SET: u16 = NEW_TABLE | 10;
    pub(crate) const DELETE_SET: u16 = NEW_TABLE | 11;
    pub(crate) const NEW_ELEMENT: u16 = NEW_TABLE | 12;
    pub(crate) const GET_ELEMENT: u16 = NEW_TABLE | 13;
    pub(crate) const DELETE_ELEMENT: u16 = NEW_TABLE | 14;
    pub(crate) const NEW_GENERATION: u16 = NEW_TABLE | 15;
    pub(crate) const GET_GENERATION: u16 = NEW_TABLE | 16;
}

/// Attributes of an error answer.
pub(super) mod answer {
    pub(crate) const MESSAGE: u16 = 1;
    pub(crate) const OFFSET: u16 = 2;
}

/// Attributes of a generation message.
pub(super) mod generation {
    pub(crate) const ID: u16 = 1;
    pub(crate) const PROCESS: u16 = 2;
    pub(crate) const PROGRAM: u16 = 3;
}

/// `NFTA_TABLE_*`.
pub(super) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const DORMANT: u32 = 1;
    pub(crate) const OWNER: u32 = 2;
    pub(crate) const USERDATA: u16 = 6;
}

/// `NFTA_CHAIN_*` and `NFTA_HOOK_*`.
pub(super) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
    pub(crate) const POLICY_ACCEPT: u32 = 1;
}

/// `NFTA_RULE_*`.
pub(super) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
    /// `NFT_RULE_MAXEXPRS`.
    pub(crate) const MOST_EXPRESSIONS: usize = 128;
}

/// `NFTA_SET_*`, `NFT_SET_*` and related numbers.
pub(super) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESC: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const USERDATA: u16 = 13;
    pub(crate) const DESC_SIZE: u16 = 1;
    pub(crate) const DESC_CONCAT: u16 = 2;
    pub(crate) const FIELD_LEN: u16 = 1;

    pub(crate) const INTERVAL: u32 = 0x4;
    pub(crate) const MAP: u32 = 0x8;
    pub(crate) const TIMEOUT: u32 = 0x10;
    pub(crate) const EVAL: u32 = 0x20;
    pub(crate) const CONCAT: u32 = 0x80;

    /// `NFT_DATA_VERDICT`.
    pub(crate) const VERDICT: u32 = 0xffff_ff00;
}

/// `NFTA_SET_ELEM_*` and `NFTA_SET_ELEM_LIST_*`.
pub(super) mod element {
    pub(crate) const LIST_TABLE: u16 = 1;
    pub(crate) const LIST_SET: u16 = 2;
    pub(crate) const LIST_ELEMENTS: u16 = 3;
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const EXPIRATION: u16 = 5;
    pub(crate) const USERDATA: u16 = 6;
    pub(crate) const KEY_END: u16 = 10;
}

/// `NFTA_DATA_*` and `NFTA_VERDICT_*`.
pub(super) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;

    pub(crate) const DROP: i32 = 0;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
}

/// `NFTA_LIST_ELEM`, `NFTA_EXPR_*`.
pub(super) mod list {
    pub(crate) const ITEM: u16 = 1;
    pub(crate) const EXPR_NAME: u16 = 1;
    pub(crate) const EXPR_DATA: u16 = 2;
}

/// The number of an address family, also used for tables.
pub(crate) fn family_number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

/// The address family of a number; none if nearhop has no tables in it.
pub(super) fn family_of(number: u8) -> Option<Family> {
    match number {
        2 => Some(Family::Ipv4),
        10 => Some(Family::Ipv6),
        _ => None,
    }
}
