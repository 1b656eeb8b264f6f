//! Devices, addresses, routes and settings.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nearhop_net::delay::{Delay, set_delay};
use nearhop_net::traffic::{Outcome, Protocol, Server, connect};
use nearhop_net::{Namespace, link, sandbox, sysctl};

/// Timeout for packets that must arrive.
const LONG: Duration = Duration::from_secs(20);

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A server at `address` in `at` answers the client in `from`.
fn assert_reaches(from: &Namespace, at: &Namespace, address: IpAddr) {
    for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Sctp] {
        let server = SocketAddr::new(address, 7000);
        let _running = Server::start(at, protocol, server).unwrap();
        let outcome = connect(from, protocol, server, LONG, None).unwrap();
        assert_eq!(outcome.server(), Some(server), "{protocol:?}: {outcome:?}");
    }
}

#[test]
fn veth_connects_two_namespaces() {
    sandbox::run("veth_connects_two_namespaces", || {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        link::veth(&a, "eth0", &b, "v1").unwrap();
        link::add_address(&a, "eth0", net("10.1.0.1/24")).unwrap();
        link::add_address(&b, "v1", net("10.1.0.2/24")).unwrap();
        link::add_address(&a, "eth0", net("fd00::1/64")).unwrap();
        link::add_address(&b, "v1", net("fd00::2/64")).unwrap();
        assert_ne!(link::mac(&a, "eth0").unwrap(), link::mac(&b, "v1").unwrap());
        assert_reaches(&a, &b, ip("fd00::2"));
        assert_reaches(&a, &b, ip("10.1.0.2"));
        assert_reaches(&b, &a, ip("fd00::1"));
    });
}

#[test]
fn bridge_connects_its_ports() {
    sandbox::run("bridge_connects_its_ports", || {
        let middle = Namespace::new("middle").unwrap();
        link::bridge(&middle, "br0").unwrap();
        let hosts: Vec<Namespace> = (1..4)
            .map(|number| {
                let host = Namespace::new(&format!("host{number}")).unwrap();
                let port = format!("port{number}");
                link::veth(&host, "eth0", &middle, &port).unwrap();
                link::enslave(&middle, &port, "br0").unwrap();
                link::add_address(&host, "eth0", net(&format!("10.1.0.{number}/24"))).unwrap();
                link::add_address(&host, "eth0", net(&format!("fd00::{number}/64"))).unwrap();
                host
            })
            .collect();
        link::add_address(&middle, "br0", net("10.1.0.9/24")).unwrap();
        assert_reaches(&hosts[0], &hosts[1], ip("10.1.0.2"));
        assert_reaches(&hosts[1], &hosts[2], ip("fd00::3"));
        assert_reaches(&hosts[2], &middle, ip("10.1.0.9"));
    });
}

#[test]
fn forwarding_is_off_by_default() {
    sandbox::run("forwarding_is_off_by_default", || {
        let [left, router, right] =
            ["left", "router", "right"].map(|name| Namespace::new(name).unwrap());
        link::veth(&left, "eth0", &router, "to-left").unwrap();
        link::veth(&right, "eth0", &router, "to-right").unwrap();
        for (namespace, device, address) in [
            (&left, "eth0", "10.1.0.2/24"),
            (&router, "to-left", "10.1.0.1/24"),
            (&right, "eth0", "10.2.0.2/24"),
            (&router, "to-right", "10.2.0.1/24"),
        ] {
            link::add_address(namespace, device, net(address)).unwrap();
        }
        link::add_route(&left, net("10.2.0.0/24"), Some(ip("10.1.0.1")), "eth0").unwrap();
        link::add_route(&right, net("0.0.0.0/0"), Some(ip("10.2.0.1")), "eth0").unwrap();
        let to: SocketAddr = "10.2.0.2:7000".parse().unwrap();
        let soon = Duration::from_millis(200);
        let before = connect(&left, Protocol::Tcp, to, soon, None).unwrap();
        assert!(matches!(before, Outcome::TimedOut | Outcome::Unreachable), "{before:?}");
        sysctl::forwarding(&router).unwrap();
        assert_reaches(&left, &right, to.ip());
        assert_eq!(sysctl::sysctl(&left, "net/ipv4/ip_forward").unwrap(), "0");
    });
}

#[test]
fn sysctls_belong_to_a_namespace() {
    sandbox::run("sysctls_belong_to_a_namespace", || {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        link::veth(&a, "eth0", &b, "eth0").unwrap();
        for path in ["net/ipv4/conf/eth0/rp_filter", "net/ipv4/conf/all/rp_filter"] {
            assert_eq!(sysctl::sysctl(&a, path).unwrap(), "0", "{path}");
            sysctl::set_sysctl(&a, path, "1").unwrap();
            assert_eq!(sysctl::sysctl(&a, path).unwrap(), "1", "{path}");
            assert_eq!(sysctl::sysctl(&b, path).unwrap(), "0", "{path}");
        }
    });
}

#[test]
fn dropped_namespace_is_removed() {
    sandbox::run("dropped_namespace_is_removed", || {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        link::veth(&a, "eth0", &b, "eth0").unwrap();
        drop(b);
        // The kernel removes a namespace asynchronously.
        let deadline = Instant::now() + LONG;
        while link::mac(&a, "eth0").is_ok() {
            assert!(
                Instant::now() < deadline,
                "the veth device of the dropped namespace still exists"
            );
            thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn errors_name_operation_and_namespace() {
    sandbox::run("errors_name_operation_and_namespace", || {
        let a = Namespace::new("here").unwrap();
        link::bridge(&a, "br0").unwrap();
        let errors = [
            link::bridge(&a, "br0").unwrap_err().to_string(),
            link::add_address(&a, "eth7", net("10.0.0.1/24")).unwrap_err().to_string(),
            link::add_route(&a, net("fd00::/64"), Some(ip("10.0.0.1")), "br0")
                .unwrap_err()
                .to_string(),
            sysctl::set_sysctl(&a, "net/ipv4/no_such", "1").unwrap_err().to_string(),
        ];
        assert_eq!(
            errors,
            [
                "network namespace `here`: create bridge `br0`: File exists (os error 17)",
                "network namespace `here`: add address 10.0.0.1/24 to `eth7`: no `eth7`",
                "network namespace `here`: add route fd00::/64 via 10.0.0.1 dev `br0`: \
                 the destination and the gateway are of two families",
                "network namespace `here`: write `1` to sysctl net/ipv4/no_such: \
                 No such file or directory (os error 2)",
            ]
        );
    });
}

#[test]
fn delay_is_applied_if_the_kernel_has_netem() {
    sandbox::run("delay_is_applied_if_the_kernel_has_netem", || {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        link::veth(&a, "eth0", &b, "eth0").unwrap();
        link::add_address(&a, "eth0", net("10.1.0.1/24")).unwrap();
        link::add_address(&b, "eth0", net("10.1.0.2/24")).unwrap();
        let slow = Duration::from_millis(30);
        let done = set_delay(&a, "eth0", slow).unwrap();
        let begun = Instant::now();
        assert_reaches(&a, &b, ip("10.1.0.2"));
        match done {
            Delay::Set => assert!(begun.elapsed() >= slow, "{:?}", begun.elapsed()),
            Delay::NotSupported => nearhop_skip::skip("this kernel has no netem"),
        }
        let missing = set_delay(&a, "eth7", slow).unwrap_err().to_string();
        assert!(missing.contains("eth7"), "{missing}");
    });
}
