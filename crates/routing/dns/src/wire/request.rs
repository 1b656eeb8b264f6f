//! What a packet asks, or what is wrong with it. Reads only as far as it must.

use nearhop_core::answer::{AskedName, Question, RecordType};

use super::code::Rcode;
use super::edns::{Edns, read_options};
use super::{IN, OPT, read_u16};

/// The octets before the question.
pub const HEADER: usize = 12;

/// How a packet came, and how the reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// In a stream.
    Tcp,
}

/// Where something stands in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// From this octet.
    pub start: u16,
    /// To before this one.
    pub end: u16,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Option<Self> {
        Some(Self { start: start.try_into().ok()?, end: end.try_into().ok()? })
    }

    /// What stands there.
    pub fn of(self, packet: &[u8]) -> &[u8] {
        packet.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }
}

/// What a client set in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

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

    /// Those that go back as they came: opcode, RD and CD.
    pub(super) fn echoed(self) -> u16 {
        self.0 & (0x0f << 11 | Self::RECURSION_DESIRED | Self::CHECKING_DISABLED)
    }

    /// Whether signatures are not to be checked.
    pub fn checking_disabled(self) -> bool {
        self.0 & Self::CHECKING_DISABLED != 0
    }

    /// Whether it wants to know if signatures were checked.
    pub fn wants_authentic(self) -> bool {
        self.0 & Self::AUTHENTIC != 0
    }
}

/// A question that can be answered.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client's number for it.
    pub id: u16,
    /// What it set in the header.
    pub flags: Flags,
    /// The name and the type.
    pub question: Question,
    /// The type's number.
    pub type_number: u16,
    /// The OPT record.
    pub edns: Option<Edns>,
}

/// Why a packet is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no request: an answer to it could start a conversation without end.
    Silent,
    /// It is answered with this code.
    Code {
        /// The code.
        code: Rcode,
        /// The question goes back up to here; from the header's end where it could not be read.
        question_end: usize,
        /// The OPT record, where it was read.
        edns: Option<Edns>,
    },
}

impl Fault {
    fn new(code: Rcode, question_end: usize) -> Self {
        Self::Code { code, question_end, edns: None }
    }
}

impl Request {
    /// Reads a packet. `local` is the number of the EDNS option of forwarders.
    ///
    /// # Errors
    /// It is not a question that can be answered.
    pub fn read(packet: &[u8], local: u16) -> Result<Self, Fault> {
        let header: [u16; 6] = read_header(packet).ok_or(Fault::Silent)?;
        let [id, flags, questions, answers, authorities, additionals] = header;
        let flags = Flags(flags);
        if flags.0 & Flags::RESPONSE != 0 {
            return Err(Fault::Silent);
        }
        if flags.opcode() != 0 {
            return Err(Fault::new(Rcode::NOT_IMP, HEADER));
        }
        // More records than any client sends: not worth reading.
        if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
            return Err(Fault::new(Rcode::FORM_ERR, HEADER));
        }
        let bad = Fault::new(Rcode::FORM_ERR, HEADER);
        let (name, at) = read_question_name(packet).ok_or(bad)?;
        let type_number = read_u16(packet, at).ok_or(bad)?;
        let class = read_u16(packet, at + 2).ok_or(bad)?;
        let end = at + 4;
        let records = answers + authorities + additionals;
        let edns = read_records(packet, end, records, local)
            .map_err(|()| Fault::new(Rcode::FORM_ERR, end))?;
        if edns.is_some_and(|edns| edns.version != 0) {
            return Err(Fault::Code { code: Rcode::BAD_VERS, question_end: end, edns });
        }
        if class != IN {
            return Err(Fault::Code { code: Rcode::REFUSED, question_end: end, edns });
        }
        let question = Question { name, record_type: RecordType::from_wire(type_number) };
        Ok(Self { id, flags, question, type_number, edns })
    }

    /// Where the question ends in the packet, and in a reply that repeats it.
    pub fn question_end(&self) -> usize {
        // The name's octets, its root, type and class.
        HEADER + self.question.name.offset_of(usize::MAX) + 5
    }

    /// Whether it wants DNSSEC records.
    pub fn dnssec_ok(&self) -> bool {
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

/// The question's name, and where it ends. Nothing stands before it that it could point to.
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

/// Reads what follows the question: an OPT record, perhaps, and nothing behind the last record.
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
            // Of the root, and only once.
            if edns.is_some() || packet[start] != 0 {
                return Err(());
            }
            let mut read = Edns {
                udp_size: u16::from_be_bytes([fixed[2], fixed[3]]),
                version: fixed[5],
                dnssec_ok: fixed[6] & 0x80 != 0,
                ..Edns::default()
            };
            // The options of another version may look different.
            if read.version == 0 {
                read_options(packet, data, local, &mut read).ok_or(())?;
            }
            edns = Some(read);
        }
    }
    if at == packet.len() { Ok(edns) } else { Err(()) }
}

/// Where a name ends. Nobody reads it, so only its end must be found; a pointer ends it, wherever
/// it points to, as long as that is before it.
fn skip_name(packet: &[u8], start: usize) -> Option<usize> {
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
