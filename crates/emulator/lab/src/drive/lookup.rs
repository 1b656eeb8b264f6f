//! Resolves a name at one DNS server, for clients without an `/etc/resolv.conf`: nodes.

use std::net::{IpAddr, SocketAddr};

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::net::UdpSocket;

use super::Failure;
use super::worker::Family;

/// The first address of a name.
pub(super) async fn lookup(
    server: SocketAddr,
    name: &str,
    family: Family,
) -> Result<IpAddr, Failure> {
    let wanted = match family {
        Family::V4 => RecordType::A,
        Family::V6 => RecordType::AAAA,
    };
    let name = Name::from_ascii(format!("{name}.")).map_err(|_| Failure::NoSuchName)?;
    let mut question = Message::new(rand::random(), MessageType::Query, OpCode::Query);
    question.add_query(Query::query(name, wanted));
    let answer = exchange(server, &question).await?;
    let addresses = answer.answers.iter().filter_map(|record| match record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    });
    addresses.into_iter().next().ok_or(Failure::NoSuchName)
}

async fn exchange(server: SocketAddr, question: &Message) -> Result<Message, Failure> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let here = |_| Failure::Here;
    let socket = UdpSocket::bind(any).await.map_err(here)?;
    socket.connect(server).await.map_err(here)?;
    let bytes = question.to_vec().map_err(|_| Failure::NoSuchName)?;
    // A server that does not answer counts as a name that does not resolve.
    let silent = |_| Failure::NoSuchName;
    socket.send(&bytes).await.map_err(silent)?;
    let mut buffer = vec![0; 1500];
    let length = socket.recv(&mut buffer).await.map_err(silent)?;
    Message::from_vec(&buffer[..length]).map_err(|_| Failure::NotUnderstood)
}
