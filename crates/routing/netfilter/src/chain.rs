//! The chains of a table. Only chains for session affinity belong to one Service port. Chains that
//! pick an endpoint exist once for each number of slots in use and, for unequal weights, once for
//! each set of weights in use.

use std::net::IpAddr;

use nearhop_core::{Cidr, Family, Name, Protocol};

use crate::affinity::{Maps, Reach, map_name};
use crate::config::{Config, LocalTraffic, Masquerade, NodePortAddresses};
use crate::draw::{Draw, Group, WHOLE};
use crate::layout::{MOST_COUNTED, SetId, protocol_number};
use crate::object::{
    Base, CT_STATE_NEW, CT_STATUS_CONFIRMED, CT_STATUS_DNAT, Chain, ChainKind, CmpOp, CtKey, Expr,
    FIB_LOCAL, FibAddress, Hit, Hook, HookPoint, MetaKey, Reg, Rule, Verdict,
};

/// Maximum length of an interface name, including the terminating zero (`IFNAMSIZ`).
const INTERFACE_NAME: usize = 16;

/// Identifies a chain that sends a connection to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pick {
    /// The map with the slots: one of the four endpoint maps.
    pub from: SetId,
    /// The first slot; not 0 for a group of a weighted draw.
    pub first: u32,
    /// How a slot is drawn.
    pub draw: Draw,
    /// Whether the connection is masqueraded.
    pub mark: Mark,
}

/// Identifies a chain that sends a client of a Service port to its recorded endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stay {
    /// The Service port, as in kernel names.
    pub port: Name,
    /// Its protocol.
    pub protocol: Protocol,
    /// Which endpoints the client may use.
    pub reach: Reach,
    /// Whether the connection is masqueraded.
    pub mark: Mark,
}

/// Identifies a chain that records the endpoint of a client of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recording {
    /// The Service port, as in kernel names.
    pub port: Name,
    /// Its protocol.
    pub protocol: Protocol,
    /// Timeout of the record.
    pub seconds: u32,
    /// The maps that it is recorded in.
    pub maps: Maps,
}

/// Whether a connection is marked for masquerading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// No.
    No,
    /// Yes.
    Yes,
}

/// A chain that exists only while elements refer to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnDemand {
    /// Sends a connection on to an endpoint.
    Pick(Pick),
    /// Sends a client to its recorded endpoint.
    Stay(Stay),
    /// Records the endpoint of a client.
    Record(Recording),
}

impl OnDemand {
    /// The name of the chain.
    pub fn name(&self) -> Name {
        match self {
            Self::Pick(pick) => pick.name(),
            Self::Stay(stay) => stay.name(),
            Self::Record(record) => record.name(),
        }
    }

    /// The chain with its rules.
    pub fn chain(&self, config: &Config) -> Chain {
        match self {
            Self::Pick(pick) => pick.chain(config),
            Self::Stay(stay) => stay.chain(config),
            Self::Record(record) => record.chain(config),
        }
    }

    /// Whether the chain always exists.
    pub fn is_static(&self) -> bool {
        matches!(self, Self::Pick(pick) if pick.is_counted())
    }

    /// The chains that its rules refer to.
    fn needs(&self) -> Vec<Self> {
        match self {
            Self::Pick(pick) => pick.needs().into_iter().map(Self::Pick).collect(),
            Self::Stay(stay) => stay.rest().into_iter().map(Self::Stay).collect(),
            Self::Record(_) => Vec::new(),
        }
    }

    /// All chains that its rules lead to, in an order in which they can be added; the chain itself
    /// last.
    pub fn with_needed(self) -> Vec<Self> {
        let mut all: Vec<Self> = self.needs().into_iter().flat_map(Self::with_needed).collect();
        all.push(self);
        all
    }

    /// The Service port that the chain belongs to, if any.
    pub fn port(&self) -> Option<&Name> {
        match self {
            Self::Pick(_) => None,
            Self::Stay(stay) => Some(&stay.port),
            Self::Record(record) => Some(&record.port),
        }
    }

    /// The lowest chain of each kind that a Service port can have, in the order of chains.
    pub(crate) fn first_of_port(port: &Name) -> [Self; 2] {
        let (port, protocol) = (port.clone(), Protocol::Tcp);
        let (reach, mark) = (Reach::Cluster, Mark::No);
        let stay = Stay { port: port.clone(), protocol, reach, mark };
        let record = Recording { port, protocol, seconds: 0, maps: Maps::One };
        [Self::Stay(stay), Self::Record(record)]
    }

