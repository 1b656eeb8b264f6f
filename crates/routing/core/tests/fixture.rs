//! The fixture language: what each statement means, which texts are rejected, and that printing
//! returns an equal text.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nearhop_core::fixture::{Fixture, apply_plan};
use nearhop_core::labels::well_known;
use nearhop_core::model::{ClusterIps, Service, SourceRanges, TargetPort, TrafficPolicy};
use nearhop_core::slice::SlicePlan;
use nearhop_core::world::{PlanTime, Settings};
use nearhop_core::{Change, Cidr, Family, Object, Protocol, ServiceKey, World};
use proptest::prelude::*;

fn parse(text: &str) -> Fixture {
    Fixture::parse(text).unwrap_or_else(|error| panic!("{error}\nin\n{text}"))
}

fn service(line: &str) -> Service {
    parse(line).services.remove(0)
}

/// Pairs of a text and its printed form: unfolded, with all addresses, without default values.
#[test]
fn texts_are_parsed_and_printed() {
    for (text, printed) in [
        ("", ""),
        ("\n  # only a comment\n\t\n", ""),
        ("namespace shop", "namespace shop\n"),
        (
            "namespace shop traffic-distribution=PreferClose # and a comment",
            "namespace shop traffic-distribution=PreferClose\n",
        ),
        (
            "node n cpu=4 region=r zone=z rack=k notready",
            "node n rack=k region=r zone=z cpu=4 notready\n",
        ),
        (
            "node n cpu=0.5 control-plane label:disk=\"fast one\" label:empty=\"\"",
            "node n label:disk=\"fast one\" label:empty=\"\" control-plane cpu=500m\n",
        ),
        (
            "node n label:kubernetes.io/hostname=other zone=\"\"",
            "node n label:kubernetes.io/hostname=other zone=\"\"\n",
        ),
        (
            "node n address=192.168.0.2 pod-cidr=10.1.2.3/16 address=fd00::2 pod-cidr=fd01::/64 \
             tainted-for-deletion deleting",
            "node n address=192.168.0.2 address=fd00::2 pod-cidr=10.1.0.0/16 pod-cidr=fd01::/64 \
             deleting tainted-for-deletion\n",
        ),
        ("nodes n x1 deleting tainted-for-deletion", "node n-0 deleting tainted-for-deletion\n"),
        ("nodes n x2 zone=a", "node n-0 zone=a\nnode n-1 zone=a\n"),
        ("service web", "service web port=80->8080 cluster-ip=10.96.0.1\n"),
        (
            "service shop/web port=http:80->web/udp port=443/sctp node-port=30443 type=NodePort",
            "service shop/web port=http:80->web/udp port=443/sctp node-port=30443 type=NodePort \
             cluster-ip=10.96.0.1\n",
        ),
        (
            "service web families=IPv6,IPv4",
            "service web port=80->8080 cluster-ip=fd00:10:96::1,10.96.0.1\n",
        ),
        (
            "service web cluster-ip=fd00::9 families=IPv4",
            "service web port=80->8080 cluster-ip=fd00::9 families=IPv4\n",
        ),
        (
            "service web cluster-ip=None no-ports no-selector",
            "service web no-ports cluster-ip=None no-selector\n",
        ),
        (
            "service web type=ExternalName deleting uid=u",
            "service web port=80->8080 type=ExternalName cluster-ip=\"\" deleting uid=u\n",
        ),
        (
            "service web lb-ip=1.2.3.4 external-ip=5.6.7.8 itp=Local etp=Local publish-not-ready \
             label:a=b select:x=y",
            "service web port=80->8080 cluster-ip=10.96.0.1 external-ip=5.6.7.8 lb-ip=1.2.3.4 \
             itp=Local etp=Local publish-not-ready label:a=b select:x=y\n",
        ),
        (
            "service web health-port=30500 affinity=10s source-ranges=10.1.2.3/8,192.0.2.0/24",
            "service web port=80->8080 cluster-ip=10.96.0.1 \
             source-ranges=10.0.0.0/8,192.0.2.0/24 affinity=10s health-port=30500\n",
        ),
        (
            "service web source-ranges=\"\" health-port=0",
            "service web port=80->8080 cluster-ip=10.96.0.1 source-ranges=\"\"\n",
        ),
        (
            "service web topology-keys=k1,k2,* topology-mode=Auto max-overload=20%",
            "service web port=80->8080 cluster-ip=10.96.0.1 topology-mode=Auto \
             topology-keys=k1,k2,* max-overload=20%\n",
        ),
        (
            "pod p for=web on=n port=http:8080 port=9090/udp hostname=h",
            "pod p for=web on=n ip=10.244.0.1 hostname=h subdomain=\"\" port=http:8080 \
             port=9090/udp\n",
        ),
        (
            "pod p label:a=\"say \\\"hi\\\" \\\\o/\" on=\"\" ip=\"\" failed terminating notready",
            "pod p label:a=\"say \\\"hi\\\" \\\\o/\" on=\"\" ip=\"\" notready terminating failed\n",
        ),
        (
            "pods shop/p x3 for=web on=a,b",
            "pod shop/p-0 for=web on=a ip=10.244.0.1\npod shop/p-1 for=web on=b ip=10.244.0.2\n\
             pod shop/p-2 for=web on=a ip=10.244.0.3\n",
        ),
    ] {
        let fixture = parse(text);
        assert_eq!(fixture.to_string(), printed, "{text}");
        assert_eq!(parse(printed), fixture, "{text}");
    }
}

