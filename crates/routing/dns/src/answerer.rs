//! From a packet to its reply. Reads the state and changes only counters; accepts any bytes.
//!
//! A query for a name outside the cluster that the cache cannot answer becomes a [`PendingQuery`]:
//! the caller asks an upstream server, and [`Answerer::finish`] writes the reply.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use nearhop_core::answer::{
    Answer, AskedName, Asking, Config, Outcome, RecordType, Upstream, answer,
};

use crate::client_location::TrustedForwarders;
use crate::forward::{Cache, CacheKey, CachedResponse, LoopProbes};
use crate::metrics::{AnsweredBy, RequestSample, ResponseSample, Tally};
use crate::options::Options;
use crate::rate_limit::ErrorRateLimiter;
use crate::state::State;
use crate::wire::{
    Cookies, Edns, Fault, HEADER, OptReply, Rcode, Rejection, ReplyHeader, ReplyLimits,
    ReplyWriter, Request, Subnet, Transport,
};

/// The current time on two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic, for durations.
    pub instant: Instant,
    /// Seconds since 1970, for cookies.
    pub unix: u32,
}

/// A received packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// The DNS message.
    pub bytes: &'p [u8],
    /// The sender's address.
    pub source: IpAddr,
    /// UDP or TCP.
    pub transport: Transport,
    /// When it was received.
    pub now: Now,
    /// Random number that decides the order of records and the draw between weighted zones.
    pub seed: u64,
}

/// The result of handling a packet.
#[derive(Debug)]
pub enum Handled {
    /// The reply is written.
    Reply,
    /// An upstream server must be asked first.
    Forward(Box<PendingQuery>),
    /// No reply is sent.
    Drop,
}

/// A query that waits for an upstream server.
#[derive(Debug)]
pub struct PendingQuery {
    pub(crate) request: Request,
    /// The name to ask the upstream server for.
    pub(crate) target: AskedName,
    client: Client,
    received: Instant,
    limits: ReplyLimits,
    alias: Option<AliasReplies>,
}

impl PendingQuery {
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received)
    }
}

/// The sender of a packet.
#[derive(Clone, Copy, Debug)]
struct Client {
    source: IpAddr,
    transport: Transport,
}

/// The two possible replies for an alias of an external name, both without an OPT record.
#[derive(Debug)]
struct AliasReplies {
    /// If the upstream server replies: its answer is appended.
    joined: Vec<u8>,
    /// If no upstream server replies.
    alone: Vec<u8>,
}

/// Answers packets.
pub struct Answerer {
    config: Config,
    max_udp_size: u16,
    forwarders: TrustedForwarders,
    limiter: ErrorRateLimiter,
    cookies: Cookies,
    /// None without upstream servers.
    cache: Option<Arc<Cache>>,
    /// None without loop detection.
    loops: Option<Arc<LoopProbes>>,
}

impl Answerer {
    /// `cache` is None without upstream servers; `secret` keys the cookies and the rate limiter.
    pub fn new(
        options: &Options,
        cache: Option<Arc<Cache>>,
        secret: [u8; 16],
        start: Instant,
    ) -> Self {
        let mut config = options.answers.clone();
        if cache.is_none() {
            // Without upstream servers an unknown name does not exist.
            config.fallthrough.clear();
        }
        Self {
            config,
            max_udp_size: options.max_udp_size,
            forwarders: options.forwarders.clone(),
            limiter: ErrorRateLimiter::new(options.error_rate, secret, start),
            cookies: Cookies::new(secret),
            cache,
            loops: None,
        }
    }

    pub(crate) fn with_loop_probes(self, loops: Option<Arc<LoopProbes>>) -> Self {
        Self { loops, ..self }
    }

    /// Answers a packet into `out`. A panic costs this packet only: the reply is SERVFAIL.
    pub fn handle(
        &self,
        state: &State,
        packet: Packet<'_>,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let answered = catch_unwind(AssertUnwindSafe(|| {
            self.exchange(packet, &mut *out, &mut *tally).read(state, packet)
        }));
        answered.unwrap_or_else(|_panic| self.servfail_on_panic(packet, out, tally))
    }

    fn servfail_on_panic(
        &self,
        packet: Packet<'_>,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        tally.count_panic();
        // A partly written reply is discarded.
        *out = ReplyWriter::default();
        // The reply repeats the question unless reading the question is what panicked.
        let read = catch_unwind(|| Request::read(packet.bytes, 0));
        let question_end = read.ok().and_then(Result::ok).map_or(HEADER, |it| it.question_end());
        let rejection = Rejection { code: Rcode::SERV_FAIL, question_end, edns: None };
        self.exchange(packet, out, tally).reject(packet, &rejection, AnsweredBy::Server)
    }

    fn exchange<'a>(
        &'a self,
        packet: Packet<'_>,
        out: &'a mut ReplyWriter,
        tally: &'a mut Tally,
    ) -> Exchange<'a> {
        let client = Client { source: packet.source, transport: packet.transport };
        Exchange { answerer: self, client, now: packet.now.instant, out, tally }
    }

    /// Writes the reply to a query that has waited; `cached` is the upstream server's response, or
    /// None if no server responded.
    pub fn finish(
        &self,
        query: &PendingQuery,
        cached: Option<&CachedResponse>,
        now: Instant,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        Exchange { answerer: self, client: query.client, now, out, tally }.finish(query, cached)
    }

    fn limits(
        &self,
        packet: Packet<'_>,
        edns: Option<&Edns>,
        subnet: Option<Subnet>,
    ) -> ReplyLimits {
        let size = ReplyWriter::size_limit(edns, packet.transport, self.max_udp_size);
        let opt = edns.map(|edns| {
            let (source, now) = (packet.source, packet.now.unix);
            let cookie = edns.cookie.map(|cookie| self.cookies.reply(&cookie, source, now));
            OptReply { cookie, subnet, ..OptReply::to(edns, self.max_udp_size) }
        });
        ReplyLimits { size, opt }
    }
}