    /// The maps of the Service port that its rules use.
    pub fn maps(&self) -> impl Iterator<Item = Name> {
        let (port, reaches) = match self {
            Self::Stay(stay) if stay.mark == Mark::No => {
                let reaches = match stay.reach {
                    Reach::Cluster => &[Reach::Cluster],
                    Reach::Local => &[Reach::Local],
                };
                (stay.port.as_str(), &reaches[..])
            }
            Self::Record(record) => (record.port.as_str(), record.maps.reaches()),
            Self::Pick(_) | Self::Stay(_) => ("", &[][..]),
        };
        reaches.iter().map(move |reach| map_name(port, *reach))
    }
}

impl Pick {
    /// The chain for a number of slots that has its own set.
    fn counted(slots: u8) -> Self {
        let draw = Draw::Even(u32::from(slots));
        Self { from: SetId::Endpoints, first: 0, draw, mark: Mark::No }
    }

    /// The set for cluster IPs with this number of slots, if it has one.
    pub fn set(&self) -> Option<SetId> {
        let slots = u8::try_from(self.draw.slots()).ok()?;
        (*self == Self::counted(slots) && slots <= MOST_COUNTED).then_some(SetId::Counted(slots))
    }

    fn is_counted(&self) -> bool {
        self.set().is_some()
    }

    fn name(&self) -> Name {
        let kind = match self.from {
            SetId::NodeportEndpoints => "nodeport",
            SetId::NodeportEndpointsLocal => "nodeport-local",
            SetId::EndpointsLocal => "local",
            _ => "pick",
        };
        let weights = match &self.draw {
            Draw::Even(_) => String::new(),
            // A list of all weights would be too long for a name; the rules of the chain show them.
            Draw::Weighted(groups) => format!("-weighted-{:016x}", digest(&format!("{groups:?}"))),
        };
        let first = if self.first == 0 { String::new() } else { format!("-from-{}", self.first) };
        let mark = if self.mark == Mark::Yes { "-masquerade" } else { "" };
        Name::from(format!("{kind}-{}{first}{weights}{mark}", self.draw.slots()))
    }

    /// The chain that continues after this one has marked the packet.
    fn rest(&self) -> Option<Self> {
        (self.mark == Mark::Yes).then(|| Self { mark: Mark::No, ..self.clone() })
    }

    /// The chain for one group of slots of equal weight. All Services with such a group share it.
    fn part(&self, group: &Group) -> Self {
        Self { first: group.first, draw: Draw::Even(group.slots), ..self.clone() }
    }

    fn needs(&self) -> Vec<Self> {
        match (self.rest(), &self.draw) {
            (Some(rest), _) => vec![rest],
            (None, Draw::Weighted(groups)) => groups.iter().map(|group| self.part(group)).collect(),
            (None, Draw::Even(_)) => Vec::new(),
        }
    }

    fn chain(&self, config: &Config) -> Chain {
        let rules = match (self.rest(), &self.draw) {
            (Some(rest), _) => mark_and_goto(config, rest.name()),
            (None, Draw::Weighted(groups)) => groups.iter().map(|g| self.choose(g)).collect(),
            (None, Draw::Even(slots)) => vec![plain(self.dnat(config.family(), *slots))],
        };
        regular(self.name(), rules)
    }

    /// `dnat to … . numgen random mod N offset K map @endpoints`.
    fn dnat(&self, family: Family, slots: u32) -> Vec<Expr> {
        let by_node = matches!(self.from, SetId::NodeportEndpoints | SetId::NodeportEndpointsLocal);
        let key = Concat::new(family);
        let key = if by_node { key.ports() } else { key.service() };
        key.random(slots, self.first).dnat(self.from)
    }

    /// `numgen random mod W < C goto pick-N-from-K`. The last group has no condition, so an
    /// endpoint is always found. The rule refers to no map: for each element added to a map, the
    /// kernel validates each chain that uses the map.
    fn choose(&self, group: &Group) -> Rule {
        let chance = Expr::Chance { part: group.chance, whole: WHOLE };
        let chance = (group.chance < WHOLE).then_some(chance);
        when(chance.into_iter().collect(), goto(self.part(group).name()))
    }
}

