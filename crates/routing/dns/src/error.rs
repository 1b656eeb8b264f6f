//! What keeps the server from starting.

use std::io;
use std::net::SocketAddr;

/// What keeps the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {why}; choose another address with --listen, end who has it, \
         or allow ports below 1024 (CAP_NET_BIND_SERVICE)"
    )]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        why: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}; is the process out of threads or memory?")]
    Thread(#[source] io::Error),
    /// It would ask itself.
    #[error(
        "--upstream {upstream} is this server itself (--listen {listen}): questions would go round \
         for ever; name the servers behind it"
    )]
    Loop {
        /// Whom it would ask.
        upstream: SocketAddr,
        /// Where it listens.
        listen: SocketAddr,
    },
}
