//! A netlink socket to netfilter that sends and receives bytes, with a timeout for every wait. It
//! does not interpret the bytes.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, connect,
    getsockname, getsockopt, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::error::KernelError;
use super::option::{NetlinkOption, switch_on};

/// Requested send buffer; the kernel doubles it. Enough for a batch of 200,000 elements.
const SEND_BUFFER: usize = 16 * 1024 * 1024;
/// Receive buffer for thousands of refusals.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// Bytes of the send buffer that the kernel reserves.
const OVERHEAD: usize = 32;
/// The kernel fills a dump message up to the offered buffer, at most 32 KiB; other answers are
/// shorter.
const LONGEST_DATAGRAM: usize = 64 * 1024;
/// Timeout of a receive. The kernel answers before `send` returns, so it is rarely reached.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    limit: usize,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self, KernelError> {
        let at = |step| move |errno| KernelError::Open { step, errno };
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        )
        .map_err(at("socket"))?;
        let kernel = NetlinkAddr::new(0, 0);
        bind(fd.as_raw_fd(), &kernel).map_err(at("bind"))?;
        // A connected socket accepts messages only from the kernel.
        connect(fd.as_raw_fd(), &kernel).map_err(at("connect"))?;
        let patience = TimeVal::new(PATIENCE.as_secs() as i64, 0);
        setsockopt(&fd, sockopt::ReceiveTimeout, &patience).map_err(at("a timeout"))?;
        // Both only make errors shorter and clearer; kernels before 4.12 lack them.
        for option in [NetlinkOption::CappedAnswers, NetlinkOption::ExtendedAnswers] {
            let _ = switch_on(&fd, option);
        }
        let limit = enlarge(&fd).map_err(at("buffers"))?;
        Ok(Self { fd, buffer: vec![0; LONGEST_DATAGRAM], limit })
    }

    /// The port number that the kernel assigned to the socket.
    pub(crate) fn port(&self) -> Result<u32, Errno> {
        getsockname::<NetlinkAddr>(self.fd.as_raw_fd()).map(|address| address.pid())
    }

    /// A second descriptor of the same socket.
    pub(crate) fn share(&self) -> Result<OwnedFd, Errno> {
        let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
        self.fd.try_clone().map_err(errno)
    }

    /// Maximum number of bytes of one `send`.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Discards replies to earlier requests, and a pending error about lost messages.
    pub(crate) fn drain(&mut self) -> Result<(), Errno> {
        loop {
            match self.receive_with(MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends bytes. The kernel has processed them when this returns.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Receives the next datagram.
    pub(crate) fn receive(&mut self) -> Result<&[u8], Errno> {
        let len = self.receive_with(MsgFlags::empty())?;
        // The datagram was longer than the buffer: part of it is lost.
        self.buffer.get(..len).ok_or(Errno::ENOBUFS)
    }

    fn receive_with(&mut self, flags: MsgFlags) -> Result<usize, Errno> {
        loop {
            // With `MSG_TRUNC` the kernel returns the full length, not the copied length.
            match recv(self.fd.as_raw_fd(), &mut self.buffer, flags | MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => {}
                received => return received,
            }
        }
    }
}

/// Requests large buffers, up to the allowed size, and returns how much can be sent at once.
fn enlarge(fd: &OwnedFd) -> Result<usize, Errno> {
    // More than the system limit requires CAP_NET_ADMIN in the initial user namespace.
    if setsockopt(fd, sockopt::SndBufForce, &SEND_BUFFER).is_err() {
        setsockopt(fd, sockopt::SndBuf, &SEND_BUFFER)?;
    }
    if setsockopt(fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    }
    Ok(getsockopt(fd, sockopt::SndBuf)?.saturating_sub(OVERHEAD))
}
