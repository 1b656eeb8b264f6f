//! The kernel refuses a change once or always, or another program deletes the table: other Services
//! are served, and the table is correct afterwards.

use nearhop_core::{Change, Name, ObjectRef, Protocol};
use nearhop_netfilter::frontend::{At, Frontend};
use nearhop_netfilter::layout::{SetId, key_of};
use nearhop_netfilter::object::{Batch, Bytes, Op};
use nearhop_proxy::engine::{ApplyError, Engine, Pass, Scope, Tables, Verified};

use crate::follow::{Follower, assert_same, content, from_scratch, service, v4};
use crate::on::{FakeTables, Watched, on_both};

const CLUSTER: &str = "
node n1
node n2
service a cluster-ip=10.96.0.1 external-ip=203.0.113.7
service b cluster-ip=10.96.0.2 external-ip=203.0.113.7 type=NodePort port=80->8080 node-port=30080
service c cluster-ip=10.96.0.3
pod a-0 for=a on=n1 ip=10.244.0.1
pod b-0 for=b on=n1 ip=10.244.0.2
pod b-1 for=b on=n2 ip=10.244.0.3
pod c-0 for=c on=n2 ip=10.244.0.4
";

fn key(address: &str) -> Bytes {
    let at = At::Address(address.parse().unwrap());
    key_of(&Frontend { at, protocol: Protocol::Tcp, port: 80 })
}

/// Asserts the table as if one Service did not exist.
fn check_without<T: Tables>(tables: &mut Watched<T>, follower: &Follower, missing: &str) {
    let mut others = follower.cluster.clone();
    others.apply(vec![Change::Gone(ObjectRef::Service(service(missing)))]);
    let wanted = from_scratch(&others.routes, &v4());
    let mut held = content(tables, &v4());
    held.chains.retain(|name, _| wanted.chains.contains_key(name));
    assert_same(&held, &wanted);
}

fn isolated(follower: &Follower) -> Vec<&str> {
    follower.engine.isolated().keys().map(|key| key.name.as_str()).collect()
}

/// Makes the kernel refuse one Service, by an element that it does not accept.
fn refuse<T: Tables>(tables: &mut Watched<T>, set: SetId, key: Bytes) {
    tables.refused_keys.insert((set, key));
}

