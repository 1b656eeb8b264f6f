//! The upstream servers: those of a `resolv.conf`, never this server itself.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nearhop_runtime::interfaces::addresses;

use crate::DnsError;

/// The default port of upstream servers.
const PORT: u16 = 53;

/// The `nameserver` lines of a `resolv.conf`, in order. Other lines are ignored.
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

/// An address and its zone (`fe80::1%2`); only numeric zones are supported.
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

/// Where the upstream servers are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamSource {
    /// `--upstream`: naming this server is an error.
    Flag,
    /// `--resolv-conf`: this server is skipped.
    ResolvConf,
}

/// Removes this server from the upstream servers. Fails if a flag names it.
pub fn without_loops(
    upstreams: Vec<SocketAddr>,
    source: UpstreamSource,
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
            Some(listen) if source == UpstreamSource::Flag => {
                return Err(DnsError::Loop { upstream, listen: *listen });
            }
            Some(_) => {
                tracing::warn!(%upstream, "nameserver in resolv.conf skipped: it is this server");
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nameserver_lines_are_read() {
        let text = "# nameserver 1.1.1.1\nsearch a b\nnameserver 10.0.0.10\n nameserver fe80::1%eth0\n\
                    nameserver\nnameserver x\noptions ndots:5\n";
        let servers = name_servers(text);
        assert_eq!(servers, ["10.0.0.10:53".parse().unwrap(), "[fe80::1]:53".parse().unwrap()]);
    }

    #[test]
    fn server_port_is_optional() {
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
    fn this_server_is_never_its_own_upstream() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let listen = [at("0.0.0.0:5353")];
        let upstreams = vec![at("127.0.0.1:5353"), at("127.0.0.1:53"), at("203.0.113.1:5353")];
        let kept = without_loops(upstreams.clone(), UpstreamSource::ResolvConf, &listen).unwrap();
        assert_eq!(kept, upstreams[1..]);
        let error = without_loops(upstreams, UpstreamSource::Flag, &listen).unwrap_err();
        assert!(error.to_string().contains("--upstream 127.0.0.1:5353 is this server"), "{error}");
        let listen = [at("10.0.0.10:53")];
        let fine = vec![at("127.0.0.53:53")];
        assert_eq!(without_loops(fine.clone(), UpstreamSource::Flag, &listen).unwrap(), fine);
    }
}
