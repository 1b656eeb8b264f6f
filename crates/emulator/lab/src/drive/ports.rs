//! Source ports of one worker, each used once before the first one is used again.
//!
//! The kernel's own choice comes back to a port after a few thousand connections. Conntrack still
//! knows the earlier connection then: a UDP packet goes to its endpoint, whatever the rules say now,
//! and a SYN may wait for a retransmission. The client would measure its own ports.

use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU16, Ordering};

/// Above the range of node ports, which the proxies forward.
const RANGE: RangeInclusive<u16> = 32_768..=65_535;

const COUNT: u16 = *RANGE.end() - *RANGE.start() + 1;

#[derive(Debug)]
pub(super) struct Ports {
    next: AtomicU16,
}

impl Ports {
    /// The first port is random, so that two workers in turn use different ones.
    pub(super) fn new() -> Self {
        Self { next: AtomicU16::new(rand::random()) }
    }

    /// Binds the next port that is free. Returns it.
    pub(super) fn bind(&self, bind: impl Fn(u16) -> io::Result<()>) -> io::Result<u16> {
        for _ in 0..COUNT {
            let port = RANGE.start() + self.next.fetch_add(1, Ordering::Relaxed) % COUNT;
            match bind(port) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                done => return done.map(|()| port),
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_port_is_used_again_before_all_others() {
        let ports = Ports::new();
        let used: Vec<u16> = (0..COUNT).map(|_| ports.bind(|_| Ok(())).unwrap()).collect();
        assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), usize::from(COUNT));
        assert_eq!(ports.bind(|_| Ok(())).unwrap(), used[0]);
        assert!(used.iter().all(|port| RANGE.contains(port)));
    }

    #[test]
    fn ports_in_use_are_skipped() {
        let ports = Ports { next: AtomicU16::new(0) };
        let taken = |port: u16| match port {
            32_768..=32_770 => Err(ErrorKind::AddrInUse.into()),
            _ => Ok(()),
        };
        assert_eq!(ports.bind(taken).unwrap(), 32_771);
        let none = ports.bind(|_| Err(ErrorKind::AddrInUse.into())).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::AddrInUse);
        let other = ports.bind(|_| Err(ErrorKind::PermissionDenied.into())).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::PermissionDenied);
    }
}
