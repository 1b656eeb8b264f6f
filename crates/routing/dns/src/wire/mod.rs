//! DNS messages as bytes: requests in, replies out (RFC 1035, 6891, 7871, 7873).
//!
//! ```text
//!   request    a query, or the fault of a packet      code         response codes
//!   edns       EDNS options                           cookie       server cookies (RFC 9018)
//!   reply      records within a size limit            wire_name    names in replies
//!                                                     compression  offsets of written names
//! ```
//!
//! Every query passes through this codec, so it allocates nothing per packet and encodes names
//! directly from the objects. Messages to and from upstream servers use `hickory-proto`.

mod code;
mod compression;
mod cookie;
mod edns;
mod reply;
mod request;
mod wire_name;

pub(crate) use code::Rcode;
pub(crate) use cookie::Cookies;
pub(crate) use edns::{Edns, Subnet};
pub use reply::ReplyWriter;
pub(crate) use reply::{OptReply, ReplyHeader, ReplyLimits};
#[cfg(test)]
pub(crate) use request::Span;
pub use request::Transport;
pub(crate) use request::{Fault, HEADER, Rejection, Request, skip_name};

/// The class IN.
const IN: u16 = 1;
/// The type of OPT records.
const OPT: u16 = 41;

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let octets = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([octets[0], octets[1]]))
}