impl Stay {
    fn name(&self) -> Name {
        let reach = if self.reach == Reach::Local { "-local" } else { "" };
        let mark = if self.mark == Mark::Yes { "-masquerade" } else { "" };
        Name::from(format!("stay{reach}{mark}/{}", self.port))
    }

    fn rest(&self) -> Option<Self> {
        (self.mark == Mark::Yes).then(|| Self { mark: Mark::No, ..self.clone() })
    }

    /// Sends a client to the recorded endpoint, or to the chain for clients without a record.
    fn chain(&self, config: &Config) -> Chain {
        if let Some(rest) = self.rest() {
            return regular(self.name(), mark_and_goto(config, rest.name()));
        }
        let family = config.family();
        // nft can read a port translation only if the protocol is known.
        let mut stay = is_protocol(self.protocol);
        stay.extend(Concat::new(family).source().dnat_by(map_name(&self.port, self.reach)));
        let (services, nodeports) = match self.reach {
            Reach::Cluster => (SetId::StickyServices, SetId::StickyNodeports),
            Reach::Local => (SetId::StickyServicesLocal, SetId::StickyNodeportsLocal),
        };
        let rules = vec![
            plain(stay),
            plain(Concat::new(family).service().found(services, Hit::Verdict)),
            plain(Concat::new(family).ports().found(nodeports, Hit::Verdict)),
        ];
        regular(self.name(), rules)
    }
}

impl Recording {
    /// The name contains everything that the rules depend on: the rules of a chain never change.
    fn name(&self) -> Name {
        let both = if self.maps == Maps::Both { "-local" } else { "" };
        Name::from(format!("record{both}-{}s/{}", self.seconds, self.port))
    }

    /// `update` keeps the recorded endpoint of a client and renews its timeout.
    fn chain(&self, config: &Config) -> Chain {
        let rules = self.maps.reaches().iter().map(|reach| {
            let mut exprs = is_protocol(self.protocol);
            if *reach == Reach::Local {
                exprs.extend(is_on_this_node(config.family()));
            }
            exprs.extend(self.update(config.family(), *reach));
            plain(exprs)
        });
        regular(self.name(), rules.collect())
    }

    fn update(&self, family: Family, reach: Reach) -> Vec<Expr> {
        let key = Concat::new(family).ct(CtKey::OriginalSource);
        let data = key.next;
        let mut exprs = key.ct(CtKey::ReplySource).ct(CtKey::ReplyPort).exprs;
        exprs.push(Expr::Update {
            set: map_name(&self.port, reach),
            key: Reg(0),
            data: Reg(data),
            timeout_ms: u64::from(self.seconds) * 1000,
        });
        exprs
    }
}

/// Matches if the endpoint of a connection is on this node.
fn is_on_this_node(family: Family) -> Vec<Expr> {
    let key = Concat::new(family).ct(CtKey::ReplySource).ct(CtKey::ReplySource).protocol();
    key.ct(CtKey::ReplyPort).found(SetId::Hairpin, Hit::Match)
}

