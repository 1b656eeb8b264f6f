//! Errors of reading or changing the conntrack table: the cause and the remedy.

use std::fmt;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::kernel::KernelError;
use crate::kernel::socket::PATIENCE;

/// Why the conntrack table could not be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConntrackError {
    /// The netlink socket cannot be opened.
    #[error(transparent)]
    Open(KernelError),
    /// The kernel does not support conntrack requests.
    #[error(
        "the kernel does not support conntrack requests: load the module nf_conntrack_netlink, or \
         use a kernel with CONFIG_NF_CT_NETLINK"
    )]
    NoModule,
    /// The process lacks CAP_NET_ADMIN.
    #[error(
        "the kernel does not let this process {action} (EPERM): it needs CAP_NET_ADMIN in the user \
         namespace that owns its network namespace; in Kubernetes add NET_ADMIN to the \
         container's securityContext.capabilities"
    )]
    NotAllowed {
        /// The request.
        action: Action,
    },
    /// The kernel refused the request.
    #[error("the kernel refuses to {action}: {errno}; {}", refusal_cure(*errno))]
    Refused {
        /// The request.
        action: Action,
        /// The error of the kernel.
        errno: Errno,
    },
    /// Answers were lost because the socket buffer overflowed.
    #[error(
        "replies of the kernel to the request to {action} were lost ({errno}): raise \
         net.core.rmem_max"
    )]
    Lost {
        /// The request.
        action: Action,
        /// The error of the socket.
        errno: Errno,
    },
    /// The conntrack sweep thread panicked.
    #[error(
        "the conntrack reconciler panicked: this is a defect of nearhop, please report it with the \
         log"
    )]
    Panicked,
    /// The kernel did not answer in time.
    #[error("no reply from the kernel within {waited:?} to the request to {action}")]
    Silent {
        /// The request.
        action: Action,
        /// How long the proxy waited.
        waited: Duration,
    },
    /// The socket failed.
    #[error("cannot {action}: the netlink socket failed: {errno}")]
    Broken {
        /// The request.
        action: Action,
        /// The error of the socket.
        errno: Errno,
    },
}

/// A request to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Dump flows.
    List,
    /// Delete flows.
    Delete,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::List => "list conntrack entries",
            Self::Delete => "delete conntrack entries",
        })
    }
}

impl ConntrackError {
    /// Maps an error answer of the kernel.
    pub(super) fn refused(action: Action, errno: Errno) -> Self {
        match errno {
            Errno::EPERM => Self::NotAllowed { action },
            errno => Self::Refused { action, errno },
        }
    }

    /// Maps an error of the socket.
    pub(super) fn socket(action: Action, errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN => Self::Silent { action, waited: PATIENCE },
            Errno::ENOBUFS => Self::Lost { action, errno },
            errno => Self::Broken { action, errno },
        }
    }
}

fn refusal_cure(errno: Errno) -> &'static str {
    match errno {
        Errno::EBUSY => "the flow is offloaded to a flowtable, which must release it first",
        _ => "see the kernel log",
    }
}
