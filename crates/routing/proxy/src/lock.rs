//! A lock, so that only one proxy writes a table. Two proxies would undo each other's changes.
//!
//! The lock is a separate nftables table without chains, owned by a netlink socket of this process.
//! Like the proxy's tables it belongs to the network namespace, creating it requires permission to
//! change nftables, and the kernel deletes it when the process ends for any reason.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use nearhop_core::{Family, Name};
use nearhop_netfilter::object::{Batch, Op, Table};
use nix::errno::Errno;

use crate::kernel::{Kernel, KernelError};

/// The lock of a table, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _held: LockKind,
}

#[derive(Debug)]
enum LockKind {
    /// The socket that owns the lock table.
    Table { _owner: Kernel },
    /// For kernels without tables owned by a socket.
    Socket { _listener: UnixListener },
}

/// Why the lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another proxy holds the lock.
    #[error(
        "another nearhop proxy uses table {table} in this network namespace: stop it first, or \
         give this one a table of its own with --table"
    )]
    Taken {
        /// The table.
        table: Name,
    },
    /// The lock could not be checked.
    #[error("cannot check whether another nearhop proxy runs: {0}")]
    Unknown(#[from] std::io::Error),
    /// The kernel refused the lock table.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl Lock {
    /// Takes the lock of a table, in the network namespace of the calling thread.
    pub fn take(table: &Name) -> Result<Self, LockError> {
        // `--table` allows no dot, so no proxy has a table with this name.
        let name = Name::from(format!("{table}.lock"));
        let comment = Name::from(format!("nearhop proxy uses table {table}"));
        let ops = vec![Op::AddTable { comment }];
        let batch = Batch { table: Table { family: Family::Ipv4, name }, ops };
        let mut kernel = Kernel::open()?;
        let refused = match kernel.apply_owned(&batch) {
            Ok(()) => return Ok(Self { _held: LockKind::Table { _owner: kernel } }),
            Err(KernelError::Refused { table, refusals }) => (table, refusals),
            Err(error) => return Err(error.into()),
        };
        match refused.1.first().map(|refusal| refusal.errno) {
            // Another socket owns the lock table.
            Some(Errno::EPERM) => Err(LockError::Taken { table: table.clone() }),
            Some(Errno::EOPNOTSUPP) => Self::take_socket(table),
            _ => Err(KernelError::Refused { table: refused.0, refusals: refused.1 }.into()),
        }
    }

    /// For kernels before 5.12: an abstract socket also belongs to the network namespace and is
    /// closed when the process ends, but any process can bind it.
    fn take_socket(table: &Name) -> Result<Self, LockError> {
        tracing::debug!(%table, "kernel older than Linux 5.12; the lock is an abstract socket");
        let address = SocketAddr::from_abstract_name(format!("nearhop-proxy/{table}"))?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self { _held: LockKind::Socket { _listener: listener } }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Err(LockError::Taken { table: table.clone() })
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nearhop_net::sandbox;

    use super::*;

    fn is_taken(lock: Result<Lock, LockError>) -> bool {
        matches!(lock, Err(LockError::Taken { table }) if table == "nearhop")
    }

    #[test]
    fn only_one_holder_has_the_lock() {
        sandbox::run("lock::tests::only_one_holder_has_the_lock", || {
            let name = Name::from("nearhop");
            let first = Lock::take(&name).unwrap();
            assert!(is_taken(Lock::take(&name)));
            let _other = Lock::take(&Name::from("mine")).unwrap();
            drop(first);
            let _second = Lock::take(&name).unwrap();
            assert!(is_taken(Lock::take(&name)));
        });
    }

    /// Binding an abstract socket requires no permission.
    #[test]
    fn an_abstract_socket_of_another_program_is_not_a_lock() {
        sandbox::run("lock::tests::an_abstract_socket_of_another_program_is_not_a_lock", || {
            let address = SocketAddr::from_abstract_name("nearhop-proxy/nearhop").unwrap();
            let _taken = UnixListener::bind_addr(&address).unwrap();
            let name = Name::from("nearhop");
            let _lock = Lock::take(&name).unwrap();
            // On a kernel without owned tables the abstract socket is the lock.
            assert!(is_taken(Lock::take_socket(&name)));
        });
    }
}
