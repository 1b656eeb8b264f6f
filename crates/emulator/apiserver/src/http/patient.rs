//! A connection that is closed if its client says nothing at first, or takes nothing for too long:
//! what hyper has written and nobody reads would otherwise be kept for ever, and so would a client
//! that never says which protocol it speaks (hyper's own limits begin after that).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A client that takes nothing for so long is gone, or means harm.
const UNREAD: Duration = Duration::from_secs(60);

/// A client that has not said in this time which protocol it speaks is not served.
const OPENING: Duration = Duration::from_secs(10);
/// HTTP/2's preface has so many octets, and no request of HTTP/1.1 has fewer.
const PREFACE: usize = 24;

/// A stream whose first reads fail if they take too long, and whose writes fail if they make no
/// progress.
pub(super) struct Patient<S> {
    stream: S,
    /// Until [`PREFACE`] octets have been read: when reading fails, and how many are missing.
    opening: Option<(Pin<Box<Sleep>>, usize)>,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S) -> Self {
        let opening = Some((Box::pin(sleep(OPENING)), PREFACE));
        Self { stream, opening, deadline: Box::pin(sleep(UNREAD)), waiting: false }
    }

    /// Counts the octets of a read, and fails the one that waits too long for the first of them.
    fn open(
        &mut self,
        context: &mut Context<'_>,
        octets: usize,
        read: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let Some((deadline, missing)) = &mut self.opening else { return read };
        *missing = missing.saturating_sub(octets);
        if *missing == 0 {
            self.opening = None;
        } else if read.is_pending() {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }

    /// Passes on what a write said; a write that cannot go on starts the clock, and one that did
    /// stops it.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + UNREAD);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.open(context, buffer.filled().len() - before, read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (server, client) = tokio::io::duplex(16);
        let mut stream = Patient::new(server);
        let refused = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_say_what_it_speaks_is_given_up() {
        for said in ["", "PRI * HTTP/2.0"] {
            let (server, mut client) = tokio::io::duplex(64);
            let mut stream = Patient::new(server);
            client.write_all(said.as_bytes()).await.unwrap();
            let mut heard = [0; 64];
            let refused = stream.read_exact(&mut heard).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{said:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_said_it_may_be_silent() {
        let (server, mut client) = tokio::io::duplex(64);
        let mut stream = Patient::new(server);
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut heard = [0; PREFACE];
        stream.read_exact(&mut heard).await.unwrap();
        let more = tokio::time::timeout(UNREAD, stream.read_u8()).await;
        assert!(more.is_err(), "it is closed: {more:?}");
    }
}