/// The chains that always exist.
pub fn static_chains(config: &Config) -> Vec<Chain> {
    let at = config.priorities;
    let nat = |point, priority| Hook { kind: ChainKind::Nat, point, priority };
    let filter = |point, priority| Hook { kind: ChainKind::Filter, point, priority };
    let new = |chain: &str| when(ct_bit(CtKey::State, CT_STATE_NEW), jump(chain));
    // Only the packet for which the endpoint was chosen: a connection is confirmed when its first
    // packet has passed. Later packets of a connection without a reply are also `new`, and would
    // record a removed endpoint again. Not in the nat chain itself: nft 1.0.6 cannot read an
    // `update` whose value comes from a lookup.
    let translated = || {
        let mut first = ct_bit(CtKey::State, CT_STATE_NEW);
        first.extend(ct_bit(CtKey::Status, CT_STATUS_DNAT));
        first.extend(no_ct_bit(CtKey::Status, CT_STATUS_CONFIRMED));
        when(first, jump("record-affinity"))
    };
    let base = |name: &str, hook: Hook, rules: Vec<Rule>| Chain {
        name: Name::from(name),
        hook: Some(hook),
        rules,
        comment: None,
    };
    let counted = (1..=MOST_COUNTED).map(|slots| Pick::counted(slots).chain(config));
    let mut chains: Vec<Chain> = counted.collect();
    chains.extend([
        cluster_ips(config),
        services(config),
        external_local(config, SetId::ServicesNear, SetId::ServicesLocal),
        external_local(config, SetId::NodeportsNear, SetId::NodeportsLocal),
        masquerading(config),
        refuse_services(config),
        refuse_cluster_ips(config),
        refuse_nodeports(config),
        regular(Name::from("reject-chain"), vec![plain(vec![Expr::Reject(config.family())])]),
        check_sources(config),
        record_affinity(config),
    ]);
    use HookPoint::{Forward, Input, Output, Postrouting, Prerouting};
    let before_dnat = at.dstnat - 10;
    chains.extend([
        base("filter-prerouting", filter(Prerouting, before_dnat), vec![new("check-sources")]),
        base("filter-output-pre-dnat", filter(Output, before_dnat), vec![new("check-sources")]),
        base("nat-prerouting", nat(Prerouting, at.dstnat), vec![plain(vec![jump("services")])]),
        base("nat-output", nat(Output, at.dstnat), vec![plain(vec![jump("services")])]),
        base(
            "filter-input",
            filter(Input, at.filter),
            vec![new("refuse-nodeports"), new("refuse-services")],
        ),
        base(
            "filter-forward",
            filter(Forward, at.filter),
            vec![new("refuse-services"), new("refuse-cluster-ips")],
        ),
        // Packets to an endpoint on the host network pass input, all others pass postrouting.
        base("affinity-input", filter(Input, at.srcnat - 10), vec![translated()]),
        base("affinity-postrouting", filter(Postrouting, at.srcnat - 10), vec![translated()]),
        base(
            "nat-postrouting",
            nat(Postrouting, at.srcnat),
            vec![plain(vec![jump("masquerading")])],
        ),
    ]);
    // A connection to a cluster IP may be refused only after it was not translated.
    if at.filter > at.dstnat {
        let rules = vec![new("refuse-services"), new("refuse-cluster-ips")];
        chains.push(base("filter-output", filter(Output, at.filter), rules));
    } else {
        let (first, second) = (vec![new("refuse-services")], vec![new("refuse-cluster-ips")]);
        chains.push(base("filter-output", filter(Output, at.filter), first));
        chains.push(base("filter-output-post-dnat", filter(Output, at.dstnat + 5), second));
    }
    chains
}

/// The name of the chain for addresses with `externalTrafficPolicy: Local`.
pub(crate) fn external_local_chain(near: SetId) -> &'static str {
    if near == SetId::NodeportsNear {
        "nodeports-external-local"
    } else {
        "services-external-local"
    }
}

fn services(config: &Config) -> Chain {
    let family = config.family();
    let mut rules = Vec::new();
    let outside = match (&config.masquerade, &config.local) {
        (Masquerade::All, _) => Some((Vec::new(), "masquerade all")),
        (Masquerade::FromOutside, Some(local)) => {
            Some((from_local(local, CmpOp::Neq), "masquerade traffic from outside"))
        }
        (Masquerade::FromOutside, None) => None,
    };
    if let Some((mut exprs, comment)) = outside {
        exprs.extend(Concat::new(family).destination().found(SetId::ClusterIps, Hit::Match));
        exprs.extend(mark_packet(config));
        rules.push(Rule { exprs, comment: Some(Name::from(comment)) });
    }
    let mut exprs = Concat::new(family).destination().found(SetId::ClusterIps, Hit::Match);
    exprs.push(jump("cluster-ip-services"));
    rules.push(plain(exprs));
    rules.push(plain(Concat::new(family).service().found(SetId::Services, Hit::Verdict)));
    for mut exprs in to_nodeport_addresses(config) {
        exprs.extend(fib_local(FibAddress::Destination));
        exprs.extend(Concat::new(family).ports().found(SetId::Nodeports, Hit::Verdict));
        rules.push(plain(exprs));
    }
    regular(Name::from("services"), rules)
}

/// One rule for each set, fewest slots first: most Services have few endpoints.
fn cluster_ips(config: &Config) -> Chain {
    let rules = (1..=MOST_COUNTED).map(|slots| {
        let key = Concat::new(config.family()).service();
        when(key.found(SetId::Counted(slots), Hit::Match), goto(Pick::counted(slots).name()))
    });
    regular(Name::from("cluster-ip-services"), rules.collect())
}

