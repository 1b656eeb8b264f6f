//! The limits and timeouts of conntrack that kube-proxy sets at its start.
//!
//! The proxy sets them after the initial lists, so that a proxy without an API changes nothing; it logs
//! each change before it makes it, and remembers the value before, which `--cleanup` restores. It changes
//! no other settings of a node.

mod record;
mod restore;
mod setting;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::record::RecordError;
use self::record::{Changed, Changes, Record};
pub use self::restore::{Restored, restore};
use self::setting::{Places, Setting, name_of};

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
    places: Places,
    settings: Vec<(Setting, u64)>,
    state: PathBuf,
    table: String,
}

impl Sysctls {
    /// For the proxy of this table, which remembers values in the directory `state`.
    pub fn new(limits: &ConntrackLimits, state: &Path, table: &str) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            places: Places::kernel(),
            settings: settings(limits, cores as u64),
            state: state.to_owned(),
            table: table.to_owned(),
        }
    }

    /// Sets the values that differ, and logs each before it does. In a container or a user namespace
    /// some cannot be set, and the proxy runs anyway. May wait for the lock of the record.
    pub(crate) fn apply(&self) {
        if self.settings.is_empty() {
            return;
        }
        let record = Record::open(&self.state);
        let mut memory = Memory::of(record, &self.table);
        for (setting, value) in &self.settings {
            // Do not lower a limit that the operator has raised.
            let upward = *setting == Setting::Max;
            let direction = if upward { Direction::Up } else { Direction::Any };
            if let Err(error) = self.set(*setting, *value, direction, &mut memory) {
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
        if read(&self.places.path(Setting::Max)).is_some_and(|now| now >= max)
            && let Err(failure) = self.set(Setting::Buckets, max / 4, Direction::Up, memory)
        {
            tracing::debug!(%failure, "conntrack setting not applied");
        }
    }

    /// Sets one value, or only raises it; the error says what to do.
    fn set(
        &self,
        setting: Setting,
        value: u64,
        direction: Direction,
        memory: &mut Memory,
    ) -> Result<(), String> {
        let path = self.places.path(setting);
        let now = read(&path);
        let is_enough = |now| now == value || direction == Direction::Up && now > value;
        if let Some(now) = now.filter(|now| is_enough(*now)) {
            memory.confirm(setting, now);
            return Ok(());
        }
        let before = memory.changes.get(&setting).cloned();
        let name = name_of(&path);
        if let Some(now) = now {
            tracing::info!(name, from = now, to = value, "changing sysctl");
            memory.remember(setting, now, value);
        }
        fs::write(&path, value.to_string()).map_err(|error| {
            memory.forget(setting, before);
            format!(
                "cannot set {name} to {value} (it is {}): {error}; set it on the host, or leave it \
                 with 0",
                now.map_or_else(|| "unknown".to_owned(), |now| now.to_string())
            )
        })
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
    fn remember(&mut self, setting: Setting, from: u64, to: u64) {
        let before = self.changes.get(&setting).filter(|changed| changed.to == from);
        let mut changed = before.cloned().unwrap_or(Changed { from, to, tables: BTreeSet::new() });
        changed.to = to;
        changed.tables.insert(self.table.clone());
        self.changes.insert(setting, changed);
        self.write();
    }

    /// Notes that the present value is enough for this table: if another proxy has set it, only the
    /// last `--cleanup` may restore it. A limit may be higher than this table asks for.
    fn confirm(&mut self, setting: Setting, now: u64) {
        let Some(changed) = self.changes.get_mut(&setting) else { return };
        if changed.to == now && changed.tables.insert(self.table.clone()) {
            self.write();
        }
    }

    /// Undoes [`remember`](Self::remember) for a value that the kernel refused.
    fn forget(&mut self, setting: Setting, before: Option<Changed>) {
        match before {
            Some(changed) => self.changes.insert(setting, changed),
            None => self.changes.remove(&setting),
        };
        self.write();
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

fn settings(limits: &ConntrackLimits, cores: u64) -> Vec<(Setting, u64)> {
    let mut settings = Vec::new();
    if limits.max_per_core > 0 {
        let scaled = u64::from(limits.max_per_core) * cores;
        let max = if scaled > MOST { MOST } else { scaled.max(u64::from(limits.min)) };
        settings.push((Setting::Max, max));
    }
    let timeouts = [
        (Setting::TcpEstablished, limits.tcp_established),
        (Setting::TcpCloseWait, limits.tcp_close_wait),
        (Setting::Udp, limits.udp),
        (Setting::UdpStream, limits.udp_stream),
    ];
    settings.extend(timeouts.map(|(setting, timeout)| (setting, timeout.as_secs())));
    settings.push((Setting::TcpBeLiberal, u64::from(limits.tcp_be_liberal)));
    settings.retain(|(_, value)| *value > 0);
    settings
}

fn read(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
