//! Why the kernel's table of flows could not be read or changed, and what helps.

use std::fmt;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::kernel::KernelError;
use crate::kernel::socket::PATIENCE;

/// Why the kernel's table of flows could not be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConntrackError {
    /// There is no socket.
    #[error(transparent)]
    Open(KernelError),
    /// The kernel cannot be asked about flows.
    #[error(
        "the kernel does not answer about tracked flows: load the module nf_conntrack_netlink, or \
         use a kernel with CONFIG_NF_CT_NETLINK"
    )]
    NoModule,
    /// The process may not.
    #[error(
        "the kernel does not let this process {action} (EPERM): it needs CAP_NET_ADMIN in the user \
         namespace that owns its network namespace; in Kubernetes add NET_ADMIN to the \
         container's securityContext.capabilities"
    )]
    NotAllowed {
        /// What was asked.
        action: Action,
    },
    /// The kernel said no.
    #[error("the kernel refuses to {action}: {errno}; {}", refusal_cure(*errno))]
    Refused {
        /// What was asked.
        action: Action,
        /// Why.
        errno: Errno,
    },
    /// Answers were lost: more of them than the socket's buffer holds.
    #[error(
        "the kernel's answers were lost when it was asked to {action} ({errno}): raise \
         net.core.rmem_max"
    )]
    Lost {
        /// What was asked.
        action: Action,
        /// How.
        errno: Errno,
    },
    /// The thread that looks through flows ended in the middle of it.
    #[error(
        "the thread that looks through tracked flows panicked: this is a defect of nearhop, please \
         report it with the log"
    )]
    Panicked,
    /// No answer came.
    #[error("the kernel was asked to {action} and said nothing for {waited:?}")]
    Silent {
        /// What was asked.
        action: Action,
        /// For how long.
        waited: Duration,
    },
    /// The socket does not work.
    #[error("cannot {action}: the netlink socket fails: {errno}")]
    Broken {
        /// What was asked.
        action: Action,
        /// Why.
        errno: Errno,
    },
}

/// What the kernel was asked to do.
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
            Self::List => "list tracked flows",
            Self::Delete => "delete tracked flows",
        })
    }
}

impl ConntrackError {
    /// The kernel's answer was an error.
    pub(super) fn refused(action: Action, errno: Errno) -> Self {
        match errno {
            Errno::EPERM => Self::NotAllowed { action },
            errno => Self::Refused { action, errno },
        }
    }

    /// The socket's answer was an error.
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
        Errno::EBUSY => "the flow is offloaded to a flow table, and goes when that lets it go",
        _ => "look at the kernel's log",
    }
}
