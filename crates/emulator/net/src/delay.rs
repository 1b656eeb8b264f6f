//! Link delays, by the queueing discipline `netem`.
//!
//! The netlink crate has no netem options, so this module encodes them as in
//! `include/uapi/linux/pkt_sched.h`.

use std::io::{self, ErrorKind};
use std::time::Duration;

use futures_util::StreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use super::{Namespace, NetError, netlink};

const TCA_OPTIONS: u16 = 2;
const TCA_NETEM_LATENCY64: u16 = 10;

/// Packets in flight; netem drops further ones.
const LIMIT: u32 = 100_000;

/// Whether a delay is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Set.
    Set,
    /// This kernel has no netem; the link has no delay.
    NotSupported,
}

/// Delays every packet that leaves through `device`.
/// Fails if there is no such device.
pub fn set_delay(namespace: &Namespace, device: &str, delay: Duration) -> Result<Delay, NetError> {
    let what = format!("delay what leaves through `{device}`");
    namespace.attempt(&what, || {
        let done = netlink::here(async |handle| replace_root(handle, device, delay).await);
        match done {
            Ok(()) => Ok(Delay::Set),
            // The kernel has no queueing discipline of this name.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Delay::NotSupported),
            Err(error) => Err(error),
        }
    })
}

async fn replace_root(mut handle: Handle, device: &str, delay: Duration) -> io::Result<()> {
    let index = netlink::index(device).map_err(|error| io::Error::other(error.to_string()))?;
    let mut message = TcMessage::with_index(i32::try_from(index).map_err(io::Error::other)?);
    message.header.parent = TcHandle::ROOT;
    message.attributes.push(TcAttribute::Kind("netem".to_owned()));
    let options = DefaultNla::new(TCA_OPTIONS, netem_options(delay));
    message.attributes.push(TcAttribute::Other(options));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let mut answers = handle.request(request).map_err(netlink::cause)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(error.to_io());
        }
    }
    Ok(())
}

/// `struct tc_netem_qopt`, then the delay in nanoseconds, which replaces its first field.
fn netem_options(delay: Duration) -> Vec<u8> {
    let [latency, limit, loss, gap, duplicate, jitter] = [0, LIMIT, 0, 0, 0, 0];
    let fields: [u32; 6] = [latency, limit, loss, gap, duplicate, jitter];
    let mut bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    let nanoseconds = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX).to_ne_bytes();
    bytes.extend(12u16.to_ne_bytes());
    bytes.extend(TCA_NETEM_LATENCY64.to_ne_bytes());
    bytes.extend(nanoseconds);
    bytes
}
