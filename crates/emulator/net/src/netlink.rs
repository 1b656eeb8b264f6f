//! Opens an rtnetlink connection per operation and waits for the result.
//!
//! rtnetlink is asynchronous, and its socket belongs to the namespace of the thread that opens it.
//! A connection per operation is cheap and needs no runtime inside each namespace.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::link::{LinkFlags, LinkMessage};
use rtnetlink::{Handle, LinkUnspec, new_connection};
use tokio::runtime;

/// Far more than the kernel needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `work` with a connection in the calling thread's namespace.
pub(super) fn here<T>(work: impl AsyncFnOnce(Handle) -> io::Result<T>) -> io::Result<T> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection()?;
        tokio::spawn(connection);
        work(handle).await
    })
}

/// The kernel's error, if it sent one.
pub(super) fn cause(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

/// The index of a device in the calling thread's namespace.
pub(super) fn index(device: &str) -> io::Result<u32> {
    if_nametoindex(device)
        .map_err(|errno| io::Error::new(io::Error::from(errno).kind(), format!("no `{device}`")))
}

pub(super) async fn set_up(handle: &Handle, device: &str) -> io::Result<()> {
    let message = LinkUnspec::new_with_name(device).up().build();
    handle.link().set(message).execute().await.map_err(cause)
}

pub(super) async fn get(handle: &Handle, device: &str) -> io::Result<LinkMessage> {
    let mut found = Box::pin(handle.link().get().match_name(device).execute());
    let link = found.try_next().await.map_err(cause)?;
    link.ok_or_else(|| io::Error::other("the kernel sent no link"))
}

/// Waits until the device is running: after its peer comes up, a veth drops packets until the kernel
/// updates its state.
pub(super) async fn wait_running(handle: &Handle, device: &str) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_running(&get(handle, device).await?) {
        if Instant::now() > deadline {
            let what = format!("`{device}` is up but does not run: is its other end up?");
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        // The runtime has nothing else to do.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub(super) fn is_running(link: &LinkMessage) -> bool {
    link.header.flags.contains(LinkFlags::Running)
}
