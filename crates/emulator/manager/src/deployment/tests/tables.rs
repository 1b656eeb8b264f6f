//! Single decisions.

use serde_json::json;

use super::sim::{Sim, Step};
use crate::action::Action;
use crate::deployment::{resolve_bounds, wanted};
use crate::kind::{Kind, Object};
use crate::object;

#[test]
fn bounds_are_resolved_as_in_kubernetes() {
    let parse = |value: serde_json::Value| serde_json::from_value(value).unwrap();
    for (surge, unavailable, replicas, expected) in [
        (json!("25%"), json!("25%"), 10, (3, 2)),
        (json!("25%"), json!("25%"), 1, (1, 0)),
        (json!(0), json!("10%"), 5, (0, 1)),
        (json!(3), json!(2), 10, (3, 2)),
        (json!(0), json!(7), 3, (0, 3)),
        (json!("100%"), json!(0), 4, (4, 0)),
    ] {
        let (s, u) = (parse(surge.clone()), parse(unavailable.clone()));
        assert_eq!(resolve_bounds(Some(&s), Some(&u), replicas), expected, "{surge} {unavailable}");
    }
    assert_eq!(resolve_bounds(None, None, 8), (2, 2), "25% by default");
}

/// The sizes of the sets, oldest revision first.
fn sizes(sim: &Sim) -> Vec<i32> {
    let mut sets: Vec<_> = sim.sets.values().collect();
    sets.sort_by_key(|set| {
        object::annotation(&set.metadata, crate::deployment::revision::REVISION)
            .and_then(|text| text.parse::<i64>().ok())
    });
    sets.into_iter().map(wanted).collect()
}

fn started(replicas: i32, surge: i32, unavailable: i32) -> Sim {
    let mut sim = Sim::new(replicas, &json!(surge), &json!(unavailable), 0);
    sim.settle(|_| {});
    sim
}

/// Reconciles the Deployment and its sets without any change of Pods.
fn act(sim: &mut Sim) {
    for _ in 0..10 {
        sim.step(&Step::Deployment);
        (0..sim.sets.len()).for_each(|index| {
            sim.step(&Step::Set(index));
        });
    }
}

#[test]
fn a_rollout_stops_at_its_bounds_until_pods_are_ready() {
    let mut sim = started(10, 3, 2);
    sim.step(&Step::Roll(1));
    act(&mut sim);
    assert_eq!(sizes(&sim), [8, 5], "the example of the Kubernetes documentation");
    assert_eq!((sim.active(), sim.available()), (13, 8));
}

#[test]
fn a_second_rollout_removes_unready_pods_first() {
    let mut sim = started(10, 3, 2);
    sim.step(&Step::Roll(1));
    act(&mut sim);
    sim.step(&Step::Roll(2));
    act(&mut sim);
    assert_eq!(sizes(&sim), [8, 0, 5], "unready Pods are gone");
    assert_eq!(sim.available(), 8);
}

#[test]
fn an_undo_reuses_the_old_set_with_a_new_revision() {
    let mut sim = started(4, 1, 1);
    sim.step(&Step::Roll(1));
    sim.settle(|_| {});
    sim.step(&Step::Roll(2));
    sim.settle(|_| {});
    sim.step(&Step::Roll(1));
    sim.settle(|_| {});
    assert_eq!(sim.sets.len(), 3, "no new set");
    let revisions = |key: &str| {
        let sets = sim.sets.values().filter(|set| wanted(set) > 0);
        sets.filter_map(|set| object::annotation(&set.metadata, key)).collect::<Vec<_>>()
    };
    assert_eq!(revisions("deployment.kubernetes.io/revision"), ["4"]);
    assert_eq!(revisions("deployment.kubernetes.io/revision-history"), ["2"]);
    let its = object::annotation(&sim.deployment.metadata, "deployment.kubernetes.io/revision");
    assert_eq!(its, Some("4"));
}

#[test]
fn scaling_during_a_rollout_keeps_the_proportions() {
    let mut sim = started(10, 3, 2);
    sim.step(&Step::Roll(1));
    act(&mut sim);
    assert_eq!(sizes(&sim), [8, 5]);
    sim.step(&Step::Scale(20));
    sim.step(&Step::Deployment);
    assert_eq!(sizes(&sim), [14, 9], "23 in the proportion of 8 to 5");
}

