//! From a packet to its reply. Reads the state and changes nothing but counters, so that any bytes
//! can be thrown at it.
//!
//! A question about a name that is not ours, and that the cache cannot answer, becomes a [`Job`]:
//! somebody else waits for the other server, and [`Answerer::finish`] writes what is to be said
//! then.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use nearhop_core::answer::{
    Answer, AskedName, Asking, Config, Outcome, RecordType, Upstream, answer,
};

use crate::forward::{Cache, Kept, Key, Loops};
use crate::limit::ErrorLimit;
use crate::metrics::{Seen, Tally, Told, Written};
use crate::options::Options;
use crate::place::Forwarders;
use crate::state::State;
use crate::wire::{
    Cookies, Edns, Fault, HEADER, Head, OptReply, Rcode, ReplyWriter, Request, Subnet, Transport,
};

/// What time it is, in two ways.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For measuring.
    pub instant: Instant,
    /// Seconds since 1970, as cookies have them.
    pub unix: u32,
}

/// Something that came.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// Its octets.
    pub bytes: &'p [u8],
    /// Who sent it.
    pub source: IpAddr,
    /// How it came.
    pub transport: Transport,
    /// When.
    pub now: Now,
}

/// What becomes of a packet.
#[derive(Debug)]
pub enum Handled {
    /// The reply is written.
    Reply,
    /// Another server must be asked first.
    Later(Box<Job>),
    /// Nothing is said.
    Silence,
}

/// A question that waits for another server.
#[derive(Debug)]
pub struct Job {
    /// The question.
    pub request: Request,
    /// What is asked of the other server.
    pub target: AskedName,
    source: IpAddr,
    transport: Transport,
    received: Instant,
    limits: Limits,
    alias: Option<Alias>,
}

impl Job {
    /// How long it has been waiting.
    pub fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received)
    }
}

/// How long a reply may be, and the OPT record in it.
type Limits = (usize, Option<OptReply>);

/// What is said about an alias, as replies without an OPT record.
#[derive(Debug)]
struct Alias {
    /// The alias, to which the other server's answer is added.
    joined: Vec<u8>,
    /// What is said where nobody answers.
    alone: Vec<u8>,
}

/// Answers packets.
pub struct Answerer {
    config: Config,
    max_udp_size: u16,
    forwarders: Forwarders,
    limit: ErrorLimit,
    cookies: Cookies,
    /// None where there is nobody to ask.
    cache: Option<Arc<Cache>>,
    /// None where nobody looks for loops.
    loops: Option<Arc<Loops>>,
}

impl Answerer {
    /// As the operator chose; `secret` is for cookies and for the table of sources.
    pub fn new(
        options: &Options,
        cache: Option<Arc<Cache>>,
        secret: [u8; 16],
        start: Instant,
    ) -> Self {
        let mut config = options.answers.clone();
        if cache.is_none() {
            // With nobody to ask, what is not found is not there.
            config.fallthrough.clear();
        }
        Self {
            config,
            max_udp_size: options.max_udp_size,
            forwarders: options.forwarders.clone(),
            limit: ErrorLimit::new(options.error_rate, secret, start),
            cookies: Cookies::new(secret),
            cache,
            loops: None,
        }
    }

    /// The same, and knows the probes for loops.
    #[must_use]
    pub fn knowing_loops(self, loops: Option<Arc<Loops>>) -> Self {
        Self { loops, ..self }
    }

    /// Answers a packet into `out`. If that panics, this packet alone has no better answer than
    /// SERVFAIL.
    pub fn handle(
        &self,
        state: &State,
        packet: Packet<'_>,
        seed: u64,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let answered =
            catch_unwind(AssertUnwindSafe(|| self.read(state, packet, seed, out, tally)));
        answered.unwrap_or_else(|_panic| self.excuse(packet, out, tally))
    }

    /// What is said where answering has panicked. Nothing that was half written is used again.
    fn excuse(&self, packet: Packet<'_>, out: &mut ReplyWriter, tally: &mut Tally) -> Handled {
        tally.panicked();
        *out = ReplyWriter::default();
        // The question goes back as it came, unless it is what could not be read.
        let read = catch_unwind(|| Request::read(packet.bytes, 0));
        let question_end = read.ok().and_then(Result::ok).map_or(HEADER, |it| it.question_end());
        let why = (Rcode::SERV_FAIL, question_end, None);
        self.fault(packet, why, Written::Server, out, tally)
    }

