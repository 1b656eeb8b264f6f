//! What keeps the proxy from starting.

use nearhop_core::{Family, Name};

use crate::engine::ApplyError;
use crate::kernel::{KernelError, Missing};
use crate::lock::LockError;

/// What keeps the proxy from starting.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Another proxy has the table.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The kernel cannot be talked to.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is such a table, and it is not ours.
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
    #[error("the rules are still there: {0}")]
    NotDeleted(#[from] ApplyError),
    /// The kernel cannot do what is needed.
    #[error("this kernel lacks what the rules need: {}", list(.missing))]
    Unsupported {
        /// What it lacks.
        missing: Vec<Missing>,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

fn list(missing: &[Missing]) -> String {
    missing.iter().map(Missing::to_string).collect::<Vec<_>>().join("; ")
}
