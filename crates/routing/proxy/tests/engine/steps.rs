//! The cost of a change of a Service or its endpoints: only the changes are sent, and nothing is
//! read.

use nearhop_core::{Change, ObjectRef};
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::Op;
use nearhop_proxy::engine::{Engine, Pass, Scope, Synced, Tables, Verified};

use crate::follow::{Follower, content, service, v4};
use crate::on::{Watched, on_both, on_kernel};

pub(crate) const CLUSTER: &str = "
node n1 zone=a
node n2 zone=b
service web type=LoadBalancer port=http:80->8080 node-port=30080 lb-ip=192.0.2.1 etp=Local source-ranges=198.51.100.0/24,198.51.0.0/16
service dns port=dns:53/udp cluster-ip=10.96.0.10 affinity=30s
service lonely port=80 external-ip=203.0.113.7
pods web x3 for=web on=n1,n2
pods dns x2 for=dns on=n2
";

/// One Service with endpoints on other nodes, and one unrelated Service.
const PLAIN: &str = "
node n1
node n2
service web cluster-ip=10.96.0.1
service other cluster-ip=10.96.0.2
pod web-0 for=web on=n2 ip=10.244.0.1
pod web-1 for=web on=n2 ip=10.244.0.2
pod web-2 for=web on=n2 ip=10.244.0.3
pod other-0 for=other on=n2 ip=10.244.1.1
";

/// Asserts one partial pass that read nothing and changed this many elements.
fn assert_partial<T: Tables>(tables: &Watched<T>, synced: &Synced, elements: usize) {
    assert_eq!((synced.pass, synced.elements), (Pass::Partial, elements));
    assert_eq!(tables.batches.len(), usize::from(elements > 0), "all changes are in one batch");
}

