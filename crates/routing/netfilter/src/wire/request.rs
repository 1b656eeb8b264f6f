//! Encodes list requests to the kernel.

use crate::object::Table;

use super::abi::{chain, element, family_number, message, rule, set};
use super::attr::{Head, Writer};

/// A list request.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// The generation: the number of the last change of any table in this network namespace.
    Generation,
    /// The tables of all families.
    Tables,
    /// The chains of a table. The kernel answers with those of all tables of the family.
    Chains(&'a Table),
    /// The rules of a table.
    Rules(&'a Table),
    /// The sets and maps of a table.
    Sets(&'a Table),
    /// The elements of a set of a table.
    Elements(&'a Table, &'a str),
}

/// Encodes a request; its answers have the same `seq`.
pub fn encode_request(request: Request<'_>, seq: u32) -> Vec<u8> {
    let mut w = Writer::with_capacity(256);
    let (kind, table) = match request {
        Request::Generation => (message::GET_GENERATION, None),
        Request::Tables => (message::GET_TABLE, None),
        Request::Chains(table) => (message::GET_CHAIN, Some(table)),
        Request::Rules(table) => (message::GET_RULE, Some(table)),
        Request::Sets(table) => (message::GET_SET, Some(table)),
        Request::Elements(table, _) => (message::GET_ELEMENT, Some(table)),
    };
    let flags = match request {
        Request::Generation => message::REQUEST,
        _ => message::REQUEST | message::DUMP,
    };
    let family = table.map_or(0, |table| family_number(table.family));
    let open = w.open_message(Head { kind, flags, seq, family, resource: 0 });
    match request {
        Request::Generation | Request::Tables => {}
        Request::Chains(table) => w.text(chain::TABLE, &table.name),
        Request::Rules(table) => w.text(rule::TABLE, &table.name),
        Request::Sets(table) => w.text(set::TABLE, &table.name),
        Request::Elements(table, name) => {
            w.text(element::LIST_TABLE, &table.name);
            w.text(element::LIST_SET, name);
        }
    }
    w.close_message(open);
    w.finish()
}
