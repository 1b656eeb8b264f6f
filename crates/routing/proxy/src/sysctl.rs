//! The limits and timeouts of conntrack that kube-proxy sets at its start.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory of the conntrack sysctls.
const ROOT: &str = "/proc/sys/net/netfilter";
/// Number of buckets of the conntrack table. Writable only in the initial network namespace.
const HASHSIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";
/// The sysctl for the maximum number of flows.
const MAX: &str = "nf_conntrack_max";
/// kube-proxy's maximum for a limit computed from the number of cores.
const MOST: u64 = 1_048_576;

/// The values to set; zero keeps the kernel's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConntrackLimits {
    /// Maximum number of flows per core.
    pub max_per_core: u32,
    /// Minimum of the total limit.
    pub min: u32,
    /// Idle timeout of established TCP flows.
    pub tcp_established: Duration,
    /// Idle timeout of TCP flows in CLOSE_WAIT.
    pub tcp_close_wait: Duration,
    /// Whether conntrack accepts TCP packets outside the window.
    pub tcp_be_liberal: bool,
    /// Idle timeout of UDP flows without an answer.
    pub udp: Duration,
    /// Idle timeout of UDP flows with answers.
    pub udp_stream: Duration,
}

/// Sets the values that differ. Returns errors for values that could not be set: in a container or
/// a user namespace this is usual, and the proxy runs anyway.
pub fn apply(limits: &ConntrackLimits) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let places = Places { root: Path::new(ROOT), hashsize: Path::new(HASHSIZE) };
    apply_at(places, &settings(limits, cores as u64))
}

/// The paths to write to; tests use other paths.
#[derive(Clone, Copy)]
struct Places<'a> {
    root: &'a Path,
    hashsize: &'a Path,
}

fn apply_at(places: Places<'_>, settings: &[(&'static str, u64)]) -> Vec<String> {
    let mut failures = Vec::new();
    for (name, value) in settings {
        // Do not lower a limit that the operator has raised.
        let upward = *name == MAX;
        failures.extend(set(&places.root.join(name), *value, upward));
        if upward {
            raise_buckets(places, *value);
        }
    }
    failures
}

/// Raises the number of buckets to a quarter of the limit, as kube-proxy does. Where this process
/// cannot set the limit (in the network namespace of a container or a lab), it cannot set the
/// buckets either, and the error about the limit is enough.
fn raise_buckets(places: Places<'_>, max: u64) {
    if read(&places.root.join(MAX)).is_some_and(|now| now >= max)
        && let Some(failure) = set(places.hashsize, max / 4, true)
    {
        tracing::debug!(%failure, "conntrack setting not applied");
    }
}

fn settings(limits: &ConntrackLimits, cores: u64) -> Vec<(&'static str, u64)> {
    let mut settings = Vec::new();
    if limits.max_per_core > 0 {
        let scaled = u64::from(limits.max_per_core) * cores;
        let max = if scaled > MOST { MOST } else { scaled.max(u64::from(limits.min)) };
        settings.push((MAX, max));
    }
    let timeouts = [
        ("nf_conntrack_tcp_timeout_established", limits.tcp_established),
        ("nf_conntrack_tcp_timeout_close_wait", limits.tcp_close_wait),
        ("nf_conntrack_udp_timeout", limits.udp),
        ("nf_conntrack_udp_timeout_stream", limits.udp_stream),
    ];
    settings.extend(timeouts.map(|(name, timeout)| (name, timeout.as_secs())));
    settings.push(("nf_conntrack_tcp_be_liberal", u64::from(limits.tcp_be_liberal)));
    settings.retain(|(_, value)| *value > 0);
    settings
}

fn read(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Sets one value, or only raises it; returns the error message, if any.
fn set(path: &Path, value: u64, upward: bool) -> Option<String> {
    let now = read(path);
    let enough = upward && now.is_some_and(|now| now > value);
    if enough || now == Some(value) {
        return None;
    }
    let error = fs::write(path, value.to_string()).err()?;
    let name = PathBuf::from(path.file_name()?);
    let name = name.display();
    Some(format!(
        "cannot set {name} to {value} (it is {}): {error}; set it on the host, or leave it with 0",
        now.map_or_else(|| "unknown".to_owned(), |now| now.to_string())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_per_core: u32) -> ConntrackLimits {
        ConntrackLimits {
            max_per_core,
            min: 131_072,
            tcp_established: Duration::from_secs(86_400),
            tcp_close_wait: Duration::ZERO,
            tcp_be_liberal: false,
            udp: Duration::ZERO,
            udp_stream: Duration::from_secs(5),
        }
    }

    #[test]
    fn the_limit_depends_on_the_cores_within_bounds() {
        let max = |per_core, cores| settings(&limits(per_core), cores)[0];
        assert_eq!(max(32_768, 2), ("nf_conntrack_max", 131_072));
        assert_eq!(max(32_768, 8), ("nf_conntrack_max", 262_144));
        assert_eq!(max(32_768, 64), ("nf_conntrack_max", 1_048_576));
    }

    #[test]
    fn buckets_increase_with_the_limit_and_never_decrease() {
        let dir = tempfile::tempdir().unwrap();
        let hashsize = dir.path().join("hashsize");
        let places = Places { root: dir.path(), hashsize: &hashsize };
        let write = |name: &str, value: u64| fs::write(dir.path().join(name), value.to_string());
        write(MAX, 65_536).unwrap();
        write("hashsize", 16_384).unwrap();
        assert!(apply_at(places, &[(MAX, 262_144)]).is_empty());
        assert_eq!(read(&dir.path().join(MAX)), Some(262_144));
        assert_eq!(read(&hashsize), Some(65_536));
        // The number of buckets is never lowered.
        write("hashsize", 131_072).unwrap();
        assert!(apply_at(places, &[(MAX, 131_072)]).is_empty());
        assert_eq!((read(&dir.path().join(MAX)), read(&hashsize)), (Some(262_144), Some(131_072)));
        // Where the limit cannot be set, the buckets stay as they are.
        let elsewhere = dir.path().join("nowhere");
        write("hashsize", 16).unwrap();
        let places = Places { root: &elsewhere, hashsize: &hashsize };
        assert_eq!(apply_at(places, &[(MAX, 131_072)]).len(), 1);
        assert_eq!(read(&hashsize), Some(16));
    }

    #[test]
    fn zero_keeps_the_value_of_the_kernel() {
        let names: Vec<&str> = settings(&limits(0), 8).into_iter().map(|(name, _)| name).collect();
        let expected = ["nf_conntrack_tcp_timeout_established", "nf_conntrack_udp_timeout_stream"];
        assert_eq!(names, expected);
    }
}
