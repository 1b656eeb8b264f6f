//! Another program changes the table: the verification finds it, repairs it, and counts the
//! differences.

use nearhop_core::{Family, Name};
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{
    Base, Batch, Bytes, Chain, ChainKind, Data, Element, Expr, Field, Hit, Hook, HookPoint, Op,
    Reg, Rule, Set, SetData, SetKind, Table, Verdict,
};
use nearhop_proxy::engine::{Pass, Tables, Verified};

use crate::follow::{Follower, v4};
use crate::on::on_both;
use crate::steps::CLUSTER;

/// Applies changes as another program.
fn foreign(tables: &mut impl Tables, ops: Vec<Op>) {
    tables.apply(&Batch { table: v4().table, ops }).unwrap();
}

fn add(set: SetId, elements: Vec<Element>) -> Op {
    Op::AddElements { set: Name::from(set.name()), elements }
}

fn delete(set: SetId, elements: Vec<Element>) -> Op {
    Op::DeleteElements { set: Name::from(set.name()), elements }
}

/// The elements of one of our sets.
fn elements(tables: &mut impl Tables, set: SetId) -> Vec<Element> {
    let held = tables.read(&v4().table).unwrap().unwrap();
    held.elements.into_iter().filter(|(of, _)| *of == set).map(|(_, element)| element).collect()
}

fn element(key: Bytes, data: Data) -> Element {
    Element { key, end: None, data, comment: None }
}

fn service_key(address: &str) -> Bytes {
    Bytes::EMPTY.address(address.parse().unwrap()).protocol(6).port(80)
}

fn rule(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

fn chain(name: &str, rules: Vec<Rule>) -> Chain {
    Chain { name: Name::from(name), hook: None, rules, comment: None }
}

fn drop_rule() -> Rule {
    rule(vec![Expr::Verdict(Verdict::Drop)])
}

/// Asserts that a verification repairs this many differences, that the table is then as written
/// from scratch, and that the next verification finds nothing.
fn assert_repaired(tables: &mut impl Tables, follower: &mut Follower, differences: usize) {
    assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Repaired(differences));
    follower.check_exactly(tables);
    assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    // Later changes still need only a partial pass.
    let synced = follower.pod_gone(tables, "web-1");
    assert_eq!(synced.pass, Pass::Partial);
    follower.check(tables);
}

