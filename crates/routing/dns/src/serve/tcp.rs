//! TCP: questions one after the other, answers as they come (RFC 7766).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connections::Connections;
use super::{Service, now};
use crate::answerer::{Handled, Job, Packet};
use crate::options::TcpOptions;
use crate::wire::{ReplyWriter, Transport};

/// Connections that nobody has accepted yet; the kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// Questions of one connection that may wait for other servers.
const WAITING: usize = 64;
/// No question is longer; twice of what a datagram may have.
const LONGEST: usize = 4096;
/// A pause where the process is out of files.
const OUT_OF_FILES: Duration = Duration::from_millis(10);

/// Listens.
pub(super) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of a process before this one do not keep the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts for ever.
pub(super) async fn accept(
    listener: TcpListener,
    service: Arc<Service>,
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
        let seat = Seat { connections: connections.clone(), number, since };
        let connection = Connection {
            service: service.clone(),
            source: peer.ip().to_canonical(),
            options,
            seat,
        };
        let (filed, ready) = oneshot::channel::<()>();
        let task = tasks.spawn(async move {
            // Who ends before it is filed would be on file for ever.
            if ready.await.is_ok() {
                connection.serve(stream).await;
            }
        });
        connections.add(number, since, task);
        // It may have been told to make room already.
        let _gone = filed.send(());
    }
}

/// A connection's place among the others; given up when it is dropped.
struct Seat {
    connections: Connections,
    number: u64,
    since: Instant,
}

impl Seat {
    fn heard(&mut self) {
        let now = Instant::now();
        self.connections.heard(self.number, self.since, now);
        self.since = now;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.remove(self.number, self.since);
    }
}

struct Connection {
    service: Arc<Service>,
    source: IpAddr,
    options: TcpOptions,
    seat: Seat,
}

/// Where replies go, one at a time.
struct Writer {
    /// None once a reply was left half written: what follows could not be told from its rest.
    half: Mutex<Option<OwnedWriteHalf>>,
    broken: Notify,
    patience: Duration,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        // Answers are whole messages: nothing is gained by waiting for more.
        let _slower = stream.set_nodelay(true);
        let (mut reader, half) = stream.into_split();
        let writer = Arc::new(Writer::new(half, self.options.write));
        let mut waiting = JoinSet::new();
        loop {
            let question = tokio::select! {
                biased;
                () = writer.broken.notified() => return,
                question = self.next(&mut reader, &mut waiting) => question,
            };
            let Some(question) = question else { break };
            self.seat.heard();
            // Neither question nor reply is kept while nothing is said.
            let mut out = ReplyWriter::default();
            match self.answer(&question, &mut out) {
                Handled::Reply => writer.send(out.bytes()).await,
                Handled::Later(job) => self.wait(job, &writer, &mut waiting).await,
                // Whoever says something that is no question has nothing more to say.
                Handled::Silence => break,
            }
        }
        while waiting.join_next().await.is_some() {}
    }

    /// Somebody else waits for another server and sends the reply.
    async fn wait(&self, job: Box<Job>, writer: &Arc<Writer>, waiting: &mut JoinSet<()>) {
        if waiting.len() >= WAITING {
            waiting.join_next().await;
        }
        let (service, writer) = (self.service.clone(), writer.clone());
        waiting.spawn(async move {
            if let Some(out) = service.finish(&job).await {
                writer.send(out.bytes()).await;
            }
        });
    }

    /// Reads the next question; none where the connection has ended, or should.
    async fn next(&self, reader: &mut OwnedReadHalf, waiting: &mut JoinSet<()>) -> Option<Vec<u8>> {
        let mut length = [0; 2];
        // No memory is taken while it says nothing.
        let had = loop {
            match timeout(self.options.idle, begin(reader, &mut length)).await {
                Ok(had) => break had.ok().filter(|had| *had > 0)?,
                Err(_silent) => {
                    while waiting.try_join_next().is_some() {}
                    if waiting.is_empty() {
                        return None;
                    }
                }
            }
        };
        let read = async {
            reader.read_exact(&mut length[had..]).await.ok()?;
            let length = usize::from(u16::from_be_bytes(length));
            // Nor is it taken for no more than the promise of a question.
            let mut question = vec![0; Some(length).filter(|length| *length <= LONGEST)?];
            reader.read_exact(&mut question).await.ok()?;
            Some(question)
        };
        timeout(self.options.read, read).await.ok()?
    }

    fn answer(&self, question: &[u8], out: &mut ReplyWriter) -> Handled {
        let now = now();
        let packet =
            Packet { bytes: question, source: self.source, transport: Transport::Tcp, now };
        let (state, mut tally) = (self.service.shared.read(), self.service.tally());
        let answerer = &self.service.answerer;
        let handled = answerer.handle(&state, packet, rand::random(), out, &mut tally);
        if matches!(handled, Handled::Reply) {
            tally.took(1, now.instant.elapsed());
        }
        handled
    }
}

/// Waits for the first octets, and says how many came; none where the client has ended.
async fn begin(reader: &OwnedReadHalf, length: &mut [u8; 2]) -> io::Result<usize> {
    loop {
        reader.readable().await?;
        match reader.try_read(length) {
            // Readiness is only a guess.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            had => return had,
        }
    }
}

impl Writer {
    fn new(half: OwnedWriteHalf, patience: Duration) -> Self {
        Self { half: Mutex::new(Some(half)), broken: Notify::new(), patience }
    }

    /// Sends a message with its length in front. Where the client does not take it, nothing more
    /// is sent, and the connection ends.
    async fn send(&self, message: &[u8]) {
        let mut framed = Vec::with_capacity(2 + message.len());
        framed.extend((message.len() as u16).to_be_bytes());
        framed.extend(message);
        // Nobody else may write before it is known that this one is whole.
        let mut half = self.half.lock().await;
        let Some(open) = half.as_mut() else { return };
        if !matches!(timeout(self.patience, open.write_all(&framed)).await, Ok(Ok(()))) {
            *half = None;
            self.broken.notify_one();
        }
    }
}
