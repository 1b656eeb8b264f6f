//! The star and the traffic in it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use nearhop_net::traffic::{Client, Outcome, Protocol, Server, connect, connect_many};
use nearhop_net::{Namespace, Star, link, sandbox, star, sysctl};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
/// Timeout for packets that must arrive.
const LONG: Duration = Duration::from_secs(20);
/// Timeout for packets that must not arrive.
const SHORT: Duration = Duration::from_millis(300);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn node() -> Star {
    Star::new(&[ip("192.168.0.1"), ip("fd00:1::1")]).unwrap()
}

#[test]
fn all_hosts_reach_each_other_with_their_own_addresses() {
    sandbox::run("all_hosts_reach_each_other_with_their_own_addresses", || {
        let mut star = node();
        let a = star.host("a", &[ip("10.0.0.1"), ip("fd00::1")]).unwrap();
        let b = star.host("b", &[ip("10.0.0.2"), ip("fd00::2")]).unwrap();
        let places = [
            (&a, ["10.0.0.1", "fd00::1"]),
            (&b, ["10.0.0.2", "fd00::2"]),
            (star.node(), ["192.168.0.1", "fd00:1::1"]),
        ];
        for (server_in, server_ips) in places {
            for (client_in, client_ips) in places {
                for (server_ip, client_ip) in server_ips.into_iter().zip(client_ips) {
                    for protocol in PROTOCOLS {
                        let to = SocketAddr::new(ip(server_ip), 80);
                        let _server = Server::start(server_in, protocol, to).unwrap();
                        let outcome = connect(client_in, protocol, to, LONG, None).unwrap();
                        // A packet to the host itself has its destination as its source.
                        assert_eq!(outcome.server(), Some(to), "{client_ip} {protocol:?}");
                        assert_eq!(outcome.seen(), Some(ip(client_ip)), "{protocol:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn links_have_the_given_names() {
    sandbox::run("links_have_the_given_names", || {
        let mut star = node();
        star.host("a", &[ip("10.0.0.1")]).unwrap();
        star.host_at("cali-x", "b", &[ip("10.0.0.2")]).unwrap();
        let c = star.host("c", &[ip("10.0.0.3")]).unwrap();
        for device in ["veth0", "cali-x", "veth2", star::DEVICE] {
            link::mac(star.node(), device).unwrap();
        }
        assert_eq!(star.get("c").unwrap().name(), c.name());
        assert!(star.get("d").is_none());
    });
}

#[test]
fn client_uses_the_given_source_address() {
    sandbox::run("client_uses_the_given_source_address", || {
        let mut star = node();
        let sources = [ip("10.0.0.1"), ip("10.0.0.7"), ip("10.9.9.9")];
        let client = star.host("client", &sources).unwrap();
        let to = at("192.168.0.1:80");
        for protocol in PROTOCOLS {
            let _server = Server::start(star.node(), protocol, to).unwrap();
            for source in sources {
                let outcome = connect(&client, protocol, to, LONG, Some(source)).unwrap();
                assert_eq!(outcome.seen(), Some(source), "{protocol:?}");
            }
            let foreign = connect(&client, protocol, to, LONG, Some(ip("10.0.0.8")));
            assert!(foreign.unwrap_err().to_string().contains("192.168.0.1:80"));
        }
    });
}

#[test]
fn outcomes_are_classified() {
    sandbox::run("outcomes_are_classified", || {
        // A router without other routes, and neighbours that do not exist.
        let (client, router) = (Namespace::new("client").unwrap(), Namespace::new("r").unwrap());
        link::veth(&client, "eth0", &router, "eth0").unwrap();
        sysctl::forwarding(&router).unwrap();
        for (ours, its, everywhere) in
            [("10.0.0.2/24", "10.0.0.1/24", "0.0.0.0/0"), ("fd00::2/64", "fd00::1/64", "::/0")]
        {
            let its: IpNet = its.parse().unwrap();
            link::add_address(&client, "eth0", ours.parse::<IpNet>().unwrap()).unwrap();
            link::add_address(&router, "eth0", its).unwrap();
            let everywhere: IpNet = everywhere.parse().unwrap();
            link::add_route(&client, everywhere, Some(its.addr()), "eth0").unwrap();
        }
        for lost in ["10.0.0.3", "fd00::3"] {
            link::add_neighbour(&client, "eth0", ip(lost), [2, 0, 0, 0, 0, 9]).unwrap();
        }
        for protocol in PROTOCOLS {
            for (to, expected) in [
                ("10.0.0.1:81", Outcome::Refused),
                ("[fd00::1]:81", Outcome::Refused),
                ("10.7.7.7:80", Outcome::Unreachable),
                ("[fd07::7]:80", Outcome::Unreachable),
                ("10.0.0.3:80", Outcome::TimedOut),
                ("[fd00::3]:80", Outcome::TimedOut),
            ] {
                let wait = if expected == Outcome::TimedOut { SHORT } else { LONG };
                let outcome = connect(&client, protocol, at(to), wait, None).unwrap();
                assert_eq!(outcome, expected, "{protocol:?} {to}");
            }
        }
    });
}

#[test]
fn removed_host_is_unreachable() {
    sandbox::run("removed_host_is_unreachable", || {
        let mut star = node();
        let a = star.host("a", &[ip("10.0.0.1")]).unwrap();
        let b = star.host("b", &[ip("10.0.0.2")]).unwrap();
        let to = at("10.0.0.2:80");
        let _server = Server::start(&b, Protocol::Tcp, to).unwrap();
        let ask = |patience| connect(&a, Protocol::Tcp, to, patience, None).unwrap();
        assert_eq!(ask(LONG).server(), Some(to));
        star.remove("b").unwrap();
        assert_eq!(ask(SHORT), Outcome::TimedOut, "the removed host does not answer");
        star.host("b", &[ip("10.0.0.2")]).unwrap();
        assert_eq!(ask(LONG), Outcome::Refused, "the new host has no server");
    });
}

#[test]
fn client_can_send_further_requests() {
    sandbox::run("client_can_send_further_requests", || {
        let mut star = node();
        let host = star.host("a", &[ip("10.0.0.1")]).unwrap();
        for protocol in PROTOCOLS {
            let to = at("192.168.0.1:80");
            let server = Server::start(star.node(), protocol, to).unwrap();
            let mut client = Client::new(&host, protocol, to, LONG, None).unwrap();
            let first = client.ask().unwrap();
            assert_eq!(first.server(), Some(to), "{protocol:?}");
            assert_eq!(client.ask().unwrap(), first, "{protocol:?}: the same port");
            let other = connect(&host, protocol, to, LONG, None).unwrap();
            assert_ne!(other, first, "{protocol:?}: another client has another port");
            drop(server);
            assert_eq!(client.ask().unwrap(), Outcome::Refused, "{protocol:?}");
            Server::start(star.node(), protocol, to).expect("the port is free again");
        }
    });
}

#[test]
fn many_connections_are_counted() {
    sandbox::run("many_connections_are_counted", || {
        let mut star = node();
        let sources = [ip("10.0.0.1"), ip("10.0.0.2")];
        let host = star.host("a", &sources).unwrap();
        let to = at("192.168.0.1:80");
        let server = Server::start(star.node(), Protocol::Tcp, to).unwrap();
        for from in [&sources[..], &[]] {
            let answered = connect_many(&host, from, to, 1000, 16).unwrap();
            assert_eq!(answered, BTreeMap::from([(to, 1000)]));
        }
        drop(server);
        let error = connect_many(&host, &[], to, 1000, 16).unwrap_err();
        assert!(error.to_string().contains("connect 1000 times to 192.168.0.1:80"), "{error}");
    });
}

#[test]
fn port_zero_takes_a_free_port() {
    sandbox::run("port_zero_takes_a_free_port", || {
        let star = node();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let server = Server::start(star.node(), protocol, at("192.168.0.1:0")).unwrap();
            assert_ne!(server.address().port(), 0);
            let outcome = connect(star.node(), protocol, server.address(), LONG, None).unwrap();
            assert_eq!(outcome.server(), Some(server.address()));
        }
    });
}