#[test]
fn omitted_options_have_defaults() {
    let web = service("service web");
    assert_eq!(web.key, ServiceKey::new("default", "web"));
    assert_eq!(web.uid, "uid-default-web");
    assert_eq!(web.selector.unwrap().get("app").unwrap(), "web");
    assert_eq!(web.cluster_ips, ClusterIps::Addresses(vec!["10.96.0.1".parse().unwrap()]));
    assert_eq!(web.ip_families, [Family::Ipv4]);
    assert_eq!((web.ports[0].port, &web.ports[0].target), (80, &TargetPort::Number(8080)));
    assert_eq!(web.source_ranges, SourceRanges::AnyClient);
    assert_eq!((web.session_affinity, web.health_check_node_port), (None, 0));

    let fixture = parse("node n\npod shop/p for=web on=gone");
    assert_eq!(fixture.nodes[0].labels.get(well_known::HOSTNAME).unwrap(), "n");
    let [node] = &fixture.nodes[..] else { panic!("the fixture has one node") };
    assert_eq!((node.cpu_milli, &node.addresses, &node.pod_cidrs), (None, &vec![], &vec![]));
    assert!(!node.deleting && !node.tainted_for_deletion);
    assert_eq!(fixture.pods[0].uid, "uid-shop-p");
    assert_eq!(fixture.pods[0].node.as_ref().unwrap(), "gone");
}

#[test]
fn options_are_parsed_into_the_model() {
    let web = service("service web port=dns:53->dns/udp itp=Local routing-preference=Zone");
    let port = &web.ports[0];
    assert_eq!((port.name.as_str(), port.protocol), ("dns", Protocol::Udp));
    assert_eq!(port.target, TargetPort::Named("dns".into()));
    assert_eq!(web.internal_traffic_policy, TrafficPolicy::Local);
    assert_eq!(web.topology.routing_preference.unwrap(), "Zone");
    assert_eq!(service("service web port=80").ports[0].target, TargetPort::Number(80));
}

#[test]
fn options_for_the_proxy_are_parsed_into_the_model() {
    let range = |text: &str| Cidr::parse(text).unwrap();
    let web = service("service web source-ranges=10.0.0.0/8,fd00::/8 affinity=7s health-port=9");
    let ranges = SourceRanges::Only(vec![range("10.0.0.0/8"), range("fd00::/8")]);
    assert_eq!(web.source_ranges, ranges);
    assert_eq!(web.session_affinity, Some(Duration::from_secs(7)));
    assert_eq!(web.health_check_node_port, 9);
    let closed = service("service web source-ranges=\"\"");
    assert_eq!(closed.source_ranges, SourceRanges::Only(vec![]));

    let text = "node n address=192.168.0.2 address=fd00::2 pod-cidr=10.1.0.0/16 deleting";
    let node = parse(text).nodes.remove(0);
    assert_eq!(node.addresses, ["192.168.0.2", "fd00::2"].map(|a| a.parse::<IpAddr>().unwrap()));
    assert_eq!(node.pod_cidrs, [range("10.1.0.0/16")]);
    assert!(node.deleting && !node.tainted_for_deletion);
    assert!(parse("node n tainted-for-deletion").nodes[0].tainted_for_deletion);
}

