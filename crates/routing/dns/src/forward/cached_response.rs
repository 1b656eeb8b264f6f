//! An upstream response in the form in which the cache stores and repeats it.
//!
//! The stored question is as long as the client's, whatever its case, so compression pointers stay
//! valid when the client's spelling replaces it. TTLs are decremented in place.

use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::{RData, Record};

use crate::metrics::CacheType;
use crate::wire::{
    HEADER, Rcode, ReplyHeader, ReplyLimits, ReplyWriter, Request, read_u16, skip_name,
};

/// Upper bound of a lifetime, in seconds.
const MAX_LIFETIME: u32 = 30;
/// Lifetime of a SERVFAIL in seconds, so that not every client waits for the next one.
const SERVFAIL_LIFETIME: u32 = 5;

/// An upstream response without its OPT record.
#[derive(Clone, Debug)]
pub struct CachedResponse {
    message: Box<[u8]>,
    /// Offsets of the TTLs.
    ttls: Box<[u16]>,
    code: Rcode,
    authentic: bool,
    /// Seconds for which it may be repeated.
    lifetime: u32,
    arrived: Instant,
}

impl CachedResponse {
    /// None if the response cannot be encoded again.
    pub(super) fn new(response: &Message, arrived: Instant) -> Option<Self> {
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.metadata.truncation = response.metadata.truncation;
        message.queries = response.queries.clone();
        message.answers = response.answers.clone();
        message.authorities = response.authorities.clone();
        message.additionals = response.additionals.clone();
        let bytes = message.to_vec().ok()?;
        Some(Self {
            ttls: find_ttls(&bytes)?,
            message: bytes.into(),
            code: Rcode(response.metadata.response_code.into()),
            authentic: response.metadata.authentic_data,
            lifetime: lifetime_of(response),
            arrived,
        })
    }

    pub(crate) fn code(&self) -> Rcode {
        self.code
    }

    pub(crate) fn message(&self) -> Option<Message> {
        Message::from_vec(&self.message).ok()
    }

    /// Memory in octets.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.message.len() + size_of_val(&self.ttls[..])
    }

    pub(super) fn lifetime(&self) -> u32 {
        self.lifetime
    }

    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.age(now) < Duration::from_secs(self.lifetime.into())
    }

    pub(super) fn cache_type(&self) -> CacheType {
        let data = self.code == Rcode::NO_ERROR && self.message[6..8] != [0, 0];
        if data { CacheType::Success } else { CacheType::Denial }
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.arrived)
    }

    pub(crate) fn age_seconds(&self, now: Instant) -> u32 {
        self.age(now).as_secs().try_into().unwrap_or(u32::MAX)
    }

    /// Writes the response as the reply to the same query of another client.
    pub(crate) fn write(
        &self,
        out: &mut ReplyWriter,
        request: &Request,
        limits: ReplyLimits,
        now: Instant,
    ) {
        // Codes above 15 need an OPT record, which the client did not send.
        let fits = limits.opt.is_some() || self.code.0 <= 15;
        let code = if fits { self.code } else { Rcode::SERV_FAIL };
        // If it is truncated, the offsets of the TTLs do not apply.
        if out.copy(request, &self.message, ReplyHeader::forwarded(code), limits) {
            self.decrement_ttls(out, now);
        }
        if self.authentic && (request.flags.wants_authentic() || request.dnssec_ok()) {
            out.set_authentic();
        }
    }

    fn decrement_ttls(&self, out: &mut ReplyWriter, now: Instant) {
        let age = self.age_seconds(now);
        for at in &self.ttls {
            let at = usize::from(*at);
            let octets = self.message[at..at + 4].try_into().expect("found there");
            out.patch(at, u32::from_be_bytes(octets).saturating_sub(age));
        }
    }
}

/// Seconds for which a response may be repeated (RFC 2308 for denials).
fn lifetime_of(response: &Message) -> u32 {
    if response.metadata.truncation {
        return 0;
    }
    let lowest = |records: &[Record]| records.iter().map(|record| record.ttl).min();
    let code = Rcode(response.metadata.response_code.into());
    let lifetime = match code {
        Rcode::SERV_FAIL => SERVFAIL_LIFETIME,
        Rcode::NO_ERROR if has_requested_type(response) => {
            let sections = [&response.answers, &response.authorities, &response.additionals];
            sections.into_iter().filter_map(|section| lowest(section)).min().unwrap_or(0)
        }
        Rcode::NO_ERROR | Rcode::NX_DOMAIN => {
            let soa = response.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            });
            // An alias before the denial may expire earlier; a denial without SOA is not cached.
            soa.map_or(0, |soa| soa.min(lowest(&response.answers).unwrap_or(soa)))
        }
        _ => 0,
    };
    lifetime.min(MAX_LIFETIME)
}

/// Whether there is a record of the requested type, not only an alias.
fn has_requested_type(response: &Message) -> bool {
    let Some(query) = response.queries.first() else { return false };
    let any = query.query_type() == hickory_proto::rr::RecordType::ANY;
    response.answers.iter().any(|record| any || record.record_type() == query.query_type())
}

/// Offsets of the TTLs in a message.
fn find_ttls(message: &[u8]) -> Option<Box<[u16]>> {
    let word = |at: usize| read_u16(message, at).map(usize::from);
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
