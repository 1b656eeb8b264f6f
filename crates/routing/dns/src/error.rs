//! Errors that keep the server from starting.

use std::io;
use std::net::SocketAddr;

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum DnsError {
    #[error(
        "cannot listen on {address}: {why}; choose another address with --listen, stop the process \
         that uses it, or grant CAP_NET_BIND_SERVICE for ports below 1024"
    )]
    Bind { address: SocketAddr, why: io::Error },
    #[error("cannot start a thread: {0}; raise the limit of threads or memory of the process")]
    Thread(io::Error),
    #[error(
        "--upstream {upstream} is this server itself (--listen {listen}): queries would loop; name \
         the servers behind it"
    )]
    Loop { upstream: SocketAddr, listen: SocketAddr },
}
