//! Probes that detect upstream servers that forward to this server, where a query would loop until
//! it times out.
//!
//! An upstream that is a Service with this server as an endpoint is found in the state; others
//! (another forwarder, a translated address) by a probe for a name that only this process knows. Such
//! an upstream is not used until the loop ends: Services and routes change.

use std::sync::atomic::{AtomicBool, Ordering};

use nearhop_core::answer::AskedName;

/// The zone of probes. It does not exist, so other servers reply NXDOMAIN.
const ZONE: &[u8] = b"nearhop-loop";

/// The loop probes of this process, one per upstream server.
#[derive(Debug)]
pub(crate) struct LoopProbes {
    secret: String,
    returned: Box<[AtomicBool]>,
}

impl LoopProbes {
    pub(super) fn new(servers: usize, secret: u64) -> Self {
        let returned = (0..servers).map(|_| AtomicBool::new(false)).collect();
        Self { secret: format!("{secret:016x}"), returned }
    }

    /// The labels of the name that a server is probed for.
    pub(super) fn name(&self, server: usize) -> [Vec<u8>; 2] {
        [format!("{}-{server}", self.secret).into_bytes(), ZONE.to_vec()]
    }

    /// Whether a name is one of this process's probes. Marks the probe as returned.
    pub(crate) fn note(&self, name: &AskedName) -> bool {
        if name.len() != 2 || !name.label(1).eq_ignore_ascii_case(ZONE) {
            return false;
        }
        let own = (0..self.returned.len())
            .find(|server| name.label(0).eq_ignore_ascii_case(&self.name(*server)[0]));
        if let Some(server) = own {
            self.returned[server].store(true, Ordering::Relaxed);
        }
        own.is_some()
    }

    pub(super) fn has_returned(&self, server: usize) -> bool {
        self.returned[server].load(Ordering::Relaxed)
    }

    pub(super) fn reset(&self, server: usize) {
        self.returned[server].store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_of_this_process_are_recognized() {
        let loops = LoopProbes::new(2, 0xabc);
        let name = |text: &str| AskedName::parse(text).unwrap();
        assert!(
            !loops.note(&name("0000000000000abd-1.nearhop-loop")),
            "the probe is of another process"
        );
        assert!(
            !loops.note(&name("0000000000000abc-2.nearhop-loop")),
            "there is no upstream server 2"
        );
        assert!(!loops.note(&name("0000000000000abc-1.example")));
        assert!(loops.note(&name("0000000000000ABC-1.Nearhop-Loop")), "case does not matter");
        assert_eq!((loops.has_returned(0), loops.has_returned(1)), (false, true));
    }
}
