//! Opens many connections and counts the servers that answered.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::{Protocol, client};
use crate::{Namespace, NetError};

/// Timeout of a connection: longer than the kernel's first retransmissions.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Connects `count` times by TCP, `concurrency` at a time, and counts the answers per server. The
/// sources are used in turn; without any, the kernel chooses.
///
/// Each connection is reset after its answer, so that it does not occupy a port.
/// Fails if one connection gets no answer, or a source is not an address of the namespace.
pub fn connect_many(
    namespace: &Namespace,
    sources: &[IpAddr],
    to: SocketAddr,
    count: usize,
    concurrency: usize,
) -> Result<BTreeMap<SocketAddr, usize>, NetError> {
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<BTreeMap<SocketAddr, usize>> {
        let mut answered = BTreeMap::new();
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && number < count
        {
            let source = sources.get(number % sources.len().max(1)).copied();
            let server = connect_once(to, source).inspect_err(|_| {
                // Stops the other threads.
                next.store(count, Ordering::Relaxed);
            })?;
            *answered.entry(server).or_default() += 1;
        }
        Ok(answered)
    };
    namespace.attempt(&format!("connect {count} times to {to}"), || {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..concurrency.max(1)).map(|_| scope.spawn(work)).collect();
            let mut total = BTreeMap::new();
            for worker in workers {
                let answered = worker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
                for (server, times) in answered {
                    *total.entry(server).or_default() += times;
                }
            }
            Ok(total)
        })
    })
}

fn connect_once(to: SocketAddr, source: Option<IpAddr>) -> io::Result<SocketAddr> {
    let mut socket = super::socket(Protocol::Tcp, to)?;
    socket.set_linger(Some(Duration::ZERO))?;
    if let Some(source) = source {
        // Chooses the port at connect time, so that destinations do not compete for ports.
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    let answer = client::first_line(&mut socket, to, Instant::now() + TIMEOUT)?;
    Ok(answer.server)
}
