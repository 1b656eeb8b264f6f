//! An answer of another server, in the form in which it is kept and repeated.
//!
//! The question in front has as many octets as the asker's, whatever its case, so that pointers to
//! it stay right when it is replaced by the asker's spelling; TTLs are counted down in place.

use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::{RData, Record};

use crate::metrics::Store;
use crate::wire::{Authority, HEADER, Head, OptReply, Rcode, Recursion, ReplyWriter, Request};

/// No answer is kept for longer.
const LONGEST: u32 = 30;
/// A failure is kept for so long, so that not every client has to wait for the next one.
const FAILURE: u32 = 5;

/// An answer of another server, without its OPT record.
#[derive(Clone, Debug)]
pub struct Kept {
    message: Box<[u8]>,
    /// Where the TTLs of its records stand.
    ttls: Box<[u16]>,
    code: Rcode,
    authentic: bool,
    /// How many seconds it may be repeated.
    lifetime: u32,
    arrived: Instant,
}

impl Kept {
    /// Takes in what arrived; none where it cannot be written down again.
    pub fn new(answer: &Message, arrived: Instant) -> Option<Self> {
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.metadata.truncation = answer.metadata.truncation;
        message.queries = answer.queries.clone();
        message.answers = answer.answers.clone();
        message.authorities = answer.authorities.clone();
        message.additionals = answer.additionals.clone();
        let bytes = message.to_vec().ok()?;
        Some(Self {
            ttls: find_ttls(&bytes)?,
            message: bytes.into(),
            code: Rcode(answer.metadata.response_code.into()),
            authentic: answer.metadata.authentic_data,
            lifetime: lifetime_of(answer),
            arrived,
        })
    }

    /// Its code.
    pub fn code(&self) -> Rcode {
        self.code
    }

    /// As it came, for who wants to take something out of it.
    pub fn message(&self) -> Option<Message> {
        Message::from_vec(&self.message).ok()
    }

    /// How many octets it takes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.message.len() + size_of_val(&self.ttls[..])
    }

    /// How many seconds it may be repeated from when it arrived.
    pub fn lifetime(&self) -> u32 {
        self.lifetime
    }

    /// Whether it may still be repeated.
    pub fn is_fresh(&self, now: Instant) -> bool {
        self.age(now) < Duration::from_secs(self.lifetime.into())
    }

    /// Where CoreDNS would keep it.
    pub fn store(&self) -> Store {
        let data = self.code == Rcode::NO_ERROR && self.message[6..8] != [0, 0];
        if data { Store::Success } else { Store::Denial }
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.arrived)
    }

    /// How much of its TTLs is gone.
    pub fn seconds(&self, now: Instant) -> u32 {
        self.age(now).as_secs().try_into().unwrap_or(u32::MAX)
    }

    /// Repeats it to somebody who asked the same.
    pub fn write(
        &self,
        out: &mut ReplyWriter,
        request: &Request,
        limits: (usize, Option<OptReply>),
        now: Instant,
    ) {
        // A code that needs an OPT record cannot be said to who sent none.
        let code =
            if limits.1.is_none() && self.code.0 > 15 { Rcode::SERV_FAIL } else { self.code };
        let head = Head { code, authority: Authority::Other, recursion: Recursion::Available };
        // Where it does not fit, other octets may stand where its TTLs would.
        if out.copy(request, &self.message, head, limits) {
            self.count_down(out, now);
        }
        if self.authentic && (request.flags.wants_authentic() || request.dnssec_ok()) {
            out.set_authentic();
        }
    }

    fn count_down(&self, out: &mut ReplyWriter, now: Instant) {
        let age = self.seconds(now);
        for at in &self.ttls {
            let at = usize::from(*at);
            let octets = self.message[at..at + 4].try_into().expect("found there");
            out.patch(at, u32::from_be_bytes(octets).saturating_sub(age));
        }
    }
}

/// How many seconds an answer may be repeated (RFC 2308 for denials).
fn lifetime_of(answer: &Message) -> u32 {
    if answer.metadata.truncation {
        return 0;
    }
    let lowest = |records: &[Record]| records.iter().map(|record| record.ttl).min();
    let code = Rcode(answer.metadata.response_code.into());
    let lifetime = match code {
        Rcode::SERV_FAIL => FAILURE,
        Rcode::NO_ERROR if reaches_its_type(answer) => {
            let sections = [&answer.answers, &answer.authorities, &answer.additionals];
            sections.into_iter().filter_map(|section| lowest(section)).min().unwrap_or(0)
        }
        Rcode::NO_ERROR | Rcode::NX_DOMAIN => {
            let soa = answer.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            });
            // An alias before the denial may end sooner; without a SOA nobody says how long.
            soa.map_or(0, |soa| soa.min(lowest(&answer.answers).unwrap_or(soa)))
        }
        _ => 0,
    };
    lifetime.min(LONGEST)
}

/// Whether there is a record of the type that was asked for, and not only an alias.
fn reaches_its_type(answer: &Message) -> bool {
    let Some(query) = answer.queries.first() else { return false };
    let any = query.query_type() == hickory_proto::rr::RecordType::ANY;
    answer.answers.iter().any(|record| any || record.record_type() == query.query_type())
}

/// Where the TTLs stand in a message that was just written.
fn find_ttls(message: &[u8]) -> Option<Box<[u16]>> {
    let word = |at: usize| -> Option<usize> {
        Some(usize::from(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?])))
    };
    let (questions, records) = (word(4)?, word(6)? + word(8)? + word(10)?);
    let mut at = HEADER;
    for _ in 0..questions {
        at = skip_name(message, at)? + 4;
    }
    let mut found = Vec::with_capacity(records);
    for _ in 0..records {
        at = skip_name(message, at)?;
        found.push(u16::try_from(at + 4).ok()?);
        at += 10 + word(at + 8)?;
    }
    (at == message.len()).then(|| found.into())
}

/// Where a name ends that stands at an octet.
pub(super) fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            0xc0.. => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}