#[test]
fn explicit_addresses_are_not_assigned_again() {
    let fixture = parse(
        "pods p x3 for=web on=n
         service a
         service b cluster-ip=10.96.0.1
         pod q for=web on=n ip=10.244.0.2 ip=fd00::1
         node n address=10.244.0.4
         service c cluster-ip=None external-ip=10.96.0.2 lb-ip=10.96.0.3",
    );
    let ips: Vec<String> =
        fixture.pods.iter().map(|pod| pod.ips.first().unwrap().to_string()).collect();
    assert_eq!(ips, ["10.244.0.1", "10.244.0.3", "10.244.0.5", "10.244.0.2"]);
    let a = ClusterIps::Addresses(vec!["10.96.0.4".parse().unwrap()]);
    assert_eq!(fixture.services[0].cluster_ips, a);
}

#[test]
fn errors_name_line_cause_and_fix() {
    let name_cure = "use 1 to 253 letters, digits, '-', '.' or '_', and one '/' after a namespace";
    let bad_name = |name: &str| format!("line 1: \"{name}\" is not a name; {name_cure}");
    for (text, message) in [
        (
            "\n\nzone a",
            "line 3: \"zone\" is no kind of line; start it with namespace, node, nodes, service, \
             pod, pods or #",
        ),
        ("node", "line 1: node has no name; write it after the kind"),
        ("nodes n", "line 1: \"\" is not a count; write x1 to x100000 after the name"),
        ("nodes n x0", "line 1: \"x0\" is not a count; write x1 to x100000 after the name"),
        ("nodes n x+1", "line 1: \"x+1\" is not a count; write x1 to x100000 after the name"),
        ("pods n 3", "line 1: \"3\" is not a count; write x1 to x100000 after the name"),
        ("nodes n x100001", "line 1: more than 100000 objects in all; describe a smaller cluster"),
        (
            "nodes n x60000\nnodes m x60000",
            "line 2: more than 100000 objects in all; describe a smaller cluster",
        ),
        (
            "node n colour=red",
            "line 1: node has no option \"colour\"; known options: zone, region, rack, cpu, \
             notready, control-plane, address, pod-cidr, deleting, tainted-for-deletion, \
             label:KEY",
        ),
        (
            "namespace n zone=a",
            "line 1: namespace has no option \"zone\"; known options: traffic-distribution",
        ),
        (
            "pod p for=web on=n cpu=1",
            "line 1: pod has no option \"cpu\"; known options: for, on, ip, notready, \
             terminating, failed, hostname, subdomain, port, uid, label:KEY",
        ),
        (
            "node n zone",
            "line 1: \"zone\" has no value; write it behind '=', and an empty one as \"\"",
        ),
        (
            "node n zone=",
            "line 1: \"zone\" has no value; write it behind '=', and an empty one as \"\"",
        ),
        ("node n notready=yes", "line 1: \"notready\" takes no value; write the word alone"),
        ("node n zone=a zone=b", "line 1: \"zone\" is given twice; remove one"),
        (
            "node n zone=a label:topology.kubernetes.io/zone=b",
            "line 1: \"topology.kubernetes.io/zone\" is given twice; remove one",
        ),
        ("pod p for=a label:app=b on=n", "line 1: \"app\" is given twice; remove one"),
        (
            "service s port=1 node-port=2 node-port=3",
            "line 1: \"node-port\" is given twice; remove one",
        ),
        (
            "service s node-port=2",
            "line 1: node-port belongs to the port before it; write it after port=",
        ),
        (
            "service s no-selector select:a=b",
            "line 1: no-selector and select: exclude each other; remove one",
        ),
        ("service s no-ports port=1", "line 1: no-ports and port= exclude each other; remove one"),
        (
            "pods p x2 for=a on=n ip=1.2.3.4",
            "line 1: ip= would be the same for all of them; write single lines instead",
        ),
        (
            "nodes n x2 address=10.0.0.1",
            "line 1: address= would be the same for all of them; write single lines instead",
        ),
        (
            "nodes n x2 pod-cidr=10.0.0.0/8",
            "line 1: pod-cidr= would be the same for all of them; write single lines instead",
        ),
        ("node n address=here", "line 1: address=\"here\" is not an IP address"),
        (
            "node n pod-cidr=10.0.0.0",
            "line 1: pod-cidr=\"10.0.0.0\" is not an address range such as 10.0.0.0/8",
        ),
        (
            "service s source-ranges=10.0.0.0/8,",
            "line 1: source-ranges=\"10.0.0.0/8,\" is not a list of address ranges such as \
             10.0.0.0/8",
        ),
        ("service s affinity=10", "line 1: affinity=\"10\" is not a time from 1s to 86400s"),
        ("service s affinity=0s", "line 1: affinity=\"0s\" is not a time from 1s to 86400s"),
        ("service s affinity=+1s", "line 1: affinity=\"+1s\" is not a time from 1s to 86400s"),
        (
            "service s affinity=86401s",
            "line 1: affinity=\"86401s\" is not a time from 1s to 86400s",
        ),
        (
            "service s health-port=65536",
            "line 1: health-port=\"65536\" is not a port from 0 to 65535",
        ),
        ("pod p for=a", "line 1: pod needs on=NODE, or on=\"\" if it is not scheduled"),
        ("pod p on=n", "line 1: pod needs for=SERVICE, or a label:KEY=VALUE"),
        ("pod p for=a on=n,m", "line 1: on=\"n,m\" is not one node; use pods for more"),
        ("node n cpu=much", "line 1: cpu=\"much\" is not CPU as 4, 0.5 or 500m"),
        (
            "node n cpu=99999999999999999999",
            "line 1: cpu=\"99999999999999999999\" is not CPU as 4, 0.5 or 500m",
        ),
        ("pod p for=a on=n ip=10.0.0", "line 1: ip=\"10.0.0\" is not an IP address"),
        (
            "pod p for=a on=n port=http",
            "line 1: port=\"http\" is not a container port, [NAME:]NUM[/udp]",
        ),
        (
            "service s port=65536",
            "line 1: port=\"65536\" is not a Service port, [NAME:]PORT[->TARGET][/udp|/sctp]",
        ),
        (
            "service s port=80->65536",
            "line 1: port=\"80->65536\" is not a Service port, [NAME:]PORT[->TARGET][/udp|/sctp]",
        ),
        ("service s port=1 node-port=-1", "line 1: node-port=\"-1\" is not a port from 0 to 65535"),
        (
            "service s type=Odd",
            "line 1: type=\"Odd\" is not ClusterIP, NodePort, LoadBalancer or ExternalName",
        ),
        ("service s itp=local", "line 1: itp=\"local\" is not Cluster or Local"),
        ("service s families=ipv4", "line 1: families=\"ipv4\" is not a list of IPv4 and IPv6"),
        ("service s cluster-ip=none", "line 1: cluster-ip=\"none\" is not a list of IP addresses"),
        ("node n\nnode n", "line 2: node n occurs twice; give it another name or remove one"),
        (
            "service s\nservice default/s",
            "line 2: service default/s occurs twice; give it another name or remove one",
        ),
        (
            "node \"n",
            "line 1: a quote is open at the end of the line; close it, and write \\\" for one \
             inside",
        ),
        ("node n/m", &bad_name("n/m")),
        ("service a/b/c", &bad_name("a/b/c")),
        ("service /c", &bad_name("/c")),
        ("node \"\"", &bad_name("")),
        ("pod p for=a on=n/m", &bad_name("n/m")),
    ] {
        let error = Fixture::parse(text).expect_err(text);
        assert_eq!(error.to_string(), message, "{text}");
    }
}