/// One reply: for whom, into which buffer, and where it is counted.
struct Exchange<'a> {
    answerer: &'a Answerer,
    client: Client,
    now: Instant,
    out: &'a mut ReplyWriter,
    tally: &'a mut Tally,
}

impl Exchange<'_> {
    fn read(self, state: &State, packet: Packet<'_>) -> Handled {
        let request = Request::read(packet.bytes, self.answerer.forwarders.option);
        self.tally.count_request(RequestSample {
            transport: packet.transport,
            source: packet.source,
            size: packet.bytes.len(),
            type_number: request.as_ref().ok().map(|request| request.type_number),
            dnssec_ok: request.as_ref().is_ok_and(Request::dnssec_ok),
        });
        match request {
            Ok(request) => self.answer(state, packet, &request),
            Err(Fault::Ignore) => Handled::Drop,
            Err(Fault::Reject(rejection)) => self.reject(packet, &rejection, AnsweredBy::Dropped),
        }
    }

    fn reject(self, packet: Packet<'_>, rejection: &Rejection, by: AnsweredBy) -> Handled {
        let size = self.answerer.max_udp_size;
        let opt = rejection.edns.map(|edns| OptReply::to(&edns, size));
        self.out.reject(packet.bytes, rejection, opt);
        self.send(rejection.code, by)
    }

    fn answer(self, state: &State, packet: Packet<'_>, request: &Request) -> Handled {
        let Answerer { config, forwarders, .. } = self.answerer;
        let edns = request.edns.as_ref();
        let location = forwarders.locate(&state.world, packet.source, packet.bytes, edns);
        let limits = self.answerer.limits(packet, edns, location.subnet);
        let asking = Asking {
            world: &state.world,
            index: &state.index,
            config,
            serial: state.serial,
            synced: state.synced,
            asker: &location.located,
            seed: Some(packet.seed),
            // A record with an address has at least 16 octets, so more cannot fit.
            most: limits.size / 16 + 1,
        };
        let answer = answer(&asking, &request.question);
        if let Some(choice) = &answer.choice {
            let tier = choice.reasons.first().map_or("all", |reason| reason.tier.code());
            self.tally.count_choice(tier, choice.how.code());
        }
        let code = match &answer.outcome {
            Outcome::Data | Outcome::NoData => Rcode::NO_ERROR,
            Outcome::NameError => Rcode::NX_DOMAIN,
            Outcome::Unsynced => Rcode::SERV_FAIL,
            Outcome::Refused => Rcode::REFUSED,
            // Zone transfers are not forwarded.
            Outcome::PassedOn if request.question.record_type == RecordType::Transfer => {
                Rcode::REFUSED
            }
            Outcome::PassedOn => return self.forward(packet, request, limits),
            Outcome::Alias(target) => {
                return self.follow_alias(packet, request, &answer, target, limits);
            }
        };
        let refused = code == Rcode::REFUSED;
        let header = if refused { ReplyHeader::bare(code) } else { ReplyHeader::own(code) };
        let ours = answer.outcome != Outcome::PassedOn;
        let by = if ours { AnsweredBy::Kubernetes } else { AnsweredBy::Server };
        self.out.answer(request, &answer, &config.zones, header, limits);
        self.send(code, by)
    }

    /// Answers a query for a name outside the cluster from the cache, or hands it to the forwarder.
    fn forward(self, packet: Packet<'_>, request: &Request, limits: ReplyLimits) -> Handled {
        let Answerer { cache, loops, .. } = self.answerer;
        let Some(cache) = cache else {
            return self.reject(packet, &request.reject(Rcode::REFUSED), AnsweredBy::Server);
        };
        // A loop probe of this process: the upstream server forwards to this server.
        if loops.as_ref().is_some_and(|loops| loops.note(&request.question.name)) {
            return self.reject(packet, &request.reject(Rcode::SERV_FAIL), AnsweredBy::Server);
        }
        if let Some(cached) = cache.get(&CacheKey::of(request), self.now) {
            cached.write(self.out, request, limits, self.now);
            return self.send(cached.code(), AnsweredBy::Cache);
        }
        let target = request.question.name.clone();
        Handled::Forward(Box::new(self.pending(request, target, limits, None)))
    }

    /// Answers a query for an alias of a name outside the cluster.
    fn follow_alias(
        self,
        packet: Packet<'_>,
        request: &Request,
        answer: &Answer<'_>,
        target: &str,
        limits: ReplyLimits,
    ) -> Handled {
        let mut reply = |upstream| {
            let size = ReplyWriter::size_limit(None, Transport::Tcp, u16::MAX);
            let whole = ReplyLimits { size, opt: None };
            let settled = answer.clone().settle_alias(upstream);
            let header = ReplyHeader::own(Rcode::NO_ERROR);
            self.out.answer(request, &settled, &self.answerer.config.zones, header, whole);
            self.out.bytes().to_vec()
        };
        let alias =
            AliasReplies { joined: reply(Upstream::Replied), alone: reply(Upstream::Silent) };
        let target = AskedName::parse(target).ok();
        let cache = self.answerer.cache.as_ref().filter(|_| target.is_some());
        let asked = target.unwrap_or_else(AskedName::root);
        let now = packet.now.instant;
        let cached = cache.and_then(|cache| cache.get(&CacheKey::new(&asked, request), now));
        let query = self.pending(request, asked, limits, Some(alias));
        if cached.is_none() && cache.is_some() {
            return Handled::Forward(Box::new(query));
        }
        self.finish(&query, cached.as_deref())
    }

    fn pending(
        &self,
        request: &Request,
        target: AskedName,
        limits: ReplyLimits,
        alias: Option<AliasReplies>,
    ) -> PendingQuery {
        let (client, received) = (self.client, self.now);
        PendingQuery { request: request.clone(), target, client, received, limits, alias }
    }

    fn finish(self, query: &PendingQuery, cached: Option<&CachedResponse>) -> Handled {
        let PendingQuery { request, limits, .. } = query;
        let (code, by) = match (&query.alias, cached) {
            (Some(alias), _) => {
                let joined = cached.map(|cached| join(&alias.joined, cached, self.now));
                let reply = joined.as_ref().unwrap_or(&alias.alone);
                let header = ReplyHeader::own(Rcode::NO_ERROR);
                self.out.copy(request, reply, header, *limits);
                (Rcode::NO_ERROR, AnsweredBy::Kubernetes)
            }
            (None, Some(cached)) => {
                cached.write(self.out, request, *limits, self.now);
                (cached.code(), AnsweredBy::Forward)
            }
            (None, None) => {
                let header = ReplyHeader::bare(Rcode::SERV_FAIL);
                self.out.empty(request, header, *limits);
                (Rcode::SERV_FAIL, AnsweredBy::Forward)
            }
        };
        self.send(code, by)
    }

    /// Releases a reply, unless it exceeds the client's error rate.
    fn send(self, code: Rcode, by: AnsweredBy) -> Handled {
        let Client { source, transport } = self.client;
        // TCP clients cannot forge their address, so only UDP errors are limited.
        let limited = code.is_error() && transport == Transport::Udp;
        if limited && !self.answerer.limiter.allows(source, self.now) {
            self.tally.count_limited();
            return Handled::Drop;
        }
        self.tally.count_response(ResponseSample {
            transport,
            size: self.out.bytes().len(),
            code,
            by,
        });
        Handled::Reply
    }
}

