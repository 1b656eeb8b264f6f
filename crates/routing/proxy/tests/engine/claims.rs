//! Addresses and local endpoints that several Services claim or share.

use nearhop_core::{Change, ObjectRef, Protocol, ServiceKey};
use nearhop_netfilter::frontend::{At, Frontend};
use nearhop_netfilter::layout::SetId;
use nearhop_proxy::engine::Tables;

use crate::follow::{Follower, content, service, v4};
use crate::on::on_both;

const TWO: &str = "
node n1
node n2
service a cluster-ip=10.96.0.1 external-ip=203.0.113.7
service b cluster-ip=10.96.0.2 external-ip=203.0.113.7
pod a-0 for=a on=n2 ip=10.244.0.1
pod b-0 for=b on=n2 ip=10.244.0.2
pod b-1 for=b on=n2 ip=10.244.0.3
";

/// The Service that owns the contested address.
fn owner(follower: &Follower) -> Option<&ServiceKey> {
    let at = At::Address("203.0.113.7".parse().unwrap());
    let frontend = Frontend { at, protocol: Protocol::Tcp, port: 80 };
    follower.engine.desired().frontend(&frontend).map(|(owner, _)| owner)
}

on_both! {
    fn a_contested_address_belongs_to_the_first_service_by_name(tables) {
        let mut follower = Follower::start(tables, TWO);
        assert_eq!(owner(&follower), Some(&service("a")));
        assert_eq!(follower.engine.desired().contested().count(), 1);
        follower.check(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("a")))]);
        assert_eq!(owner(&follower), Some(&service("b")));
        assert_eq!(follower.engine.desired().contested().count(), 0);
        follower.check(tables);
        // The Service returns and owns the address again.
        follower.turn_into(tables, TWO);
        assert_eq!(owner(&follower), Some(&service("a")));
        follower.check(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("b")))]);
        assert_eq!(owner(&follower), Some(&service("a")));
        follower.check(tables);
    }

    fn an_external_ip_cannot_take_a_cluster_ip(tables) {
        let text = "
node n1
service aaa cluster-ip=10.96.0.1 external-ip=10.96.0.2
service web cluster-ip=10.96.0.2
pod aaa-0 for=aaa on=n1 ip=10.244.0.1
pod web-0 for=web on=n1 ip=10.244.0.2
";
        let mut follower = Follower::start(tables, text);
        let at = At::Address("10.96.0.2".parse().unwrap());
        let wanted = Frontend { at, protocol: Protocol::Tcp, port: 80 };
        let has = |follower: &Follower| {
            follower.engine.desired().frontend(&wanted).map(|(owner, _)| owner.clone())
        };
        assert_eq!(has(&follower), Some(service("web")));
        follower.check(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("web")))]);
        assert_eq!(has(&follower), Some(service("aaa")));
        follower.check(tables);
        follower.turn_into(tables, text);
        assert_eq!(has(&follower), Some(service("web")));
        follower.check(tables);
    }

    fn an_external_ip_cannot_take_a_load_balancer_ip(tables) {
        let text = "
node n1
service aaa cluster-ip=10.96.0.1 external-ip=203.0.113.7
service web cluster-ip=10.96.0.2 type=LoadBalancer lb-ip=203.0.113.7 source-ranges=10.0.0.0/8
pod aaa-0 for=aaa on=n1 ip=10.244.0.1
pod web-0 for=web on=n1 ip=10.244.0.2
";
        let mut follower = Follower::start(tables, text);
        assert_eq!(owner(&follower), Some(&service("web")));
        assert_eq!(content(tables, &v4()).set(SetId::Firewall).len(), 1, "the source ranges of `web` apply");
        follower.check(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("web")))]);
        assert_eq!(owner(&follower), Some(&service("aaa")));
        assert!(content(tables, &v4()).set(SetId::Firewall).is_empty());
        follower.turn_into(tables, text);
        assert_eq!(owner(&follower), Some(&service("web")));
        follower.check(tables);
    }

    fn a_cluster_ip_that_is_also_an_external_ip_stays_a_cluster_ip(tables) {
        let text = "
node n1
service web cluster-ip=10.96.0.2 external-ip=10.96.0.2
pod web-0 for=web on=n1 ip=10.244.0.2
";
        let mut follower = Follower::start(tables, text);
        assert_eq!(content(tables, &v4()).set(SetId::Counted(1)).len(), 1);
        follower.check(tables);
        let other = "service aaa cluster-ip=10.96.0.1 external-ip=10.96.0.2";
        follower.turn_into(tables, &format!("{text}{other}"));
        let at = At::Address("10.96.0.2".parse().unwrap());
        let wanted = Frontend { at, protocol: Protocol::Tcp, port: 80 };
        let (owner, _) = follower.engine.desired().frontend(&wanted).unwrap();
        assert_eq!(owner, &service("web"));
        follower.check(tables);
    }

    fn the_owner_does_not_depend_on_the_creation_order(tables) {
        let only_b = TWO.replace("service a cluster-ip=10.96.0.1 external-ip=203.0.113.7", "");
        let mut follower = Follower::start(tables, &only_b);
        assert_eq!(owner(&follower), Some(&service("b")));
        follower.turn_into(tables, TWO);
        assert_eq!(owner(&follower), Some(&service("a")));
        follower.check(tables);
    }

    fn an_address_changes_its_owner_in_one_batch(tables) {
        let mut follower = Follower::start(tables, TWO);
        tables.forget();
        // Both change at once: `a` releases the address, `b` gets other endpoints.
        let text = TWO.replace("10.96.0.1 external-ip=203.0.113.7", "10.96.0.1");
        follower.turn_into(tables, &text.replace("10.244.0.3", "10.244.0.4"));
        assert_eq!((tables.batches.len(), tables.reads), (1, 0));
        assert_eq!(owner(&follower), Some(&service("b")));
        follower.check(tables);
        // They swap: `a` claims the address again while `b` releases it.
        tables.forget();
        follower.turn_into(tables, &TWO.replace("10.96.0.2 external-ip=203.0.113.7", "10.96.0.2"));
        assert_eq!((tables.batches.len(), tables.reads), (1, 0));
        assert_eq!(owner(&follower), Some(&service("a")));
        follower.check(tables);
        // Both release the address.
        follower.turn_into(tables, &TWO.replace(" external-ip=203.0.113.7", ""));
        assert_eq!(owner(&follower), None);
        follower.check(tables);
    }

    fn one_service_can_claim_an_address_twice(tables) {
        let twice = TWO.replace("external-ip=203.0.113.7", "external-ip=203.0.113.7 lb-ip=203.0.113.7 type=LoadBalancer source-ranges=10.0.0.0/8");
        let mut follower = Follower::start(tables, &twice);
        follower.check(tables);
        follower.turn_into(tables, TWO);
        follower.check(tables);
        follower.turn_into(tables, &twice);
        follower.check(tables);
    }

    fn two_services_can_have_the_same_cluster_ip(tables) {
        let same = TWO.replace("10.96.0.2", "10.96.0.1");
        let mut follower = Follower::start(tables, &same);
        follower.check(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("a")))]);
        follower.check(tables);
        assert_eq!(content(tables, &v4()).set(SetId::ClusterIps).len(), 1);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("b")))]);
        follower.check(tables);
        assert!(content(tables, &v4()).set(SetId::ClusterIps).is_empty());
    }

    fn hairpin_elements_stay_while_a_service_needs_them(tables) {
        let shared = "
            node n1
            service a cluster-ip=10.96.0.1 select:app=x
            service b cluster-ip=10.96.0.2 select:app=x
            service c cluster-ip=10.96.0.3 select:app=x port=80->9090
            pod x-0 for=x on=n1 ip=10.244.0.1
            pod x-1 for=x on=n1 ip=10.244.0.2
        ";
        let mut follower = Follower::start(tables, shared);
        assert_eq!(content(tables, &v4()).set(SetId::Hairpin).len(), 4);
        tables.forget();
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("a")))]);
        assert!(!tables.counts().contains_key(&SetId::Hairpin), "`b` has the same endpoints");
        follower.check(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("b")))]);
        assert_eq!(tables.counts()[&SetId::Hairpin], (2, 0));
        follower.check(tables);
        // Both return in one batch, and one endpoint is removed.
        follower.turn_into(tables, &shared.replace("pod x-1", "# pod x-1"));
        follower.check(tables);
        follower.turn_into(tables, shared);
        follower.check(tables);
    }
}