#[test]
fn an_unknown_service_option_lists_the_known_ones() {
    let error = Fixture::parse("service s topology-key=a").unwrap_err().to_string();
    assert!(error.starts_with("line 1: service has no option \"topology-key\"; known options: "));
    assert!(error.contains("topology-keys, topology-keys-annotation"), "{error}");
}

#[test]
fn the_size_of_an_expanded_text_is_limited() {
    let text = format!("nodes n x100000 label:a={}", "v".repeat(1000));
    let error = Fixture::parse(&text).unwrap_err().to_string();
    assert!(error.contains("unfold to too much text"), "{error}");
    let error = Fixture::parse(&format!("nodes {} x2", "n".repeat(254))).unwrap_err().to_string();
    assert!(error.contains("(254 characters) is not a name"), "{error}");
}

const THREE_ZONES: &str = "
    node a1 zone=a cpu=4
    node b1 zone=b cpu=4
    node c1 zone=c cpu=4
    service web traffic-distribution=PreferSameZone
    pods web x4 for=web on=a1,b1
    pod lost for=web on=nowhere
";

fn hints(world: &World, key: &ServiceKey) -> Vec<(String, Vec<String>)> {
    let endpoints = world.slices(key).flat_map(|slice| &slice.endpoints);
    let hints = endpoints.map(|endpoint| {
        let zones = endpoint.hint_zones().iter().map(ToString::to_string).collect();
        (endpoint.addresses.first().expect("the endpoint has an address").to_string(), zones)
    });
    hints.collect()
}

