//! Which flows are deleted and which stay, for every event of a Service, at each kind of frontend,
//! for flows with and without answers, in both families.

mod sets;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nearhop_core::{EndpointKey, Family, Protocol};
use nearhop_netfilter::conntrack::{
    Endpoints, Ends, Flow, FlowEligibility, Judgement, Plan, Rehome, View, Why, judge,
};
use nearhop_netfilter::frontend::{At, Frontend};

use sets::{Sets, plan_deletions};

use Judgement::{Foreign, Kept, Stale};

const ANSWERED: u32 = 1 << 1;

/// One family's addresses.
struct Net {
    family: Family,
    client: &'static str,
    node: &'static str,
    cluster: &'static str,
    balancer: &'static str,
    near: &'static str,
    far: &'static str,
}

const NETS: [Net; 2] = [
    Net {
        family: Family::Ipv4,
        client: "10.1.0.7",
        node: "192.0.2.5",
        cluster: "10.96.0.10",
        balancer: "203.0.113.9",
        near: "10.1.0.1",
        far: "10.2.0.1",
    },
    Net {
        family: Family::Ipv6,
        client: "fd01::7",
        node: "2001:db8::5",
        cluster: "fd96::10",
        balancer: "2001:db8:9::9",
        near: "fd01::1",
        far: "fd02::1",
    },
];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a valid test address")
}

fn endpoint(text: &str) -> EndpointKey {
    EndpointKey { ip: ip(text), port: 5353 }
}

/// The destination of a flow.
#[derive(Clone, Copy, Debug)]
enum To {
    Near,
    Far,
    /// Not translated: there was no endpoint.
    Untranslated,
    /// An address that was never an endpoint of the Service.
    Unrelated,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

const KINDS: [Kind; 3] = [Kind::ClusterIp, Kind::NodePort, Kind::LoadBalancer];

impl Net {
    fn frontend(&self, kind: Kind, protocol: Protocol) -> Frontend {
        let (at, port) = match kind {
            Kind::ClusterIp => (At::Address(ip(self.cluster)), 53),
            Kind::NodePort => (At::Node, 30053),
            Kind::LoadBalancer => (At::Address(ip(self.balancer)), 53),
        };
        Frontend { at, protocol, port }
    }

    fn flow(&self, kind: Kind, protocol: Protocol, to: To) -> Flow {
        let destination = match kind {
            Kind::ClusterIp => SocketAddr::new(ip(self.cluster), 53),
            Kind::NodePort => SocketAddr::new(ip(self.node), 30053),
            Kind::LoadBalancer => SocketAddr::new(ip(self.balancer), 53),
        };
        let source = SocketAddr::new(ip(self.client), 40000);
        let serves = match to {
            To::Near => SocketAddr::new(ip(self.near), 5353),
            To::Far => SocketAddr::new(ip(self.far), 5353),
            To::Untranslated => destination,
            To::Unrelated => SocketAddr::new(ip(self.client), 9),
        };
        let original = Ends { source, destination };
        let reply = Ends { source: serves, destination: source };
        Flow { protocol, original, reply, status: 0, id: 7, zone: 0 }
    }

    fn view(&self, after: &After, rehome: Rehome, protocol: Protocol) -> View<Sets> {
        let set = |names: &[To]| names.iter().map(|to| self.endpoint(*to)).collect();
        let sets = |allowed, demoted, barred| Sets {
            allowed: set(allowed),
            demoted: set(demoted),
            barred: set(barred),
        };
        let mut view = View::new(rehome, BTreeSet::from([ip(self.node)]));
        for kind in KINDS {
            let frontend = self.frontend(kind, protocol);
            match *after {
                After::Serves { allowed, demoted, barred } => {
                    view.insert(frontend, sets(allowed, demoted, barred));
                }
                After::Removed { had } => view.insert_removed(frontend, sets(had, &[], &[])),
            }
        }
        view
    }

