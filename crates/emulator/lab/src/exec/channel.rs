//! Lines of JSON with file descriptors, on a Unix socket.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Standard input, output and error.
pub(super) const STREAMS: usize = 3;

/// A connection that carries messages and descriptors.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
    read: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// What the other side has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Data,
    End,
}

impl Channel {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket, read: Vec::new(), descriptors: Vec::new() }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.socket.write_all(&line(message)?)
    }

    /// Sends a message with descriptors.
    pub(super) fn send_with(
        &mut self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>; STREAMS],
    ) -> io::Result<()> {
        let line = line(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room");
        let sent =
            sendmsg(&self.socket, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
        self.socket.write_all(&line[sent..])
    }

    /// Waits for data and reads it.
    pub(super) fn fill(&mut self) -> io::Result<Received> {
        let mut buffer = [0; 16 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let data = &mut [IoSliceMut::new(&mut buffer)];
        let count = recvmsg(&self.socket, data, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.read.extend_from_slice(&buffer[..count]);
        Ok(if count == 0 { Received::End } else { Received::Data })
    }

    /// The next complete message that was read.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(end) = self.read.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.read.drain(..=end).collect();
        Ok(Some(serde_json::from_slice(&line)?))
    }

    /// Waits for a message; None at the end of the connection.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(Some(message));
            }
            if self.fill()? == Received::End {
                return Ok(None);
            }
        }
    }

    /// The descriptors that came with messages.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Lets the other side read the end; it can still send.
    pub(super) fn finish(&self) {
        // The other side may have closed it.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, pipe};

    use super::*;

    #[test]
    fn descriptors_arrive_with_a_long_message() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (mut output, writer) = pipe().expect("a pipe");
        let long = vec!["x".repeat(100_000); 4];
        let sent = long.clone();
        let sender = std::thread::spawn(move || {
            let mut channel = Channel::new(ours);
            let fd = writer.as_fd();
            channel.send_with(&sent, &[fd, fd, fd]).expect("sent");
            channel.send(&7).expect("sent");
        });
        let mut channel = Channel::new(theirs);
        assert_eq!(channel.receive::<Vec<String>>().expect("a message"), Some(long));
        assert_eq!(channel.receive::<i32>().expect("a message"), Some(7));
        sender.join().expect("the sender");
        assert_eq!(channel.receive::<i32>().expect("the end"), None);
        let descriptors = channel.take_descriptors();
        assert_eq!(descriptors.len(), STREAMS);
        for descriptor in descriptors {
            File::from(descriptor).write_all(b"a").expect("a pipe");
        }
        let mut text = String::new();
        output.read_to_string(&mut text).expect("text");
        assert_eq!(text, "aaa");
    }
}