    fn read(
        &self,
        state: &State,
        packet: Packet<'_>,
        seed: u64,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let Packet { bytes, source, transport, .. } = packet;
        let request = Request::read(bytes, self.forwarders.option);
        tally.seen(Seen {
            transport,
            source,
            size: bytes.len(),
            type_number: request.as_ref().ok().map(|request| request.type_number),
            dnssec_ok: request.as_ref().is_ok_and(Request::dnssec_ok),
        });
        match request {
            Ok(request) => self.answer(state, packet, seed, &request, out, tally),
            Err(Fault::Silent) => Handled::Silence,
            Err(Fault::Code { code, question_end, edns }) => {
                let why = (code, question_end, edns.as_ref());
                self.fault(packet, why, Written::Dropped, out, tally)
            }
        }
    }

    /// Says what is wrong with a packet.
    fn fault(
        &self,
        packet: Packet<'_>,
        (code, question_end, edns): (Rcode, usize, Option<&Edns>),
        written: Written,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let opt = edns.map(|edns| OptReply::to(edns, self.max_udp_size));
        out.refuse(packet.bytes, question_end, Head::bare(code), opt);
        self.tell(packet.source, packet.transport, (code, written), packet.now.instant, out, tally)
    }

    fn answer(
        &self,
        state: &State,
        packet: Packet<'_>,
        seed: u64,
        request: &Request,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let edns = request.edns.as_ref();
        let asker = self.forwarders.find(&state.world, packet.source, packet.bytes, edns);
        let limits = self.limits(packet, edns, asker.subnet);
        let asking = Asking {
            world: &state.world,
            index: &state.index,
            config: &self.config,
            serial: state.serial,
            synced: state.synced,
            asker: &asker.located,
            seed: Some(seed),
            // An address takes sixteen octets at least, so more would not fit.
            most: limits.0 / 16 + 1,
        };
        let answer = answer(&asking, &request.question);
        if let Some(choice) = &answer.choice {
            let tier = choice.reasons.first().map_or("all", |reason| reason.tier.code());
            tally.chosen(tier, choice.how.code());
        }
        let code = match &answer.outcome {
            Outcome::Data | Outcome::NoData => Rcode::NO_ERROR,
            Outcome::NameError => Rcode::NX_DOMAIN,
            Outcome::Unsynced => Rcode::SERV_FAIL,
            Outcome::Refused => Rcode::REFUSED,
            // Nobody else is asked for a whole zone, either.
            Outcome::PassedOn if request.question.record_type == RecordType::Transfer => {
                Rcode::REFUSED
            }
            Outcome::PassedOn => return self.pass_on(packet, request, limits, out, tally),
            Outcome::Alias(target) => {
                return self.follow(packet, (request, &answer), target, limits, out, tally);
            }
        };
        // What is refused is nobody's answer.
        let head = if code == Rcode::REFUSED { Head::bare(code) } else { Head::own(code) };
        let ours = answer.outcome != Outcome::PassedOn;
        let written = if ours { Written::Kubernetes } else { Written::Server };
        out.answer(request, &answer, &self.config.zones, head, limits);
        self.tell(packet.source, packet.transport, (code, written), packet.now.instant, out, tally)
    }

    /// Somebody else's name: from the cache, or later.
    fn pass_on(
        &self,
        packet: Packet<'_>,
        request: &Request,
        limits: Limits,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let now = packet.now.instant;
        let Some(cache) = &self.cache else {
            let why = (Rcode::REFUSED, request.question_end(), request.edns.as_ref());
            return self.fault(packet, why, Written::Server, out, tally);
        };
        // Our own question: the server that was asked leads back here.
        if self.loops.as_ref().is_some_and(|loops| loops.note(&request.question.name)) {
            let why = (Rcode::SERV_FAIL, request.question_end(), request.edns.as_ref());
            return self.fault(packet, why, Written::Server, out, tally);
        }
        if let Some(kept) = cache.get(&Key::of(request), now) {
            kept.write(out, request, limits, now);
            let said = (kept.code(), Written::Cache);
            return self.tell(packet.source, packet.transport, said, now, out, tally);
        }
        let target = request.question.name.clone();
        Handled::Later(Box::new(self.job(packet, request.clone(), target, limits, None)))
    }

