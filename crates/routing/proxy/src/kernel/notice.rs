//! Receives the kernel's nftables notifications about our tables from a netlink multicast group.
//! They include our own changes, which the port number of the socket identifies.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use nearhop_netfilter::object::Table;
use nearhop_netfilter::wire::{Author, News, decode_news, messages};
use nix::errno::Errno;

use super::error::KernelError;
use super::option::{join, leave};
use super::socket::Socket;

/// `NFNLGRP_NFTABLES`.
const NFTABLES_GROUP: u32 = 7;

/// What the notifications say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No other program changed our tables.
    Nothing,
    /// Another program has changed one of our tables.
    Foreign(Author),
    /// Notifications were lost: the socket buffer was full.
    Lost,
}

/// The socket that receives notifications.
#[derive(Debug)]
pub struct Notices {
    socket: Socket,
    /// Port number of the socket that makes our changes.
    own: u32,
    tables: BTreeSet<Table>,
    /// Whether the commit that is being read changes one of our tables.
    touched: bool,
}

impl Notices {
    /// Joins the multicast group, in the calling thread's network namespace. `own` is
    /// [`Kernel::port`](super::Kernel::port).
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open(own: u32, tables: BTreeSet<Table>) -> Result<Self, KernelError> {
        let socket = Socket::open()?;
        join(&socket.share().map_err(opening)?, NFTABLES_GROUP).map_err(opening)?;
        Ok(Self { socket, own, tables, touched: false })
    }

    /// A handle with which another thread pauses and resumes notifications.
    ///
    /// # Errors
    /// The process has too many file descriptors.
    pub fn membership(&self) -> Result<Membership, KernelError> {
        Ok(Membership { socket: self.socket.share().map_err(opening)? })
    }

    /// Waits some seconds for the next notification.
    ///
    /// # Errors
    /// The socket no longer works.
    pub fn wait(&mut self) -> Result<Notice, KernelError> {
        let Self { socket, own, tables, touched } = self;
        let bytes = match socket.receive() {
            Ok(bytes) => bytes,
            Err(Errno::EAGAIN) => return Ok(Notice::Nothing),
            Err(Errno::ENOBUFS) => return Ok(Notice::Lost),
            Err(errno) => return Err(KernelError::Failed { errno }),
        };
        for message in messages(bytes) {
            let message = message?;
            // One datagram belongs to one commit: skip tens of thousands of our own elements
            // without decoding them.
            if message.sender == *own {
                return Ok(Notice::Nothing);
            }
            match decode_news(&message)? {
                News::Changed(table) => *touched |= tables.contains(&table),
                News::Committed(author) if std::mem::take(touched) => {
                    return Ok(Notice::Foreign(author));
                }
                News::Committed(_) | News::Other => {}
            }
        }
        Ok(Notice::Nothing)
    }
}

fn opening(errno: Errno) -> KernelError {
    KernelError::Open { step: "the group of nftables", errno }
}

/// The socket's membership in the multicast group. Without members the kernel builds no
/// notifications: for 100,000 elements that saves about a third of the time it takes to write them.
#[derive(Debug)]
pub struct Membership {
    socket: OwnedFd,
}

impl Membership {
    /// Pauses notifications.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn pause(&self) -> Result<(), KernelError> {
        leave(&self.socket, NFTABLES_GROUP).map_err(|errno| KernelError::Failed { errno })
    }

    /// Resumes notifications; they do not include changes made during the pause.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resume(&self) -> Result<(), KernelError> {
        join(&self.socket, NFTABLES_GROUP).map_err(|errno| KernelError::Failed { errno })
    }
}

#[cfg(test)]
mod tests {
    use nearhop_core::Family;
    use nearhop_net::sandbox;
    use nearhop_netfilter::object::{Batch, Chain, Op};

    use super::*;
    use crate::kernel::Kernel;

    fn table(name: &str) -> Table {
        Table { family: Family::Ipv4, name: name.into() }
    }

