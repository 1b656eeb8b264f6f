//! Numbered UDP datagrams, and the endpoint that received each.
//!
//! Each datagram has a unique number, so a late answer never counts for another datagram.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use nearhop_net::Namespace;

/// How often a server checks whether it should stop.
const TURN: Duration = Duration::from_millis(50);
/// How long a client waits for one datagram before it sends the next.
const ONE: Duration = Duration::from_millis(300);

/// Which endpoint received which datagram. Clones share the data.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(Arc<Mutex<BTreeMap<u64, IpAddr>>>);

impl Arrivals {
    /// The endpoint that received a datagram.
    fn of(&self, number: u64) -> Option<IpAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    fn note(&self, number: u64, endpoint: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, endpoint);
    }
}

/// Whether a server answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reply {
    Echo,
    None,
}

/// A UDP server; it stops when dropped.
pub struct Datagrams {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Datagrams {
    /// Starts a server that sends each number back.
    pub fn answering(at: &Namespace, address: SocketAddr, arrivals: &Arrivals) -> Result<Self> {
        Self::start(at, address, arrivals, Reply::Echo)
    }

    /// Starts a server that never answers.
    pub fn silent(at: &Namespace, address: SocketAddr, arrivals: &Arrivals) -> Result<Self> {
        Self::start(at, address, arrivals, Reply::None)
    }

    fn start(at: &Namespace, address: SocketAddr, seen: &Arrivals, reply: Reply) -> Result<Self> {
        let socket = at.run(|| UdpSocket::bind(address))?;
        socket.set_read_timeout(Some(TURN))?;
        let ends = Arc::new(AtomicBool::new(false));
        let (stop, seen) = (ends.clone(), seen.clone());
        let serve = move || {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                let Ok((8, peer)) = socket.recv_from(&mut buffer) else { continue };
                seen.note(number_in(&buffer), address.ip());
                if reply == Reply::Echo {
                    // The client may be unreachable; then it gets no answer.
                    let _ = socket.send_to(&buffer[..8], peer);
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("udp {address}")).spawn(serve)?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already printed.
            let _ = thread.join();
        }
    }
}

fn number_in(buffer: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&buffer[..8]);
    u64::from_be_bytes(number)
}

/// Whether the server of a flow answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// It does not: packets go in one direction only.
    One,
    /// It answers: packets go in both directions.
    Two,
}

/// A client that sends datagrams from one port to one address.
#[derive(Debug)]
pub struct Sender {
    /// Destination.
    pub to: SocketAddr,
    /// Whether answers are expected.
    pub way: Way,
    socket: UdpSocket,
    arrivals: Arrivals,
}

impl Sender {
    /// A new client in a namespace; it has sent nothing yet.
    pub fn new(from: &Namespace, to: SocketAddr, way: Way, arrivals: &Arrivals) -> Result<Self> {
        let socket = from.run(|| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?;
        Ok(Self { to, way, socket, arrivals: arrivals.clone() })
    }

    /// Sends one datagram without waiting; returns its number.
    pub fn send(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The first call may return the ICMP error of an earlier datagram; the second one sends.
        if self.socket.send(&number.to_be_bytes()).is_err() {
            let _ = self.socket.send(&number.to_be_bytes());
        }
        number
    }

    /// Which endpoint has received the datagram with this number so far.
    pub fn arrived(&self, number: u64) -> Option<IpAddr> {
        self.arrivals.of(number)
    }

    /// Sends one datagram and waits briefly; returns the endpoint that received it and, with
    /// [`Way::Two`], answered it.
    pub fn try_once(&self) -> Option<IpAddr> {
        let number = self.send();
        let deadline = Instant::now() + ONE;
        let mut answered = self.way == Way::One;
        while Instant::now() < deadline {
            answered = answered || self.has_answer(number);
            if let (Some(endpoint), true) = (self.arrivals.of(number), answered) {
                return Some(endpoint);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Sends up to 20 datagrams until one arrives: on a busy machine some may be late.
    pub fn locate(&self) -> Option<IpAddr> {
        (0..20).find_map(|_| self.try_once())
    }

    fn has_answer(&self, number: u64) -> bool {
        let mut buffer = [0; 64];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(8) if number_in(&buffer) == number => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // An ICMP error; the answer may follow.
                Err(_) => {}
            }
        }
    }
}
