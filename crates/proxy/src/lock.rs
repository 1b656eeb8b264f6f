//! One proxy for a table. Two would undo each other's work, element by element.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use nearhop_core::Name;

/// Held for as long as the table is ours.
#[derive(Debug)]
pub struct Lock {
    _socket: UnixListener,
}

/// The table is somebody else's.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another proxy runs.
    #[error(
        "another nearhop proxy keeps table {table} in this network namespace: end it first, or \
         give this one a table of its own with --table"
    )]
    Taken {
        /// The table.
        table: Name,
    },
    /// It cannot be known.
    #[error("cannot find out whether another nearhop proxy runs: {0}")]
    Unknown(#[from] std::io::Error),
}

impl Lock {
    /// Takes the lock. An abstract socket belongs to the network namespace, as the table does, and
    /// goes with the process, however that ends.
    pub fn take(table: &Name) -> Result<Self, LockError> {
        let address = SocketAddr::from_abstract_name(format!("nearhop-proxy/{table}"))?;
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Self { _socket: socket }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Err(LockError::Taken { table: table.clone() })
            }
            Err(error) => Err(error.into()),
        }
    }
}
