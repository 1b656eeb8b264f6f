//! Receives datagrams in batches, each with its destination address, which is the source address of
//! the reply.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmsg,
};

/// Datagrams per batch.
pub(super) const BATCH: usize = 32;
/// Size limit of a query.
const ROOM: usize = 2048;

/// The destination of a datagram, if the socket listens on the unspecified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentTo {
    address: IpAddr,
    /// The interface, needed for link-local addresses only.
    interface: u32,
}

/// Source and destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) from: SocketAddr,
    pub(super) to: Option<SentTo>,
    length: usize,
}

/// Buffers for a batch of datagrams.
pub(super) struct ReceiveBatch {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Box<[[u8; ROOM]; BATCH]>,
    envelopes: Vec<Envelope>,
}

impl ReceiveBatch {
    pub(super) fn new() -> Self {
        // Large enough for either family.
        let space = cmsg_space!(in6_pktinfo);
        Self {
            headers: MultiHeaders::preallocate(BATCH, Some(space)),
            buffers: Box::new([[0; ROOM]; BATCH]),
            envelopes: Vec::with_capacity(BATCH),
        }
    }

    /// Waits for at least one datagram, up to the socket's read timeout.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> nix::Result<()> {
        self.envelopes.clear();
        let mut slices = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let fd = socket.as_raw_fd();
        let flags = MsgFlags::MSG_WAITFORONE;
        let received = recvmmsg(fd, &mut self.headers, slices.iter_mut(), flags, None)?;
        for message in received {
            let to = message.cmsgs().ok().into_iter().flatten().find_map(sent_to);
            let from = message.address.as_ref().and_then(read_address);
            // A datagram without a source cannot be answered: it is treated as empty.
            let length = if from.is_some() { message.bytes } else { 0 };
            let from = from.unwrap_or(SocketAddr::new([0, 0, 0, 0].into(), 0));
            self.envelopes.push(Envelope { from, to, length });
        }
        Ok(())
    }

    /// The received datagrams.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Envelope, &[u8])> {
        let contents = self.envelopes.iter().zip(self.buffers.iter());
        contents.map(|(envelope, buffer)| (*envelope, &buffer[..envelope.length.min(ROOM)]))
    }
}

/// Sends a reply from the query's destination address.
pub(super) fn send(socket: &UdpSocket, envelope: &Envelope, message: &[u8]) -> io::Result<()> {
    let Some(SentTo { address, interface }) = envelope.to else {
        return socket.send_to(message, envelope.from).map(|_| ());
    };
    let (fd, slices) = (socket.as_raw_fd(), [IoSlice::new(message)]);
    let to = SockaddrStorage::from(envelope.from);
    let send = |control: ControlMessage<'_>| {
        sendmsg(fd, &slices, &[control], MsgFlags::empty(), Some(&to))
    };
    match address {
        IpAddr::V4(address) => {
            let source = in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
            let any = in_addr { s_addr: 0 };
            let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: any };
            send(ControlMessage::Ipv4PacketInfo(&info))?;
        }
        IpAddr::V6(address) => {
            let interface = if address.is_unicast_link_local() { interface } else { 0 };
            let source = in6_addr { s6_addr: address.octets() };
            let info = in6_pktinfo { ipi6_addr: source, ipi6_ifindex: interface };
            send(ControlMessage::Ipv6PacketInfo(&info))?;
        }
    }
    Ok(())
}

fn sent_to(control: ControlMessageOwned) -> Option<SentTo> {
    match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            let address = IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes());
            Some(SentTo { address, interface: 0 })
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            let address = IpAddr::from(info.ipi6_addr.s6_addr);
            Some(SentTo { address, interface: info.ipi6_ifindex })
        }
        _ => None,
    }
}

fn read_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    storage.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into())
}
