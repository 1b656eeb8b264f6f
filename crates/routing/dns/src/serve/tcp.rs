//! TCP: pipelined queries, replies in any order (RFC 7766).

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connections::Connections;
use super::{Handler, now};
use crate::answerer::{Handled, Packet, PendingQuery};
use crate::options::TcpOptions;
use crate::wire::{ReplyWriter, Transport};

/// Queries of one connection that may wait for upstream servers.
const MAX_PENDING: usize = 64;
/// Size limit of a query: twice that of a datagram.
const MAX_QUERY: usize = 4096;
/// Pause when the process is out of file descriptors.
const OUT_OF_FILES: Duration = Duration::from_millis(10);

/// Accepts connections. Never returns.
pub(super) async fn accept(
    listener: TcpListener,
    handler: Arc<Handler>,
    connections: Connections,
    options: TcpOptions,
) {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            connections.evict_one();
            sleep(OUT_OF_FILES).await;
            continue;
        };
        connections.make_room();
        let (number, since) = (connections.number(), Instant::now());
        let guard = ConnectionGuard { connections: connections.clone(), number, since };
        let (handler, source) = (handler.clone(), peer.ip().to_canonical());
        let connection = Connection { handler, source, options, guard };
        let (added, ready) = oneshot::channel::<()>();
        let task = tasks.spawn(async move {
            // A task that ends before it is added would never be removed.
            if ready.await.is_ok() {
                connection.serve(stream).await;
            }
        });
        connections.add(number, since, task);
        // It may be evicted already.
        let _gone = added.send(());
    }
}

/// An entry in [`Connections`], removed on drop.
struct ConnectionGuard {
    connections: Connections,
    number: u64,
    since: Instant,
}

impl ConnectionGuard {
    fn touch(&mut self) {
        let now = Instant::now();
        self.connections.touch(self.number, self.since, now);
        self.since = now;
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.remove(self.number, self.since);
    }
}

struct Connection {
    handler: Arc<Handler>,
    source: IpAddr,
    options: TcpOptions,
    guard: ConnectionGuard,
}

/// Sends one reply at a time.
struct Writer {
    /// None after a partly written reply: the client could not tell the next reply from its rest.
    half: Mutex<Option<OwnedWriteHalf>>,
    broken: Notify,
    timeout: Duration,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        // Replies are whole messages, so Nagle's algorithm only delays them.
        let _slower = stream.set_nodelay(true);
        let (mut reader, half) = stream.into_split();
        let writer = Arc::new(Writer::new(half, self.options.write));
        let mut pending = JoinSet::new();
        loop {
            let query = tokio::select! {
                biased;
                () = writer.broken.notified() => return,
                query = self.next(&mut reader, &mut pending) => query,
            };
            let Some(query) = query else { break };
            self.guard.touch();
            // An idle connection holds no buffers.
            let mut out = ReplyWriter::default();
            match self.answer(&query, &mut out) {
                Handled::Reply => writer.send(out.bytes()).await,
                Handled::Forward(query) => self.forward(query, &writer, &mut pending).await,
                // The packet is not a query: the connection is closed.
                Handled::Drop => break,
            }
        }
        while pending.join_next().await.is_some() {}
    }

    /// Starts a task that waits for an upstream server and sends the reply.
    async fn forward(
        &self,
        query: Box<PendingQuery>,
        writer: &Arc<Writer>,
        pending: &mut JoinSet<()>,
    ) {
        if pending.len() >= MAX_PENDING {
            pending.join_next().await;
        }
        let (handler, writer) = (self.handler.clone(), writer.clone());
        pending.spawn(async move {
            if let Some(out) = handler.finish(&query).await {
                writer.send(out.bytes()).await;
            }
        });
    }

    /// Reads the next query; None if the connection has ended or must end.
    async fn next(&self, reader: &mut OwnedReadHalf, pending: &mut JoinSet<()>) -> Option<Vec<u8>> {
        let mut length = [0; 2];
        // No buffer is allocated while the connection is idle.
        let had = loop {
            match timeout(self.options.idle, begin(reader, &mut length)).await {
                Ok(had) => break had.ok().filter(|had| *had > 0)?,
                Err(_idle) => {
                    while pending.try_join_next().is_some() {}
                    if pending.is_empty() {
                        return None;
                    }
                }
            }
        };
        let read = async {
            reader.read_exact(&mut length[had..]).await.ok()?;
            let length = usize::from(u16::from_be_bytes(length));
            let mut query = vec![0; Some(length).filter(|length| *length <= MAX_QUERY)?];
            reader.read_exact(&mut query).await.ok()?;
            Some(query)
        };
        timeout(self.options.read, read).await.ok()?
    }

    fn answer(&self, query: &[u8], out: &mut ReplyWriter) -> Handled {
        let (now, source, seed) = (now(), self.source, rand::random());
        let packet = Packet { bytes: query, source, transport: Transport::Tcp, now, seed };
        let (state, mut tally) = (self.handler.shared.read(), self.handler.tally());
        let handled = self.handler.answerer.handle(&state, packet, out, &mut tally);
        if matches!(handled, Handled::Reply) {
            tally.observe_duration(1, now.instant.elapsed());
        }
        handled
    }
}

/// Waits for the first octets and returns how many arrived; 0 if the client closed.
async fn begin(reader: &OwnedReadHalf, length: &mut [u8; 2]) -> io::Result<usize> {
    loop {
        reader.readable().await?;
        match reader.try_read(length) {
            // Readiness may be spurious.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            had => return had,
        }
    }
}

impl Writer {
    fn new(half: OwnedWriteHalf, timeout: Duration) -> Self {
        Self { half: Mutex::new(Some(half)), broken: Notify::new(), timeout }
    }

    /// Sends a message with its length prefix. If the client does not receive it in time, the
    /// connection ends.
    async fn send(&self, message: &[u8]) {
        let mut framed = Vec::with_capacity(2 + message.len());
        framed.extend((message.len() as u16).to_be_bytes());
        framed.extend(message);
        // Held until the whole message is written.
        let mut half = self.half.lock().await;
        let Some(open) = half.as_mut() else { return };
        if !matches!(timeout(self.timeout, open.write_all(&framed)).await, Ok(Ok(()))) {
            *half = None;
            self.broken.notify_one();
        }
    }
}