on_both! {
    fn a_service_refused_in_the_first_pass_is_isolated(tables) {
        refuse(tables, SetId::Counted(2), key("10.96.0.2"));
        let mut follower = Follower::new(CLUSTER, v4());
        let synced = follower.sync_all(tables);
        assert_eq!(synced.pass, Pass::Full);
        assert_eq!(isolated(&follower), ["b"]);
        assert!(follower.engine.isolated()[&service("b")].contains("EINVAL"));
        check_without(tables, &follower, "b");
        // Other Services change meanwhile, and need no full pass.
        let synced = follower.turn_into(tables, &CLUSTER.replace("10.244.0.4", "10.244.0.5"));
        assert_eq!(synced.pass, Pass::Partial);
        check_without(tables, &follower, "b");
        // The kernel accepts the Service again, and the next full pass writes it.
        tables.refused_keys.clear();
        follower.full(tables);
        assert_eq!(isolated(&follower), [""; 0]);
        follower.check_exactly(tables);
    }

    fn a_service_refused_later_is_isolated(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let slot = key("10.96.0.3").slot(1);
        refuse(tables, SetId::Endpoints, slot);
        let text = format!("{CLUSTER}pod c-1 for=c on=n1 ip=10.244.0.6");
        let synced = follower.turn_into(tables, &text);
        assert_eq!(synced.pass, Pass::Full);
        assert_eq!(isolated(&follower), ["c"]);
        check_without(tables, &follower, "c");
        // A verification does not restore the Service, and does not report it as a foreign change.
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        check_without(tables, &follower, "c");
        tables.refused_keys.clear();
        follower.full(tables);
        follower.check_exactly(tables);
    }

    fn an_address_of_an_isolated_service_moves_to_the_next_owner(tables) {
        // `a` owns the address that `b` claims too.
        refuse(tables, SetId::Counted(1), key("10.96.0.1"));
        let mut follower = Follower::new(CLUSTER, v4());
        follower.sync_all(tables);
        assert_eq!(isolated(&follower), ["a"]);
        check_without(tables, &follower, "a");
        follower.pod_gone(tables, "b-1");
        check_without(tables, &follower, "a");
    }

    fn both_claimants_of_a_refused_address_are_isolated(tables) {
        refuse(tables, SetId::Services, key("203.0.113.7"));
        let mut follower = Follower::new(CLUSTER, v4());
        follower.sync_all(tables);
        assert_eq!(isolated(&follower), ["a", "b"]);
        follower.cluster.apply(vec![Change::Gone(ObjectRef::Service(service("a")))]);
        check_without(tables, &follower, "b");
    }

    fn a_deleted_service_is_no_longer_isolated(tables) {
        refuse(tables, SetId::Counted(2), key("10.96.0.2"));
        let mut follower = Follower::new(CLUSTER, v4());
        follower.sync_all(tables);
        follower.follow(tables, vec![Change::Gone(ObjectRef::Service(service("b")))]);
        follower.check(tables);
        follower.full(tables);
        assert_eq!(isolated(&follower), [""; 0]);
        follower.check_exactly(tables);
    }

    fn a_failed_batch_causes_a_full_pass(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let failures = [
            ApplyError::Refused(String::from("EBUSY")),
            ApplyError::Failed(String::from("EINTR")),
            ApplyError::Failed(String::from("ENOBUFS")),
            ApplyError::TooLarge { bytes: 2, limit: 1 },
        ];
        for (i, failure) in failures.into_iter().enumerate() {
            tables.fail_after(0, failure);
            let text = CLUSTER.replace("10.244.0.3", &format!("10.244.7.{i}"));
            let synced = follower.turn_into(tables, &text);
            assert_eq!(synced.pass, Pass::Full);
            assert!(follower.engine.isolated().is_empty());
            follower.check_exactly(tables);
            assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        }
        let synced = follower.turn_into(tables, CLUSTER);
        assert_eq!(synced.pass, Pass::Partial);
    }

    fn a_first_pass_completes_after_failed_batches(tables) {
        tables.limit = Some(5);
        for nth in 0..6 {
            Engine::remove(tables, &v4()).unwrap();
            let mut follower = Follower::new(CLUSTER, v4());
            // The first `nth` batches succeed.
            tables.fail_after(nth, ApplyError::Failed(String::from("EINTR")));
            follower.sync_all(tables);
            assert!(follower.engine.isolated().is_empty());
            follower.check_exactly(tables);
        }
    }

    fn the_next_sync_after_a_failed_one_is_a_full_pass(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let todo = follower.cluster.turn_into(&CLUSTER.replace("10.244.0.3", "10.244.0.9"));
        tables.all_batches_fail = true;
        let failed = follower.engine.sync(tables, &follower.cluster.routes, todo.scope());
        assert!(failed.is_err());
        assert!(follower.engine.needs_full());
        tables.all_batches_fail = false;
        // This is a full pass, although the sync names no Services.
        let none = std::collections::BTreeSet::new();
        let routes = &follower.cluster.routes;
        let synced = follower.engine.sync(tables, routes, Scope::Some(&none)).unwrap();
        assert_eq!(synced.pass, Pass::Full);
        assert!(follower.engine.isolated().is_empty());
        follower.check_exactly(tables);
    }

    // All changes are written, but the engine cannot confirm it: the next successful pass reports
    // the lost endpoints and writes later changes.
    fn a_pass_that_cannot_read_its_chains_is_followed_by_a_full_pass(tables) {
        let text = format!("{CLUSTER}
service dns cluster-ip=10.96.0.9 port=53/udp
pod dns-0 for=dns on=n1 ip=10.244.0.8
");
        let mut follower = Follower::start(tables, &text);
        follower.cluster.turn_into(CLUSTER);
        follower.engine.require_full();
        tables.chain_reads_fail = true;
        let routes = &follower.cluster.routes;
        assert!(follower.engine.sync(tables, routes, Scope::All).is_err());
        assert!(follower.engine.needs_full());
        tables.chain_reads_fail = false;
        follower.cluster.turn_into(&CLUSTER.replace("10.244.0.3", "10.244.0.9"));
        let (none, routes) = (std::collections::BTreeSet::new(), &follower.cluster.routes);
        let synced = follower.engine.sync(tables, routes, Scope::Some(&none)).unwrap();
        assert_eq!(synced.pass, Pass::Full);
        let lost: Vec<u16> = synced.lost.iter().map(|lost| lost.frontend.port).collect();
        assert_eq!(lost, [53]);
        follower.check_exactly(tables);
    }

    fn a_table_deleted_between_two_syncs_is_restored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let ops = vec![Op::DeleteTable];
        tables.inner.apply(&Batch { table: v4().table, ops }).unwrap();
        let synced = follower.turn_into(tables, &CLUSTER.replace("10.244.0.3", "10.244.0.9"));
        assert_eq!(synced.pass, Pass::Full);
        follower.check_exactly(tables);
    }

    fn an_element_deleted_before_its_change_is_restored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let set = Name::from(SetId::Endpoints.name());
        let held = tables.read(&v4().table).unwrap().unwrap();
        let slots = held.elements.into_iter().filter(|(set, _)| *set == SetId::Endpoints);
        let elements = slots.map(|(_, element)| element).collect();
        let ops = vec![Op::DeleteElements { set, elements }];
        tables.inner.apply(&Batch { table: v4().table, ops }).unwrap();
        let synced = follower.turn_into(tables, &CLUSTER.replace("10.244.0.3", "10.244.0.9"));
        assert_eq!(synced.pass, Pass::Full);
        follower.check_exactly(tables);
    }

    fn a_failed_repair_is_followed_by_a_full_pass(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let flush = vec![Op::FlushChain(Name::from("reject-chain"))];
        tables.inner.apply(&Batch { table: v4().table, ops: flush }).unwrap();
        tables.fail_after(0, ApplyError::Failed(String::from("ENOBUFS")));
        assert!(follower.engine.verify(tables).is_err());
        assert!(follower.engine.needs_full());
        follower.sync_all(tables);
        follower.check_exactly(tables);
    }
}

#[test]
fn the_fake_can_refuse_elements_by_key() {
    let mut tables = FakeTables::default();
    tables.fake.refuse_elements(SetId::Counted(2).name(), key("10.96.0.2"));
    let mut follower = Follower::new(CLUSTER, v4());
    follower.sync_all(&mut tables);
    assert_eq!(isolated(&follower), ["b"]);
    assert!(follower.engine.isolated()[&service("b")].contains("ENOMEM"));
    tables.fake.accept_elements(SetId::Counted(2).name(), key("10.96.0.2"));
    follower.full(&mut tables);
    follower.check_exactly(&mut tables);
}
