//! Options of a netlink socket for which `nix` has no name.

// `setsockopt` with such an option has no safe wrapper.
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
    set(socket, name, 1)
}

/// Joins a multicast group of the kernel.
pub(super) fn join(socket: &impl AsFd, group: u32) -> Result<(), Errno> {
    set(socket, libc::NETLINK_ADD_MEMBERSHIP, group)
}

/// Leaves a multicast group of the kernel.
pub(super) fn leave(socket: &impl AsFd, group: u32) -> Result<(), Errno> {
    set(socket, libc::NETLINK_DROP_MEMBERSHIP, group)
}

fn set(socket: &impl AsFd, name: libc::c_int, value: u32) -> Result<(), Errno> {
    // SAFETY: the descriptor is open while it is borrowed. The kernel reads `size_of_val(&value)`
    // bytes from `value`, which outlives the call, and writes nothing.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}
