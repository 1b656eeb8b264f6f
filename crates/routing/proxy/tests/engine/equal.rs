//! After any sequence of events the table is the same as one written from scratch.

use std::cell::RefCell;
use std::sync::Arc;

use nearhop_core::{Change, Cidr, Family, Name};
use nearhop_netfilter::affinity::port_of;
use nearhop_netfilter::changes::Changes;
use nearhop_netfilter::compile::compile;
use nearhop_netfilter::config::{Config, LocalTraffic, Masquerade};
use nearhop_netfilter::desired::DesiredTable;
use nearhop_netfilter::frontend::Program;
use nearhop_netfilter::layout::SetId;
use nearhop_netfilter::object::{
    Batch, Bytes, Chain, Data, Element, Expr, Field, Op, Rule, Set, SetData, SetKind, Verdict,
};
use nearhop_netfilter::reconcile::{KernelChain, KernelState};
use nearhop_proxy::engine::{Engine, Tables, Verified};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRunner};

use crate::follow::{Cluster, Content};
use crate::on::{FakeTables, held_chain, on_kernel};
use crate::random::{change, cluster};

/// One step of a sequence.
#[derive(Clone, Debug)]
enum Step {
    /// Some changes, followed by one sync.
    Changes(Vec<Change>),
    /// A new process.
    Restart,
    /// Another configuration.
    Configure(Setting),
    /// A full pass.
    Full,
    /// Deletes stale affinity records, and the chains and maps that are unused afterwards.
    Release,
    /// A verification.
    Verify,
    /// Another program changes our table, and then this happens.
    Damage(Damage, Index, Index, Repair),
}

#[derive(Clone, Copy, Debug)]
enum Setting {
    Default,
    Mark,
    Local,
}

#[derive(Clone, Copy, Debug)]
enum Repair {
    Verify,
    Full,
    Restart,
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    DeleteElement,
    OtherData,
    AddElement,
    AddRule,
    FlushChain,
    AddSet,
    AddChain,
    DeleteTable,
}

fn step(family: Family) -> impl Strategy<Value = Step> {
    let damage = select(vec![
        Damage::DeleteElement,
        Damage::OtherData,
        Damage::AddElement,
        Damage::AddRule,
        Damage::FlushChain,
        Damage::AddSet,
        Damage::AddChain,
        Damage::DeleteTable,
    ]);
    let repair = select(vec![Repair::Verify, Repair::Full, Repair::Restart]);
    let setting = select(vec![Setting::Default, Setting::Mark, Setting::Local]);
    prop_oneof![
        10 => prop::collection::vec(change(family), 1..3).prop_map(Step::Changes),
        1 => Just(Step::Restart),
        1 => setting.prop_map(Step::Configure),
        1 => Just(Step::Full),
        1 => Just(Step::Release),
        1 => Just(Step::Verify),
        2 => (damage, any::<Index>(), any::<Index>(), repair)
            .prop_map(|(damage, first, second, repair)| Step::Damage(damage, first, second, repair)),
    ]
}

#[derive(Clone, Debug)]
struct Sequence {
    family: Family,
    /// The table that a proxy wrote for another cluster before.
    past: Option<Vec<Change>>,
    present: Vec<Change>,
    steps: Vec<Step>,
}

fn sequence(family: Family) -> impl Strategy<Value = Sequence> {
    (prop::option::of(cluster(family)), cluster(family), prop::collection::vec(step(family), 1..4))
        .prop_map(move |(past, present, steps)| Sequence { family, past, present, steps })
}

fn config(family: Family, setting: Setting) -> Config {
    let config = Config::new(family);
    let pods = if family == Family::Ipv4 { "10.3.0.0/16" } else { "fd00:3::/32" };
    match setting {
        Setting::Default => config,
        Setting::Mark => Config { masquerade_mark: 1, masquerade: Masquerade::All, ..config },
        Setting::Local => {
            Config { local: Some(LocalTraffic::Source(Cidr::parse(pods).unwrap())), ..config }
        }
    }
}

