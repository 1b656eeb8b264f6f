//! A reply, written record by record within the size that the client takes.
//!
//! What does not fit is left out from the end. The header says so (TC) where a record of the
//! answer or of the authority is missing; addresses that were only added as a courtesy are not
//! missed (RFC 2181, section 9).

use nearhop_core::answer::{Answer, AskedName, Data, DomainName, Record, SOA_INTERVALS, Zone};

use super::code::Rcode;
use super::cookie::CookieBytes;
use super::edns::{Edns, Subnet, write_cookie};
use super::name::NameOctets;
use super::names::Names;
use super::request::{Flags, HEADER, Request, Transport};
use super::{IN, OPT};

/// The smallest limit for a datagram.
const SMALLEST_UDP: usize = 512;
const LARGEST: usize = 65_535;
const TRUNCATED: u16 = 1 << 9;
const RESPONSE: u16 = 1 << 15;
/// A pointer to the question's name.
const TO_QUESTION: u16 = 0xc000 | HEADER as u16;

/// Whose answer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// Ours (AA).
    Own,
    /// Somebody else's, or nobody's.
    Other,
}

/// Whether other names are looked up elsewhere (RA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recursion {
    /// They are.
    Available,
    /// They are not. Also with answers of our own, as CoreDNS has it.
    Absent,
}

/// The header of a reply, as far as it does not follow from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The code.
    pub code: Rcode,
    /// Whose answer.
    pub authority: Authority,
    /// Whether others are asked.
    pub recursion: Recursion,
}

impl Head {
    /// An answer of our own.
    pub fn own(code: Rcode) -> Self {
        Self { code, authority: Authority::Own, recursion: Recursion::Absent }
    }

    /// Nobody's answer.
    pub fn bare(code: Rcode) -> Self {
        Self { authority: Authority::Other, ..Self::own(code) }
    }

    fn flags(self, from: Flags) -> u16 {
        let authority = if self.authority == Authority::Own { 1 << 10 } else { 0 };
        let recursion = if self.recursion == Recursion::Available { 1 << 7 } else { 0 };
        RESPONSE | from.echoed() | authority | recursion | u16::from(self.code.low())
    }
}

/// The OPT record of a reply to a client that sent one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptReply {
    /// The largest datagram that is taken here.
    pub udp_size: u16,
    /// As the client set it.
    pub dnssec_ok: bool,
    /// The client's cookie and ours.
    pub cookie: Option<CookieBytes>,
    /// The subnet that the answer is for.
    pub subnet: Option<Subnet>,
}

impl OptReply {
    /// To a client's OPT record.
    pub fn to(edns: &Edns, udp_size: u16) -> Self {
        Self { udp_size, dnssec_ok: edns.dnssec_ok, ..Self::default() }
    }

    fn size(&self) -> usize {
        let cookie = self.cookie.map_or(0, |cookie| 4 + cookie.len());
        11 + cookie + self.subnet.map_or(0, Subnet::size)
    }

    fn write(&self, code: Rcode, out: &mut Vec<u8>) {
        out.push(0);
        out.extend(OPT.to_be_bytes());
        out.extend(self.udp_size.to_be_bytes());
        out.extend([code.high(), 0, if self.dnssec_ok { 0x80 } else { 0 }, 0]);
        out.extend((self.size() as u16 - 11).to_be_bytes());
        if let Some(cookie) = &self.cookie {
            write_cookie(cookie, out);
        }
        if let Some(subnet) = self.subnet {
            subnet.write(out);
        }
    }
}

/// What the names of an answer end with.
#[derive(Clone, Copy, Debug)]
pub struct Zones<'a> {
    /// The question's name.
    pub asked: &'a AskedName,
    /// How many of its labels are its zone's.
    pub zone_labels: usize,
    /// The zones that are answered for.
    pub configured: &'a [Zone],
}

/// A section of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Answer = 6,
    Authority = 8,
    Additional = 10,
}

/// Writes replies, one after the other, into the same memory.
#[derive(Clone, Debug)]
pub struct ReplyWriter {
    bytes: Vec<u8>,
    names: Names,
    name: NameOctets,
    /// No record may end behind this.
    limit: usize,
}

impl Default for ReplyWriter {
    fn default() -> Self {
        let (bytes, names) = (Vec::with_capacity(SMALLEST_UDP), Names::default());
        Self { bytes, names, name: NameOctets::new(), limit: 0 }
    }
}

