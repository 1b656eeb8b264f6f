//! The host user of a Pod's root: a unique one, if the agent may choose.

use std::ops::Range;

use crate::container::Identity;

/// User ids that systemd's documentation lists as unused.
const NUMBERS: Range<u32> = 0x7000_0000..0x7FFD_0000;

/// How the host user of a Pod is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodUsers {
    /// A new user id per Pod.
    Many,
    /// The agent's own user: an ordinary user cannot map others.
    Own(Identity),
}

impl PodUsers {
    /// What this process may map.
    pub(crate) fn here() -> Self {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        if covers(&read("/proc/self/uid_map")) && covers(&read("/proc/self/gid_map")) {
            Self::Many
        } else {
            Self::Own(Identity::current())
        }
    }

    /// The user of a new Pod.
    pub(crate) fn take(self) -> Identity {
        match self {
            Self::Many => {
                let number = rand::random_range(NUMBERS);
                Identity { uid: number, gid: number }
            }
            Self::Own(identity) => identity,
        }
    }
}

/// Whether the map of a user namespace covers all of the ids.
fn covers(map: &str) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u64>().ok());
        let (Some(Some(first)), _, Some(Some(count))) =
            (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        first <= u64::from(NUMBERS.start) && u64::from(NUMBERS.end) <= first + count
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_users_need_a_full_id_map() {
        assert!(covers("         0          0 4294967295\n"));
        assert!(!covers("         0      65534          1\n"), "an ordinary user's own namespace");
        assert!(!covers("0 1000 1\n1 100000 65536\n"), "subordinate user ids");
        assert!(!covers(""));
        let (one, other) = (PodUsers::Many.take(), PodUsers::Many.take());
        assert!(NUMBERS.contains(&one.uid) && one.uid == one.gid, "{one:?}");
        assert_ne!(one, other, "each Pod has its own user");
    }
}
