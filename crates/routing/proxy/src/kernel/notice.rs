//! What others do to our tables, as the kernel tells it at once: a socket in its group for
//! nftables. Our own changes are among them; the port number of the socket identifies them.

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

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Nothing about our tables by others.
    Nothing,
    /// Another program has changed one of our tables.
    Foreign(Author),
    /// Notifications were lost: the socket buffer was full.
    Lost,
}

/// The socket.
#[derive(Debug)]
pub struct Notices {
    socket: Socket,
    /// The number of the socket through which we make changes.
    own: u32,
    tables: BTreeSet<Table>,
    /// Whether the commit that is being read changes one of our tables.
    touched: bool,
}

impl Notices {
    /// Listens from now on, in the calling thread's network namespace. `own` is
    /// [`Kernel::port`](super::Kernel::port).
    ///
    /// # Errors
    /// The kernel gives no such socket.
    pub fn open(own: u32, tables: BTreeSet<Table>) -> Result<Self, KernelError> {
        let socket = Socket::open()?;
        join(&socket.share().map_err(opening)?, NFTABLES_GROUP).map_err(opening)?;
        Ok(Self { socket, own, tables, touched: false })
    }

    /// With it another thread pauses and resumes notifications.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn membership(&self) -> Result<Membership, KernelError> {
        Ok(Membership { socket: self.socket.share().map_err(opening)? })
    }

    /// Waits for what comes next, for some seconds.
    ///
    /// # Errors
    /// The socket is of no use any more.
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
            // What comes at once is about one commit: tens of thousands of our own elements are
            // passed over without being looked at.
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

/// The socket's place in the kernel's group. While it has no members the kernel spends nothing on
/// news: for a hundred thousand elements that is about as long as it takes to write a third of them.
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

    /// Resumes notifications; changes made meanwhile are not among them.
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

    /// Adds a hundred thousand chains.
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
    fn hear(notices: &mut Notices) -> Vec<Notice> {
        let (mut heard, began) = (Vec::new(), std::time::Instant::now());
        while !matches!(heard.last(), Some(Notice::Foreign(_))) {
            let notice = notices.wait().unwrap();
            assert!(began.elapsed().as_secs() < 60, "{heard:?}");
            heard.extend((notice != Notice::Nothing).then_some(notice));
        }
        heard
    }

    #[test]
    fn only_changes_of_our_tables_by_others_are_heard() {
        let name = "kernel::notice::tests::only_changes_of_our_tables_by_others_are_heard";
        sandbox::run(name, || {
            let mut ours = Kernel::open().unwrap();
            let own = ours.port().unwrap();
            let mut notices = Notices::open(own, [table("ours")].into()).unwrap();
            add(&mut ours, "ours");
            let mut theirs = Kernel::open().unwrap();
            add(&mut theirs, "theirs");
            delete(&mut theirs, "ours");
            let heard = hear(&mut notices);
            let [Notice::Foreign(author)] = heard.as_slice() else { panic!("{heard:?}") };
            assert!(author.pid.is_some() && author.name.is_some(), "{author:?}");
        });
    }

    /// However much of our own was too much, it is a reason for one look and not for one each.
    #[test]
    fn what_was_lost_is_said_once() {
        sandbox::run("kernel::notice::tests::what_was_lost_is_said_once", || {
            let mut ours = Kernel::open().unwrap();
            let own = ours.port().unwrap();
            let tables = [table("ours"), table("large")].into();
            let mut notices = Notices::open(own, tables).unwrap();
            add(&mut ours, "ours");
            add(&mut ours, "large");
            // Nothing is read meanwhile: the socket buffer fills up.
            add_many(&mut ours, "large");
            assert_eq!(notices.wait().unwrap(), Notice::Lost);
            // What there was room for is still there, and takes none from what comes next.
            notices.socket.drain().unwrap();
            delete(&mut Kernel::open().unwrap(), "ours");
            let heard = hear(&mut notices);
            assert!(matches!(heard.as_slice(), [Notice::Foreign(_)]), "{heard:?}");
        });
    }

    #[test]
    fn nothing_is_told_while_it_is_paused() {
        sandbox::run("kernel::notice::tests::nothing_is_told_while_it_is_paused", || {
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
            let heard = hear(&mut notices);
            assert!(matches!(heard.as_slice(), [Notice::Foreign(_)]), "{heard:?}");
        });
    }
}