impl ReplyWriter {
    /// The reply.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The largest reply that a client takes.
    pub fn size_limit(edns: Option<&Edns>, transport: Transport, most: u16) -> usize {
        match (transport, edns) {
            (Transport::Tcp, _) => LARGEST,
            (Transport::Udp, None) => SMALLEST_UDP,
            (Transport::Udp, Some(edns)) => usize::from(edns.udp_size.min(most)).max(SMALLEST_UDP),
        }
    }

    /// Writes a reply without records to a packet that could be read up to `question_end`.
    pub fn refuse(
        &mut self,
        packet: &[u8],
        question_end: usize,
        head: Head,
        opt: Option<OptReply>,
    ) {
        self.bytes.clear();
        let word = |at: usize| super::read_u16(packet, at).unwrap_or_default();
        let flags = head.flags(Flags::from_wire(word(2)));
        let question = packet.get(HEADER..question_end).unwrap_or_default();
        for word in [word(0), flags, u16::from(!question.is_empty()), 0, 0, 0] {
            self.bytes.extend(word.to_be_bytes());
        }
        self.bytes.extend(question);
        self.finish(head.code, opt);
    }

    /// Writes a reply with an answer's records.
    pub fn answer(
        &mut self,
        request: &Request,
        answer: &Answer<'_>,
        zones: &[Zone],
        head: Head,
        (limit, opt): (usize, Option<OptReply>),
    ) {
        self.begin(request, head);
        self.limit = limit - opt.map_or(0, |opt| opt.size());
        let asked = &request.question.name;
        let zones = Zones { asked, zone_labels: answer.zone_labels, configured: zones };
        let fits = self.section(Section::Answer, &answer.answers, &zones)
            && self.section(Section::Authority, answer.authority.as_slice(), &zones);
        if fits {
            self.section(Section::Additional, &answer.additional, &zones);
        } else {
            self.set_truncated();
        }
        self.finish(head.code, opt);
    }

    /// Writes a reply from another one to the same question: everything but the OPT record, which
    /// must not be in it. Where it does not fit, only the question is left, and TC says so. Says
    /// whether the records were written, each where it stood.
    pub fn copy(
        &mut self,
        request: &Request,
        message: &[u8],
        head: Head,
        (limit, opt): (usize, Option<OptReply>),
    ) -> bool {
        self.begin(request, head);
        let question_end = self.bytes.len();
        let truncated = super::read_u16(message, 2).is_some_and(|flags| flags & TRUNCATED != 0);
        let whole = message.len() + opt.map_or(0, |opt| opt.size()) <= limit;
        let records = message.get(question_end..).filter(|_| whole);
        if let Some(records) = records {
            self.bytes.extend(records);
            self.bytes[6..HEADER].copy_from_slice(&message[6..HEADER]);
        }
        if truncated || !whole {
            self.set_truncated();
        }
        self.finish(head.code, opt);
        records.is_some()
    }

