//! The configuration, the family, and two families at once.

use nearhop_core::{Cidr, Family, Name};
use nearhop_netfilter::config::{Config, LocalTraffic, Masquerade, NodePortAddresses, Priorities};
use nearhop_netfilter::layout::SetId;
use nearhop_proxy::engine::{Engine, Pass, Tables, Verified};

use crate::follow::{Follower, content, v4};
use crate::on::on_both;
use crate::steps::CLUSTER;

fn cidr(text: &str) -> Cidr {
    Cidr::parse(text).unwrap()
}

/// Each configuration differs from the previous one in one setting.
fn configs(family: Family) -> Vec<Config> {
    let (pods, services, node) = match family {
        Family::Ipv4 => ("10.244.0.0/16", "10.96.0.0/12", "198.51.100.1"),
        Family::Ipv6 => ("fd00:10:244::/64", "fd00:10:96::/108", "2001:db8:9::1"),
    };
    let mut config = Config::new(family);
    let mut all = vec![config.clone()];
    let changes: [&dyn Fn(&mut Config); 12] = [
        &|config| config.masquerade_mark = 1 << 3,
        &|config| config.local = Some(LocalTraffic::Source(cidr(pods))),
        &|config| config.local = Some(LocalTraffic::Bridge(Name::from("cbr0"))),
        &|config| config.local = Some(LocalTraffic::InterfacePrefix(Name::from("veth"))),
        &|config| config.nodeport_addresses = NodePortAddresses::Within(vec![cidr(pods)]),
        &|config| config.nodeport_addresses = NodePortAddresses::Within(Vec::new()),
        &|config| config.priorities = Priorities { dstnat: -110, filter: 5, srcnat: 90 },
        &|config| config.masquerade = Masquerade::All,
        &|config| config.service_cidrs = vec![cidr(services)],
        &|config| config.node_ip = Some(node.parse().unwrap()),
        &|config| config.local = None,
        &|config| *config = Config::new(family),
    ];
    for change in changes {
        change(&mut config);
        all.push(config.clone());
    }
    all
}

/// A dual-stack cluster.
const DUAL: &str = "
node n1 zone=a
node n2 zone=b
service web type=LoadBalancer families=IPv4,IPv6 cluster-ip=10.96.0.1,fd00:10:96::1 port=http:80->8080 node-port=30080 lb-ip=192.0.2.1 lb-ip=2001:db8::1 etp=Local source-ranges=198.51.100.0/24,198.51.0.0/16,2001:db8:9::/48,2001:db8::/32 affinity=10s
service dns families=IPv4,IPv6 cluster-ip=10.96.0.10,fd00:10:96::10 port=dns:53/udp external-ip=203.0.113.7 external-ip=2001:db8:f::7
service six families=IPv6 cluster-ip=fd00:10:96::6 port=80 node-port=30082 type=NodePort
service four families=IPv4 cluster-ip=10.96.0.4 external-ip=203.0.113.7
pod web-0 for=web on=n1 ip=10.244.0.1 ip=fd00:10:244::1
pod web-1 for=web on=n2 ip=10.244.0.2 ip=fd00:10:244::2
pod web-2 for=web on=n2 ip=10.244.0.3
pod dns-0 for=dns on=n2 ip=10.244.0.4 ip=fd00:10:244::4
pod six-0 for=six on=n1 ip=fd00:10:244::5
pod four-0 for=four on=n1 ip=10.244.0.6
";

/// Applies all configurations, one after the other.
fn configure_all(tables: &mut impl Tables, family: Family) {
    let mut follower = Follower::new(DUAL, Config::new(family));
    follower.sync_all(tables);
    for config in configs(family) {
        let same = config == *follower.engine.config();
        follower.engine.configure(config);
        assert_eq!(follower.engine.needs_full(), !same);
        follower.sync_all(tables);
        follower.check_exactly(tables);
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    }
}

on_both! {
    fn each_setting_can_change_at_run_time(tables) {
        configure_all(tables, Family::Ipv4);
    }

    fn each_setting_can_change_at_run_time_in_ipv6(tables) {
        configure_all(tables, Family::Ipv6);
    }

    fn a_restart_with_another_configuration_corrects_the_table(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        for config in configs(Family::Ipv4) {
            follower.engine = Engine::new(config);
            let synced = follower.sync_all(tables);
            assert_eq!(synced.pass, Pass::Full);
            follower.check_exactly(tables);
        }
    }

    fn ipv6_tables_follow_changes_like_ipv4_tables(tables) {
        let mut follower = Follower::new(DUAL, Config::new(Family::Ipv6));
        follower.sync_all(tables);
        follower.check_exactly(tables);
        tables.forget();
        follower.turn_into(tables, &DUAL.replace("ip=fd00:10:244::2", "ip=fd00:10:244::9"));
        // One slot each: the cluster IP, and load balancer and node port for clients on this node.
        let expected = [(SetId::Endpoints, (2, 2)), (SetId::NodeportEndpoints, (1, 1))];
        assert_eq!(Vec::from_iter(tables.counts()), expected);
        assert_eq!(tables.reads, 0);
        follower.check(tables);
        follower.turn_into(tables, &DUAL.replace("2001:db8::/32", "2001:db8:9::/64"));
        follower.check(tables);
        follower.turn_into(tables, &DUAL.replace("etp=Local", ""));
        follower.check(tables);
        follower.turn_into(tables, &DUAL.replace("affinity=10s", ""));
        follower.check(tables);
        follower.turn_into(tables, "node n1");
        follower.full(tables);
        follower.check_exactly(tables);
    }

    fn the_two_families_are_independent(tables) {
        let mut four = Follower::new(DUAL, v4());
        let mut six = Follower::new(DUAL, Config::new(Family::Ipv6));
        four.sync_all(tables);
        six.sync_all(tables);
        four.check_exactly(tables);
        let before = content(tables, six.engine.config());
        tables.forget();
        // Only IPv4 changes; IPv6 sends nothing.
        let text = DUAL.replace("ip=10.244.0.2", "ip=10.244.0.9");
        four.turn_into(tables, &text);
        let batches = tables.batches.len();
        six.turn_into(tables, &text);
        assert_eq!((batches, tables.batches.len(), tables.reads), (1, 1, 0));
        four.check(tables);
        six.check_exactly(tables);
        assert_eq!(content(tables, six.engine.config()), before);
        assert_eq!(six.engine.verify(tables).unwrap(), Verified::Same);
        Engine::remove(tables, &v4()).unwrap();
        assert_eq!(tables.read(&v4().table).unwrap(), None);
        six.check_exactly(tables);
    }

    fn removing_a_missing_table_is_not_an_error(tables) {
        Engine::remove(tables, &v4()).unwrap();
        assert!(tables.batches.is_empty());
    }
}
