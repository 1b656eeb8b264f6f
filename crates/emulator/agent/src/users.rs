//! Who a pod's root is on the host: a user that nobody else is, where the agent may choose one.

use std::ops::Range;

use crate::container::Identity;

/// Numbers that neither people, services nor other containers are given (systemd's table of users
/// calls them unused).
const NUMBERS: Range<u32> = 0x7000_0000..0x7FFD_0000;

/// Where pods' users come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodUsers {
    /// A new number for each pod.
    Many,
    /// An ordinary user has only himself to give.
    Own(Identity),
}

impl PodUsers {
    /// What this process may give.
    pub(crate) fn here() -> Self {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        if covers(&read("/proc/self/uid_map")) && covers(&read("/proc/self/gid_map")) {
            Self::Many
        } else {
            Self::Own(Identity::current())
        }
    }

    /// A pod's.
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

/// Whether a user namespace with this map has all of the numbers.
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
    fn only_who_has_the_numbers_gives_them() {
        assert!(covers("         0          0 4294967295\n"));
        assert!(!covers("         0      65534          1\n"), "an ordinary user's own namespace");
        assert!(!covers("0 1000 1\n1 100000 65536\n"), "one with a range of subordinate users");
        assert!(!covers(""));
        let (one, other) = (PodUsers::Many.take(), PodUsers::Many.take());
        assert!(NUMBERS.contains(&one.uid) && one.uid == one.gid, "{one:?}");
        assert_ne!(one, other, "a pod's files are not another's");
    }
}
