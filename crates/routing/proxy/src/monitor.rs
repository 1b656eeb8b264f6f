//! The thread that receives the kernel's nftables notifications, so that the proxy repairs changes
//! by other programs at once and not at the next verification.

use std::collections::BTreeSet;

use nearhop_netfilter::object::Table;
use nearhop_netfilter::wire::Author;
use nearhop_runtime::supervise;
use tokio::sync::watch;

use crate::error::ProxyError;
use crate::kernel::{Kernel, KernelError, Membership, Notice, Notices};
use crate::options::Options;

/// What the notifications said so far.
#[derive(Clone, Debug, Default)]
struct Notified {
    /// The program that made the last change; unknown if notifications were lost.
    author: Author,
}

/// The loop's handle of the thread.
#[derive(Debug)]
pub(crate) struct TableMonitor {
    notified: watch::Receiver<Notified>,
    membership: Membership,
}

impl TableMonitor {
    /// Starts the thread in the network namespace of the calling thread.
    pub(crate) fn start(kernel: &Kernel, options: &Options) -> Result<Self, ProxyError> {
        let named = |family| Table { family, name: options.table.clone() };
        let tables: BTreeSet<Table> = options.families.iter().copied().map(named).collect();
        let notices = Notices::open(kernel.port()?, tables)?;
        let membership = notices.membership()?;
        let (sender, notified) = watch::channel(Notified::default());
        supervise::thread("nftables", move || listen(notices, &sender))
            .map_err(ProxyError::Thread)?;
        Ok(Self { notified, membership })
    }

    /// Runs `act` with notifications paused, because they cost the kernel much time for a large
    /// batch. Other programs may change something meanwhile: verify afterwards.
    pub(crate) fn while_paused<T>(&self, act: impl FnOnce() -> T) -> T {
        if let Err(error) = self.membership.pause() {
            tracing::debug!(%error, "nftables notifications not paused");
        }
        let done = act();
        if let Err(error) = self.membership.resume() {
            tracing::error!(%error, "nftables notifications stopped; changes by other programs are found at the next verification");
        }
        done
    }

    /// Waits until another program has changed our tables, or may have.
    pub(crate) async fn wait(&mut self) {
        if self.notified.changed().await.is_err() {
            // The thread has logged why it ended; periodic verification continues.
            std::future::pending::<()>().await;
        }
    }

    /// The program that made the last change.
    pub(crate) fn last_author(&self) -> Author {
        self.notified.borrow().author.clone()
    }
}

/// Runs until the receiver is dropped.
fn listen(mut notices: Notices, sender: &watch::Sender<Notified>) {
    while !sender.is_closed() {
        match notices.wait() {
            Ok(Notice::Nothing) => {}
            Ok(Notice::Foreign(author)) => sender.send_modify(|notified| notified.author = author),
            Ok(Notice::Lost) | Err(KernelError::Unreadable(_)) => {
                sender.send_modify(|notified| notified.author = Author::default());
            }
            Err(error) => {
                tracing::error!(%error, "nftables notifications stopped; changes by other programs are found at the next verification");
                return;
            }
        }
    }
}
