//! The two options of a netlink socket for which `nix` has no name.

// `setsockopt` with an option that no safe wrapper knows leaves no choice.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;
use nix::libc;

/// An option that is on or off.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetlinkOption {
    /// Answers do not repeat the message that they answer.
    CappedAnswers,
    /// Answers say which part of the message was wrong.
    ExtendedAnswers,
}

/// Switches an option on.
pub(super) fn switch_on(socket: &impl AsFd, option: NetlinkOption) -> Result<(), Errno> {
    let name = match option {
        NetlinkOption::CappedAnswers => libc::NETLINK_CAP_ACK,
        NetlinkOption::ExtendedAnswers => libc::NETLINK_EXT_ACK,
    };
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while it is borrowed. The kernel reads `size_of_val(&on)`
    // bytes from `on`, which outlives the call, and writes nothing.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            name,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}
