//! A connection that is closed if the client sends no protocol preface, or reads nothing, for too
//! long. hyper has neither timeout: its header timeout begins after the preface, and it keeps
//! unread responses in memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Writes that make no progress for this long fail.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit of the preface.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of HTTP/2's preface; no request of HTTP/1.1 is shorter.
const PREFACE: usize = 24;

/// A stream whose first reads and all writes have a timeout.
pub(super) struct TimeoutStream<S> {
    stream: S,
    /// Until [`PREFACE`] octets have been read: the deadline, and how many octets are missing.
    opening: Option<(Pin<Box<Sleep>>, usize)>,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> TimeoutStream<S> {
    pub(super) fn new(stream: S) -> Self {
        let opening = Some((Box::pin(sleep(PREFACE_TIMEOUT)), PREFACE));
        Self { stream, opening, deadline: Box::pin(sleep(WRITE_TIMEOUT)), waiting: false }
    }

    /// Counts the octets of a read; fails a read that waits for the preface after the deadline.
    fn check_preface(
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

    /// A pending write starts the timeout, a finished one stops it.
    fn check_write<T>(
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
            self.deadline.as_mut().reset(Instant::now() + WRITE_TIMEOUT);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.check_preface(context, buffer.filled().len() - before, read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_write(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check_write(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_write(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unread_writes_time_out() {
        let (server, client) = tokio::io::duplex(16);
        let mut stream = TimeoutStream::new(server);
        let refused = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_preface_times_out() {
        for sent in ["", "PRI * HTTP/2.0"] {
            let (server, mut client) = tokio::io::duplex(64);
            let mut stream = TimeoutStream::new(server);
            client.write_all(sent.as_bytes()).await.unwrap();
            let mut received = [0; 64];
            let refused = stream.read_exact(&mut received).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reads_after_the_preface_have_no_timeout() {
        let (server, mut client) = tokio::io::duplex(64);
        let mut stream = TimeoutStream::new(server);
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut received = [0; PREFACE];
        stream.read_exact(&mut received).await.unwrap();
        let more = tokio::time::timeout(WRITE_TIMEOUT, stream.read_u8()).await;
        assert!(more.is_err(), "the connection is still open: {more:?}");
    }
}
