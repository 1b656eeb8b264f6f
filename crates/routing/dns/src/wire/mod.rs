//! DNS messages as bytes: requests in, replies out (RFC 1035, 6891, 7871, 7873).
//!
//! ```text
//!   request  what a packet asks, or what is wrong with it
//!   edns     the options that matter here             cookie   server cookies (RFC 9018)
//!   name     names in replies                         names    where each was written already
//!   reply    records, within a size                   code     response codes
//! ```
//!
//! Our own, because this is what every question pays for: nothing is allocated for a packet, and
//! names in answers are written straight from the objects they come from. Deliberately absent:
//! messages to and from other servers, which `hickory-proto` reads and writes.

mod code;
mod cookie;
mod edns;
mod name;
mod names;
mod reply;
mod request;

pub use code::Rcode;
pub use cookie::{Cookie, CookieBytes, Cookies};
pub use edns::{Edns, Subnet};
pub use reply::{Authority, Head, OptReply, Recursion, ReplyWriter, Zones};
pub use request::{Fault, Flags, HEADER, Request, Span, Transport};

/// The class of all that is answered.
const IN: u16 = 1;
/// The type of the record that carries options.
const OPT: u16 = 41;

/// The two octets at a place, if they are there.
fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let octets = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([octets[0], octets[1]]))
}
