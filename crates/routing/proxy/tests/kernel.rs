//! Tests on the real kernel: refusals name the change and the cause, lists match what was written,
//! generations count, and network namespaces are independent.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;

use nearhop_core::Family;
use nearhop_netfilter::object::*;
use nearhop_netfilter::wire::RefusedPart;
use nearhop_proxy::kernel::{Kernel, KernelError, Refusal};
use nix::errno::Errno;
use support::*;

fn slots(numbers: std::ops::Range<u32>) -> Vec<Element> {
    let key = Bytes::EMPTY.address(service_address(Family::Ipv4, 1)).protocol(TCP).port(80);
    let target = Bytes::EMPTY.address(service_address(Family::Ipv4, 9)).port(8080);
    numbers.map(|number| element(key.slot(number), Data::Value(target))).collect()
}

fn add(set: &str, elements: Vec<Element>) -> Op {
    Op::AddElements { set: set.into(), elements }
}

fn delete(set: &str, elements: Vec<Element>) -> Op {
    Op::DeleteElements { set: set.into(), elements }
}

/// Runs a test with the layout and its table.
fn with_layout(test: &str, body: impl FnOnce(&mut Kernel, &Table) + Send) {
    in_namespace(test, |kernel| {
        let table = table(Family::Ipv4, "nearhop");
        kernel.apply(&batch(&table, layout(Family::Ipv4))).unwrap();
        body(kernel, &table);
    });
}

fn refusals(kernel: &mut Kernel, table: &Table, ops: Vec<Op>) -> Vec<Refusal> {
    match kernel.apply(&batch(table, ops)) {
        Err(error @ KernelError::Refused { .. }) => {
            println!("{error}");
            let KernelError::Refused { refusals, .. } = error else { unreachable!() };
            refusals
        }
        other => panic!("{other:?}"),
    }
}

fn causes(refusals: &[Refusal]) -> Vec<(usize, Errno, Option<RefusedPart>)> {
    refusals.iter().map(|found| (found.op, found.errno, found.part.clone())).collect()
}

#[test]
fn all_refusals_of_a_batch_are_reported_and_nothing_changes() {
    with_layout("all_refusals_of_a_batch_are_reported_and_nothing_changes", |kernel, table| {
        let before = kernel.generation().unwrap();
        let mut other = slots(0..1);
        other[0].data =
            Data::Value(Bytes::EMPTY.address(service_address(Family::Ipv4, 77)).port(1));
        let conflict = [slots(100..1000), other].concat();
        let ops = vec![
            add("endpoints", slots(50..60)),
            add("nowhere", slots(0..1)),
            add("endpoints", conflict),
            delete("endpoints", [slots(0..2), slots(20..21)].concat()),
            chain("new", vec![rule([vec![lookup("nowhere", Hit::Match)]])]),
            Op::DeleteChain("pick-2".into()),
        ];
        let found = refusals(kernel, table, ops);
        let lookup = RefusedPart::Expression { rule: 0, name: "lookup".into() };
        let expected = [
            (1, Errno::ENOENT, None),
            // The element is in the second message of the change.
            (2, Errno::EEXIST, Some(RefusedPart::Element(900))),
            (3, Errno::ENOENT, Some(RefusedPart::Element(2))),
            (4, Errno::ENOENT, Some(lookup)),
            (5, Errno::EBUSY, None),
        ];
        assert_eq!(causes(&found), expected);
        assert_eq!(kernel.dump_elements(table, "endpoints").unwrap().len(), 2);
        assert_eq!(kernel.generation().unwrap(), before);
    });
}

#[test]
fn a_refusal_is_printed_with_its_cause() {
    with_layout("a_refusal_is_printed_with_its_cause", |kernel, table| {
        let batch = batch(table, vec![delete("endpoints", slots(20..21))]);
        let error = kernel.apply(&batch).unwrap_err().to_string();
        let expected = "the kernel refused a batch of table ip nearhop: change 0 (delete 1 element \
            from set endpoints, element 0): ENOENT: No such file or directory; the table, set, \
            chain or element does not exist";
        assert_eq!(error, expected);
    });
}

#[test]
fn adding_existing_objects_succeeds() {
    with_layout("adding_existing_objects_succeeds", |kernel, table| {
        let same = kernel.dump_elements(table, "endpoints").unwrap();
        let same = same.into_iter().map(|dumped| dumped.element).collect();
        let ops = vec![Op::AddTable { comment: "again".into() }, add("endpoints", same)];
        kernel.apply(&batch(table, [ops, sets(Family::Ipv4)].concat())).unwrap();
    });
}