    fn endpoint(&self, to: To) -> EndpointKey {
        match to {
            To::Near => endpoint(self.near),
            To::Far => endpoint(self.far),
            To::Untranslated | To::Unrelated => panic!("{to:?} is not an endpoint"),
        }
    }
}

/// The frontend's state after an event.
enum After {
    Serves { allowed: &'static [To], demoted: &'static [To], barred: &'static [To] },
    Removed { had: &'static [To] },
}

struct Event {
    name: &'static str,
    after: After,
    /// Existing flows, and the judgement under `NewOnly` and under `Immediate`.
    flows: &'static [(To, Judgement, Judgement)],
}

const fn serves(allowed: &'static [To]) -> After {
    After::Serves { allowed, demoted: &[], barred: &[] }
}

const GONE: Judgement = Stale(Why::EndpointGone);
const BARRED: Judgement = Stale(Why::EndpointBarred);
const DEMOTED: Judgement = Stale(Why::EndpointDemoted);
const NEVER: Judgement = Stale(Why::NeverTranslated);
const REMOVED: Judgement = Stale(Why::FrontendRemoved);

/// The acceptance matrix for UDP.
const EVENTS: &[Event] = &[
    Event {
        name: "endpoint deleted",
        after: serves(&[To::Far]),
        flows: &[(To::Near, GONE, GONE), (To::Far, Kept, Kept)],
    },
    Event {
        name: "scaled to zero",
        after: serves(&[]),
        flows: &[(To::Near, GONE, GONE), (To::Far, GONE, GONE), (To::Untranslated, Kept, Kept)],
    },
    Event {
        name: "0 to 1",
        after: serves(&[To::Near]),
        flows: &[(To::Untranslated, NEVER, NEVER), (To::Near, Kept, Kept)],
    },
    Event {
        name: "Service deleted",
        after: After::Removed { had: &[To::Near, To::Far] },
        flows: &[
            (To::Near, REMOVED, REMOVED),
            (To::Far, REMOVED, REMOVED),
            (To::Untranslated, Foreign, Foreign),
            (To::Unrelated, Foreign, Foreign),
        ],
    },
    Event {
        name: "terminating, still serving, others ready",
        after: After::Serves { allowed: &[To::Far], demoted: &[To::Near], barred: &[] },
        flows: &[(To::Near, Kept, DEMOTED), (To::Far, Kept, Kept)],
    },
    Event {
        name: "terminating, then gone",
        after: serves(&[To::Far]),
        flows: &[(To::Near, GONE, GONE), (To::Far, Kept, Kept)],
    },
    Event {
        name: "hint change",
        after: After::Serves { allowed: &[To::Near], demoted: &[To::Far], barred: &[] },
        flows: &[(To::Far, Kept, DEMOTED), (To::Near, Kept, Kept)],
    },
    Event {
        name: "hint change, and the destination is not an endpoint of the Service",
        after: After::Serves { allowed: &[To::Near], demoted: &[To::Far], barred: &[] },
        flows: &[(To::Unrelated, GONE, GONE)],
    },
    Event {
        name: "Local without a local endpoint",
        after: After::Serves { allowed: &[], demoted: &[], barred: &[To::Far] },
        flows: &[(To::Far, BARRED, BARRED), (To::Untranslated, Kept, Kept)],
    },
    Event {
        name: "Local, 0 to 1",
        after: After::Serves { allowed: &[To::Near], demoted: &[], barred: &[To::Far] },
        flows: &[
            (To::Untranslated, NEVER, NEVER),
            (To::Far, BARRED, BARRED),
            (To::Near, Kept, Kept),
        ],
    },
    Event {
        name: "policy change from Cluster to Local",
        after: After::Serves { allowed: &[To::Near], demoted: &[], barred: &[To::Far] },
        flows: &[(To::Far, BARRED, BARRED), (To::Near, Kept, Kept)],
    },
    Event {
        name: "policy change from Local to Cluster",
        after: serves(&[To::Near, To::Far]),
        flows: &[(To::Near, Kept, Kept), (To::Far, Kept, Kept)],
    },
    Event {
        name: "proxy restart",
        after: serves(&[To::Near, To::Far]),
        flows: &[(To::Near, Kept, Kept), (To::Far, Kept, Kept)],
    },
];

/// With and without an answer; with and without masquerading, where answers go to the node.
fn variants(net: &Net, flow: Flow) -> impl Iterator<Item = Flow> {
    let masqueraded = SocketAddr::new(ip(net.node), 61000);
    [0, ANSWERED].into_iter().flat_map(move |status| {
        [flow.reply.destination, masqueraded].map(|destination| Flow {
            status,
            reply: Ends { destination, ..flow.reply },
            ..flow
        })
    })
}

#[test]
fn udp_flows_are_judged_by_the_matrix() {
    for net in &NETS {
        for event in EVENTS {
            for (rehome, pick) in [(Rehome::NewOnly, 0), (Rehome::Immediate, 1)] {
                let view = net.view(&event.after, rehome, Protocol::Udp);
                for kind in KINDS {
                    for (to, new_only, immediate) in event.flows {
                        let expected = [new_only, immediate][pick];
                        for flow in variants(net, net.flow(kind, Protocol::Udp, *to)) {
                            let found = judge(&flow, &view);
                            let (name, family) = (event.name, net.family);
                            assert_eq!(
                                found, *expected,
                                "{name}: {family} {kind:?} {to:?} {rehome:?} {flow:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tcp_flows_are_never_deleted() {
    for net in &NETS {
        for event in EVENTS {
            // The view contains TCP frontends; a real view has none.
            let view = net.view(&event.after, Rehome::Immediate, Protocol::Tcp);
            for kind in KINDS {
                for (to, ..) in event.flows {
                    let flow = net.flow(kind, Protocol::Tcp, *to);
                    assert_eq!(judge(&flow, &view), Foreign, "{}: {to:?}", event.name);
                }
            }
        }
    }
}

#[test]
fn sctp_flows_are_deleted_only_without_their_endpoint() {
    for net in &NETS {
        for event in EVENTS {
            let view = net.view(&event.after, Rehome::Immediate, Protocol::Sctp);
            for kind in KINDS {
                for (to, _, udp) in event.flows {
                    let flow = net.flow(kind, Protocol::Sctp, *to);
                    let expected = match *udp {
                        Stale(Why::EndpointGone) | Foreign => *udp,
                        Stale(_) | Kept => Kept,
                    };
                    assert_eq!(judge(&flow, &view), expected, "{}: {to:?}", event.name);
                }
            }
        }
    }
}

#[test]
fn foreign_flows_are_never_deleted() {
    let net = &NETS[0];
    let view = net.view(&serves(&[To::Near]), Rehome::Immediate, Protocol::Udp);
    let stale = net.flow(Kind::ClusterIp, Protocol::Udp, To::Far);
    assert_eq!(
        judge(&stale, &view),
        GONE,
        "the unchanged flow is stale, so only the change matters"
    );
    let to = |text: &str| {
        let destination = text.parse().expect("a valid test address");
        Flow { original: Ends { destination, ..stale.original }, ..stale }
    };
    for (why, flow) in [
        ("another port of the cluster IP", to("10.96.0.10:54")),
        ("another cluster IP", to("10.96.0.11:53")),
        ("the node port at an address that is not the node's", to("198.51.100.1:30053")),
        ("the node port at a pod", to("10.1.0.1:30053")),
        ("the endpoint itself", to("10.2.0.1:5353")),
        ("a port of the node that is not a node port", to("192.0.2.5:53")),
        ("another protocol", Flow { protocol: Protocol::Sctp, ..stale }),
    ] {
        assert_eq!(judge(&flow, &view), Foreign, "{why}");
    }
}

#[test]
fn a_flow_whose_endpoint_is_the_frontend_is_kept() {
    let net = &NETS[0];
    let mut view = View::new(Rehome::Immediate, BTreeSet::from([ip(net.node)]));
    let own = EndpointKey { ip: ip(net.node), port: 30053 };
    let sets = Sets { allowed: BTreeSet::from([own]), ..Sets::default() };
    view.insert(net.frontend(Kind::NodePort, Protocol::Udp), sets);
    let flow = net.flow(Kind::NodePort, Protocol::Udp, To::Untranslated);
    assert_eq!(judge(&flow, &view), Kept, "endpoint and frontend have the same address and port");
}

#[test]
fn a_frontend_that_moved_to_another_service_is_not_removed() {
    let net = &NETS[0];
    let mut view = net.view(&serves(&[To::Far]), Rehome::NewOnly, Protocol::Udp);
    for kind in KINDS {
        // The address or port moved from one Service to another.
        let had = Sets { allowed: BTreeSet::from([endpoint(net.near)]), ..Sets::default() };
        view.insert_removed(net.frontend(kind, Protocol::Udp), had);
        assert_eq!(judge(&net.flow(kind, Protocol::Udp, To::Near), &view), GONE);
        assert_eq!(judge(&net.flow(kind, Protocol::Udp, To::Far), &view), Kept);
    }
}

#[test]
fn an_external_ip_takes_precedence_over_a_node_port() {
    let net = &NETS[0];
    let mut view = View::new(Rehome::NewOnly, BTreeSet::from([ip(net.node)]));
    let sets = |text| Sets { allowed: BTreeSet::from([endpoint(text)]), ..Sets::default() };
    view.insert(net.frontend(Kind::NodePort, Protocol::Udp), sets(net.near));
    // An external IP that is the node's address, with the number of the node port.
    let at = At::Address(ip(net.node));
    view.insert(Frontend { at, protocol: Protocol::Udp, port: 30053 }, sets(net.far));
    assert_eq!(judge(&net.flow(Kind::NodePort, Protocol::Udp, To::Far), &view), Kept);
    assert_eq!(judge(&net.flow(Kind::NodePort, Protocol::Udp, To::Near), &view), GONE);
}

/// `externalTrafficPolicy: Local`: clients on this node use all endpoints, others the local one.
struct ExternalLocal<'a>(&'a Net);

impl Endpoints for ExternalLocal<'_> {
    fn eligibility(&self, client: IpAddr, endpoint: EndpointKey) -> FlowEligibility {
        match endpoint {
            e if e == self.0.endpoint(To::Near) => FlowEligibility::Allowed,
            e if e != self.0.endpoint(To::Far) => FlowEligibility::Gone,
            _ if client == ip(self.0.client) => FlowEligibility::Allowed,
            _ => FlowEligibility::Barred,
        }
    }

    fn any_allowed(&self, _: IpAddr) -> bool {
        true
    }
}

#[test]
fn the_judgement_can_depend_on_the_client() {
    let net = &NETS[0];
    let mut view = View::new(Rehome::NewOnly, BTreeSet::from([ip(net.node)]));
    view.insert(net.frontend(Kind::LoadBalancer, Protocol::Udp), ExternalLocal(net));
    let of_pod = net.flow(Kind::LoadBalancer, Protocol::Udp, To::Far);
    assert_eq!(judge(&of_pod, &view), Kept);
    let source = "198.51.100.77:4000".parse().expect("a valid test address");
    let of_other = Flow { original: Ends { source, ..of_pod.original }, ..of_pod };
    assert_eq!(judge(&of_other, &view), BARRED);
}

#[test]
fn a_plan_counts_each_flow_once() {
    let net = &NETS[0];
    let view = net.view(&serves(&[To::Near]), Rehome::NewOnly, Protocol::Udp);
    let flows = [
        net.flow(Kind::ClusterIp, Protocol::Udp, To::Near),
        net.flow(Kind::NodePort, Protocol::Udp, To::Near),
        net.flow(Kind::ClusterIp, Protocol::Udp, To::Far),
        net.flow(Kind::ClusterIp, Protocol::Tcp, To::Far),
        net.flow(Kind::LoadBalancer, Protocol::Udp, To::Untranslated),
    ];
    let plan = plan_deletions(&flows, &view);
    let stale: Vec<_> = plan.stale.iter().map(|stale| (stale.flow, stale.why)).collect();
    assert_eq!(stale, [(flows[2], Why::EndpointGone), (flows[4], Why::NeverTranslated)]);
    assert_eq!((plan.kept, plan.foreign), (2, 1));
    assert_eq!(plan_deletions([], &view), Plan::default());
    let nothing: View<Sets> = View::new(Rehome::Immediate, BTreeSet::from([ip(net.node)]));
    let plan = plan_deletions(&flows, &nothing);
    assert_eq!(
        (plan.stale.len(), plan.kept, plan.foreign),
        (0, 0, 5),
        "without frontends all flows are foreign"
    );
}
