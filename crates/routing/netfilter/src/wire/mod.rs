//! nftables as netlink messages: encoding and decoding.
//!
//! `encode` encodes batches and `request` list requests; `decode` splits answers into messages,
//! `dump` decodes the objects in them, and `news` decodes notifications. No socket: the caller
//! sends and receives.

pub(crate) mod abi;
pub mod attr;
mod decode;
mod dump;
mod encode;
mod expr;
mod news;
mod request;
mod userdata;

pub use attr::DecodeError;
pub use decode::{Answer, Message, Messages, Reply, messages};
pub use dump::{
    DumpedChain, DumpedElement, DumpedHook, DumpedRule, DumpedSet, DumpedTable, Names,
    decode_chain, decode_elements, decode_rule, decode_set, decode_table,
};
pub use encode::{Encoded, RefusedPart, encode_batch, encode_check, encode_owned};
pub use news::{Author, News, decode_news};
pub use request::{Request, encode_request};