#[test]
fn a_name_collision_changes_the_hash() {
    let mut sim = started(1, 1, 0);
    sim.step(&Step::Roll(1));
    let Some(Action::Create(Object::ReplicaSet(mut taken))) = sim.plan().actions().next().cloned()
    else {
        panic!("{:?}", sim.plan())
    };
    let first = object::name(&taken.metadata).to_owned();
    taken.metadata.owner_references = None;
    taken.metadata.labels = None;
    taken.metadata.uid = Some("foreign".to_owned());
    sim.sets.insert(first.clone(), *taken);
    sim.step(&Step::Deployment);
    let collisions = sim.deployment.status.as_ref().unwrap().collision_count;
    assert_eq!(collisions, Some(1));
    let Some(Action::Create(second)) = sim.plan().actions().next().cloned() else { panic!() };
    assert_ne!(object::name(second.meta()), first);
}

#[test]
fn history_beyond_the_limit_is_deleted() {
    let mut sim = started(2, 1, 0);
    sim.deployment.spec.as_mut().unwrap().revision_history_limit = Some(1);
    for version in 1..5 {
        sim.step(&Step::Roll(version));
        sim.settle(|_| {});
    }
    assert_eq!(sizes(&sim), [0, 2]);
}

#[test]
fn a_paused_deployment_creates_no_set() {
    let mut sim = started(2, 1, 0);
    sim.step(&Step::Pause(true));
    sim.step(&Step::Roll(1));
    act(&mut sim);
    assert_eq!(sizes(&sim), [2]);
    let conditions = sim.deployment.status.as_ref().unwrap().conditions.clone().unwrap();
    let reason = conditions.iter().find(|one| one.type_ == "Progressing").unwrap();
    assert_eq!(reason.reason.as_deref(), Some("DeploymentPaused"));
    sim.step(&Step::Pause(false));
    sim.settle(|_| {});
    assert_eq!(sizes(&sim), [0, 2]);
}

#[test]
fn an_orphaned_set_is_adopted_first() {
    let mut sim = started(2, 1, 0);
    let set = sim.sets.values_mut().next().unwrap();
    set.metadata.owner_references = None;
    let plan = sim.plan();
    assert!(
        matches!(plan.actions().next(), Some(Action::Adopt(_, Kind::ReplicaSet, ..))),
        "{plan:?}"
    );
}

#[test]
fn a_change_to_recreate_and_another_size_completes() {
    let mut sim = started(4, 1, 1);
    sim.step(&Step::Roll(1));
    act(&mut sim);
    assert!(sizes(&sim).iter().all(|size| *size > 0), "{:?}", sizes(&sim));
    let strategy = sim.deployment.spec.as_mut().unwrap().strategy.as_mut().unwrap();
    strategy.type_ = Some("Recreate".to_owned());
    strategy.rolling_update = None;
    sim.step(&Step::Scale(6));
    sim.settle(|_| {});
    assert_eq!(sizes(&sim), [0, 6]);
}

#[test]
fn a_terminating_deployment_has_no_progress_deadline() {
    let mut sim = started(4, 1, 1);
    sim.step(&Step::Roll(1));
    act(&mut sim);
    assert!(sim.plan().requeue_after.is_some(), "a rollout in progress has a deadline");
    sim.deployment.metadata.deletion_timestamp = Some(object::time(sim.time()));
    (0..300).for_each(|_| {
        sim.step(&Step::Tick);
    });
    assert_eq!(sim.plan().requeue_after, None);
}

#[test]
fn maximal_numbers_do_not_overflow() {
    let all = i32::MAX;
    let fence = json!("9223372036854775807%");
    for (replicas, surge, unavailable) in
        [(all, &fence, &fence), (all, &json!(all), &json!(0)), (all, &json!("25%"), &json!(1))]
    {
        let mut sim = Sim::new(replicas, surge, unavailable, 0);
        sim.step(&Step::Deployment);
        sim.step(&Step::Set(0));
        assert_eq!(sizes(&sim), [all], "{surge} {unavailable}");
        // All sets at the maximum, with a status that no cluster could reach.
        for version in 1..3 {
            sim.step(&Step::Roll(version));
            for set in sim.sets.values_mut() {
                set.spec.as_mut().unwrap().replicas = Some(all);
                let status = set.status.get_or_insert_default();
                (status.replicas, status.available_replicas) = (all, Some(all));
                status.observed_generation = set.metadata.generation;
                let annotations = set.metadata.annotations.get_or_insert_default();
                let last = i64::MAX.to_string();
                annotations.insert(crate::deployment::revision::REVISION.to_owned(), last);
            }
            for scaled in [all, all - 1, 1, 0, all] {
                sim.step(&Step::Scale(scaled));
                (0..3).for_each(|_| {
                    sim.step(&Step::Deployment);
                });
            }
        }
        assert!(sizes(&sim).iter().all(|size| (0..=all).contains(size)), "{:?}", sizes(&sim));
    }
}