/// One condition for each range of node port addresses. Loopback is always excluded: answers to it
/// could not be routed.
fn to_nodeport_addresses(config: &Config) -> Vec<Vec<Expr>> {
    let family = config.family();
    let loopback = match family {
        Family::Ipv4 => Cidr::new(IpAddr::from([127, 0, 0, 0]), 8),
        Family::Ipv6 => Cidr::new(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 128),
    };
    let not_loopback = || in_cidr(Side::Destination, loopback, CmpOp::Neq);
    let ranges = match &config.nodeport_addresses {
        NodePortAddresses::All => return vec![not_loopback()],
        NodePortAddresses::Within(ranges) => ranges.iter().filter(|range| range.family() == family),
    };
    ranges
        .map(|range| {
            let mut exprs = in_cidr(Side::Destination, *range, CmpOp::Eq);
            exprs.extend(not_loopback());
            exprs
        })
        .collect()
}

/// Sends clients on this node to any endpoint, and others to endpoints on this node. A packet
/// without an endpoint is not translated, and is refused later.
fn external_local(config: &Config, near: SetId, local: SetId) -> Chain {
    let family = config.family();
    let key = || {
        let key = Concat::new(family);
        if near == SetId::NodeportsNear { key.ports() } else { key.service() }
    };
    let mut rules = Vec::new();
    if let Some(detector) = &config.local {
        let mut exprs = from_local(detector, CmpOp::Eq);
        exprs.extend(key().found(near, Hit::Verdict));
        rules.push(Rule { exprs, comment: Some(Name::from("pods on this node")) });
    }
    let mut mark = fib_local(FibAddress::Source);
    mark.extend(mark_packet(config));
    rules.push(Rule { exprs: mark, comment: Some(Name::from("this node itself")) });
    let mut exprs = fib_local(FibAddress::Source);
    exprs.extend(key().found(near, Hit::Verdict));
    rules.push(plain(exprs));
    rules.push(plain(key().found(local, Hit::Verdict)));
    regular(Name::from(external_local_chain(near)), rules)
}

fn masquerading(config: &Config) -> Chain {
    let mark = config.masquerade_mark;
    let marked = vec![
        Expr::Meta { key: MetaKey::Mark, to: Reg(0) },
        masked(mark, 0),
        Expr::Cmp { from: Reg(0), op: CmpOp::Neq, with: vec![0; 4] },
        Expr::Meta { key: MetaKey::Mark, to: Reg(0) },
        masked(u32::MAX, mark),
        Expr::SetMark { from: Reg(0) },
        Expr::Masquerade,
    ];
    let mut hairpin = ct_bit(CtKey::Status, CT_STATUS_DNAT);
    hairpin
        .extend(Concat::new(config.family()).source().service().found(SetId::Hairpin, Hit::Match));
    hairpin.push(Expr::Masquerade);
    regular(Name::from("masquerading"), vec![plain(marked), plain(hairpin)])
}

fn refuse_services(config: &Config) -> Chain {
    let key = Concat::new(config.family()).service();
    let rules = vec![plain(key.found(SetId::NoEndpoints, Hit::Verdict))];
    regular(Name::from("refuse-services"), rules)
}

/// Not for packets to the node itself: the node may have a cluster IP as a local address, as with
/// NodeLocal DNSCache, and may serve other ports there.
fn refuse_cluster_ips(config: &Config) -> Chain {
    let family = config.family();
    let mut invalid = Concat::new(family).destination().found(SetId::ClusterIps, Hit::Match);
    invalid.push(Expr::Reject(family));
    let comment = Some(Name::from("a port without a Service"));
    let mut rules = vec![Rule { exprs: invalid, comment }];
    for range in config.service_cidrs.iter().filter(|range| range.family() == family) {
        let mut exprs = in_cidr(Side::Destination, *range, CmpOp::Eq);
        exprs.push(Expr::Verdict(Verdict::Drop));
        rules.push(Rule { exprs, comment: Some(Name::from("an address without a Service")) });
    }
    regular(Name::from("refuse-cluster-ips"), rules)
}