#[test]
fn an_element_can_be_replaced_in_one_batch() {
    with_layout("an_element_can_be_replaced_in_one_batch", |kernel, table| {
        let mut new = slots(0..1);
        let to = Bytes::EMPTY.address(service_address(Family::Ipv4, 42)).port(1);
        new[0].data = Data::Value(to);
        let ops = vec![delete("endpoints", slots(0..1)), add("endpoints", new.clone())];
        kernel.apply(&batch(table, ops)).unwrap();
        let found = kernel.dump_elements(table, "endpoints").unwrap();
        assert!(found.iter().any(|dumped| dumped.element == new[0]), "{found:?}");
        assert_eq!(found.len(), 2);
    });
}

#[test]
fn a_check_changes_nothing() {
    in_namespace("a_check_changes_nothing", |kernel| {
        let table = table(Family::Ipv6, "nearhop");
        let before = kernel.generation().unwrap();
        kernel.check(&batch(&table, layout(Family::Ipv6))).unwrap();
        let orphan = batch(&table, vec![Op::FlushChain("nowhere".into())]);
        assert!(matches!(kernel.check(&orphan), Err(KernelError::Refused { .. })));
        assert_eq!(kernel.tables().unwrap(), []);
        assert_eq!(kernel.generation().unwrap(), before);
    });
}

#[test]
fn check_support_matches_whether_the_layout_loads() {
    in_namespace("check_support_matches_whether_the_layout_loads", |kernel| {
        for family in [Family::Ipv4, Family::Ipv6] {
            let missing = kernel.check_support(family).unwrap();
            println!("{family}: {missing:?}");
            let loads = kernel.check(&batch(&table(family, "nearhop"), layout(family)));
            assert_eq!(missing.is_empty(), loads.is_ok(), "{missing:?} {loads:?}");
        }
        assert_eq!(kernel.tables().unwrap(), []);
    });
}

