//! The limits and timeouts of conntrack that kube-proxy sets at its start.
//!
//! The proxy sets them after the initial lists, so that a proxy without an API changes nothing; it logs
//! each change before it makes it, and remembers the value before, which `--cleanup` restores. It changes
//! no other settings of a node.

mod record;
mod restore;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::record::RecordError;
use self::record::{Changed, Changes, Record};
pub use self::restore::{Restored, restore};

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

/// The values that the proxy sets, and where it remembers the values before.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
    hashsize: PathBuf,
    settings: Vec<(&'static str, u64)>,
    state: PathBuf,
    table: String,
}

impl Sysctls {
    /// For the proxy of this table, which remembers values in the directory `state`.
    pub fn new(limits: &ConntrackLimits, state: &Path, table: &str) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            root: ROOT.into(),
            hashsize: HASHSIZE.into(),
            settings: settings(limits, cores as u64),
            state: state.to_owned(),
            table: table.to_owned(),
        }
    }

    /// Sets the values that differ, and logs each before it does. In a container or a user namespace
    /// some cannot be set, and the proxy runs anyway.
    pub(crate) fn apply(&self) {
        if self.settings.is_empty() {
            return;
        }
        let record = Record::open(&self.state);
        let mut memory = Memory::of(record, &self.table);
        for (name, value) in &self.settings {
            // Do not lower a limit that the operator has raised.
            let upward = *name == MAX;
            let direction = if upward { Direction::Up } else { Direction::Any };
            if let Err(error) = set(&self.root.join(name), *value, direction, &mut memory) {
                tracing::warn!(error, "conntrack setting not applied");
            }
            if upward {
                self.raise_buckets(*value, &mut memory);
            }
        }
    }

    /// Raises the number of buckets to a quarter of the limit, as kube-proxy does. Where this process
    /// cannot set the limit (in the network namespace of a container or a lab), it cannot set the
    /// buckets either, and the error about the limit is enough.
    fn raise_buckets(&self, max: u64, memory: &mut Memory) {
        if read(&self.root.join(MAX)).is_some_and(|now| now >= max)
            && let Err(failure) = set(&self.hashsize, max / 4, Direction::Up, memory)
        {
            tracing::debug!(%failure, "conntrack setting not applied");
        }
    }
}

/// Which changes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Any,
    Up,
}

/// The changes so far, and their record, if it can be written.
struct Memory {
    record: Option<Record>,
    changes: Changes,
    table: String,
}

impl Memory {
    fn of(record: Result<Record, RecordError>, table: &str) -> Self {
        let read = record.and_then(|record| Ok((record.read()?, record)));
        let (changes, record) = match read {
            Ok((changes, record)) => (changes, Some(record)),
            Err(error) => {
                forgetful(&error);
                (Changes::new(), None)
            }
        };
        Self { record, changes, table: table.to_owned() }
    }

    /// Remembers a change before it happens, so that a crash in between loses nothing. The value from
    /// before the first change stays, unless another program has changed the value since.
    fn remember(&mut self, path: &Path, from: u64, to: u64) {
        let key = path.display().to_string();
        let before = self.changes.get(&key).filter(|changed| changed.to == from);
        let mut changed = before.cloned().unwrap_or(Changed { from, to, tables: BTreeSet::new() });
        changed.to = to;
        changed.tables.insert(self.table.clone());
        self.changes.insert(key, changed);
        self.write();
    }

    /// Notes that the value is as wanted without a change: it is still ours after a restart.
    fn confirm(&mut self, path: &Path, now: u64) {
        let Some(changed) = self.changes.get_mut(&path.display().to_string()) else { return };
        if changed.to == now && changed.tables.insert(self.table.clone()) {
            self.write();
        }
    }

    /// Undoes [`remember`](Self::remember) for a value that the kernel refused.
    fn forget(&mut self, path: &Path, before: Option<Changed>) {
        let key = path.display().to_string();
        match before {
            Some(changed) => self.changes.insert(key, changed),
            None => self.changes.remove(&key),
        };
        self.write();
    }

    fn get(&self, path: &Path) -> Option<Changed> {
        self.changes.get(&path.display().to_string()).cloned()
    }

    fn write(&mut self) {
        let written = self.record.as_ref().map_or(Ok(()), |record| record.write(&self.changes));
        if let Err(error) = written {
            forgetful(&error);
            self.record = None;
        }
    }
}

