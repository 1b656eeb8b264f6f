//! Writes a reply record by record, up to the client's size limit.
//!
//! Records that do not fit are omitted from the end. The TC flag is set if a record of the answer
//! or authority section is missing, but not for additional records (RFC 2181, section 9).

use nearhop_core::answer::{
    Answer, AskedName, Data, DomainName, Record, SOA_INTERVALS, Zone, ZoneSpelling,
};

use super::code::Rcode;
use super::compression::CompressionTable;
use super::cookie::CookieBytes;
use super::edns::{Edns, Subnet, write_cookie};
use super::request::{Flags, HEADER, Rejection, Request, Transport};
use super::wire_name::WireName;
use super::{IN, OPT, read_u16};

/// Every client accepts UDP messages of this size.
const SMALLEST_UDP: usize = 512;
const LARGEST: usize = 65_535;
const TRUNCATED: u16 = 1 << 9;
const RESPONSE: u16 = 1 << 15;
/// A pointer to the question's name.
const TO_QUESTION: u16 = 0xc000 | HEADER as u16;

/// Where a reply comes from, which decides the AA and RA flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The cluster's state: AA.
    Cluster,
    /// An upstream server: RA. As in CoreDNS, other replies do not set RA.
    Upstream,
    /// The server itself.
    Error,
}

/// The header fields of a reply that do not follow from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyHeader {
    code: Rcode,
    origin: Origin,
}

impl ReplyHeader {
    /// An authoritative answer.
    pub(crate) fn own(code: Rcode) -> Self {
        Self { code, origin: Origin::Cluster }
    }

    /// An upstream server's response.
    pub(crate) fn forwarded(code: Rcode) -> Self {
        Self { code, origin: Origin::Upstream }
    }

    /// An error.
    pub(crate) fn bare(code: Rcode) -> Self {
        Self { code, origin: Origin::Error }
    }

    fn flags(self, from: Flags) -> u16 {
        let origin = match self.origin {
            Origin::Cluster => 1 << 10,
            Origin::Upstream => 1 << 7,
            Origin::Error => 0,
        };
        RESPONSE | from.echoed() | origin | u16::from(self.code.low())
    }
}

/// The size limit of a reply, and its OPT record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimits {
    pub(crate) size: usize,
    pub(crate) opt: Option<OptReply>,
}

/// The OPT record of a reply to a client that sent one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptReply {
    /// The largest UDP message that this server accepts.
    pub(crate) udp_size: u16,
    /// As in the query.
    pub(crate) dnssec_ok: bool,
    pub(crate) cookie: Option<CookieBytes>,
    /// The client subnet that the answer is for.
    pub(crate) subnet: Option<Subnet>,
}

impl OptReply {
    pub(crate) fn to(edns: &Edns, udp_size: u16) -> Self {
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

/// The zones that names of an answer end with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zones<'a> {
    /// The question's name.
    pub(super) asked: &'a AskedName,
    /// The number of its labels that belong to its zone.
    pub(super) zone_labels: usize,
    pub(super) configured: &'a [Zone],
}

/// A section, as the offset of its record count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Answer = 6,
    Authority = 8,
    Additional = 10,
}

/// Writes one reply after the other into the same buffer.
#[derive(Clone, Debug)]
pub struct ReplyWriter {
    bytes: Vec<u8>,
    names: CompressionTable,
    name: WireName,
    /// Offset that no record may exceed.
    limit: usize,
}

impl Default for ReplyWriter {
    fn default() -> Self {
        let (bytes, names) = (Vec::with_capacity(SMALLEST_UDP), CompressionTable::default());
        Self { bytes, names, name: WireName::new(), limit: 0 }
    }
}

impl ReplyWriter {
    /// The reply.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The largest reply that a client accepts, at most `max` by UDP.
    pub(crate) fn size_limit(edns: Option<&Edns>, transport: Transport, max: u16) -> usize {
        match (transport, edns) {
            (Transport::Tcp, _) => LARGEST,
            (Transport::Udp, None) => SMALLEST_UDP,
            (Transport::Udp, Some(edns)) => usize::from(edns.udp_size.min(max)).max(SMALLEST_UDP),
        }
    }

    /// Writes an error reply to a packet.
    pub(crate) fn reject(
        &mut self,
        packet: &[u8],
        &Rejection { code, question_end, .. }: &Rejection,
        opt: Option<OptReply>,
    ) {
        self.bytes.clear();
        let word = |at: usize| read_u16(packet, at).unwrap_or_default();
        let flags = ReplyHeader::bare(code).flags(Flags::from_wire(word(2)));
        let question = packet.get(HEADER..question_end).unwrap_or_default();
        for word in [word(0), flags, u16::from(!question.is_empty()), 0, 0, 0] {
            self.bytes.extend(word.to_be_bytes());
        }
        self.bytes.extend(question);
        self.finish(code, opt);
    }

    /// Writes a reply without records.
    pub(crate) fn empty(&mut self, request: &Request, header: ReplyHeader, limits: ReplyLimits) {
        self.begin(request, header);
        self.finish(header.code, limits.opt);
    }