fn refuse_nodeports(config: &Config) -> Chain {
    let rules = to_nodeport_addresses(config).into_iter().map(|mut exprs| {
        let key = Concat::new(config.family()).ports();
        exprs.extend(key.found(SetId::NoEndpointNodeports, Hit::Verdict));
        plain(exprs)
    });
    regular(Name::from("refuse-nodeports"), rules.collect())
}

/// Checks `loadBalancerSourceRanges` before the destination is translated.
fn check_sources(config: &Config) -> Chain {
    let family = config.family();
    let mut exprs = Concat::new(family).service().found(SetId::Firewall, Hit::Match);
    let allowed = Concat::new(family).service().source();
    exprs.extend(allowed.found(SetId::FirewallAllowed, Hit::Mismatch));
    exprs.push(Expr::Verdict(Verdict::Drop));
    regular(Name::from("check-sources"), vec![plain(exprs)])
}

/// Two rules for each protocol: nft can read the port of a conntrack tuple only if the protocol is
/// known.
fn record_affinity(config: &Config) -> Chain {
    let family = config.family();
    let mut rules = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let mut exprs = is_protocol(protocol);
        let key = Concat::new(family).ct(CtKey::OriginalDestination).protocol();
        exprs.extend(key.ct(CtKey::OriginalPort).found(SetId::AffinityServices, Hit::Verdict));
        rules.push(plain(exprs));
        let mut exprs = is_protocol(protocol);
        let key = Concat::new(family).protocol().ct(CtKey::OriginalPort);
        exprs.extend(key.found(SetId::AffinityNodeports, Hit::Verdict));
        rules.push(plain(exprs));
    }
    regular(Name::from("record-affinity"), rules)
}

/// A concatenated key that is built in registers.
struct Concat {
    family: Family,
    exprs: Vec<Expr>,
    next: u8,
}

impl Concat {
    fn new(family: Family) -> Self {
        Self { family, exprs: Vec::new(), next: 0 }
    }

    fn address_registers(&self) -> u8 {
        if self.family == Family::Ipv4 { 1 } else { 4 }
    }

    fn load(mut self, registers: u8, expr: impl FnOnce(Reg) -> Expr) -> Self {
        self.exprs.push(expr(Reg(self.next)));
        self.next += registers;
        self
    }

    fn source(self) -> Self {
        let (family, registers) = (self.family, self.address_registers());
        self.load(registers, |to| address(family, Side::Source, to))
    }

    fn destination(self) -> Self {
        let (family, registers) = (self.family, self.address_registers());
        self.load(registers, |to| address(family, Side::Destination, to))
    }

    fn protocol(self) -> Self {
        self.load(1, |to| Expr::Meta { key: MetaKey::L4Proto, to })
    }

    fn port(self) -> Self {
        self.load(1, |to| Expr::Payload { base: Base::Transport, offset: 2, len: 2, to })
    }

    fn ports(self) -> Self {
        self.protocol().port()
    }

    fn service(self) -> Self {
        self.destination().ports()
    }

    fn random(self, modulus: u32, offset: u32) -> Self {
        self.load(1, |to| Expr::Random { modulus, offset, to })
    }

    fn ct(self, key: CtKey) -> Self {
        let registers = match key {
            CtKey::OriginalSource | CtKey::OriginalDestination | CtKey::ReplySource => {
                self.address_registers()
            }
            CtKey::State | CtKey::Status | CtKey::OriginalPort | CtKey::ReplyPort => 1,
        };
        self.load(registers, |to| Expr::Ct { key, to })
    }

    fn found(self, set: SetId, then: Hit) -> Vec<Expr> {
        self.found_in(Name::from(set.name()), then)
    }

    fn found_in(mut self, set: Name, then: Hit) -> Vec<Expr> {
        self.exprs.push(Expr::Lookup { set, from: Reg(0), then });
        self.exprs
    }

    /// Looks up an endpoint and translates the connection to it.
    fn dnat(self, map: SetId) -> Vec<Expr> {
        self.dnat_by(Name::from(map.name()))
    }

