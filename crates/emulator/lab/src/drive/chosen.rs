//! The endpoints of failed connections, from the kernel's conntrack table.
//!
//! A client sees only the address of the Service. The node's kernel knows which endpoint its rules
//! chose, in `/proc/net/nf_conntrack` of the network namespace. In a Pod's namespace, and on a kernel
//! without that file, the endpoint stays unknown.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

const TABLE: &str = "/proc/net/nf_conntrack";

/// A connection as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    /// Source port.
    pub(super) port: u16,
    /// The address that the client used.
    pub(super) to: SocketAddr,
}

/// The endpoints that the kernel has chosen. Reads all of the table, which takes a while.
pub(super) fn read() -> BTreeMap<Flow, SocketAddr> {
    fs::read_to_string(TABLE).map(|table| parse(&table)).unwrap_or_default()
}

fn parse(table: &str) -> BTreeMap<Flow, SocketAddr> {
    table.lines().filter_map(parse_line).collect()
}

/// Reads a line such as `ipv4 2 tcp 6 119 SYN_SENT src=C dst=S sport=1 dport=80 [UNREPLIED] src=E
/// dst=C sport=8080 dport=1 mark=0`: the source of replies is the endpoint.
fn parse_line(line: &str) -> Option<(Flow, SocketAddr)> {
    let values = |key: &'static str| {
        line.split_ascii_whitespace()
            .filter_map(move |word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let (to, endpoint) = (values("dst").next()?, values("src").nth(1)?);
    let (mut sources, mut targets) = (values("sport"), values("dport"));
    let address = |ip: &str, port: &str| {
        Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port.parse().ok()?))
    };
    let to = address(to, targets.next()?)?;
    let port = sources.next()?.parse().ok()?;
    let endpoint = address(endpoint, sources.next()?)?;
    // Without a translation the kernel has not chosen.
    (endpoint != to).then_some((Flow { port, to }, endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_replies_is_the_chosen_endpoint() {
        let table = "\
ipv4     2 tcp      6 119 SYN_SENT src=172.31.0.10 dst=10.96.1.5 sport=55304 dport=80 [UNREPLIED] src=10.244.2.1 dst=172.31.0.10 sport=8080 dport=42180 mark=0 zone=0 use=2
ipv6     10 udp      17 29 src=fd00::1 dst=fd00:96::7 sport=40000 dport=81 src=fd00:244::3 dst=fd00::1 sport=8081 dport=40000 mark=0 zone=0 use=2
ipv4     2 tcp      6 3 CLOSE src=10.0.0.1 dst=10.0.0.2 sport=1 dport=80 src=10.0.0.2 dst=10.0.0.1 sport=80 dport=1 mark=0 use=2
ipv4     2 icmp     1 29 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=3 src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=3
";
        let flow = |port, to: &str| Flow { port, to: to.parse().unwrap() };
        let expected = BTreeMap::from([
            (flow(55_304, "10.96.1.5:80"), "10.244.2.1:8080".parse().unwrap()),
            (flow(40_000, "[fd00:96::7]:81"), "[fd00:244::3]:8081".parse().unwrap()),
        ]);
        assert_eq!(parse(table), expected);
    }
}
