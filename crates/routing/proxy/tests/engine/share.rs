//! The distribution of 50,000 connections on the kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use nearhop_core::labels::well_known;
use nearhop_core::model::{AddressType, Conditions, Endpoint, Slice, SlicePort};
use nearhop_core::routing::SliceRouting;
use nearhop_core::{Change, Family, Name, Protocol};
use nearhop_net::traffic::{self, Server, connect_many};
use nearhop_net::{Star, sandbox};
use nearhop_proxy::engine::Engine;
use nearhop_proxy::kernel::Kernel;

use crate::follow::{Cluster, v4};

const CONNECTIONS: usize = 50_000;
const SERVICE: &str = "10.96.0.1:80";

/// The chi-square value that is exceeded once in a thousand times, with six degrees of freedom.
const CRITICAL: f64 = 22.458;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A slice as a controller would write it: an endpoint for each zone, and the annotation.
fn slice(zones: &[&str], routing: Option<&str>) -> Slice {
    let endpoint = |(i, zone): (usize, &&str)| Endpoint {
        conditions: Conditions { ready: Some(true), serving: Some(true), terminating: None },
        node: Some(Name::from("n2")),
        zone: Some(Name::from(*zone)),
        ..Endpoint::at(ip(&format!("10.244.0.{}", i + 1)))
    };
    let port = SlicePort {
        name: Name::from(""),
        protocol: Protocol::Tcp,
        port: Some(8080),
        app_protocol: None,
    };
    Slice {
        namespace: Name::from("default"),
        name: Name::from("web-1"),
        labels: [(well_known::SERVICE_NAME, "web")].into_iter().collect(),
        owners: Vec::new(),
        deleting: false,
        address_type: AddressType::Ip(Family::Ipv4),
        ports: [port].into(),
        endpoints: zones.iter().enumerate().map(endpoint).collect(),
        trigger_time: None,
        routing: SliceRouting::read(routing),
    }
}

/// How many connections each endpoint got.
fn count_connections(zones: &[&str], routing: Option<&str>) -> BTreeMap<SocketAddr, usize> {
    let mut star = Star::new(&[ip("192.0.2.250")]).unwrap();
    let sources = ["10.244.9.1", "10.244.9.2", "10.244.9.3"].map(ip);
    let client = star.host("client", &sources).unwrap();
    let mut servers = Vec::new();
    for i in 1..=zones.len() {
        let address = ip(&format!("10.244.0.{i}"));
        let pod = star.host(&format!("pod-{i}"), &[address]).unwrap();
        let address = SocketAddr::new(address, 8080);
        servers.push(Server::start(&pod, traffic::Protocol::Tcp, address).unwrap());
    }
    let mut cluster = Cluster::new("node n1 zone=a\nservice web cluster-ip=10.96.0.1 no-selector");
    cluster.apply(vec![Change::put(slice(zones, routing))]);
    let mut kernel = star.node().run(|| Kernel::open().unwrap());
    Engine::new(v4()).full(&mut kernel, &cluster.routes).unwrap();
    let to = SERVICE.parse().unwrap();
    let counts = connect_many(&client, &sources, to, CONNECTIONS, 8).unwrap();
    assert_eq!(counts.values().sum::<usize>(), CONNECTIONS);
    counts
}

#[test]
fn equal_endpoints_get_equal_shares() {
    sandbox::run("share::equal_endpoints_get_equal_shares", || {
        let counts = count_connections(&["a"; 7], None);
        assert_eq!(counts.len(), 7);
        let expected = CONNECTIONS as f64 / 7.0;
        let off = |count: &usize| (*count as f64 - expected).powi(2) / expected;
        let chi_square: f64 = counts.values().map(off).sum();
        assert!(chi_square < CRITICAL, "chi-square {chi_square}: {counts:?}");
    });
}

#[test]
fn shares_match_the_weights() {
    sandbox::run("share::shares_match_the_weights", || {
        let weights = r#"{"v":1,"weights":{"a":{"a":600000,"b":300000,"c":100000}}}"#;
        let counts = count_connections(&["a", "b", "c"], Some(weights));
        for (i, wanted) in [60.0, 30.0, 10.0].into_iter().enumerate() {
            let address: SocketAddr = format!("10.244.0.{}:8080", i + 1).parse().unwrap();
            let got = counts[&address] as f64 / CONNECTIONS as f64 * 100.0;
            assert!((got - wanted).abs() < 2.0, "{got} %, not {wanted} %: {counts:?}");
        }
    });
}