    fn dnat_by(self, map: Name) -> Vec<Expr> {
        let (family, port) = (self.family, Reg(self.address_registers()));
        let mut exprs = self.found_in(map, Hit::Load(Reg(0)));
        exprs.push(Expr::Dnat { family, address: Reg(0), port });
        exprs
    }
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn address(family: Family, side: Side, to: Reg) -> Expr {
    let (offset, len) = match (family, side) {
        (Family::Ipv4, Side::Source) => (12, 4),
        (Family::Ipv4, Side::Destination) => (16, 4),
        (Family::Ipv6, Side::Source) => (8, 16),
        (Family::Ipv6, Side::Destination) => (24, 16),
    };
    Expr::Payload { base: Base::Network, offset, len, to }
}

fn in_cidr(side: Side, cidr: Cidr, op: CmpOp) -> Vec<Expr> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let first = octets(cidr.first());
    let mut exprs = vec![address(cidr.family(), side, Reg(0))];
    if usize::from(cidr.prefix()) < first.len() * 8 {
        let mask = mask(cidr.prefix(), first.len());
        let xor = vec![0; first.len()];
        exprs.push(Expr::Bitwise { from: Reg(0), to: Reg(0), mask, xor });
    }
    exprs.push(Expr::Cmp { from: Reg(0), op, with: first });
    exprs
}

fn mask(prefix: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let bits = usize::from(prefix).saturating_sub(at * 8).min(8);
        (0xff00u16 >> bits) as u8
    };
    (0..len).map(byte).collect()
}

fn from_local(local: &LocalTraffic, op: CmpOp) -> Vec<Expr> {
    let interface = |with: Vec<u8>| {
        vec![Expr::Meta { key: MetaKey::IifName, to: Reg(0) }, Expr::Cmp { from: Reg(0), op, with }]
    };
    match local {
        LocalTraffic::Source(cidr) => in_cidr(Side::Source, *cidr, op),
        LocalTraffic::Bridge(name) => {
            let mut with = name.as_bytes().to_vec();
            with.resize(INTERFACE_NAME, 0);
            interface(with)
        }
        LocalTraffic::InterfacePrefix(prefix) => interface(prefix.as_bytes().to_vec()),
    }
}

fn masked(mask: u32, xor: u32) -> Expr {
    Expr::Bitwise {
        from: Reg(0),
        to: Reg(0),
        mask: mask.to_ne_bytes().to_vec(),
        xor: xor.to_ne_bytes().to_vec(),
    }
}

/// `meta mark set meta mark | MARK`.
fn mark_packet(config: &Config) -> Vec<Expr> {
    let mark = config.masquerade_mark;
    vec![
        Expr::Meta { key: MetaKey::Mark, to: Reg(0) },
        masked(!mark, mark),
        Expr::SetMark { from: Reg(0) },
    ]
}

/// Marks a packet for masquerading and continues in another chain.
fn mark_and_goto(config: &Config, chain: Name) -> Vec<Rule> {
    vec![plain(mark_packet(config)), plain(vec![goto(chain)])]
}

fn ct_bit(key: CtKey, bit: u32) -> Vec<Expr> {
    compare_ct_bit(key, bit, CmpOp::Neq)
}

fn no_ct_bit(key: CtKey, bit: u32) -> Vec<Expr> {
    compare_ct_bit(key, bit, CmpOp::Eq)
}

fn compare_ct_bit(key: CtKey, bit: u32, op: CmpOp) -> Vec<Expr> {
    vec![
        Expr::Ct { key, to: Reg(0) },
        masked(bit, 0),
        Expr::Cmp { from: Reg(0), op, with: vec![0; 4] },
    ]
}

fn fib_local(address: FibAddress) -> Vec<Expr> {
    let with = FIB_LOCAL.to_ne_bytes().to_vec();
    vec![Expr::FibType { address, to: Reg(0) }, Expr::Cmp { from: Reg(0), op: CmpOp::Eq, with }]
}

fn is_protocol(protocol: Protocol) -> Vec<Expr> {
    let with = vec![protocol_number(protocol)];
    vec![
        Expr::Meta { key: MetaKey::L4Proto, to: Reg(0) },
        Expr::Cmp { from: Reg(0), op: CmpOp::Eq, with },
    ]
}

/// FNV-1a: short; collisions are no security problem here.
pub fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(Name::from(chain)))
}

fn goto(chain: Name) -> Expr {
    Expr::Verdict(Verdict::Goto(chain))
}

fn when(mut exprs: Vec<Expr>, then: Expr) -> Rule {
    exprs.push(then);
    plain(exprs)
}

fn plain(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

fn regular(name: Name, rules: Vec<Rule>) -> Chain {
    Chain { name, hook: None, rules, comment: None }
}