#[test]
fn a_batch_above_the_socket_limit_is_an_error() {
    with_layout("a_batch_above_the_socket_limit_is_an_error", |kernel, table| {
        let limit = kernel.send_limit();
        let comment = Some("a comment of some length ".repeat(4).into());
        let mut elements = slots(0..(limit / 150) as u32);
        elements.iter_mut().for_each(|element| element.comment = comment.clone());
        match kernel.apply(&batch(table, vec![add("endpoints", elements)])) {
            Err(KernelError::TooLarge { bytes, limit: reported }) => {
                assert!(bytes > limit && reported == limit, "{bytes} {reported} {limit}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(kernel.dump_elements(table, "endpoints").unwrap().len(), 2);
    });
}

#[test]
fn dumps_match_the_written_objects() {
    with_layout("dumps_match_the_written_objects", |kernel, table| {
        let other = support::table(Family::Ipv4, "other");
        let foreign = vec![Op::AddTable { comment: "".into() }, chain("foreign", Vec::new())];
        kernel.apply(&batch(&other, foreign)).unwrap();
        let (mut rules, mut elements) = (0, Vec::new());
        let chains = kernel.dump_chains(table).unwrap();
        let sets = kernel.dump_sets(table).unwrap();
        let ops = layout(Family::Ipv4);
        for op in &ops {
            match op {
                Op::AddSet(set) => assert!(sets.iter().any(|there| there.is_like(set)), "{set:?}"),
                Op::AddChain(chain) => {
                    let there = chains.iter().find(|there| there.name == chain.name).unwrap();
                    assert_eq!(there.comment, chain.comment);
                    match (&there.hook, chain.hook) {
                        (Some(there), Some(hook)) => assert!(*there == hook, "{there:?} {hook:?}"),
                        (there, hook) => assert!(there.is_none() && hook.is_none()),
                    }
                    rules += chain.rules.len();
                }
                Op::AddElements { set, elements: added } => elements.push((set, added)),
                _ => {}
            }
        }
        assert_eq!(chains.len(), ops.iter().filter(|op| matches!(op, Op::AddChain(_))).count());
        assert_eq!(sets.len(), ops.iter().filter(|op| matches!(op, Op::AddSet(_))).count());
        let listed = kernel.dump_rules(table).unwrap();
        assert_eq!(listed.len(), rules);
        assert_eq!(listed, kernel.dump_rules(table).unwrap());
        assert!(listed.iter().any(|rule| rule.comment == Some("all Services".into())));
        for (set, added) in elements {
            let there = kernel.dump_elements(table, set).unwrap();
            for element in added {
                let bare = |element: &Element| Element { comment: None, ..element.clone() };
                let same = |there: &Element| bare(there) == bare(element);
                assert!(there.iter().any(|there| same(&there.element)), "{element:?} {there:?}");
            }
        }
        let names: BTreeSet<_> =
            kernel.tables().unwrap().into_iter().map(|there| there.table.name).collect();
        assert_eq!(names, ["nearhop".into(), "other".into()].into());
        assert_eq!(kernel.dump_chains(&other).unwrap().len(), 1);
    });
}

#[test]
fn dumping_missing_objects_fails_or_is_empty() {
    with_layout("dumping_missing_objects_fails_or_is_empty", |kernel, table| {
        let error = kernel.dump_elements(table, "nowhere").unwrap_err();
        let what = "set nowhere of table ip nearhop".to_owned();
        assert_eq!(error, KernelError::NotListed { what, errno: Errno::ENOENT });
        let nowhere = support::table(Family::Ipv6, "nowhere");
        assert_eq!(kernel.dump_chains(&nowhere).unwrap(), []);
        assert_eq!(kernel.dump_rules(&nowhere).unwrap(), []);
        // The socket still works afterwards.
        assert_eq!(kernel.dump_elements(table, "endpoints").unwrap().len(), 2);
    });
}

#[test]
fn dumps_contain_timeouts() {
    with_layout("dumps_contain_timeouts", |kernel, table| {
        let text = "add element ip nearhop affinity \
            { 10.9.0.1 . 10.0.0.1 . tcp . 80 timeout 1h : 10.2.0.1 . 8080 }";
        if nft(&["-f", "-"], text).is_none() {
            return; // `nft` has reported the test as skipped.
        }
        let found = kernel.dump_elements(table, "affinity").unwrap();
        let [dumped] = &found[..] else { panic!("{found:?}") };
        assert_eq!(dumped.timeout_ms, Some(3_600_000));
        assert!(dumped.expires_ms.is_some_and(|left| left <= 3_600_000), "{dumped:?}");
        // A listed element can be deleted by its keys.
        kernel
            .apply(&batch(table, vec![delete("affinity", vec![dumped.element.clone()])]))
            .unwrap();
        assert_eq!(kernel.dump_elements(table, "affinity").unwrap(), []);
    });
}

#[test]
fn the_whole_layout_can_be_deleted() {
    with_layout("the_whole_layout_can_be_deleted", |kernel, table| {
        let mut ops = Vec::new();
        for op in layout(Family::Ipv4) {
            match op {
                Op::AddElements { set, elements } => {
                    ops.insert(0, Op::DeleteElements { set, elements });
                }
                Op::AddChain(chain) => {
                    ops.push(Op::FlushChain(chain.name.clone()));
                }
                _ => {}
            }
        }
        for op in layout(Family::Ipv4) {
            match op {
                Op::AddChain(chain) => ops.push(Op::DeleteChain(chain.name)),
                Op::AddSet(set) => ops.push(Op::DeleteSet(set.name)),
                _ => {}
            }
        }
        kernel.apply(&batch(table, ops)).unwrap();
        assert_eq!(kernel.dump_chains(table).unwrap(), []);
        assert_eq!(kernel.dump_sets(table).unwrap(), []);
        kernel.apply(&batch(table, vec![Op::DeleteTable])).unwrap();
        assert_eq!(kernel.tables().unwrap(), []);
    });
}

#[test]
fn network_namespaces_are_independent() {
    with_layout("network_namespaces_are_independent", |outer, table| {
        let table = table.clone();
        in_namespace("network_namespaces_are_independent", |inner| {
            assert_eq!(inner.tables().unwrap(), []);
            // A socket stays in the namespace in which it was opened, also when another thread uses
            // it.
            assert_eq!(outer.tables().unwrap().len(), 1);
            inner.apply(&batch(&table, vec![Op::AddTable { comment: "inner".into() }])).unwrap();
            assert_eq!(inner.dump_sets(&table).unwrap(), []);
        });
        assert_eq!(outer.dump_elements(&table, "endpoints").unwrap().len(), 2);
        assert_ne!(outer.tables().unwrap()[0].comment, Some("inner".into()));
    });
}

#[test]
fn dumps_are_complete_during_other_writes() {
    with_layout("dumps_are_complete_during_other_writes", |kernel, table| {
        kernel.apply(&batch(table, vec![add("endpoints", slots(10..5_000))])).unwrap();
        let mut writer = Kernel::open().unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let other = slots(9_000..9_001);
                while let Err(std::sync::mpsc::TryRecvError::Empty) = stopped.try_recv() {
                    writer.apply(&batch(table, vec![add("endpoints", other.clone())])).unwrap();
                    writer.apply(&batch(table, vec![delete("endpoints", other.clone())])).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
            let wanted: BTreeSet<_> =
                slots(10..5_000).into_iter().map(|element| element.key).collect();
            let mut whole = 0;
            for _ in 0..50 {
                match kernel.dump_elements(table, "endpoints") {
                    Ok(found) => {
                        whole += 1;
                        let count = found.len();
                        let found: BTreeSet<_> =
                            found.into_iter().map(|dumped| dumped.element.key).collect();
                        assert_eq!(found.len(), count, "the dump contains an element twice");
                        assert!(found.is_superset(&wanted));
                    }
                    Err(error) => assert!(matches!(error, KernelError::Unsteady { .. }), "{error}"),
                }
            }
            drop(stop);
            assert!(whole > 0);
        });
    });
}
