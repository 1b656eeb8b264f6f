//! One query to one upstream server: random ID and source port, one retransmission by UDP, and TCP
//! if the response is truncated.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use nearhop_core::answer::AskedName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use crate::wire::{HEADER, Request, skip_name};

/// How long a server may take to respond.
const TIMEOUT: Duration = Duration::from_secs(2);
/// When a datagram is sent again.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(700);
/// UDP payload size in queries.
const UDP_SIZE: u16 = 1232;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("no response within {TIMEOUT:?}")]
    TimedOut,
    #[error("{0}")]
    Network(#[from] io::Error),
    #[error("cannot open a socket: {0}")]
    NoSocket(io::Error),
    #[error("the query cannot be encoded: {0}")]
    Unencodable(#[from] ProtoError),
    #[error("the response cannot be decoded")]
    Malformed,
    #[error("the response over TCP is to another query")]
    Mismatch,
}

impl ExchangeError {
    /// Whether the server may be down: it did not respond, and the cause is not on this side.
    pub(super) fn is_unresponsive(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Network(_))
    }

    /// Whether the server responded, even if not usefully.
    pub(super) fn is_response(&self) -> bool {
        matches!(self, Self::Malformed | Self::Mismatch)
    }
}

/// A query to upstream servers.
#[derive(Clone, Debug)]
pub(super) struct UpstreamQuery {
    query: Query,
    dnssec_ok: bool,
    checking_disabled: bool,
}

impl UpstreamQuery {
    /// The client's query, for this name.
    pub(super) fn new(name: &AskedName, request: &Request) -> Result<Self, ProtoError> {
        let labels = (0..name.len()).map(|at| name.label(at));
        Ok(Self {
            dnssec_ok: request.dnssec_ok(),
            checking_disabled: request.flags.checking_disabled(),
            ..Self::plain(Name::from_labels(labels)?, RecordType::from(request.type_number))
        })
    }

    /// Tests whether a server responds.
    pub(super) fn health_probe() -> Self {
        Self::plain(Name::root(), RecordType::NS)
    }

    /// Tests whether a server forwards to this server.
    pub(super) fn loop_probe(labels: &[Vec<u8>; 2]) -> Result<Self, ProtoError> {
        let name = Name::from_labels(labels.iter().map(Vec::as_slice))?;
        Ok(Self::plain(name, RecordType::HINFO))
    }

    fn plain(mut name: Name, record_type: RecordType) -> Self {
        name.set_fqdn(true);
        let query = Query::query(name, record_type);
        Self { query, dnssec_ok: false, checking_disabled: false }
    }

    fn message(&self, id: u16, edns: bool) -> Message {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.checking_disabled;
        message.add_query(self.query.clone());
        if edns {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_SIZE).set_dnssec_ok(self.dnssec_ok);
            message.set_edns(edns);
        }
        message
    }
}

/// Whether ID, QR bit and question match the query. Compares octets, so that a response that cannot
/// be decoded still counts as the response.
fn is_response_to(response: &[u8], query: &[u8]) -> bool {
    let Some(name_end) = skip_name(query, HEADER) else { return false };
    // Type and class follow the name.
    let end = name_end + 4;
    response.len() >= end
        && response[..2] == query[..2]
        && response[2] & 0x80 != 0
        && response[4..6] == [0, 1]
        && response[HEADER..name_end].eq_ignore_ascii_case(&query[HEADER..name_end])
        && response[name_end..end] == query[name_end..end]
}

/// Sends a query and waits for the response.
pub(super) async fn exchange(
    to: SocketAddr,
    query: &UpstreamQuery,
) -> Result<Message, ExchangeError> {
    let response = over_udp(to, query, true).await?;
    let code = response.metadata.response_code;
    // A server without EDNS is asked again without it.
    let no_edns =
        matches!(code, ResponseCode::FormErr | ResponseCode::NotImp) && response.edns.is_none();
    let response = if no_edns { over_udp(to, query, false).await? } else { response };
    if !response.metadata.truncation {
        return Ok(response);
    }
    // Without TCP the truncated response is used, and not cached.
    let whole = timeout(TIMEOUT, over_tcp(to, query)).await;
    Ok(whole.ok().and_then(Result::ok).unwrap_or(response))
}

async fn over_udp(
    to: SocketAddr,
    query: &UpstreamQuery,
    edns: bool,
) -> Result<Message, ExchangeError> {
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await.map_err(ExchangeError::NoSocket)?;
    // A connected socket receives only from this server, and ICMP errors.
    socket.connect(to).await?;
    let bytes = query.message(rand::random(), edns).to_vec()?;
    socket.send(&bytes).await?;
    let retransmit = async {
        sleep(RETRANSMIT_AFTER).await;
        let _lost = socket.send(&bytes).await;
        std::future::pending::<()>().await;
    };
    let response = async {
        let mut buffer = vec![0; 4096];
        loop {
            let length = socket.recv(&mut buffer).await?;
            // Other datagrams may be forged; the response may still arrive.
            if is_response_to(&buffer[..length], &bytes) {
                return Message::from_vec(&buffer[..length]).map_err(|_| ExchangeError::Malformed);
            }
        }
    };
    tokio::select! {
        response = response => response,
        () = retransmit => Err(ExchangeError::TimedOut),
        () = sleep(TIMEOUT) => Err(ExchangeError::TimedOut),
    }
}

async fn over_tcp(to: SocketAddr, query: &UpstreamQuery) -> Result<Message, ExchangeError> {
    let mut stream = TcpStream::connect(to).await?;
    let bytes = query.message(rand::random(), true).to_vec()?;
    let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
    framed.extend(&bytes);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    if !is_response_to(&buffer, &bytes) {
        return Err(ExchangeError::Mismatch);
    }
    Message::from_vec(&buffer).map_err(|_| ExchangeError::Malformed)
}
