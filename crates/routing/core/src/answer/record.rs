//! Answers as values. Names borrow from their objects; the caller decides the output format.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::key::ServiceKey;
use crate::locate::How;
use crate::route::Reason;

/// The zone at the end of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneSpelling {
    /// The question's zone, as the client wrote it.
    AsAsked,
    /// This zone of the configuration, as configured.
    Configured(usize),
}

/// The first label of an endpoint's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host<'a> {
    /// Its host name or Pod name.
    Named(&'a str),
    /// Its address with dashes, see [`dashed`].
    Address(IpAddr),
}

/// A name in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DomainName<'a> {
    /// The name in the question.
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
    /// A fully qualified name, with or without a final dot.
    Absolute(&'a str),
}

impl<'a> DomainName<'a> {
    pub(super) fn service(key: &'a ServiceKey, host: Option<Host<'a>>, zone: ZoneSpelling) -> Self {
        Self::Service { host, service: &key.name, namespace: &key.namespace, zone }
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The owner name.
    pub owner: DomainName<'a>,
    /// TTL in seconds.
    pub ttl: u32,
    /// The record data.
    pub data: Data<'a>,
}

/// The data of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data<'a> {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// A port and a target name; the priority is 0.
    Srv {
        /// Weight among the records of the answer.
        weight: u16,
        /// Port.
        port: u16,
        /// Target name.
        target: DomainName<'a>,
    },
    /// A name of an address.
    Ptr(DomainName<'a>),
    /// The canonical name of the owner.
    Cname(DomainName<'a>),
    /// A text.
    Txt(&'static str),
    /// A name server of the zone.
    Ns(DomainName<'a>),
    /// Start of authority: the serial, and the TTL of negative answers. The names (`ns.dns` and
    /// `hostmaster` in the zone) and the intervals are constant.
    Soa {
        /// Time of the last change in seconds.
        serial: u32,
        /// TTL of negative answers.
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

/// An address as a label: `10-0-0-1`, `fd00--1`. A label must not end with a dash.
pub fn dashed(address: IpAddr) -> String {
    let mut text = address.to_string().replace(['.', ':'], "-");
    if text.ends_with('-') {
        text.push('0');
    }
    text
}

/// The result of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// There are records.
    Data,
    /// The name exists, but has no records of this type.
    NoData,
    /// The name does not exist (NXDOMAIN).
    NameError,
    /// Nothing was found, and the initial lists are not complete (SERVFAIL).
    Unsynced,
    /// The server does not support the request (REFUSED).
    Refused,
    /// Another server must answer: the name is outside the zones, or falls through.
    PassedOn,
    /// The answer is an alias, which is in `answers`. Another server must resolve its target. See
    /// [`Answer::settle_alias`].
    Alias(&'a str),
}

/// Which endpoints were chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How the client's place was found.
    pub how: How,
    /// The reason for the choice of each family; empty if the place is unknown and all endpoints
    /// were used.
    pub reasons: Vec<Reason>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The result.
    pub outcome: Outcome<'a>,
    /// The number of labels of the question that belong to its zone: the owner of the SOA and the
    /// end of names with [`ZoneSpelling::AsAsked`].
    pub zone_labels: usize,
    /// The answer section.
    pub answers: Vec<Record<'a>>,
    /// The authority section: the SOA if the answer is negative, or can become negative.
    pub authority: Option<Record<'a>>,
    /// The additional section.
    pub additional: Vec<Record<'a>>,
    /// The endpoints that were chosen, if the answer depends on a choice.
    pub choice: Option<Choice>,
}
