//! Settings of a network namespace, under `/proc/sys/net`, which shows each thread its own.
//!
//! A new namespace takes some of them from the machine it is on. Those that change what becomes of
//! a packet are written when a namespace is made, so that a test means the same everywhere.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Namespace, NetError};

/// Nothing is forwarded and no packet is dropped for its source; addresses are usable at once; each
/// refusal is answered, however many there are.
///
/// No mask rather than a limit of 0: the limit shares its account with the one for missing routes,
/// which is the machine's alone (five answers at once to each sender, then one a second), and 0
/// would empty it.
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

/// Writes one setting: `set_sysctl(&node, "net/ipv4/ip_forward", "1")`.
/// Fails if there is no such setting, or it does not take the value.
pub fn set_sysctl(namespace: &Namespace, path: &str, value: &str) -> Result<(), NetError> {
    let what = format!("write `{value}` to sysctl {path}");
    namespace.attempt(&what, || fs::write(file(path), value))
}

/// Reads one setting.
/// Fails if there is no such setting.
pub fn sysctl(namespace: &Namespace, path: &str) -> Result<String, NetError> {
    let what = format!("read sysctl {path}");
    namespace.attempt(&what, || Ok(fs::read_to_string(file(path))?.trim().to_owned()))
}

/// Makes a router of it, for IPv4 and, where the kernel has it, for IPv6.
/// Fails if a setting cannot be written.
pub fn forwarding(namespace: &Namespace) -> Result<(), NetError> {
    namespace.attempt("switch forwarding on", || {
        fs::write(file("net/ipv4/ip_forward"), "1")?;
        write_if_there("net/ipv6/conf/all/forwarding", "1")
    })
}

/// Lets packets in whatever their source, on the devices there are and those to come. New
/// namespaces are like this; it is for those that something has changed.
/// Fails if a setting cannot be written.
pub fn rp_filter_off(namespace: &Namespace) -> Result<(), NetError> {
    namespace.attempt("switch rp_filter off", || {
        for device in fs::read_dir(file("net/ipv4/conf"))? {
            fs::write(device?.path().join("rp_filter"), "0")?;
        }
        Ok(())
    })
}

/// In the calling thread's namespace, before it has any device but `lo`.
pub(super) fn write_defaults() -> io::Result<()> {
    DEFAULTS.iter().try_for_each(|(path, value)| {
        write_if_there(path, value)
            .map_err(|cause| io::Error::new(cause.kind(), format!("sysctl {path}: {cause}")))
    })
}

/// A kernel without IPv6 has none of its settings.
fn write_if_there(path: &str, value: &str) -> io::Result<()> {
    match fs::write(file(path), value) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn file(path: &str) -> PathBuf {
    Path::new("/proc/sys").join(path)
}