/// Appends the upstream server's answer to the reply with the alias. If that fails the reply has
/// the alias only, which the client can follow.
fn join(reply: &[u8], cached: &CachedResponse, now: Instant) -> Vec<u8> {
    let joined = || {
        let mut joined = Message::from_vec(reply).ok()?;
        let upstream = cached.message()?;
        joined.metadata.truncation |= upstream.metadata.truncation;
        let age = cached.age_seconds(now);
        joined.answers.extend(upstream.answers.into_iter().map(|mut record| {
            record.ttl = record.ttl.saturating_sub(age);
            record
        }));
        joined.to_vec().ok()
    };
    joined().unwrap_or_else(|| reply.to_vec())
}

#[cfg(test)]
mod tests {
    use nearhop_core::answer::Zone;
    use nearhop_runtime::metrics::Metrics;

    use super::*;
    use crate::metrics::DnsMetrics;

    #[test]
    fn a_panic_is_answered_with_servfail() {
        let config = Config::new(Zone::parse("cluster.local").unwrap());
        let answerer = Answerer::new(&Options::new(config), None, [7; 16], Instant::now());
        let metrics = Metrics::new();
        let mut tally = DnsMetrics::new(&metrics, "dns://:53").tally();
        let mut out = ReplyWriter::default();
        let bytes = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01";
        let now = Now { instant: Instant::now(), unix: 0 };
        let source = [10, 0, 0, 1].into();
        let packet = Packet { bytes, source, transport: Transport::Udp, now, seed: 0 };
        let handled = answerer.servfail_on_panic(packet, &mut out, &mut tally);
        assert!(matches!(handled, Handled::Reply));
        assert_eq!(out.bytes()[..4], [0x12, 0x34, 0x81, 2], "SERVFAIL");
        assert_eq!(out.bytes()[12..], bytes[12..], "the reply contains the question");
        tally.flush();
        assert!(metrics.encode().contains("coredns_panics_total 1\n"));
    }
}