    /// Writes a reply with the records of an answer.
    pub(crate) fn answer(
        &mut self,
        request: &Request,
        answer: &Answer<'_>,
        zones: &[Zone],
        header: ReplyHeader,
        ReplyLimits { size, opt }: ReplyLimits,
    ) {
        self.begin(request, header);
        self.limit = size - opt.map_or(0, |opt| opt.size());
        let asked = &request.question.name;
        let zones = Zones { asked, zone_labels: answer.zone_labels, configured: zones };
        let fits = self.section(Section::Answer, &answer.answers, &zones)
            && self.section(Section::Authority, answer.authority.as_slice(), &zones);
        if fits {
            self.section(Section::Additional, &answer.additional, &zones);
        } else {
            self.set_truncated();
        }
        self.finish(header.code, opt);
    }

    /// Writes a reply with the records of `message`, which must have the same question and no OPT
    /// record. If they do not fit, the reply is truncated to the question. Returns whether the
    /// records were written, at the same offsets.
    pub(crate) fn copy(
        &mut self,
        request: &Request,
        message: &[u8],
        header: ReplyHeader,
        ReplyLimits { size, opt }: ReplyLimits,
    ) -> bool {
        self.begin(request, header);
        let question_end = self.bytes.len();
        let truncated = read_u16(message, 2).is_some_and(|flags| flags & TRUNCATED != 0);
        let whole = message.len() + opt.map_or(0, |opt| opt.size()) <= size;
        let records = message.get(question_end..).filter(|_| whole);
        if let Some(records) = records {
            self.bytes.extend(records);
            self.bytes[6..HEADER].copy_from_slice(&message[6..HEADER]);
        }
        if truncated || !whole {
            self.set_truncated();
        }
        self.finish(header.code, opt);
        records.is_some()
    }

    /// Overwrites four octets, such as a TTL.
    pub(crate) fn patch(&mut self, at: usize, value: u32) {
        if let Some(octets) = self.bytes.get_mut(at..at + 4) {
            octets.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Sets the AD flag: the upstream server validated the response.
    pub(crate) fn set_authentic(&mut self) {
        self.bytes[3] |= 1 << 5;
    }

    fn set_truncated(&mut self) {
        self.bytes[2] |= (TRUNCATED >> 8) as u8;
    }

    /// Writes header and question.
    fn begin(&mut self, request: &Request, header: ReplyHeader) {
        self.bytes.clear();
        self.names.clear();
        for word in [request.id, header.flags(request.flags), 1, 0, 0, 0] {
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

    /// Adds to a section's record count.
    fn count(&mut self, section: Section, more: u16) {
        let at = section as usize;
        let there = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        self.bytes[at..at + 2].copy_from_slice(&(there + more).to_be_bytes());
    }

    /// Writes the records that fit; returns whether all did.
    fn section(&mut self, section: Section, records: &[Record<'_>], zones: &Zones<'_>) -> bool {
        let mut written = 0;
        let mut fits = true;
        for record in records {
            let start = self.bytes.len();
            let sound = self.record(record, zones).is_some();
            if !sound {
                // A name cannot be encoded: the record is omitted.
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
                self.uncompressed(target, zones)?;
            }
            Data::Ptr(name) | Data::Cname(name) | Data::Ns(name) => self.compressed(name, zones)?,
            Data::Txt(text) => {
                self.bytes.push(u8::try_from(text.len()).ok()?);
                self.bytes.extend(text.as_bytes());
            }
            Data::Soa { serial, minimum } => {
                let here = ZoneSpelling::AsAsked;
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

    /// Writes a compressed name.
    fn compressed(&mut self, name: DomainName<'_>, zones: &Zones<'_>) -> Option<()> {
        if name == DomainName::Asked && !zones.asked.is_empty() {
            self.bytes.extend(TO_QUESTION.to_be_bytes());
            return Some(());
        }
        if let DomainName::Below([], ZoneSpelling::AsAsked) = name
            && zones.zone_labels > 0
        {
            // The zone itself: its offset in the question is known.
            let before = zones.asked.offset_of(zones.asked.len() - zones.zone_labels);
            self.bytes.extend((TO_QUESTION + before as u16).to_be_bytes());
            return Some(());
        }
        self.name.set(name, zones)?;
        self.add_question(zones.asked);
        let (name, at) = (self.name.as_slice(), self.bytes.len());
        let found = self.names.find(&self.bytes, name);
        let (until, pointer) = found.map_or((name.len(), None), |(until, to)| (until, Some(to)));
        self.bytes.extend(&name[..until]);
        match pointer {
            Some(to) => self.bytes.extend((0xc000 | to).to_be_bytes()),
            None => self.bytes.push(0),
        }
        self.names.add_until(name, until, at);
        Some(())
    }

    /// Writes an uncompressed name (RFC 2782 for SRV), which later names may point to.
    fn uncompressed(&mut self, name: DomainName<'_>, zones: &Zones<'_>) -> Option<()> {
        self.name.set(name, zones)?;
        self.add_question(zones.asked);
        let (name, at) = (self.name.as_slice(), self.bytes.len());
        let known = self.names.find(&self.bytes, name).map_or(name.len(), |(until, _)| until);
        self.bytes.extend(name);
        self.bytes.push(0);
        self.names.add_until(name, known, at);
        Some(())
    }

    /// Adds the question's name to the compression table on first use: addresses never need it.
    fn add_question(&mut self, asked: &AskedName) {
        if self.names.is_empty() {
            self.names.add(asked.spelled_from(0), HEADER);
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