on_both! {
    fn the_first_pass_writes_the_table_and_the_second_nothing(tables) {
        let mut follower = Follower::new(CLUSTER, v4());
        let synced = follower.sync_all(tables);
        assert_eq!(synced.pass, Pass::Full);
        let content = content(tables, &v4());
        let counted = |slots| content.set(SetId::Counted(slots)).len();
        assert_eq!(content.set(SetId::Services).len() + counted(1) + counted(2) + counted(3), 3);
        follower.check_exactly(tables);
        let before = tables.generation().unwrap();
        let again = Engine::new(v4()).sync(tables, follower.routes(), Scope::All).unwrap();
        assert_eq!((again.pass, again.elements), (Pass::Full, 0));
        assert_eq!(tables.generation().unwrap(), before, "nothing was written");
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    }

    fn a_pass_without_changes_sends_nothing(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        tables.forget();
        let synced = follower.sync_all(tables);
        assert_partial(tables, &synced, 0);
        assert_eq!(tables.reads, 0);
    }

    fn replacing_an_endpoint_changes_one_slot(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let text = PLAIN.replace("ip=10.244.0.2", "ip=10.244.9.9");
        let synced = follower.turn_into(tables, &text);
        assert_partial(tables, &synced, 1);
        assert_eq!(tables.reads, 0);
        assert_eq!(Vec::from_iter(tables.counts()), [(SetId::Endpoints, (1, 1))]);
        follower.check(tables);
    }

    fn adding_an_endpoint_adds_a_slot_and_moves_the_service_to_another_set(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let text = format!("{PLAIN}pod web-3 for=web on=n2 ip=10.244.0.4");
        let synced = follower.turn_into(tables, &text);
        assert_partial(tables, &synced, 3);
        let expected = [
            (SetId::Counted(3), (1, 0)),
            (SetId::Counted(4), (0, 1)),
            (SetId::Endpoints, (0, 1)),
        ];
        assert_eq!(Vec::from_iter(tables.counts()), expected);
        assert_eq!(tables.batches[0].ops.len(), 3, "the batch changes only elements");
        assert_eq!(tables.reads, 0);
        follower.check(tables);
        follower.full(tables);
        follower.check_exactly(tables);
    }

    fn a_service_with_more_than_16_endpoints_needs_its_own_chain(tables) {
        let with = |pods| format!("node n1\nnode n2\nservice web\npods web x{pods} for=web on=n2");
        let mut follower = Follower::start(tables, &with(16));
        tables.forget();
        let synced = follower.turn_into(tables, &with(17));
        assert_partial(tables, &synced, 3);
        let expected = [
            (SetId::Counted(16), (1, 0)),
            (SetId::Services, (0, 1)),
            (SetId::Endpoints, (0, 1)),
        ];
        assert_eq!(Vec::from_iter(tables.counts()), expected);
        let chains = tables.batches[0].ops.iter().filter(|op| matches!(op, Op::AddChain(_)));
        assert_eq!(chains.count(), 1, "the batch adds only the chain pick-17");
        follower.check(tables);
        // The chain exists now: later changes need only elements.
        follower.turn_into(tables, &with(16));
        tables.forget();
        follower.turn_into(tables, &with(17));
        assert_eq!(tables.batches[0].ops.len(), 3);
        assert_eq!(tables.reads, 0);
        follower.check(tables);
        follower.full(tables);
        follower.check_exactly(tables);
    }

    fn removing_one_of_a_thousand_endpoints_moves_only_the_last(tables) {
        let many = "node n1\nnode n2\nservice web\npods web x1000 for=web on=n2";
        let mut follower = Follower::start(tables, many);
        tables.forget();
        let synced = follower.pod_gone(tables, "web-500");
        // The freed slot, the last slot, and the number of slots.
        assert_partial(tables, &synced, 3);
        let expected = [(SetId::Services, (1, 1)), (SetId::Endpoints, (2, 1))];
        assert_eq!(Vec::from_iter(tables.counts()), expected);
        follower.check(tables);
    }

    fn a_service_without_endpoints_is_rejected_until_it_has_one(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let synced = follower.pod_gone(tables, "other-0");
        // The address and the slot of the Service are deleted; an element that rejects is added.
        assert_partial(tables, &synced, 3);
        assert_eq!(tables.counts()[&SetId::NoEndpoints], (0, 1));
        follower.check(tables);
        tables.forget();
        let synced = follower.turn_into(tables, PLAIN);
        assert_partial(tables, &synced, 3);
        assert_eq!(tables.counts()[&SetId::NoEndpoints], (1, 0));
        follower.check(tables);
    }

    fn a_service_can_be_deleted_and_created_again(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let gone = vec![Change::Gone(ObjectRef::Service(service("other")))];
        let synced = follower.follow(tables, gone);
        assert_partial(tables, &synced, 3);
        assert_eq!(tables.reads, 0);
        follower.check(tables);
        tables.forget();
        let synced = follower.turn_into(tables, PLAIN);
        assert_partial(tables, &synced, 3);
        assert_eq!(tables.reads, 0);
        follower.check(tables);
        follower.turn_into(tables, "node n1");
        follower.full(tables);
        follower.check_exactly(tables);
        assert!(content(tables, &v4()).elements.is_empty());
    }

    fn a_changed_port_replaces_the_frontend(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let text = PLAIN.replace("other cluster-ip=10.96.0.2", "other cluster-ip=10.96.0.2 port=81->8080");
        let synced = follower.turn_into(tables, &text);
        assert_partial(tables, &synced, 4);
        follower.check(tables);
        // Only the port of the endpoints changes.
        tables.forget();
        let synced = follower.turn_into(tables, &text.replace("8080", "9090"));
        assert_partial(tables, &synced, 1);
        follower.check(tables);
        // Another protocol.
        follower.turn_into(tables, &text.replace("81->8080", "81->8080/udp"));
        follower.check(tables);
        follower.turn_into(tables, &text.replace("81->8080", "81->8080/sctp"));
        follower.check(tables);
    }

    fn a_changed_cluster_ip_replaces_the_frontend(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let synced = follower.turn_into(tables, &PLAIN.replace("10.96.0.2", "10.96.0.3"));
        assert_partial(tables, &synced, 6);
        follower.check(tables);
    }

    fn a_local_endpoint_adds_a_hairpin_element(tables) {
        let mut follower = Follower::start(tables, PLAIN);
        tables.forget();
        let here = PLAIN.replace("pod other-0 for=other on=n2", "pod other-0 for=other on=n1");
        let synced = follower.turn_into(tables, &here);
        assert_partial(tables, &synced, 1);
        assert_eq!(Vec::from_iter(tables.counts()), [(SetId::Hairpin, (0, 1))]);
        follower.check(tables);
    }

    fn a_relabelled_node_needs_one_batch(tables) {
        let zoned = "
            node n1 zone=a
            node n2 zone=b
            service web cluster-ip=10.96.0.1 traffic-distribution=PreferSameZone
            service api cluster-ip=10.96.0.2 traffic-distribution=PreferSameZone
            pod far-0 for=web on=n2 ip=10.244.0.1
            pod near-0 for=web on=n3 ip=10.244.0.2
            pod far-1 for=api on=n2 ip=10.244.0.3
            pod near-1 for=api on=n3 ip=10.244.0.4
            node n3 zone=a
        ";
        let mut follower = Follower::start(tables, zoned);
        tables.forget();
        let synced = follower.turn_into(tables, &zoned.replace("node n1 zone=a", "node n1 zone=b"));
        assert_partial(tables, &synced, 2);
        assert_eq!(tables.counts()[&SetId::Endpoints], (2, 2));
        follower.check(tables);
    }
}

#[test]
fn nft_can_print_the_table() {
    on_kernel("steps::nft_can_print_the_table", |kernel| {
        Follower::start(kernel, CLUSTER);
        let nft = std::process::Command::new("nft").args(["list", "ruleset"]).output();
        let Ok(out) = nft else {
            return nearhop_skip::skip("the nft program is not installed");
        };
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        println!("{}", String::from_utf8(out.stdout).unwrap());
    });
}
