//! Restores the values that the proxy has changed, for `--cleanup`.

use std::fs;
use std::path::Path;

use super::read;
use super::record::{Record, RecordError};
use super::setting::Places;

/// What happened to a value that nearhop had changed.
#[derive(Debug)]
pub enum Restored {
    /// It has its value from before nearhop.
    Back {
        /// Its file.
        path: String,
        /// nearhop's value.
        to: u64,
        /// The value from before nearhop.
        from: u64,
    },
    /// Another program or an administrator has changed it since; it stays.
    Kept {
        /// Its file.
        path: String,
        /// Its value.
        now: Option<u64>,
        /// nearhop's value.
        to: u64,
        /// The value from before nearhop.
        from: u64,
    },
    /// A proxy with another table uses it; it stays.
    InUse {
        /// Its file.
        path: String,
        /// The tables.
        tables: Vec<String>,
    },
    /// The kernel refused it; the record keeps it.
    Failed {
        /// Its file.
        path: String,
        /// The value from before nearhop.
        from: u64,
        /// The error.
        cause: std::io::Error,
    },
}

impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Back { path, to, from } => write!(f, "restored {path} from {to} to {from}"),
            Self::Kept { path, now, to, from } => {
                let now = now.map_or_else(|| "unreadable".to_owned(), |now| now.to_string());
                write!(
                    f,
                    "kept {path} at {now}: it was changed after nearhop set it to {to} (before: {from})"
                )
            }
            Self::InUse { path, tables } => {
                write!(f, "kept {path}: the proxy of table {} has set it too", tables.join(", "))
            }
            Self::Failed { path, from, cause } => {
                write!(
                    f,
                    "cannot restore {path} to {from}: {cause}. Cure: run --cleanup again as root"
                )
            }
        }
    }
}

/// Restores what only the proxy of this table has changed. Nothing to restore is not an error.
///
/// # Errors
/// The record of the changes is damaged, cannot be read, or could be another user's.
pub fn restore(directory: &Path, table: &str) -> Result<Vec<Restored>, RecordError> {
    restore_at(&Places::kernel(), directory, table)
}

pub(super) fn restore_at(
    places: &Places,
    directory: &Path,
    table: &str,
) -> Result<Vec<Restored>, RecordError> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let record = Record::open(directory)?;
    let mut changes = record.read()?;
    let mut done = Vec::new();
    changes.retain(|setting, changed| {
        if !changed.tables.remove(table) {
            return true;
        }
        let file = places.path(*setting);
        let (path, to, from) = (file.display().to_string(), changed.to, changed.from);
        if !changed.tables.is_empty() {
            let tables = changed.tables.iter().cloned().collect();
            done.push(Restored::InUse { path, tables });
            return true;
        }
        match read(&file) {
            // The proxy ended before it changed the value, or it is restored already.
            Some(now) if now == from => return false,
            Some(now) if now == to => match fs::write(&file, from.to_string()) {
                Ok(()) => done.push(Restored::Back { path, to, from }),
                Err(cause) => {
                    changed.tables.insert(table.to_owned());
                    done.push(Restored::Failed { path, from, cause });
                    return true;
                }
            },
            now => done.push(Restored::Kept { path, now, to, from }),
        }
        false
    });
    record.write(&changes)?;
    Ok(done)
}
