//! Answers as values. Names borrow from the objects they come from; who writes them down decides
//! how.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::locate::How;
use crate::route::Reason;

/// Of which zone the end of a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneSpelling {
    /// The question's zone, as the asker spelled it.
    AsAsked,
    /// This zone of the configuration, as it is spelled there.
    Configured(usize),
}

/// The first label of an endpoint's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host<'a> {
    /// Its own.
    Named(&'a str),
    /// Its address with dashes, see [`dashed`].
    Address(IpAddr),
}

/// A name in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DomainName<'a> {
    /// The name that was asked for.
    Asked,
    /// `service.namespace.svc` in a zone, or an endpoint below it.
    Service {
        /// The endpoint.
        host: Option<Host<'a>>,
        /// The Service.
        service: &'a str,
        /// Its namespace.
        namespace: &'a str,
        /// The zone.
        zone: ZoneSpelling,
    },
    /// Labels below a zone; none for the zone itself.
    Below(&'static [&'static str], ZoneSpelling),
    /// A whole name, with or without a final dot.
    Absolute(&'a str),
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Whose it is.
    pub owner: DomainName<'a>,
    /// For how many seconds it may be kept.
    pub ttl: u32,
    /// What it says.
    pub data: Data<'a>,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data<'a> {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// A port at a name; the priority is 0.
    Srv {
        /// Share among the others.
        weight: u16,
        /// Port.
        port: u16,
        /// Name.
        target: DomainName<'a>,
    },
    /// A name of an address.
    Ptr(DomainName<'a>),
    /// Another name for the owner.
    Cname(DomainName<'a>),
    /// A text.
    Txt(&'static str),
    /// A server of the zone.
    Ns(DomainName<'a>),
    /// The zone: its serial, and how long denials may be kept. `ns.dns` and `hostmaster` in the
    /// zone and the intervals are always the same.
    Soa {
        /// Seconds of the last change.
        serial: u32,
        /// How long denials may be kept.
        minimum: u32,
    },
}

/// `refresh`, `retry` and `expire` of every SOA record.
pub const SOA_INTERVALS: [u32; 3] = [7200, 1800, 86400];

impl From<IpAddr> for Data<'_> {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::A(v4),
            IpAddr::V6(v6) => Self::Aaaa(v6),
        }
    }
}

/// An address as a label: `10-0-0-1`, `fd00--1`. A label must not end in a dash.
pub fn dashed(address: IpAddr) -> String {
    let mut text = address.to_string().replace(['.', ':'], "-");
    if text.ends_with('-') {
        text.push('0');
    }
    text
}

/// How a question is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// With the records.
    Data,
    /// The name is there, but has nothing of that type.
    NoData,
    /// There is no such name.
    NameError,
    /// Nothing was found, and not everything is known yet (SERVFAIL).
    Unsynced,
    /// It is not done (REFUSED).
    Refused,
    /// Another server is to be asked: the name is outside our zones, or falls through.
    PassedOn,
    /// The answer is an alias, which is in `answers`; its target is for another server
    /// to say. See [`Answer::settle_alias`].
    Alias(&'a str),
}

/// Which endpoints were chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How the asker's place was found.
    pub how: How,
    /// The reason of each family's choice; none where the place is not known and all endpoints were
    /// taken.
    pub reasons: Vec<Reason>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// How.
    pub outcome: Outcome<'a>,
    /// How many labels of the question are its zone's: the SOA's owner and the end of names
    /// spelled [`ZoneSpelling::AsAsked`].
    pub zone_labels: usize,
    /// The answer section.
    pub answers: Vec<Record<'a>>,
    /// The authority section: the SOA where the answer denies something, or may come to.
    pub authority: Option<Record<'a>>,
    /// The additional section.
    pub additional: Vec<Record<'a>>,
    /// Which endpoints were chosen, where it was a matter of choice.
    pub choice: Option<Choice>,
}
