//! Errors of the kernel interface: the cause and the remedy.

use std::fmt;

use nearhop_netfilter::object::{Op, Table};
use nearhop_netfilter::wire::{DecodeError, RefusedPart};
use nix::errno::Errno;
use thiserror::Error;

use super::support::Missing;

/// Why a request to the kernel failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KernelError {
    /// The netlink socket cannot be opened.
    #[error("cannot open a netlink socket to netfilter ({step}): {errno}; {}", open_cure(*errno))]
    Open {
        /// The call that failed.
        step: &'static str,
        /// The error of the call.
        errno: Errno,
    },
    /// The process lacks CAP_NET_ADMIN.
    #[error(
        "the kernel does not let this process change nftables (EPERM): it needs CAP_NET_ADMIN in \
         the user namespace that owns its network namespace; in Kubernetes add NET_ADMIN to the \
         container's securityContext.capabilities"
    )]
    NotAllowed,
    /// The kernel has no nftables at all.
    #[error(
        "the kernel has no nftables: load the module nf_tables, or use a kernel with \
         CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4 and CONFIG_NF_TABLES_IPV6"
    )]
    NoNftables,
    /// A batch does not fit into one message. Nothing was changed.
    #[error(
        "a batch of {bytes} bytes is longer than the {limit} that the socket sends at once: split \
         it, or raise net.core.wmem_max"
    )]
    TooLarge {
        /// Length of the batch.
        bytes: usize,
        /// Maximum length of a batch.
        limit: usize,
    },
    /// The answer was lost: it is unknown whether the changes were made.
    #[error(
        "the kernel's reply to a batch was lost ({errno}): the state of the rules is unknown, and \
         the next sync must read them again"
    )]
    Unknown {
        /// The error of the socket.
        errno: Errno,
    },
    /// The kernel is temporarily unable to apply the batch. Nothing was changed.
    #[error("the kernel cannot finish the transaction now ({errno}): retry it")]
    Busy {
        /// The error of the kernel.
        errno: Errno,
    },
    /// The kernel lacks an expression or another feature. Nothing was changed.
    #[error("the kernel cannot run nearhop's rules: {}", Listed(missing))]
    MissingExpression {
        /// The missing features, each once.
        missing: Vec<Missing>,
    },
    /// The kernel refused some changes. Nothing was changed.
    #[error("the kernel refused a batch of {}: {}", TableName(table), Listed(refusals))]
    Refused {
        /// The table of the batch.
        table: Table,
        /// Every refused change, in order.
        refusals: Vec<Refusal>,
    },
    /// The kernel refused a batch as a whole. Nothing was changed.
    #[error("the kernel refused the transaction as a whole: {errno}")]
    Failed {
        /// The error of the kernel.
        errno: Errno,
    },
    /// The kernel refused a list request.
    #[error("the kernel does not list {what}: {errno}; {}", list_cure(*errno))]
    NotListed {
        /// What was requested.
        what: String,
        /// The error of the kernel.
        errno: Errno,
    },
    /// A list changed during every attempt to read it.
    #[error(
        "another program changes nftables so often that {what} could not be listed in {tries} tries: \
         find the program with `nft monitor`, or try later"
    )]
    Unsteady {
        /// What was requested.
        what: String,
        /// Number of attempts.
        tries: u32,
    },
    /// An answer cannot be decoded.
    #[error("cannot decode the kernel's reply: {0}")]
    Unreadable(#[from] DecodeError),
}

fn open_cure(errno: Errno) -> &'static str {
    match errno {
        Errno::EPROTONOSUPPORT => {
            "the kernel has no nfnetlink: load the module nfnetlink, or use a kernel with \
             CONFIG_NETFILTER_NETLINK"
        }
        Errno::EMFILE | Errno::ENFILE => "too many files are open: raise the limit (ulimit -n)",
        Errno::EACCES | Errno::EPERM => {
            "a security module or seccomp filter forbids AF_NETLINK: allow it for this process"
        }
        _ => "see the kernel log",
    }
}

fn list_cure(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT => "it does not exist",
        _ => "see the kernel log",
    }
}

/// One change that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Index of the change in the batch.
    pub op: usize,
    /// The error of the kernel.
    pub errno: Errno,
    /// The kernel's extended error message, if it sent one.
    pub message: Option<String>,
    /// The attribute at fault, if the kernel names it.
    pub part: Option<RefusedPart>,
    /// Description of the change.
    pub what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change {} ({}", self.op, self.what)?;
        match &self.part {
            None => {}
            Some(RefusedPart::Rule(rule)) => write!(f, ", rule {rule}")?,
            Some(RefusedPart::Expression { rule, name }) => {
                write!(f, ", rule {rule}, expression {name}")?;
            }
            Some(RefusedPart::Element(index)) => write!(f, ", element {index}")?,
        }
        write!(f, "): {}", self.errno)?;
        match &self.message {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }?;
        match hint(self.errno) {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// The usual cause of an error that nftables returns.
fn hint(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::ENOENT => "the table, set, chain or element does not exist",
        Errno::EEXIST => "it exists with other properties: delete it first",
        Errno::EBUSY => "it is still in use: delete its users first",
        Errno::ENFILE | Errno::ENOSPC => "the set is full",
        Errno::EOPNOTSUPP => "this kernel does not support it",
        Errno::ELOOP => "jumps between chains form a loop, or are nested too deep",
        Errno::EMLINK => "too many nested jumps between chains",
        _ => return None,
    })
}

/// Describes a change.
pub(super) fn describe(op: &Op) -> String {
    match op {
        Op::AddTable { .. } => "add the table".to_owned(),
        Op::DeleteTable => "delete the table".to_owned(),
        Op::AddSet(set) => format!("add set {}", set.name),
        Op::DeleteSet(name) => format!("delete set {name}"),
        Op::AddChain(chain) => format!("add chain {}", chain.name),
        Op::FlushChain(name) => format!("flush chain {name}"),
        Op::DeleteChain(name) => format!("delete chain {name}"),
        Op::AddElements { set, elements } => format!("add {} to set {set}", count(elements.len())),
        Op::AddTimed { set, elements } => format!("add {} to set {set}", count(elements.len())),
        Op::DeleteElements { set, elements } => {
            format!("delete {} from set {set}", count(elements.len()))
        }
    }
}

fn count(elements: usize) -> String {
    match elements {
        1 => "1 element".to_owned(),
        many => format!("{many} elements"),
    }
}

/// A table in nft syntax.
pub(super) struct TableName<'a>(pub(super) &'a Table);

impl fmt::Display for TableName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.0.family {
            nearhop_core::Family::Ipv4 => "ip",
            nearhop_core::Family::Ipv6 => "ip6",
        };
        write!(f, "table {family} {}", self.0.name)
    }
}

/// Displays the first items of a list and the number of further ones.
struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (index, item) in self.0.iter().take(SHOWN).enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{item}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