fn forgetful(error: &RecordError) {
    tracing::warn!(%error, "cannot remember sysctls: --cleanup will not restore them");
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

/// Sets one value, or only raises it; the error says what to do.
fn set(path: &Path, value: u64, direction: Direction, memory: &mut Memory) -> Result<(), String> {
    let now = read(path);
    let enough = direction == Direction::Up && now.is_some_and(|now| now > value);
    if enough || now == Some(value) {
        memory.confirm(path, value);
        return Ok(());
    }
    let before = memory.get(path);
    if let Some(now) = now {
        let name = name_of(path);
        tracing::info!(name, from = now, to = value, "changing sysctl");
        memory.remember(path, now, value);
    }
    fs::write(path, value.to_string()).map_err(|error| {
        memory.forget(path, before);
        format!(
            "cannot set {} to {value} (it is {}): {error}; set it on the host, or leave it with 0",
            name_of(path),
            now.map_or_else(|| "unknown".to_owned(), |now| now.to_string())
        )
    })
}

/// The name as sysctl(8) has it; a module's parameter has only its path.
fn name_of(path: &Path) -> String {
    match path.strip_prefix("/proc/sys") {
        Ok(name) => name.display().to_string().replace('/', "."),
        Err(_) => path.display().to_string(),
    }
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

    /// Sysctls in a directory, with these settings.
    fn sysctls(dir: &Path, settings: &[(&'static str, u64)], table: &str) -> Sysctls {
        Sysctls {
            root: dir.to_owned(),
            hashsize: dir.join("hashsize"),
            settings: settings.to_vec(),
            state: dir.join("state"),
            table: table.to_owned(),
        }
    }

    fn put(dir: &Path, name: &str, value: u64) {
        fs::write(dir.join(name), value.to_string()).unwrap();
    }

    fn restored(dir: &Path, table: &str) -> Vec<String> {
        let done = restore(&dir.join("state"), table).unwrap();
        let place = format!("{}/", dir.display());
        done.iter().map(|one| one.to_string().replace(&place, "")).collect()
    }

    #[test]
    fn buckets_increase_with_the_limit_and_never_decrease() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, MAX, 65_536);
        put(dir, "hashsize", 16_384);
        sysctls(dir, &[(MAX, 262_144)], "nearhop").apply();
        let values = || (read(&dir.join(MAX)), read(&dir.join("hashsize")));
        assert_eq!(values(), (Some(262_144), Some(65_536)));
        // The number of buckets is never lowered.
        put(dir, "hashsize", 131_072);
        sysctls(dir, &[(MAX, 131_072)], "nearhop").apply();
        assert_eq!(values(), (Some(262_144), Some(131_072)));
        // Where the limit cannot be set, the buckets stay as they are.
        put(dir, "hashsize", 16);
        let mut elsewhere = sysctls(dir, &[(MAX, 131_072)], "nearhop");
        elsewhere.root = dir.join("nowhere");
        elsewhere.apply();
        assert_eq!(read(&dir.join("hashsize")), Some(16));
    }

    #[test]
    fn cleanup_restores_the_values_from_before_the_first_of_several_starts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, "udp", 30);
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        sysctls(dir, &[("udp", 90)], "nearhop").apply();
        assert_eq!(restored(dir, "nearhop"), ["restored udp from 90 to 30"]);
        assert_eq!(read(&dir.join("udp")), Some(30));
        assert!(restored(dir, "nearhop").is_empty(), "it restores once");
    }

    #[test]
    fn cleanup_keeps_and_names_a_value_that_was_changed_since() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, "udp", 30);
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        put(dir, "udp", 77);
        let wanted = "kept udp at 77: it was changed after nearhop set it to 120 (before: 30)";
        assert_eq!(restored(dir, "nearhop"), [wanted]);
        assert_eq!(read(&dir.join("udp")), Some(77));
        // A start after that change restores that value.
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        put(dir, "udp", 55);
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        assert_eq!(restored(dir, "nearhop"), ["restored udp from 120 to 55"]);
    }

    #[test]
    fn the_last_of_several_tables_restores() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, "udp", 30);
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        sysctls(dir, &[("udp", 120)], "mine").apply();
        assert_eq!(restored(dir, "nearhop"), ["kept udp: the proxy of table mine has set it too"]);
        assert_eq!(restored(dir, "mine"), ["restored udp from 120 to 30"]);
    }

    #[test]
    fn a_damaged_record_is_reported_and_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, "udp", 30);
        sysctls(dir, &[("udp", 120)], "nearhop").apply();
        let mut files = fs::read_dir(dir.join("state")).unwrap();
        let record = files.next().unwrap().unwrap().path();
        fs::write(&record, "{").unwrap();
        sysctls(dir, &[("udp", 90)], "nearhop").apply();
        assert_eq!(read(&dir.join("udp")), Some(90));
        assert_eq!(fs::read_to_string(&record).unwrap(), "{");
        let error = restore(&dir.join("state"), "nearhop").unwrap_err().to_string();
        assert!(error.contains("is damaged") && error.contains("delete the file"), "{error}");
        assert_eq!(read(&dir.join("udp")), Some(90));
    }

    #[test]
    fn zero_keeps_the_value_of_the_kernel() {
        let names: Vec<&str> = settings(&limits(0), 8).into_iter().map(|(name, _)| name).collect();
        let expected = ["nf_conntrack_tcp_timeout_established", "nf_conntrack_udp_timeout_stream"];
        assert_eq!(names, expected);
    }
}
