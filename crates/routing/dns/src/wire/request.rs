//! Reads a query, only as far as needed.

use nearhop_core::answer::{AskedName, Question, RecordType};

use super::code::Rcode;
use super::edns::{Edns, read_options};
use super::{IN, OPT, read_u16};

/// Length of the header.
pub(crate) const HEADER: usize = 12;

/// The transport of a query and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// A range of octets in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u16,
    /// Exclusive.
    pub(crate) end: u16,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Option<Self> {
        Some(Self { start: start.try_into().ok()?, end: end.try_into().ok()? })
    }

    pub(crate) fn of(self, packet: &[u8]) -> &[u8] {
        packet.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }
}

/// The flags of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    const RESPONSE: u16 = 1 << 15;
    const RECURSION_DESIRED: u16 = 1 << 8;
    const AUTHENTIC: u16 = 1 << 5;
    const CHECKING_DISABLED: u16 = 1 << 4;

    pub(super) fn from_wire(flags: u16) -> Self {
        Self(flags)
    }

    fn opcode(self) -> u8 {
        ((self.0 >> 11) & 0x0f) as u8
    }

    /// The flags that a reply repeats: opcode, RD and CD.
    pub(super) fn echoed(self) -> u16 {
        self.0 & (0x0f << 11 | Self::RECURSION_DESIRED | Self::CHECKING_DISABLED)
    }

    pub(crate) fn checking_disabled(self) -> bool {
        self.0 & Self::CHECKING_DISABLED != 0
    }

    /// AD in a query: the client asks whether the response was validated.
    pub(crate) fn wants_authentic(self) -> bool {
        self.0 & Self::AUTHENTIC != 0
    }
}

/// A query that can be answered.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u16,
    pub(crate) flags: Flags,
    pub(crate) question: Question,
    pub(crate) type_number: u16,
    pub(crate) edns: Option<Edns>,
}

/// Why a packet is not a query that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not a request; a reply could start an endless exchange.
    Ignore,
    /// An error reply is due.
    Reject(Rejection),
}

/// An error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) code: Rcode,
    /// Where the question ends that the reply repeats; the header's end if it cannot be read.
    pub(crate) question_end: usize,
    pub(crate) edns: Option<Edns>,
}

impl Fault {
    fn new(code: Rcode, question_end: usize, edns: Option<Edns>) -> Self {
        Self::Reject(Rejection { code, question_end, edns })
    }
}

impl Request {
    /// Reads a packet. `local` is the code of the forwarder option.
    pub(crate) fn read(packet: &[u8], local: u16) -> Result<Self, Fault> {
        let header: [u16; 6] = read_header(packet).ok_or(Fault::Ignore)?;
        let [id, flags, questions, answers, authorities, additionals] = header;
        let flags = Flags(flags);
        if flags.0 & Flags::RESPONSE != 0 {
            return Err(Fault::Ignore);
        }
        let bad = Fault::new(Rcode::FORM_ERR, HEADER, None);
        if flags.opcode() != 0 {
            return Err(Fault::new(Rcode::NOT_IMP, HEADER, None));
        }
        // No client sends more records.
        if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
            return Err(bad);
        }
        let (name, at) = read_question_name(packet).ok_or(bad)?;
        let type_number = read_u16(packet, at).ok_or(bad)?;
        let class = read_u16(packet, at + 2).ok_or(bad)?;
        let end = at + 4;
        let records = answers + authorities + additionals;
        let edns = read_records(packet, end, records, local)
            .map_err(|()| Fault::new(Rcode::FORM_ERR, end, None))?;
        if edns.is_some_and(|edns| edns.version != 0) {
            return Err(Fault::new(Rcode::BAD_VERS, end, edns));
        }
        if class != IN {
            return Err(Fault::new(Rcode::REFUSED, end, edns));
        }
        let question = Question { name, record_type: RecordType::from_wire(type_number) };
        Ok(Self { id, flags, question, type_number, edns })
    }

    /// An error reply to this query.
    pub(crate) fn reject(&self, code: Rcode) -> Rejection {
        Rejection { code, question_end: self.question_end(), edns: self.edns }
    }

    /// Where the question ends, in the packet and in the reply.
    pub(crate) fn question_end(&self) -> usize {
        // The name's octets, its root, type and class.
        HEADER + self.question.name.offset_of(usize::MAX) + 5
    }

    pub(crate) fn dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }
}

fn read_header(packet: &[u8]) -> Option<[u16; 6]> {
    let header = packet.get(..HEADER)?;
    let mut words = [0; 6];
    for (word, octets) in words.iter_mut().zip(header.chunks_exact(2)) {
        *word = u16::from_be_bytes([octets[0], octets[1]]);
    }
    Some(words)
}

/// The question's name and its end. It cannot have pointers: no name precedes it.
fn read_question_name(packet: &[u8]) -> Option<(AskedName, usize)> {
    let mut name = AskedName::root();
    let mut at = HEADER;
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        match length {
            0 => return Some((name, at)),
            1..=63 => name.push(packet.get(at..at + length)?).ok()?,
            _ => return None,
        }
        at += length;
    }
}

/// Reads the records after the question and returns the OPT record. Octets after the last record
/// are an error.
fn read_records(packet: &[u8], at: usize, count: u16, local: u16) -> Result<Option<Edns>, ()> {
    let mut at = at;
    let mut edns = None;
    for _ in 0..count {
        let start = at;
        at = skip_name(packet, at).ok_or(())?;
        let fixed = packet.get(at..at + 10).ok_or(())?;
        let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
        let length = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        let data = Span::new(at + 10, at + 10 + length).ok_or(())?;
        at += 10 + length;
        if at > packet.len() {
            return Err(());
        }
        if kind == OPT {
            // RFC 6891: owned by the root, at most one.
            if edns.is_some() || packet[start] != 0 {
                return Err(());
            }
            let mut read = Edns {
                udp_size: u16::from_be_bytes([fixed[2], fixed[3]]),
                version: fixed[5],
                dnssec_ok: fixed[6] & 0x80 != 0,
                ..Edns::default()
            };
            // Another version may encode options differently.
            if read.version == 0 {
                read_options(packet, data, local, &mut read).ok_or(())?;
            }
            edns = Some(read);
        }
    }
    if at == packet.len() { Ok(edns) } else { Err(()) }
}

/// The end of the name at `start`. A pointer ends the name and must point before it.
pub(crate) fn skip_name(packet: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let length = *packet.get(at)?;
        match length {
            0 => return Some(at + 1),
            1..=63 => at += 1 + usize::from(length),
            0xc0.. => {
                let to = usize::from(read_u16(packet, at)? & 0x3fff);
                return (HEADER..start).contains(&to).then_some(at + 2);
            }
            _ => return None,
        }
    }
}
