//! Server cookies (RFC 7873), made as RFC 9018 says, so that servers that share a secret
//! understand each other's.
//!
//! A cookie proves that whoever sent it receives what is sent to its address. Nobody is refused
//! for lack of one.

use std::hash::Hasher as _;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;

/// A client's cookie and the server's for it.
pub type CookieBytes = [u8; CLIENT + SERVER];

const CLIENT: usize = 8;
const SERVER: usize = 16;
/// The octets of the server's part that the hash covers: version, reserved, time.
const COVERED: usize = 8;
const VERSION: u8 = 1;
/// A cookie that is older is replaced.
const RENEW: u32 = 1800;
/// A cookie that is older is worth nothing.
const OLDEST: u32 = 3600;
/// A cookie may come from a clock that is so many seconds ahead.
const AHEAD: u32 = 300;

/// What a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Its own part.
    pub client: [u8; CLIENT],
    /// The server's part, where it has one that could be ours.
    pub server: Option<[u8; SERVER]>,
}

impl Cookie {
    /// Reads an option's content; nothing where its length is not allowed.
    pub(super) fn read(content: &[u8]) -> Option<Self> {
        let (client, server) = content.split_at_checked(CLIENT)?;
        if !(server.is_empty() || (8..=32).contains(&server.len())) {
            return None;
        }
        let client = client.try_into().expect("it was split there");
        Some(Self { client, server: server.try_into().ok() })
    }
}

/// Whose cookies they are.
#[derive(Clone, Debug)]
pub struct Cookies {
    secret: [u8; 16],
}

impl Cookies {
    /// With a secret that nobody else knows.
    pub fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// What is sent back: the client's part, and the server's, which is made anew unless the one
    /// that came is good for a while. `now` is in seconds since 1970.
    pub fn reply(&self, cookie: &Cookie, client: IpAddr, now: u32) -> CookieBytes {
        let mut bytes = [0; CLIENT + SERVER];
        bytes[..CLIENT].copy_from_slice(&cookie.client);
        let kept = cookie.server.filter(|_| self.age(cookie, client, now).is_some_and(is_fresh));
        let server = kept.unwrap_or_else(|| self.make(cookie.client, client, now));
        bytes[CLIENT..].copy_from_slice(&server);
        bytes
    }

    /// How many seconds old a cookie of ours is; none where it is not ours, or no longer.
    fn age(&self, cookie: &Cookie, client: IpAddr, now: u32) -> Option<u32> {
        let server = cookie.server?;
        let made = u32::from_be_bytes(server[4..8].try_into().expect("four octets"));
        // Times are compared as RFC 1982 does, because they come round in 2106.
        let age = now.wrapping_sub(made);
        let ahead = made.wrapping_sub(now);
        let in_time = age <= OLDEST || ahead <= AHEAD;
        let ours = server == self.make(cookie.client, client, made);
        (in_time && ours).then_some(if ahead <= AHEAD { 0 } else { age })
    }

    fn make(&self, cookie: [u8; CLIENT], client: IpAddr, now: u32) -> [u8; SERVER] {
        let mut server = [0; SERVER];
        server[0] = VERSION;
        server[4..8].copy_from_slice(&now.to_be_bytes());
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write(&cookie);
        hasher.write(&server[..COVERED]);
        match client {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
        // SipHash's number is its octets in this order.
        server[COVERED..].copy_from_slice(&hasher.finish().to_le_bytes());
        server
    }
}

fn is_fresh(age: u32) -> bool {
    age <= RENEW
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9018, appendix A.1: learning a new server cookie.
    #[test]
    fn a_cookie_is_made_as_the_rfc_shows() {
        let secret = 0xe5e9_73e5_a6b2_a43f_48e7_dc84_9e37_bfcf_u128.to_be_bytes();
        let client = [0x24, 0x64, 0xc4, 0xab, 0xcf, 0x10, 0xc9, 0x57];
        let cookies = Cookies::new(secret);
        let cookie = Cookie { client, server: None };
        let made = cookies.reply(&cookie, "198.51.100.100".parse().unwrap(), 1_559_731_985);
        let server = 0x0100_0000_5cf7_9f11_1f81_30c3_eee2_9480_u128.to_be_bytes();
        assert_eq!(made[CLIENT..], server);
    }

    /// RFC 9018, appendix A.3: another address.
    #[test]
    fn a_cookie_is_bound_to_its_address() {
        let cookies = Cookies::new([7; 16]);
        let client: IpAddr = "2001:db8::1".parse().unwrap();
        let first = Cookie { client: [1; CLIENT], server: None };
        let server = cookies.reply(&first, client, 1000)[CLIENT..].try_into().ok();
        let second = Cookie { server, ..first };
        assert_eq!(cookies.age(&second, client, 1010), Some(10));
        assert_eq!(cookies.age(&second, "2001:db8::2".parse().unwrap(), 1010), None);
        assert_eq!(cookies.age(&second, client, 1000 + OLDEST + 1), None);
        assert_eq!(cookies.age(&second, client, 900), Some(0), "a clock that is ahead");
        assert_eq!(cookies.reply(&second, client, 1010)[CLIENT..], server.unwrap());
        let renewed = cookies.reply(&second, client, 1000 + RENEW + 1);
        assert_ne!(renewed[CLIENT..], server.unwrap());
    }

    #[test]
    fn lengths_are_checked() {
        for (length, good) in [(0, false), (7, false), (8, true), (9, false), (15, false)] {
            assert_eq!(Cookie::read(&vec![1; length]).is_some(), good, "{length}");
        }
        for (length, good) in [(16, true), (24, true), (40, true), (41, false)] {
            assert_eq!(Cookie::read(&vec![1; length]).is_some(), good, "{length}");
        }
    }
}
