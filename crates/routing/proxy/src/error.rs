//! Errors that prevent the start of the proxy, and errors of the cleanup.

use nearhop_core::{Family, Name};

use crate::engine::ApplyError;
use crate::kernel::{KernelError, Missing};
use crate::lock::LockError;

/// Why the proxy cannot start, or the cleanup failed.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Another proxy holds the lock of the table.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A request to the kernel failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The table exists and belongs to another program.
    #[error(
        "table {table} ({family}) belongs to another program (its comment is not nearhop's): give \
         nearhop a table of its own with --table"
    )]
    ForeignTable {
        /// The table.
        table: Name,
        /// Its family.
        family: Family,
    },
    /// The rules could not be deleted.
    #[error("cannot delete the rules: {0}")]
    NotDeleted(#[from] ApplyError),
    /// The kernel lacks a required feature.
    #[error("this kernel lacks what the rules need: {}", list(.missing))]
    Unsupported {
        /// The missing features.
        missing: Vec<Missing>,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

fn list(missing: &[Missing]) -> String {
    missing.iter().map(Missing::to_string).collect::<Vec<_>>().join("; ")
}