on_both! {
    fn an_unchanged_table_is_not_read(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        tables.forget();
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        assert_eq!(tables.reads, 0, "the generation shows that nothing changed");
        // The engine's own changes are not foreign either.
        follower.pod_gone(tables, "web-1");
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    }

    fn changes_of_other_tables_are_ignored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let theirs = Table { family: Family::Ipv4, name: Name::from("theirs") };
        let ops = vec![
            Op::AddTable { comment: Name::from("not ours") },
            Op::AddChain(chain("services", vec![drop_rule()])),
        ];
        tables.apply(&Batch { table: theirs.clone(), ops }).unwrap();
        tables.forget();
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Same);
        assert!(tables.batches.is_empty());
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
        let held = tables.read(&theirs).unwrap().unwrap();
        assert_eq!(held.chains.len(), 1, "the table of the other program is unchanged");
    }

    fn an_added_element_is_removed(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let drop = element(service_key("10.96.9.9"), Data::Verdict(Verdict::Drop));
        foreign(tables, vec![add(SetId::Services, vec![drop])]);
        assert_repaired(tables, &mut follower, 1);
    }

    fn deleted_elements_are_restored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let endpoints = elements(tables, SetId::Endpoints);
        foreign(tables, vec![delete(SetId::Endpoints, endpoints[1..3].to_vec())]);
        assert_repaired(tables, &mut follower, 2);
    }

    fn an_element_with_changed_data_is_repaired(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let before = elements(tables, SetId::Services);
        let after = element(before[0].key, Data::Verdict(Verdict::Drop));
        let before = vec![before[0].clone()];
        foreign(tables, vec![delete(SetId::Services, before), add(SetId::Services, vec![after])]);
        assert_repaired(tables, &mut follower, 1);
    }

    fn a_range_with_a_changed_end_is_repaired(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let before = elements(tables, SetId::FirewallAllowed);
        let key = *before[0].end.clone().unwrap();
        let mut wider = before[0].clone();
        let mut bytes = key.as_slice().to_vec();
        *bytes.iter_mut().rev().nth(2).unwrap() += 1;
        wider.end = Some(Box::new(Bytes::from_slice(&bytes).unwrap()));
        let set = SetId::FirewallAllowed;
        foreign(tables, vec![delete(set, before), add(set, vec![wider])]);
        assert_repaired(tables, &mut follower, 1);
    }

    fn the_deleted_elements_of_every_set_are_restored(tables) {
        for set in SetId::ALL {
            let mut follower = Follower::start(tables, CLUSTER);
            let all = elements(tables, set);
            if all.is_empty() {
                continue;
            }
            let count = all.len();
            foreign(tables, vec![delete(set, all)]);
            assert_repaired(tables, &mut follower, count);
        }
    }

    fn added_rules_are_removed(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let chains: Vec<Name> = tables.read_chains(&v4().table).unwrap().into_keys().collect();
        for name in &chains {
            // Adding a rule to a base chain does not require its hook.
            foreign(tables, vec![Op::AddChain(chain(name, vec![drop_rule()]))]);
        }
        assert_repaired(tables, &mut follower, chains.len());
    }

    fn the_deleted_rules_of_every_chain_are_restored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let chains = tables.read_chains(&v4().table).unwrap();
        let filled: Vec<Name> = chains.into_iter()
            .filter(|(_, chain)| chain.held.rules > 0).map(|(name, _)| name).collect();
        let flush = filled.iter().map(|name| Op::FlushChain(name.clone())).collect();
        foreign(tables, flush);
        assert_repaired(tables, &mut follower, filled.len());
    }

    fn a_replaced_rule_is_repaired(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let name = Name::from("pick-3");
        let ops = vec![Op::FlushChain(name), Op::AddChain(chain("pick-3", vec![drop_rule()]))];
        foreign(tables, ops);
        assert_repaired(tables, &mut follower, 1);
    }

    fn deleted_base_chains_are_restored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let chains = tables.read_chains(&v4().table).unwrap();
        let base: Vec<Name> =
            chains.into_iter().filter(|(_, c)| c.held.base).map(|(name, _)| name).collect();
        assert!(base.len() > 3);
        for name in &base {
            foreign(tables, vec![Op::FlushChain(name.clone()), Op::DeleteChain(name.clone())]);
        }
        assert_repaired(tables, &mut follower, base.len());
    }

    fn a_deleted_table_is_restored(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        foreign(tables, vec![Op::DeleteTable]);
        assert!(matches!(follower.engine.verify(tables).unwrap(), Verified::Repaired(1..)));
        follower.check_exactly(tables);
        assert_eq!(follower.engine.verify(tables).unwrap(), Verified::Untouched);
    }

    fn a_foreign_table_with_our_name_is_replaced(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let services = Set { key: vec![Field::Port], ..SetId::Services.define(Family::Ipv4) };
        let table = Op::AddTable { comment: Name::from("not ours") };
        foreign(tables, vec![Op::DeleteTable, table, Op::AddSet(services)]);
        assert!(matches!(follower.engine.verify(tables).unwrap(), Verified::Repaired(1..)));
        follower.check_exactly(tables);
    }

    fn a_foreign_set_in_our_table_is_deleted(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        foreign(tables, vec![Op::AddSet(foreign_set(SetData::None))]);
        assert_repaired(tables, &mut follower, 1);
    }

    fn foreign_chains_in_our_table_are_deleted(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let hook = Hook { kind: ChainKind::Filter, point: HookPoint::Input, priority: 7 };
        let based = Chain { hook: Some(hook), ..chain("theirs-base", vec![drop_rule()]) };
        foreign(tables, vec![Op::AddChain(chain("theirs", Vec::new())), Op::AddChain(based)]);
        assert_repaired(tables, &mut follower, 2);
    }

    fn foreign_objects_that_refer_to_each_other_are_deleted(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let goto = Data::Verdict(Verdict::Goto(Name::from("theirs")));
        let source = Expr::Payload {
            base: Base::Network, offset: 12, len: 4, to: Reg(0),
        };
        let set = Name::from("theirs-map");
        let lookup = Expr::Lookup { set: set.clone(), from: Reg(0), then: Hit::Verdict };
        foreign(tables, vec![
            Op::AddSet(foreign_set(SetData::Verdict)),
            Op::AddChain(chain("theirs", vec![drop_rule()])),
            // The foreign map refers to the foreign chain. A foreign rule in our chain refers to
            // the foreign map, and an element of our map refers to the foreign chain.
            Op::AddElements { set, elements: vec![element(Bytes::EMPTY.slot(99), goto.clone())] },
            Op::AddChain(chain("pick-3", vec![rule(vec![source, lookup])])),
            add(SetId::Services, vec![element(service_key("10.96.9.9"), goto)]),
        ]);
        // The map, the chain, our chain with the foreign rule, and the element.
        assert_repaired(tables, &mut follower, 4);
    }

    fn a_restart_repairs_foreign_changes(tables) {
        let mut follower = Follower::start(tables, CLUSTER);
        let drop = element(service_key("10.96.9.9"), Data::Verdict(Verdict::Drop));
        let endpoints = elements(tables, SetId::Endpoints);
        foreign(tables, vec![
            add(SetId::Services, vec![drop]),
            delete(SetId::Endpoints, endpoints[1..3].to_vec()),
            Op::AddSet(foreign_set(SetData::None)),
            Op::AddChain(chain("pick-3", vec![drop_rule()])),
            Op::AddChain(chain("theirs", vec![drop_rule()])),
            Op::FlushChain(Name::from("reject-chain")),
        ]);
        follower.engine = nearhop_proxy::engine::Engine::new(v4());
        follower.sync_all(tables);
        follower.check_exactly(tables);
    }
}

fn foreign_set(data: SetData) -> Set {
    let name = Name::from(if data == SetData::None { "theirs-set" } else { "theirs-map" });
    Set { name, key: vec![Field::Address(Family::Ipv4)], data, kind: SetKind::Exact, comment: None }
}