    /// An alias of somebody else's name.
    fn follow(
        &self,
        packet: Packet<'_>,
        (request, answer): (&Request, &Answer<'_>),
        target: &str,
        limits: Limits,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let mut reply = |upstream| {
            let whole = (ReplyWriter::size_limit(None, Transport::Tcp, u16::MAX), None);
            let settled = answer.clone().settle_alias(upstream);
            let head = Head::own(Rcode::NO_ERROR);
            out.answer(request, &settled, &self.config.zones, head, whole);
            out.bytes().to_vec()
        };
        let alias = Alias { joined: reply(Upstream::Replied), alone: reply(Upstream::Silent) };
        let target = AskedName::parse(target).ok();
        let cache = self.cache.as_ref().filter(|_| target.is_some());
        let asked = target.unwrap_or_else(AskedName::root);
        let now = packet.now.instant;
        let kept = cache.and_then(|cache| cache.get(&Key::new(&asked, request), now));
        let job = self.job(packet, request.clone(), asked, limits, Some(alias));
        if kept.is_none() && cache.is_some() {
            return Handled::Later(Box::new(job));
        }
        self.finish(&job, kept.as_deref(), now, out, tally)
    }

    fn job(
        &self,
        packet: Packet<'_>,
        request: Request,
        target: AskedName,
        limits: Limits,
        alias: Option<Alias>,
    ) -> Job {
        let Packet { source, transport, now, .. } = packet;
        Job { request, target, source, transport, received: now.instant, limits, alias }
    }

    /// Writes the answer to a question that has waited: with what the other server said, or, where
    /// none did, without.
    pub fn finish(
        &self,
        job: &Job,
        kept: Option<&Kept>,
        now: Instant,
        out: &mut ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        let request = &job.request;
        let said = match (&job.alias, kept) {
            (Some(alias), _) => {
                let joined = kept.map(|kept| join(&alias.joined, kept, now));
                let reply = joined.as_ref().unwrap_or(&alias.alone);
                out.copy(request, reply, Head::own(Rcode::NO_ERROR), job.limits);
                (Rcode::NO_ERROR, Written::Kubernetes)
            }
            (None, Some(kept)) => {
                kept.write(out, request, job.limits, now);
                (kept.code(), Written::Forward)
            }
            (None, None) => {
                let bare = Answer {
                    outcome: Outcome::PassedOn,
                    zone_labels: 0,
                    answers: Vec::new(),
                    authority: None,
                    additional: Vec::new(),
                    choice: None,
                };
                let head = Head::bare(Rcode::SERV_FAIL);
                out.answer(request, &bare, &[], head, job.limits);
                (Rcode::SERV_FAIL, Written::Forward)
            }
        };
        self.tell(job.source, job.transport, said, now, out, tally)
    }

    /// Lets a reply go, unless it is one error too many.
    fn tell(
        &self,
        source: IpAddr,
        transport: Transport,
        (code, written): (Rcode, Written),
        now: Instant,
        out: &ReplyWriter,
        tally: &mut Tally,
    ) -> Handled {
        // Who has a connection has proved who it is, and is only told what it asked for.
        let counted = code.is_error() && transport == Transport::Udp;
        if counted && !self.limit.allows(source, now) {
            tally.limited();
            return Handled::Silence;
        }
        tally.told(Told { transport, size: out.bytes().len(), code, written });
        Handled::Reply
    }

    fn limits(&self, packet: Packet<'_>, edns: Option<&Edns>, subnet: Option<Subnet>) -> Limits {
        let limit = ReplyWriter::size_limit(edns, packet.transport, self.max_udp_size);
        let opt = edns.map(|edns| {
            let (source, now) = (packet.source, packet.now.unix);
            let cookie = edns.cookie.map(|cookie| self.cookies.reply(&cookie, source, now));
            OptReply { cookie, subnet, ..OptReply::to(edns, self.max_udp_size) }
        });
        (limit, opt)
    }
}

/// Appends what another server said to a reply with an alias of it. What cannot be written is left
/// out: who asked can go on from the alias.
fn join(reply: &[u8], kept: &Kept, now: Instant) -> Vec<u8> {
    let joined = || {
        let mut joined = Message::from_vec(reply).ok()?;
        let said = kept.message()?;
        joined.metadata.truncation |= said.metadata.truncation;
        let age = kept.seconds(now);
        joined.answers.extend(said.answers.into_iter().map(|mut record| {
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
    fn a_panic_costs_one_packet() {
        let config = Config::new(Zone::parse("cluster.local").unwrap());
        let answerer = Answerer::new(&Options::new(config), None, [7; 16], Instant::now());
        let metrics = Metrics::new();
        let mut tally = DnsMetrics::new(&metrics, "dns://:53").tally();
        let mut out = ReplyWriter::default();
        let bytes = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01";
        let now = Now { instant: Instant::now(), unix: 0 };
        let source = [10, 0, 0, 1].into();
        let packet = Packet { bytes, source, transport: Transport::Udp, now };
        assert!(matches!(answerer.excuse(packet, &mut out, &mut tally), Handled::Reply));
        assert_eq!(out.bytes()[..4], [0x12, 0x34, 0x81, 2], "SERVFAIL");
        assert_eq!(out.bytes()[12..], bytes[12..], "to this question");
        tally.flush();
        assert!(metrics.encode().contains("coredns_panics_total 1\n"));
    }
}