/// The desired content of the table, computed without an engine and without history.
fn wanted(cluster: &Cluster, config: &Config, exactness: Exactness) -> Content {
    let mut desired = DesiredTable::new(Arc::new(config.clone()));
    for service in cluster.world.services() {
        let routes = cluster.routes.of_service(&service.key);
        let program = compile(routes, config, &Program::default());
        desired.set(&service.key, program, &mut Changes::default());
    }
    let chains = match exactness {
        Exactness::Elements => Vec::new(),
        Exactness::Needed | Exactness::All => desired.chains(),
    };
    let chains = chains.iter().map(|chain| (chain.name.clone(), held_chain(chain))).collect();
    // Built at once: a Service may have created maps for an address that another Service took over.
    let at_once =
        DesiredTable::build(&cluster.routes, Arc::new(config.clone()), &Program::default());
    let maps = at_once.maps().iter().filter(|_| exactness != Exactness::Elements).cloned();
    let sets = SetId::ALL.into_iter().map(|set| Name::from(set.name())).chain(maps).collect();
    Content::of(&KernelState {
        sets,
        chains,
        elements: desired.elements(),
        ..KernelState::default()
    })
}

/// How strictly a table is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exactness {
    /// Elements only. The chains that they refer to exist, otherwise the kernel refuses the
    /// elements.
    Elements,
    /// Also all chains that are needed; there may be unused ones.
    Needed,
    /// Also no unused chains.
    All,
}

struct Runner<'a, T> {
    tables: &'a mut T,
    cluster: Cluster,
    engine: Engine,
}

impl<T: Tables> Runner<'_, T> {
    fn check(&mut self, exactness: Exactness) -> Result<(), TestCaseError> {
        let config = self.engine.config();
        let held = self.tables.read(&config.table).unwrap().expect("the table exists");
        let mut content = Content::of(&held);
        let wanted = wanted(&self.cluster, config, exactness);
        if exactness != Exactness::All {
            content.chains.retain(|name, _| wanted.chains.contains_key(name));
            content.sets.retain(|name| port_of(name).is_none() || wanted.sets.contains(name));
        }
        prop_assert_eq!(content, wanted);
        Ok(())
    }

    fn change(&mut self, changes: Vec<Change>) {
        let todo = self.cluster.apply(changes);
        self.engine.sync(self.tables, &self.cluster.routes, todo.scope()).unwrap();
    }

    fn full(&mut self) {
        self.engine.full(self.tables, &self.cluster.routes).unwrap();
    }

    fn restart(&mut self) {
        self.engine = Engine::new(self.engine.config().clone());
        self.full();
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let mut exactness = Exactness::All;
        match step {
            Step::Changes(changes) => {
                self.change(changes);
                exactness = Exactness::Elements;
            }
            Step::Restart => self.restart(),
            Step::Configure(setting) => {
                let config = config(self.engine.config().family(), setting);
                if config == *self.engine.config() {
                    exactness = Exactness::Needed;
                }
                self.engine.configure(config);
                self.change(Vec::new());
            }
            Step::Full => self.full(),
            Step::Release => {
                for port in self.engine.take_releases() {
                    self.engine.release(self.tables, &port).unwrap();
                    self.engine.retire(self.tables, &port).unwrap();
                }
                let verified = self.engine.verify(self.tables).unwrap();
                prop_assert_eq!(
                    verified,
                    Verified::Untouched,
                    "no other program changed the table"
                );
                exactness = Exactness::Elements;
            }
            Step::Verify => {
                let verified = self.engine.verify(self.tables).unwrap();
                prop_assert_eq!(
                    verified,
                    Verified::Untouched,
                    "no other program changed the table"
                );
                exactness = Exactness::Elements;
            }
            Step::Damage(damage, first, second, repair) => {
                let ops = self.damage(damage, first, second);
                self.repair(ops, repair)?;
            }
        }
        self.check(exactness)
    }

    fn repair(&mut self, ops: Vec<Op>, repair: Repair) -> Result<(), TestCaseError> {
        let table = self.engine.config().table.clone();
        let harmless = ops.is_empty();
        if !harmless {
            self.tables.apply(&Batch { table, ops }).unwrap();
        }
        match repair {
            Repair::Verify if harmless => self.full(),
            Repair::Verify => {
                let verified = self.engine.verify(self.tables).unwrap();
                prop_assert!(matches!(verified, Verified::Repaired(1..)), "{:?}", verified);
            }
            Repair::Full => self.full(),
            Repair::Restart => self.restart(),
        }
        Ok(())
    }

    /// The change that another program makes; empty if the table has nothing to change.
    fn damage(&mut self, damage: Damage, first: Index, second: Index) -> Vec<Op> {
        let family = self.engine.config().family();
        let held = self.tables.read(&self.engine.config().table).unwrap().unwrap();
        let chains: Vec<(&Name, &KernelChain)> = held.chains.iter().collect();
        let (chain, held_chain) = chains[first.index(chains.len())];
        let drop = Rule { exprs: vec![Expr::Verdict(Verdict::Drop)], comment: None };
        let with_rule = |name: &Name| {
            Op::AddChain(Chain { name: name.clone(), hook: None, rules: vec![drop], comment: None })
        };
        match damage {
            Damage::DeleteTable => vec![Op::DeleteTable],
            Damage::AddRule => vec![with_rule(chain)],
            Damage::FlushChain if held_chain.rules > 0 => vec![Op::FlushChain(chain.clone())],
            Damage::AddChain => vec![with_rule(&Name::from("theirs"))],
            Damage::AddSet => {
                let (name, key) = (Name::from("theirs"), vec![Field::Address(family)]);
                let (data, kind) = (SetData::None, SetKind::Exact);
                vec![Op::AddSet(Set { name, key, data, kind, comment: None })]
            }
            Damage::AddElement => {
                let key = Bytes::EMPTY.address(crate::random::address(family, 9, 9));
                vec![add(
                    SetId::Services,
                    Element {
                        key: key.protocol(6).port(99),
                        end: None,
                        data: Data::Verdict(Verdict::Drop),
                        comment: None,
                    },
                )]
            }
            _ if held.elements.is_empty() => Vec::new(),
            _ => {
                let (set, element) = &held.elements[second.index(held.elements.len())];
                damage_element(damage, *set, element)
            }
        }
    }
}

