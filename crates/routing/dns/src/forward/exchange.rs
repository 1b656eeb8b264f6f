//! One question to one other server: a number and a port that nobody can guess, one repetition for
//! a lost datagram, and TCP where the answer does not fit.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use nearhop_core::answer::AskedName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::kept::skip_name;
use crate::wire::{HEADER, Request};

/// How long a server has to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// When a datagram that may be lost is sent again.
const AGAIN: Duration = Duration::from_millis(700);
/// What others may send in a datagram.
const UDP_SIZE: u16 = 1232;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no answer for {PATIENCE:?}")]
    Silent,
    #[error("{0}")]
    Network(#[from] io::Error),
    #[error("no socket to ask with: {0}")]
    NoSocket(io::Error),
    #[error("the question cannot be written: {0}")]
    Unwritable(#[from] hickory_proto::ProtoError),
    #[error("the answer cannot be read")]
    Garbled,
    #[error("the answer over TCP is to another question")]
    Mismatch,
}

impl Failure {
    /// Whether the server may be dead: it said nothing, and nothing here was in its way.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Silent | Self::Network(_) => true,
            Self::NoSocket(_) | Self::Unwritable(_) | Self::Garbled | Self::Mismatch => false,
        }
    }

    /// Whether the server has said something, if only nonsense.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Garbled | Self::Mismatch)
    }
}

/// A question for other servers.
#[derive(Clone, Debug)]
pub struct Ask {
    query: Query,
    dnssec_ok: bool,
    checking_disabled: bool,
}

impl Ask {
    /// What a client asks, of this name.
    ///
    /// # Errors
    /// The name cannot be written.
    pub fn new(name: &AskedName, request: &Request) -> Result<Self, hickory_proto::ProtoError> {
        let labels = (0..name.len()).map(|at| name.label(at));
        let mut name = Name::from_labels(labels)?;
        name.set_fqdn(true);
        Ok(Self {
            query: Query::query(name, RecordType::from(request.type_number)),
            dnssec_ok: request.dnssec_ok(),
            checking_disabled: request.flags.checking_disabled(),
        })
    }

    /// What a server is asked to see whether it lives.
    pub(super) fn probe() -> Self {
        let query = Query::query(Name::root(), RecordType::NS);
        Self { query, dnssec_ok: false, checking_disabled: false }
    }

    /// What a server is asked to see whether it leads back here.
    ///
    /// # Errors
    /// The name cannot be written.
    pub(super) fn loop_probe(labels: [Vec<u8>; 2]) -> Result<Self, hickory_proto::ProtoError> {
        let mut name = Name::from_labels(labels.iter().map(Vec::as_slice))?;
        name.set_fqdn(true);
        let query = Query::query(name, RecordType::HINFO);
        Ok(Self { query, dnssec_ok: false, checking_disabled: false })
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

/// Whether this is an answer to what was sent: its number, that it is an answer, and the question.
/// Looks at octets only: an answer that cannot be read is an answer all the same.
fn belongs(answer: &[u8], sent: &[u8]) -> bool {
    let Some(name_end) = skip_name(sent, HEADER) else { return false };
    // Type and class follow the name.
    let end = name_end + 4;
    answer.len() >= end
        && answer[..2] == sent[..2]
        && answer[2] & 0x80 != 0
        && answer[4..6] == [0, 1]
        && answer[HEADER..name_end].eq_ignore_ascii_case(&sent[HEADER..name_end])
        && answer[name_end..end] == sent[name_end..end]
}

/// Asks a server.
pub(super) async fn exchange(to: SocketAddr, ask: &Ask) -> Result<Message, Failure> {
    let answer = over_udp(to, ask, true).await?;
    let code = answer.metadata.response_code;
    let lost =
        matches!(code, ResponseCode::FormErr | ResponseCode::NotImp) && answer.edns.is_none();
    // A server from before EDNS says so; it is asked again in its own language.
    let answer = if lost { over_udp(to, ask, false).await? } else { answer };
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    // What did fit is better than nothing; it is not kept.
    let whole = timeout(PATIENCE, over_tcp(to, ask)).await;
    Ok(whole.ok().and_then(Result::ok).unwrap_or(answer))
}

async fn over_udp(to: SocketAddr, ask: &Ask, edns: bool) -> Result<Message, Failure> {
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await.map_err(Failure::NoSocket)?;
    // Nobody else is heard, and a port that nobody listens on is.
    socket.connect(to).await?;
    let bytes = ask.message(rand::random(), edns).to_vec()?;
    socket.send(&bytes).await?;
    let twice = async {
        sleep(AGAIN).await;
        let _lost = socket.send(&bytes).await;
        std::future::pending::<()>().await;
    };
    let answer = async {
        let mut buffer = vec![0; 4096];
        loop {
            let length = socket.recv(&mut buffer).await?;
            // Whatever else arrives may be forged; the answer may still come.
            if belongs(&buffer[..length], &bytes) {
                return Message::from_vec(&buffer[..length]).map_err(|_| Failure::Garbled);
            }
        }
    };
    tokio::select! {
        answer = answer => answer,
        () = twice => Err(Failure::Silent),
        () = sleep(PATIENCE) => Err(Failure::Silent),
    }
}

async fn over_tcp(to: SocketAddr, ask: &Ask) -> Result<Message, Failure> {
    let mut stream = TcpStream::connect(to).await?;
    let bytes = ask.message(rand::random(), true).to_vec()?;
    let mut framed = (bytes.len() as u16).to_be_bytes().to_vec();
    framed.extend(&bytes);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    if !belongs(&buffer, &bytes) {
        return Err(Failure::Mismatch);
    }
    Message::from_vec(&buffer).map_err(|_| Failure::Garbled)
}
