//! Whom to ask for other names: the servers of a `resolv.conf`, and never this server itself.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nearhop_runtime::interfaces::addresses;

use crate::DnsError;

/// Where other servers listen, unless it is said.
pub const PORT: u16 = 53;

/// The servers that a `resolv.conf` names, in its order. Everything else in it is for programs
/// that look up names themselves.
pub fn name_servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()).flatten().and_then(address)
    };
    text.lines().filter_map(server).map(|address| with_port(address, PORT)).collect()
}

/// Reads `10.0.0.10`, `10.0.0.10:5353`, `fd00::a` or `[fd00::a]:5353`.
pub fn parse_server(text: &str) -> Option<SocketAddr> {
    text.parse().ok().or_else(|| address(text).map(|address| with_port(address, PORT)))
}

/// An address, whose zone (`fe80::1%eth0`) says nothing here unless it is a number.
fn address(text: &str) -> Option<(IpAddr, u32)> {
    let (address, zone) = text.split_once('%').unwrap_or((text, ""));
    Some((address.parse().ok()?, zone.parse().unwrap_or(0)))
}

fn with_port((address, zone): (IpAddr, u32), port: u16) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, zone).into(),
    }
}

/// Where the upstreams come from, which decides what a loop means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The operator named them: a loop is a mistake to be told.
    ByHand,
    /// They stand in a file that may name this very server: it is left out.
    InFile,
}

/// Leaves out, or refuses, what is this server itself.
///
/// # Errors
/// The operator named this server itself.
pub fn without_loops(
    upstreams: Vec<SocketAddr>,
    named: Named,
    listen: &[SocketAddr],
) -> Result<Vec<SocketAddr>, DnsError> {
    let own = addresses();
    let is_own = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified() || own.contains(&ip);
    let same = |upstream: &SocketAddr, listen: &SocketAddr| {
        let (to, at) = (upstream.ip().to_canonical(), listen.ip());
        upstream.port() == listen.port() && (to == at || (at.is_unspecified() && is_own(to)))
    };
    let mut kept = Vec::new();
    for upstream in upstreams {
        match listen.iter().find(|listen| same(&upstream, listen)) {
            None => kept.push(upstream),
            Some(listen) if named == Named::ByHand => {
                return Err(DnsError::Loop { upstream, listen: *listen });
            }
            Some(_) => {
                tracing::warn!(%upstream, "resolv.conf names this server itself; it is not asked");
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_nothing_else() {
        let text = "# nameserver 1.1.1.1\nsearch a b\nnameserver 10.0.0.10\n nameserver fe80::1%eth0\n\
                    nameserver\nnameserver x\noptions ndots:5\n";
        let servers = name_servers(text);
        assert_eq!(servers, ["10.0.0.10:53".parse().unwrap(), "[fe80::1]:53".parse().unwrap()]);
    }

    #[test]
    fn a_server_may_have_a_port() {
        for (text, expected) in [
            ("10.0.0.10", Some("10.0.0.10:53")),
            ("10.0.0.10:5353", Some("10.0.0.10:5353")),
            ("fd00::a", Some("[fd00::a]:53")),
            ("[fd00::a]:5353", Some("[fd00::a]:5353")),
            ("dns.example", None),
        ] {
            assert_eq!(parse_server(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn nobody_asks_itself() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let listen = [at("0.0.0.0:5353")];
        let upstreams = vec![at("127.0.0.1:5353"), at("127.0.0.1:53"), at("203.0.113.1:5353")];
        let kept = without_loops(upstreams.clone(), Named::InFile, &listen).unwrap();
        assert_eq!(kept, upstreams[1..]);
        let error = without_loops(upstreams, Named::ByHand, &listen).unwrap_err();
        assert!(error.to_string().contains("--upstream 127.0.0.1:5353 is this server"), "{error}");
        let listen = [at("10.0.0.10:53")];
        let fine = vec![at("127.0.0.53:53")];
        assert_eq!(without_loops(fine.clone(), Named::ByHand, &listen).unwrap(), fine);
    }
}