fn damage_element(damage: Damage, set: SetId, element: &Element) -> Vec<Op> {
    let name = Name::from(set.name());
    let delete = Op::DeleteElements { set: name, elements: vec![element.clone()] };
    let other = Data::Verdict(Verdict::Drop);
    match (damage, &element.data) {
        (Damage::DeleteElement, _) => vec![delete],
        (Damage::OtherData, Data::Verdict(_)) if element.data != other => {
            vec![delete, add(set, Element { data: other, ..element.clone() })]
        }
        _ => Vec::new(),
    }
}

fn add(set: SetId, element: Element) -> Op {
    Op::AddElements { set: Name::from(set.name()), elements: vec![element] }
}

/// Runs a sequence on tables with any content.
fn run_sequence(tables: &mut impl Tables, sequence: Sequence) -> Result<(), TestCaseError> {
    let config = config(sequence.family, Setting::Default);
    if let Some(changes) = sequence.past {
        let mut past = Cluster::empty();
        past.apply(changes);
        Engine::new(config.clone()).full(tables, &past.routes).unwrap();
    }
    let mut cluster = Cluster::empty();
    cluster.apply(sequence.present);
    let mut runner = Runner { tables, cluster, engine: Engine::new(config) };
    runner.full();
    runner.check(Exactness::Elements)?;
    for step in sequence.steps {
        runner.step(step)?;
    }
    runner.check(Exactness::Needed)
}

/// `NEARHOP_CASES` sets how many sequences run on the fake; the kernel runs 1/50 of them.
pub(crate) fn runs(divided_by: u32) -> Runs {
    let cases = std::env::var("NEARHOP_CASES").ok();
    let cases = cases.map_or(10_000, |cases| cases.parse().expect("NEARHOP_CASES is a number"));
    Runs {
        cases: (cases / divided_by).max(1),
        failure_persistence: None,
        // The default generator is cryptographic and takes 10 % of the test time.
        rng_algorithm: RngAlgorithm::XorShift,
        ..Runs::default()
    }
}

fn run_on_the_fake(family: Family) {
    let result = TestRunner::new(runs(2))
        .run(&sequence(family), |sequence| run_sequence(&mut FakeTables::default(), sequence));
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn incremental_tables_match_tables_from_scratch_on_the_fake() {
    run_on_the_fake(Family::Ipv4);
}

#[test]
fn incremental_ipv6_tables_match_tables_from_scratch_on_the_fake() {
    run_on_the_fake(Family::Ipv6);
}

#[test]
fn incremental_tables_match_tables_from_scratch_on_the_kernel() {
    on_kernel("equal::incremental_tables_match_tables_from_scratch_on_the_kernel", |kernel| {
        // Each sequence starts with the table that the previous one left.
        let kernel = RefCell::new(kernel);
        for family in [Family::Ipv4, Family::Ipv6] {
            let result = TestRunner::new(runs(100)).run(&sequence(family), |sequence| {
                run_sequence(&mut kernel.borrow_mut().inner, sequence)
            });
            result.unwrap_or_else(|error| panic!("{error}"));
        }
    });
}
