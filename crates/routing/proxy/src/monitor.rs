//! The thread that hears what others do to our tables, so that it is repaired at once and not at
//! the next look.

use std::collections::BTreeSet;

use nearhop_netfilter::object::Table;
use nearhop_netfilter::wire::Author;
use nearhop_runtime::supervise;
use tokio::sync::watch;

use crate::error::ProxyError;
use crate::kernel::{Kernel, KernelError, Membership, Notice, Notices};
use crate::options::Options;

/// What was heard so far.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// Whose change was the last one; unknown, where news was lost.
    author: Author,
}

/// The thread's end in the loop.
#[derive(Debug)]
pub(crate) struct TableMonitor {
    heard: watch::Receiver<Heard>,
    membership: Membership,
}

impl TableMonitor {
    /// Starts the thread, in the network namespace of the calling one.
    pub(crate) fn start(kernel: &Kernel, options: &Options) -> Result<Self, ProxyError> {
        let named = |family| Table { family, name: options.table.clone() };
        let tables: BTreeSet<Table> = options.families.iter().copied().map(named).collect();
        let notices = Notices::open(kernel.port()?, tables)?;
        let membership = notices.membership()?;
        let (tell, heard) = watch::channel(Heard::default());
        supervise::thread("nftables", move || listen(notices, &tell))
            .map_err(ProxyError::Thread)?;
        Ok(Self { heard, membership })
    }

    /// Does something during which nothing is heard, because the kernel would spend too much time
    /// on telling what we know. Others may have changed something meanwhile: look afterwards.
    pub(crate) fn deaf<T>(&self, act: impl FnOnce() -> T) -> T {
        if let Err(error) = self.membership.pause() {
            tracing::debug!(%error, "the kernel goes on telling what we do");
        }
        let done = act();
        if let Err(error) = self.membership.resume() {
            tracing::error!(%error, "what others do to our table is not heard any more");
        }
        done
    }

    /// Waits until somebody else has changed our tables, or may have.
    pub(crate) async fn wait(&mut self) {
        if self.heard.changed().await.is_err() {
            // The thread has said why it ended; the table is still looked at now and then.
            std::future::pending::<()>().await;
        }
    }

    /// Whose change was the last one.
    pub(crate) fn last_author(&self) -> Author {
        self.heard.borrow().author.clone()
    }
}

/// Until nobody wants to know any more.
fn listen(mut notices: Notices, tell: &watch::Sender<Heard>) {
    while !tell.is_closed() {
        match notices.wait() {
            Ok(Notice::Nothing) => {}
            Ok(Notice::Foreign(author)) => tell.send_modify(|heard| heard.author = author),
            Ok(Notice::Lost) | Err(KernelError::Unreadable(_)) => {
                tell.send_modify(|heard| heard.author = Author::default());
            }
            Err(error) => {
                tracing::error!(%error, "what others do to our table is not heard any more");
                return;
            }
        }
    }
}
