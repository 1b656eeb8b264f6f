//! Server cookies (RFC 7873) in the interoperable format of RFC 9018.
//!
//! A cookie proves that the client receives packets at its address. The server never requires one.

use std::hash::Hasher as _;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;

/// A client cookie followed by its server cookie.
pub(super) type CookieBytes = [u8; CLIENT + SERVER];

const CLIENT: usize = 8;
const SERVER: usize = 16;
/// Octets of the server cookie that the hash covers: version, reserved, time.
const COVERED: usize = 8;
const VERSION: u8 = 1;
/// Seconds after which a cookie is replaced.
const RENEW: u32 = 1800;
/// Seconds after which a cookie is invalid.
const OLDEST: u32 = 3600;
/// Seconds that the clock of another server may be ahead.
const AHEAD: u32 = 300;

/// The COOKIE option of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie {
    client: [u8; CLIENT],
    /// None without a server cookie of the length that this server uses.
    server: Option<[u8; SERVER]>,
}

impl Cookie {
    /// None if the length is invalid.
    pub(super) fn read(content: &[u8]) -> Option<Self> {
        let (client, server) = content.split_at_checked(CLIENT)?;
        if !(server.is_empty() || (8..=32).contains(&server.len())) {
            return None;
        }
        let client = client.try_into().expect("it was split there");
        Some(Self { client, server: server.try_into().ok() })
    }
}

/// Makes and checks server cookies.
#[derive(Clone, Debug)]
pub(crate) struct Cookies {
    secret: [u8; 16],
}

impl Cookies {
    pub(crate) fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// The cookie of the reply. A server cookie that is valid and recent is repeated. `now` is in
    /// seconds since 1970.
    pub(crate) fn reply(&self, cookie: &Cookie, client: IpAddr, now: u32) -> CookieBytes {
        let mut bytes = [0; CLIENT + SERVER];
        bytes[..CLIENT].copy_from_slice(&cookie.client);
        let recent = self.age(cookie, client, now).is_some_and(|age| age <= RENEW);
        let repeated = cookie.server.filter(|_| recent);
        let server = repeated.unwrap_or_else(|| self.make(cookie.client, client, now));
        bytes[CLIENT..].copy_from_slice(&server);
        bytes
    }

    /// The age in seconds; None if this server's secret did not make it, or it is too old.
    fn age(&self, cookie: &Cookie, client: IpAddr, now: u32) -> Option<u32> {
        let server = cookie.server?;
        let made = u32::from_be_bytes(server[4..8].try_into().expect("four octets"));
        // Serial number arithmetic (RFC 1982): the time wraps in 2106.
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
        server[COVERED..].copy_from_slice(&hasher.finish().to_le_bytes());
        server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9018, appendix A.1: learning a new server cookie.
    #[test]
    fn cookie_matches_the_example_of_rfc_9018() {
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
    fn cookie_is_bound_to_address_and_time() {
        let cookies = Cookies::new([7; 16]);
        let client: IpAddr = "2001:db8::1".parse().unwrap();
        let first = Cookie { client: [1; CLIENT], server: None };
        let server = cookies.reply(&first, client, 1000)[CLIENT..].try_into().ok();
        let second = Cookie { server, ..first };
        assert_eq!(cookies.age(&second, client, 1010), Some(10));
        assert_eq!(cookies.age(&second, "2001:db8::2".parse().unwrap(), 1010), None);
        assert_eq!(cookies.age(&second, client, 1000 + OLDEST + 1), None);
        assert_eq!(cookies.age(&second, client, 900), Some(0), "the other clock is ahead");
        assert_eq!(cookies.reply(&second, client, 1010)[CLIENT..], server.unwrap());
        let renewed = cookies.reply(&second, client, 1000 + RENEW + 1);
        assert_ne!(renewed[CLIENT..], server.unwrap());
    }

    #[test]
    fn invalid_cookie_lengths_are_rejected() {
        for (length, good) in [(0, false), (7, false), (8, true), (9, false), (15, false)] {
            assert_eq!(Cookie::read(&vec![1; length]).is_some(), good, "{length}");
        }
        for (length, good) in [(16, true), (24, true), (40, true), (41, false)] {
            assert_eq!(Cookie::read(&vec![1; length]).is_some(), good, "{length}");
        }
    }
}