#[test]
fn a_world_has_the_slices_of_the_controller() {
    let world = parse(THREE_ZONES).world(Settings::default());
    let key = ServiceKey::new("default", "web");
    let slices: Vec<_> = world.slices(&key).collect();
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].name, "web-1");
    assert_eq!(slices[0].owners, ["uid-default-web"]);
    assert_eq!(slices[0].ports[0].port, Some(8080));
    let hinted = |ip: &str, zone: &str| (ip.to_owned(), vec![zone.to_owned()]);
    assert_eq!(
        hints(&world, &key),
        [
            hinted("10.244.0.1", "a"),
            hinted("10.244.0.2", "b"),
            hinted("10.244.0.3", "a"),
            hinted("10.244.0.4", "b"),
        ]
    );
    let again = world.plan(&key, PlanTime::at(jiff::Timestamp::UNIX_EPOCH)).unwrap();
    assert!(again.is_noop(), "{again:?}");
}

#[test]
fn applying_a_plan_creates_updates_and_deletes_slices() {
    let settings = Settings { max_endpoints_per_slice: 2, ..Settings::default() };
    let fixture = parse(THREE_ZONES);
    let mut world = fixture.world(settings);
    let key = ServiceKey::new("default", "web");
    let names = |world: &World| -> Vec<String> {
        world.slices(&key).map(|slice| slice.name.to_string()).collect()
    };
    assert_eq!(names(&world), ["web-1", "web-2"]);
    // A slice of another Service may have the name that would be next.
    let mut foreign = (**world.slices(&key).next().unwrap()).clone();
    foreign.name = "web-3".into();
    foreign.labels = [(well_known::SERVICE_NAME, "other")].into_iter().collect();
    world.apply(Change::put(foreign));
    let more = parse("pods more x2 for=web on=c1");
    world.apply_all(more.changes().into_iter().map(|change| match change {
        Change::Put(Object::Pod(mut pod)) => {
            let unused = pod.ips.first().unwrap().to_string().replace("10.244.0", "10.244.9");
            pod.ips = [unused.parse().unwrap()].into_iter().collect();
            Change::Put(Object::Pod(pod))
        }
        other => other,
    }));
    let plan = world.plan(&key, PlanTime::at(jiff::Timestamp::UNIX_EPOCH)).unwrap();
    let touched = apply_plan(&mut world, &key, plan);
    assert_eq!(touched.routes, BTreeSet::from([key.clone()]));
    assert_eq!(names(&world), ["web-1", "web-2", "web-4"]);
    let delete = world.slices(&key).cloned().collect();
    apply_plan(&mut world, &key, SlicePlan { delete, ..SlicePlan::default() });
    assert_eq!(names(&world), Vec::<String>::new());
}

/// Values that are hard to print: spaces, quotes, commas, comment signs.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z]{1,5}",
        1 => proptest::string::string_regex("[a-z \"\\\\#,=:/\u{3000}\r\t]{0,6}").expect("a regex"),
    ]
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        (0u8..3, 0u8..4).prop_map(|(a, b)| format!("10.{}.0.{b}", [96, 244, 1][a as usize])),
        (1u8..4).prop_map(|n| format!("fd00:10:96::{n}")),
    ]
}