    fn add(kernel: &mut Kernel, name: &str) {
        let ops = vec![Op::AddTable { comment: "".into() }];
        kernel.apply(&Batch { table: table(name), ops }).unwrap();
    }

    fn delete(kernel: &mut Kernel, name: &str) {
        kernel.apply(&Batch { table: table(name), ops: vec![Op::DeleteTable] }).unwrap();
    }

    /// Adds 100,000 chains.
    fn add_many(kernel: &mut Kernel, name: &str) {
        for round in 0..200 {
            let chain = |i| Chain {
                name: format!("{round}-{i}").into(),
                hook: None,
                rules: Vec::new(),
                comment: None,
            };
            let ops = (0..500).map(|i| Op::AddChain(chain(i))).collect();
            kernel.apply(&Batch { table: table(name), ops }).unwrap();
        }
    }

    /// Reads notifications up to another program's change of our tables.
    fn read_until_foreign(notices: &mut Notices) -> Vec<Notice> {
        let (mut found, began) = (Vec::new(), std::time::Instant::now());
        while !matches!(found.last(), Some(Notice::Foreign(_))) {
            let notice = notices.wait().unwrap();
            assert!(began.elapsed().as_secs() < 60, "{found:?}");
            found.extend((notice != Notice::Nothing).then_some(notice));
        }
        found
    }

    #[test]
    fn only_foreign_changes_of_own_tables_are_reported() {
        let name = "kernel::notice::tests::only_foreign_changes_of_own_tables_are_reported";
        sandbox::run(name, || {
            let mut ours = Kernel::open().unwrap();
            let own = ours.port().unwrap();
            let mut notices = Notices::open(own, [table("ours")].into()).unwrap();
            add(&mut ours, "ours");
            let mut theirs = Kernel::open().unwrap();
            add(&mut theirs, "theirs");
            delete(&mut theirs, "ours");
            let found = read_until_foreign(&mut notices);
            let [Notice::Foreign(author)] = found.as_slice() else { panic!("{found:?}") };
            assert!(author.pid.is_some() && author.name.is_some(), "{author:?}");
        });
    }

    /// Any number of lost notifications causes one verification.
    #[test]
    fn lost_notifications_are_reported_once() {
        sandbox::run("kernel::notice::tests::lost_notifications_are_reported_once", || {
            let mut ours = Kernel::open().unwrap();
            let own = ours.port().unwrap();
            let tables = [table("ours"), table("large")].into();
            let mut notices = Notices::open(own, tables).unwrap();
            add(&mut ours, "ours");
            add(&mut ours, "large");
            // The test reads no notifications here, so the socket buffer overflows.
            add_many(&mut ours, "large");
            assert_eq!(notices.wait().unwrap(), Notice::Lost);
            // Discard the notifications that are still in the buffer, to make room for the next
            // ones.
            notices.socket.drain().unwrap();
            delete(&mut Kernel::open().unwrap(), "ours");
            let found = read_until_foreign(&mut notices);
            assert!(matches!(found.as_slice(), [Notice::Foreign(_)]), "{found:?}");
        });
    }

    #[test]
    fn no_notifications_arrive_while_paused() {
        sandbox::run("kernel::notice::tests::no_notifications_arrive_while_paused", || {
            let mut ours = Kernel::open().unwrap();
            let own = ours.port().unwrap();
            let tables = [table("ours"), table("large")].into();
            let mut notices = Notices::open(own, tables).unwrap();
            let membership = notices.membership().unwrap();
            membership.pause().unwrap();
            add(&mut ours, "ours");
            add(&mut ours, "large");
            add_many(&mut ours, "large");
            membership.resume().unwrap();
            delete(&mut Kernel::open().unwrap(), "ours");
            let found = read_until_foreign(&mut notices);
            assert!(matches!(found.as_slice(), [Notice::Foreign(_)]), "{found:?}");
        });
    }
}
