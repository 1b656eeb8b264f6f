//! The values before nearhop changed them, in a file, so that `--cleanup` can restore them after
//! restarts and crashes of the proxy.
//!
//! The file is in `/run`, because the kernel forgets the values at a reboot too. Its name has the
//! inode of the network namespace: most of the values belong to that. Proxies with other tables share
//! it, and only the last `--cleanup` restores.
//!
//! Only this user can write to the directory, and only this user can hold its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::setting::Setting;

/// How long another proxy may hold the lock; it needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often the lock is tried.
const GLANCE: Duration = Duration::from_millis(20);

/// A value that nearhop changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changed {
    /// Before the first change.
    pub(super) from: u64,
    /// What nearhop set.
    pub(super) to: u64,
    /// The tables of the proxies that set it.
    pub(super) tables: BTreeSet<String>,
}

/// All changed values.
pub(super) type Changes = BTreeMap<Setting, Changed>;

/// The file with the changes.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    /// Other proxies wait until this closes.
    _lock: File,
}

/// The record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading or writing failed.
    #[error(
        "{}: {cause}. Cure: a directory that is writable and lasts until the next reboot, with \
         --state-dir", path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// Other users could change the record.
    #[error(
        "{} {why}. Cure: a directory that only the proxy's user can write to (chown, chmod 700), or \
         another --state-dir", path.display()
    )]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Who can.
        why: String,
    },
    /// Another process holds the lock.
    #[error(
        "another process has locked {} for more than {} s. Cure: find it with `fuser {}`, and end it",
        path.display(), PATIENCE.as_secs(), path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The content is not nearhop's.
    #[error(
        "{} is damaged ({cause}), so the values before nearhop's are not known. Cure: check the \
         sysctls of net.netfilter, then delete the file", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: serde_json::Error,
    },
}

impl Record {
    /// Opens the record of the current network namespace; creates the directory.
    pub(super) fn open(directory: &Path) -> Result<Self, RecordError> {
        let failed = |cause| RecordError::File { path: directory.to_owned(), cause };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        check_owner(directory)?;
        let lock = lock(&directory.join("lock"))?;
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_err(failed)?.ino();
        Ok(Self { path: directory.join(format!("sysctl-{namespace}.json")), _lock: lock })
    }

    pub(super) fn read(&self) -> Result<Changes, RecordError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Changes::new()),
            Err(cause) => return Err(self.failed(cause)),
        };
        let damaged = |cause| RecordError::Damaged { path: self.path.clone(), cause };
        serde_json::from_slice(&text).map_err(damaged)
    }

    /// Replaces the file at once, so that a crash never leaves half of it.
    pub(super) fn write(&self, changes: &Changes) -> Result<(), RecordError> {
        if changes.is_empty() {
            return remove(&self.path).map_err(|cause| self.failed(cause));
        }
        let text = serde_json::to_vec_pretty(changes).expect("plain data");
        let next = self.path.with_extension("json.new");
        let written = write_new(&next, &text).and_then(|()| fs::rename(&next, &self.path));
        written.map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: io::Error) -> RecordError {
        RecordError::File { path: self.path.clone(), cause }
    }
}

/// Refuses a directory to which other users can write.
fn check_owner(directory: &Path) -> Result<(), RecordError> {
    let path = directory.to_owned();
    let found = match fs::symlink_metadata(directory) {
        Ok(found) => found,
        Err(cause) => return Err(RecordError::File { path, cause }),
    };
    let uid = nix::unistd::geteuid().as_raw();
    let why = if !found.is_dir() {
        "is a symbolic link".to_owned()
    } else if found.uid() != uid {
        format!("belongs to the user with UID {}, not to UID {uid}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("has mode {:o}, so other users can write to it", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(RecordError::Shared { path, why })
}

/// Locks a file that other users cannot open. A lock on the directory could be taken by all users
/// that may read it.
fn lock(path: &Path) -> Result<File, RecordError> {
    let failed = |cause| RecordError::File { path: path.to_owned(), cause };
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(failed)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(RecordError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(GLANCE),
        }
    }
}

/// Writes a file that did not exist. A proxy that was killed may have left one.
fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    remove(path)?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