fn optional(key: &'static str, value: BoxedStrategy<String>) -> BoxedStrategy<String> {
    prop_oneof![2 => Just(String::new()), 1 => value.prop_map(move |v| format!(" {key}={v}"))]
        .boxed()
}

fn free(key: &'static str) -> BoxedStrategy<String> {
    optional(key, value().prop_map(|value| quoted(&value)).boxed())
}

fn one_of(key: &'static str, choices: &'static [&'static str]) -> BoxedStrategy<String> {
    optional(key, proptest::sample::select(choices).prop_map(str::to_owned).boxed())
}

fn word(word: &'static str) -> BoxedStrategy<String> {
    prop_oneof![3 => Just(String::new()), 1 => Just(format!(" {word}"))].boxed()
}

/// Concatenates options, each of which may be missing.
fn options(parts: Vec<BoxedStrategy<String>>) -> BoxedStrategy<String> {
    parts.prop_map(|parts| parts.concat()).boxed()
}

/// Options that can belong to one node only.
fn own_node_options() -> BoxedStrategy<String> {
    options(vec![
        optional("address", address().boxed()),
        optional("address", address().boxed()),
        one_of("pod-cidr", &["10.1.0.0/16", "10.1.2.3/31", "fd01::/64", "::ffff:10.0.0.0/104"]),
        node_options(),
    ])
}

fn node_options() -> BoxedStrategy<String> {
    options(vec![
        free("zone"),
        free("region"),
        free("rack"),
        free("label:x"),
        free("label:\"a b\""),
        free("label:kubernetes.io/hostname"),
        one_of("cpu", &["4", "500m", "0.5", "1.25", "0", "1000m"]),
        word("notready"),
        word("control-plane"),
        word("deleting"),
        word("tainted-for-deletion"),
    ])
}

fn service_options() -> BoxedStrategy<String> {
    let ports = &["80", "0", "http:80->web", "x:1->2/udp", "9/sctp", "s:443 node-port=30000"];
    let types = &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    let lists = &["k1,k2,*", "*", "a,,b", "\"\""];
    let cluster_ips = prop_oneof![
        address(),
        (address(), address()).prop_map(|(a, b)| format!("{a},{b}")),
        Just("None".to_owned()),
        Just("\"\"".to_owned()),
    ];
    let asks = [
        "topology-mode",
        "topology-aware-hints",
        "traffic-policy",
        "topology-keys-annotation",
        "traffic-distribution",
        "traffic-distribution-annotation",
        "routing-preference",
        "routing-preference-annotation",
        "max-overload",
    ];
    let mut parts = vec![
        one_of("port", ports),
        one_of("port", ports),
        one_of("type", types),
        optional("cluster-ip", cluster_ips.boxed()),
        one_of("families", &["IPv4", "IPv6", "IPv4,IPv6", "IPv6,IPv4", "IPv4,IPv4", "\"\""]),
        optional("external-ip", address().boxed()),
        optional("lb-ip", address().boxed()),
        one_of("itp", &["Local", "Cluster"]),
        one_of("etp", &["Local", "Cluster"]),
        one_of("source-ranges", &["10.1.2.3/8", "0.0.0.0/0,fd00::/8", "\"\""]),
        one_of("affinity", &["1s", "10800s", "086400s"]),
        one_of("health-port", &["0", "30500", "65535"]),
        word("publish-not-ready"),
        word("deleting"),
        free("uid"),
        free("label:l"),
        prop_oneof![free("select:s"), free("select:app"), word("no-selector")].boxed(),
        one_of("topology-keys", lists),
    ];
    parts.extend(asks.map(free));
    options(parts)
}

fn pod_options() -> BoxedStrategy<String> {
    options(vec![
        one_of("ip", &["10.244.0.1", "10.244.0.3", "fd00::1", "\"\""]),
        one_of("ip", &["10.244.0.2"]),
        word("notready"),
        word("terminating"),
        word("failed"),
        free("hostname"),
        free("subdomain"),
        one_of("port", &["80", "http:8080", "dns:53/udp"]),
        free("label:l"),
        free("uid"),
    ])
}

fn line() -> BoxedStrategy<String> {
    let namespace = prop_oneof![Just(""), Just("default/"), Just("shop/")];
    prop_oneof![
        free("traffic-distribution").prop_map(|o| format!("namespace NAME{o}")),
        own_node_options().prop_map(|o| format!("node NAME{o}")),
        (1u8..4, node_options()).prop_map(|(n, o)| format!("nodes NAME x{n}{o}")),
        (namespace.clone(), service_options()).prop_map(|(ns, o)| format!("service {ns}NAME{o}")),
        (namespace.clone(), pod_options())
            .prop_map(|(ns, o)| format!("pod {ns}NAME for=web on=n{o}")),
        (namespace, 1u8..4, word("failed"))
            .prop_map(|(ns, n, o)| format!("pods {ns}NAME x{n} for=web on=n,m{o}")),
    ]
    .boxed()
}

proptest! {
    #[test]
    fn printed_fixtures_round_trip(lines in proptest::collection::vec(line(), 0..8)) {
        let numbered = lines.iter().enumerate().map(|(i, l)| l.replace("NAME", &format!("o{i}")));
        let text = numbered.collect::<Vec<_>>().join("\n");
        let fixture = parse(&text);
        let printed = fixture.to_string();
        prop_assert_eq!(parse(&printed), fixture, "\n{}\n->\n{}", text, printed);
    }

    #[test]
    fn parsing_any_text_does_not_panic(
        text in "((node|nodes|pod|pods|service|namespace|x[0-9]|[a-z/]+=?|\"|\\\\|#|:|->|,|[0-9]+|\\PC) ?\n?){0,40}"
    ) {
        if let Ok(fixture) = Fixture::parse(&text) {
            prop_assert_eq!(parse(&fixture.to_string()), fixture);
        }
    }
}

/// Errors are placed at the word that is wrong; without one, at the object's name.
#[test]
fn errors_have_columns() {
    for (text, line, column) in [
        ("  zone a", 1, 3),
        ("node", 1, 1),
        ("node n\n\nnode n", 3, 6),
        ("node n  zone=a colour=red", 1, 16),
        ("node ü\n", 1, 6),
        ("nodes n  x0", 1, 10),
        ("service s label:ü=\"ä\" port=x", 1, 23),
        ("service s no-ports port=80", 1, 9),
        ("pod p for=a on=n ip=1", 1, 18),
        ("pod p for=a", 1, 5),
        ("node n zone=a zone=b", 1, 15),
        ("node n zone=\"a", 1, 13),
        ("namespace x  y", 1, 14),
    ] {
        let error = Fixture::parse(text).expect_err(text);
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
    }
}

#[test]
fn objects_and_options_are_found_in_their_text() {
    let text = "# two objects\n  node n1 zone=a notready\npods shop/p x2 for=s on=n1\n";
    let (_, places) = Fixture::parse_with_places(text).expect("the text is valid");
    assert_eq!(places.find("node n1", Some("notready")), Some((2, 18)));
    assert_eq!(places.find("node n1", Some("cpu")), Some((2, 8)), "the name");
    assert_eq!(places.find("pod shop/p-1", Some("on")), Some((3, 22)));
    assert_eq!(places.find("pod shop/p-2", None), None);
}

#[test]
fn a_text_without_addresses_describes_the_same_objects() {
    let text = "\
node n1 zone=a address=10.0.0.1 pod-cidr=10.1.0.0/24
service shop/web port=80 cluster-ip=10.96.0.9 uid=u traffic-distribution=PreferClose
service db cluster-ip=None
pod shop/web-0 for=web on=n1 ip=10.1.0.5 uid=u
";
    let printed = "\
node n1 zone=a
service shop/web port=80 traffic-distribution=PreferClose
service db port=80->8080 cluster-ip=None
pod shop/web-0 for=web on=n1
";
    assert_eq!(parse(text).without_addresses().to_string(), printed);
}

/// Every option in the list of an error is one that the parser knows.
#[test]
fn the_listed_keywords_are_known_to_the_parser() {
    for (kind, options) in nearhop_core::fixture::keywords() {
        for option in options {
            let option = option.replace("KEY", "k");
            let count = if kind.ends_with("es") || kind == "pods" { " x1" } else { "" };
            let text = format!("{kind} a{count} {option}");
            let said = Fixture::parse(&text).err().map_or(String::new(), |e| e.to_string());
            assert!(!said.contains("has no option"), "{text}: {said}");
        }
    }
}
