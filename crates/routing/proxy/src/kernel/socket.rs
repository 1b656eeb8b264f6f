//! A netlink socket to netfilter: bytes out, bytes in, with an end to every wait. What the bytes
//! mean is not known here.

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

/// What is asked for; the kernel doubles it. Room for a batch of 200,000 elements.
const SEND_BUFFER: usize = 16 * 1024 * 1024;
/// Room for thousands of refusals.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// What the kernel keeps for itself of the send buffer.
const OVERHEAD: usize = 32;
/// The kernel lists as many objects at a time as fit into what is offered, up to 32 KiB; answers
/// are shorter.
const LONGEST_DATAGRAM: usize = 64 * 1024;
/// The kernel answers before `send` returns: this is for unexpected cases.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    limit: usize,
}

impl Socket {
    /// Opens it in the network namespace of the calling thread.
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
        // A connected socket takes messages from the kernel only.
        connect(fd.as_raw_fd(), &kernel).map_err(at("connect"))?;
        let patience = TimeVal::new(PATIENCE.as_secs() as i64, 0);
        setsockopt(&fd, sockopt::ReceiveTimeout, &patience).map_err(at("a timeout"))?;
        // Both only make errors shorter and clearer; a kernel older than 4.12 has them not.
        for option in [NetlinkOption::CappedAnswers, NetlinkOption::ExtendedAnswers] {
            let _ = switch_on(&fd, option);
        }
        let limit = enlarge(&fd).map_err(at("buffers"))?;
        Ok(Self { fd, buffer: vec![0; LONGEST_DATAGRAM], limit })
    }

    /// Its number, which the kernel has given it.
    pub(crate) fn port(&self) -> Result<u32, Errno> {
        getsockname::<NetlinkAddr>(self.fd.as_raw_fd()).map(|address| address.pid())
    }

    /// A second descriptor of the same socket.
    pub(crate) fn share(&self) -> Result<OwnedFd, Errno> {
        let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
        self.fd.try_clone().map_err(errno)
    }

    /// Most bytes of one `send`.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Discards replies that no request waits for, and that some of it may have been lost.
    pub(crate) fn drain(&mut self) -> Result<(), Errno> {
        loop {
            match self.receive_with(MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends. The kernel has processed it when this returns.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// What came next.
    pub(crate) fn receive(&mut self) -> Result<&[u8], Errno> {
        let len = self.receive_with(MsgFlags::empty())?;
        // More than there was room for: some of it is lost.
        self.buffer.get(..len).ok_or(Errno::ENOBUFS)
    }

    fn receive_with(&mut self, flags: MsgFlags) -> Result<usize, Errno> {
        loop {
            // With this flag the kernel says how long the message was, not what it copied.
            match recv(self.fd.as_raw_fd(), &mut self.buffer, flags | MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => {}
                received => return received,
            }
        }
    }
}

/// Asks for large buffers, as large as is allowed, and returns how much can be sent at once.
fn enlarge(fd: &OwnedFd) -> Result<usize, Errno> {
    // Beyond the system's limit only with CAP_NET_ADMIN in the first user namespace.
    if setsockopt(fd, sockopt::SndBufForce, &SEND_BUFFER).is_err() {
        setsockopt(fd, sockopt::SndBuf, &SEND_BUFFER)?;
    }
    if setsockopt(fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    }
    Ok(getsockopt(fd, sockopt::SndBuf)?.saturating_sub(OVERHEAD))
}
