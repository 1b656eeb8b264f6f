//! The values before nearhop changed them, in a file, so that `--cleanup` can restore them after
//! restarts and crashes of the proxy.
//!
//! The file is in `/run`, because the kernel forgets the values at a reboot too. Its name has the
//! inode of the network namespace: most of the values belong to that. Proxies with other tables share
//! it, and only the last `--cleanup` restores.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

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

/// All changed values, by the path of the file in `/proc/sys` or `/sys`.
pub(super) type Changes = BTreeMap<String, Changed>;

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
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::open(directory).map_err(failed)?;
        lock.lock().map_err(failed)?;
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
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
                _ => Ok(()),
            };
        }
        let text = serde_json::to_vec_pretty(changes).expect("plain data");
        let next = self.path.with_extension("json.new");
        let written = fs::write(&next, text).and_then(|()| fs::rename(&next, &self.path));
        written.map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: io::Error) -> RecordError {
        RecordError::File { path: self.path.clone(), cause }
    }
}
