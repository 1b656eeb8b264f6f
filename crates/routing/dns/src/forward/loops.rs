//! Finds upstream servers that lead back here: what is asked there would go round until it times out.
//!
//! A Service address that has this server among its endpoints is found in the world; anything else
//! (another forwarder, an address that is translated on the way) by a probe, a name that nobody
//! else can know. Such a server is not asked until it no longer leads here: resolv.conf is read once,
//! but Services and routes change.

use std::sync::atomic::{AtomicBool, Ordering};

use nearhop_core::answer::AskedName;

/// The zone of probes. It does not exist, so that any other server says so.
const ZONE: &[u8] = b"nearhop-loop";

/// The probes of this process, one for each upstream server.
#[derive(Debug)]
pub struct Loops {
    secret: String,
    came_back: Box<[AtomicBool]>,
}

impl Loops {
    /// For so many servers; `secret` is this process's own.
    pub fn new(servers: usize, secret: u64) -> Self {
        let came_back = (0..servers).map(|_| AtomicBool::new(false)).collect();
        Self { secret: format!("{secret:016x}"), came_back }
    }

    /// What a server is asked for.
    pub(super) fn probe(&self, server: usize) -> [Vec<u8>; 2] {
        [format!("{}-{server}", self.secret).into_bytes(), ZONE.to_vec()]
    }

    /// Whether a name is one of our own probes, that came back; remembers it if so.
    pub fn note(&self, name: &AskedName) -> bool {
        if name.len() != 2 || !name.label(1).eq_ignore_ascii_case(ZONE) {
            return false;
        }
        let own = (0..self.came_back.len())
            .find(|server| name.label(0).eq_ignore_ascii_case(&self.probe(*server)[0]));
        if let Some(server) = own {
            self.came_back[server].store(true, Ordering::Relaxed);
        }
        own.is_some()
    }

    pub(super) fn has_come_back(&self, server: usize) -> bool {
        self.came_back[server].load(Ordering::Relaxed)
    }

    pub(super) fn forget(&self, server: usize) {
        self.came_back[server].store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_probes_are_known() {
        let loops = Loops::new(2, 0xabc);
        let name = |text: &str| AskedName::parse(text).unwrap();
        assert!(!loops.note(&name("0000000000000abd-1.nearhop-loop")), "another process's");
        assert!(!loops.note(&name("0000000000000abc-2.nearhop-loop")), "there is no such server");
        assert!(!loops.note(&name("0000000000000abc-1.example")));
        assert!(loops.note(&name("0000000000000ABC-1.Nearhop-Loop")), "names have no case");
        assert_eq!((loops.has_come_back(0), loops.has_come_back(1)), (false, true));
    }
}