    /// Overwrites four octets, such as a TTL.
    pub fn patch(&mut self, at: usize, value: u32) {
        if let Some(octets) = self.bytes.get_mut(at..at + 4) {
            octets.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Sets AD: whoever answered has checked signatures.
    pub fn set_authentic(&mut self) {
        self.bytes[3] |= 1 << 5;
    }

    fn set_truncated(&mut self) {
        self.bytes[2] |= (TRUNCATED >> 8) as u8;
    }

    /// Header and question.
    fn begin(&mut self, request: &Request, head: Head) {
        self.bytes.clear();
        self.names.clear();
        for word in [request.id, head.flags(request.flags), 1, 0, 0, 0] {
            self.bytes.extend(word.to_be_bytes());
        }
        self.bytes.extend(request.question.name.spelled_from(0));
        self.bytes.push(0);
        self.bytes.extend(request.type_number.to_be_bytes());
        self.bytes.extend(IN.to_be_bytes());
    }

    fn finish(&mut self, code: Rcode, opt: Option<OptReply>) {
        if let Some(opt) = opt {
            opt.write(code, &mut self.bytes);
            self.count(Section::Additional, 1);
        }
    }

    /// Adds to the number of records of a section.
    fn count(&mut self, section: Section, more: u16) {
        let at = section as usize;
        let there = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        self.bytes[at..at + 2].copy_from_slice(&(there + more).to_be_bytes());
    }

    /// Writes records for as long as they fit, and says whether all did.
    fn section(&mut self, section: Section, records: &[Record<'_>], zones: &Zones<'_>) -> bool {
        let mut written = 0;
        let mut fits = true;
        for record in records {
            let start = self.bytes.len();
            let sound = self.record(record, zones).is_some();
            if !sound {
                // A name that no label or message can hold: there is no such record.
                self.bytes.truncate(start);
                continue;
            }
            if self.bytes.len() > self.limit {
                self.bytes.truncate(start);
                fits = false;
                break;
            }
            written += 1;
        }
        self.count(section, written);
        fits
    }

    fn record(&mut self, record: &Record<'_>, zones: &Zones<'_>) -> Option<()> {
        self.compressed(record.owner, zones)?;
        self.bytes.extend(type_of(&record.data).to_be_bytes());
        self.bytes.extend(IN.to_be_bytes());
        self.bytes.extend(record.ttl.to_be_bytes());
        let at = self.bytes.len();
        self.bytes.extend([0, 0]);
        self.data(&record.data, zones)?;
        let length = (self.bytes.len() - at - 2) as u16;
        self.bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
        Some(())
    }

    fn data(&mut self, data: &Data<'_>, zones: &Zones<'_>) -> Option<()> {
        match *data {
            Data::A(address) => self.bytes.extend(address.octets()),
            Data::Aaaa(address) => self.bytes.extend(address.octets()),
            Data::Srv { weight, port, target } => {
                for word in [0, weight, port] {
                    self.bytes.extend(word.to_be_bytes());
                }
                self.whole(target, zones)?;
            }
            Data::Ptr(name) | Data::Cname(name) | Data::Ns(name) => self.compressed(name, zones)?,
            Data::Txt(text) => {
                self.bytes.push(u8::try_from(text.len()).ok()?);
                self.bytes.extend(text.as_bytes());
            }
            Data::Soa { serial, minimum } => {
                let here = nearhop_core::answer::ZoneSpelling::AsAsked;
                self.compressed(DomainName::Below(&["ns", "dns"], here), zones)?;
                self.compressed(DomainName::Below(&["hostmaster"], here), zones)?;
                let [refresh, retry, expire] = SOA_INTERVALS;
                for number in [serial, refresh, retry, expire, minimum] {
                    self.bytes.extend(number.to_be_bytes());
                }
            }
        }
        Some(())
    }

    /// Writes a name, and as much of it as a pointer as possible.
    fn compressed(&mut self, name: DomainName<'_>, zones: &Zones<'_>) -> Option<()> {
        if name == DomainName::Asked && !zones.asked.is_empty() {
            self.bytes.extend(TO_QUESTION.to_be_bytes());
            return Some(());
        }
        if let DomainName::Below([], nearhop_core::answer::ZoneSpelling::AsAsked) = name
            && zones.zone_labels > 0
        {
            // The zone's own name, whose place in the question needs no search.
            let before = zones.asked.offset_of(zones.asked.len() - zones.zone_labels);
            self.bytes.extend((TO_QUESTION + before as u16).to_be_bytes());
            return Some(());
        }
        self.name.set(name, zones)?;
        self.note_question(zones.asked);
        let (name, at) = (self.name.as_slice(), self.bytes.len());
        let found = self.names.find(&self.bytes, name);
        let (until, pointer) = found.map_or((name.len(), None), |(until, to)| (until, Some(to)));
        self.bytes.extend(&name[..until]);
        match pointer {
            Some(to) => self.bytes.extend((0xc000 | to).to_be_bytes()),
            None => self.bytes.push(0),
        }
        self.names.note_until(name, until, at);
        Some(())
    }

    /// Writes a name without pointers, as RFC 2782 asks of SRV; others may point to it.
    fn whole(&mut self, name: DomainName<'_>, zones: &Zones<'_>) -> Option<()> {
        self.name.set(name, zones)?;
        self.note_question(zones.asked);
        let (name, at) = (self.name.as_slice(), self.bytes.len());
        let known = self.names.find(&self.bytes, name).map_or(name.len(), |(until, _)| until);
        self.bytes.extend(name);
        self.bytes.push(0);
        self.names.note_until(name, known, at);
        Some(())
    }

    /// The question's name is the first that others may end like. Addresses never need it.
    fn note_question(&mut self, asked: &AskedName) {
        if self.names.is_empty() {
            self.names.note(asked.spelled_from(0), HEADER);
        }
    }
}

fn type_of(data: &Data<'_>) -> u16 {
    match data {
        Data::A(_) => 1,
        Data::Ns(_) => 2,
        Data::Cname(_) => 5,
        Data::Soa { .. } => 6,
        Data::Ptr(_) => 12,
        Data::Txt(_) => 16,
        Data::Aaaa(_) => 28,
        Data::Srv { .. } => 33,
    }
}
