//! Sysctls of a network namespace. `/proc/sys/net` shows each thread those of its own namespace.
//!
//! A new namespace inherits some of them from the machine. Those that affect packets are set when a
//! namespace is made, so that tests behave the same on every machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Namespace, NetError};

/// No forwarding, no source address filter, addresses usable at once, no ICMP rate limit.
///
/// IPv4 uses an empty mask instead of a limit of 0: the limit shares its token bucket with that for
/// missing routes, and 0 would empty the bucket.
const DEFAULTS: [(&str, &str); 10] = [
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/conf/all/forwarding", "0"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
];

/// Writes a sysctl: `set_sysctl(&node, "net/ipv4/ip_forward", "1")`.
/// Fails if there is no such sysctl, or the value is invalid.
pub fn set_sysctl(namespace: &Namespace, path: &str, value: &str) -> Result<(), NetError> {
    let what = format!("write `{value}` to sysctl {path}");
    namespace.attempt(&what, || fs::write(file(path), value))
}

/// Reads a sysctl.
/// Fails if there is no such sysctl.
pub fn sysctl(namespace: &Namespace, path: &str) -> Result<String, NetError> {
    let what = format!("read sysctl {path}");
    namespace.attempt(&what, || Ok(fs::read_to_string(file(path))?.trim().to_owned()))
}

/// Enables forwarding for IPv4, and for IPv6 if the kernel has it.
/// Fails if a sysctl cannot be written.
pub fn forwarding(namespace: &Namespace) -> Result<(), NetError> {
    namespace.attempt("switch forwarding on", || {
        fs::write(file("net/ipv4/ip_forward"), "1")?;
        write_if_there("net/ipv6/conf/all/forwarding", "1")
    })
}

/// Sets the defaults in the calling thread's namespace, before it has devices other than `lo`.
pub(super) fn write_defaults() -> io::Result<()> {
    DEFAULTS.iter().try_for_each(|(path, value)| {
        write_if_there(path, value)
            .map_err(|cause| io::Error::new(cause.kind(), format!("sysctl {path}: {cause}")))
    })
}

/// Ignores missing sysctls: a kernel without IPv6 has none of IPv6.
fn write_if_there(path: &str, value: &str) -> io::Result<()> {
    match fs::write(file(path), value) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn file(path: &str) -> PathBuf {
    Path::new("/proc/sys").join(path)
}
