//! Datagrams with numbers, and where each of them arrived.
//!
//! Each datagram has a number of its own, so an answer that comes late is never taken for another
//! one's.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use nearhop_net::Namespace;

/// How often a server looks whether it is to end.
const TURN: Duration = Duration::from_millis(50);
/// How long one datagram is waited for, before another one is sent.
const ONE: Duration = Duration::from_millis(300);

/// Which endpoint got which datagram. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Arrivals(Arc<Mutex<BTreeMap<u64, IpAddr>>>);

impl Arrivals {
    /// Who got it.
    fn of(&self, number: u64) -> Option<IpAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    fn note(&self, number: u64, endpoint: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, endpoint);
    }
}

/// Whether a server answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    Answers,
    KeepsSilent,
}

/// A server for datagrams, until it is dropped.
pub struct Datagrams {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Datagrams {
    /// One that sends each number back.
    pub fn answering(at: &Namespace, address: SocketAddr, arrivals: &Arrivals) -> Result<Self> {
        Self::start(at, address, arrivals, Habit::Answers)
    }

    /// One that never says anything.
    pub fn silent(at: &Namespace, address: SocketAddr, arrivals: &Arrivals) -> Result<Self> {
        Self::start(at, address, arrivals, Habit::KeepsSilent)
    }

    fn start(at: &Namespace, address: SocketAddr, seen: &Arrivals, habit: Habit) -> Result<Self> {
        let socket = at.run(|| UdpSocket::bind(address))?;
        socket.set_read_timeout(Some(TURN))?;
        let ends = Arc::new(AtomicBool::new(false));
        let (stop, seen) = (ends.clone(), seen.clone());
        let serve = move || {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                let Ok((8, peer)) = socket.recv_from(&mut buffer) else { continue };
                seen.note(number_in(&buffer), address.ip());
                if habit == Habit::Answers {
                    // The way back may be closed; then the client hears nothing.
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
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

fn number_in(buffer: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&buffer[..8]);
    u64::from_be_bytes(number)
}

/// Whether the server that a sender talks to answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// No: the flow has one direction.
    One,
    /// Yes.
    Two,
}

/// A client that sends datagrams from one port to one address.
#[derive(Debug)]
pub struct Sender {
    /// Where to.
    pub to: SocketAddr,
    /// Whether answers are expected.
    pub way: Way,
    socket: UdpSocket,
    arrivals: Arrivals,
}

impl Sender {
    /// A new client in a namespace, from which nothing has been sent.
    pub fn new(from: &Namespace, to: SocketAddr, way: Way, arrivals: &Arrivals) -> Result<Self> {
        let socket = from.run(|| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?;
        Ok(Self { to, way, socket, arrivals: arrivals.clone() })
    }

    /// Sends one datagram and waits for nothing; its number.
    pub fn send(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // An earlier refusal surfaces here; the datagram after that is sent.
        if self.socket.send(&number.to_be_bytes()).is_err() {
            let _ = self.socket.send(&number.to_be_bytes());
        }
        number
    }

    /// Which endpoint got the datagram with this number, by now.
    pub fn arrived(&self, number: u64) -> Option<IpAddr> {
        self.arrivals.of(number)
    }

    /// Sends one, and waits a little: which endpoint got it, and with two ways answered.
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

    /// Sends until one arrives, with patience for a busy machine.
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
                // A refusal; what comes after it may be the answer.
                Err(_) => {}
            }
        }
    }
}
