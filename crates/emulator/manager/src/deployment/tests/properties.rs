//! Rollouts stay within their bounds and finish, in any order of events.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::sim::{Sim, Step};
use crate::deployment::status;

/// Numbers and percentages, not both zero, as the API requires.
fn resolve_bounds() -> impl Strategy<Value = (Value, Value)> {
    let one = prop_oneof![
        (0..4_i32).prop_map(|number| json!(number)),
        prop_oneof![Just("0%"), Just("10%"), Just("25%"), Just("50%"), Just("100%")]
            .prop_map(|text| json!(text)),
    ];
    (one.clone(), one).prop_filter("not both zero", |(surge, unavailable)| {
        let zero = |value: &Value| *value == json!(0) || *value == json!("0%");
        !(zero(surge) && zero(unavailable))
    })
}

/// Pods start and stop; no ready Pod fails.
fn calm() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Deployment),
        4 => any::<usize>().prop_map(Step::Set),
        2 => any::<usize>().prop_map(Step::Begin),
        2 => Just(Step::End),
        4 => any::<usize>().prop_map(Step::Ready),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => Just(Step::Tick),
        1 => (0..4_u8).prop_map(Step::Roll),
    ]
}

/// Also Pods fail, and the user pauses.
fn stormy() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => calm(),
        1 => any::<usize>().prop_map(Step::Unready),
        1 => any::<usize>().prop_map(Step::Fail),
        1 => any::<bool>().prop_map(Step::Pause),
    ]
}

/// Also the user scales the Deployment.
fn scaling() -> impl Strategy<Value = Step> {
    prop_oneof![6 => stormy(), 1 => (0..8_i32).prop_map(Step::Scale)]
}

fn started(replicas: i32, resolve_bounds: &(Value, Value), min_ready: i32) -> Sim {
    let mut sim = Sim::new(replicas, &resolve_bounds.0, &resolve_bounds.1, min_ready);
    sim.settle(|_| {});
    assert_eq!(sim.available(), usize::try_from(replicas).unwrap());
    sim
}

/// All Pods are new and available, and the status reports it.
fn check_settled(sim: &mut Sim) {
    sim.step(&Step::Pause(false));
    sim.settle(|_| {});
    let wanted = usize::try_from(sim.deployment.spec.as_ref().unwrap().replicas.unwrap()).unwrap();
    assert_eq!((sim.active(), sim.available()), (wanted, wanted));
    let sets = sim.sets.values().collect();
    let rollout = crate::deployment::Rollout::new(&sim.deployment, sets, sim.time());
    assert!(rollout.old.iter().all(|set| crate::deployment::wanted(set) == 0));
    assert!(status::is_complete(&rollout, sim.deployment.status.as_ref()));
    let conditions = sim.deployment.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let progressing = conditions.iter().find(|found| found.type_ == "Progressing").unwrap();
    assert_eq!(progressing.reason.as_deref(), Some("NewReplicaSetAvailable"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn bounds_hold_after_every_step_without_failures(
        replicas in 0..8_i32,
        resolve_bounds in resolve_bounds(),
        min_ready in prop_oneof![Just(0), Just(5)],
        steps in prop::collection::vec(calm(), 1..120),
    ) {
        let mut sim = started(replicas, &resolve_bounds, min_ready);
        for step in steps.iter().chain([&Step::Roll(9)]) {
            sim.step(step);
            assert!(sim.active() <= sim.most(), "{} pods after {step:?}", sim.active());
            assert!(sim.available() >= sim.least(), "{} after {step:?}", sim.available());
        }
        sim.settle(|sim| {
            assert!(sim.active() <= sim.most() && sim.available() >= sim.least());
        });
        check_settled(&mut sim);
    }

    #[test]
    fn with_failures_max_surge_holds_and_the_rollout_finishes(
        replicas in 0..8_i32,
        resolve_bounds in resolve_bounds(),
        min_ready in prop_oneof![Just(0), Just(5)],
        steps in prop::collection::vec(stormy(), 1..120),
    ) {
        let mut sim = started(replicas, &resolve_bounds, min_ready);
        for step in &steps {
            sim.step(step);
            // A Pod that failed is replaced before the status of its set shows it.
            assert!(sim.active() <= sim.most(), "{} pods after {step:?}", sim.active());
        }
        check_settled(&mut sim);
    }

    #[test]
    fn scaling_during_a_rollout_reaches_the_new_size(
        replicas in 0..8_i32,
        resolve_bounds in resolve_bounds(),
        steps in prop::collection::vec(scaling(), 1..120),
    ) {
        let mut sim = started(replicas, &resolve_bounds, 0);
        let mut most = sim.most();
        for step in &steps {
            sim.step(step);
            most = most.max(sim.most());
            assert!(sim.active() <= most, "{} pods after {step:?}", sim.active());
        }
        check_settled(&mut sim);
    }
}
