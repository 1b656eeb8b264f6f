//! Tests of the Pod state machine, without processes.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn seconds(number: i64) -> SignedDuration {
    SignedDuration::from_secs(number)
}

fn pod(policy: RestartPolicy, containers: &[(&str, Role, &[ProbeKind])]) -> Machine {
    let describe = |(name, role, probes): &(&str, Role, &[ProbeKind])| ContainerInfo {
        name: (*name).to_owned(),
        role: *role,
        probes: probes.to_vec(),
    };
    let mut machine = Machine::new(policy, seconds(30), containers.iter().map(describe).collect());
    assert_eq!(machine.advance(at(0)), [], "nothing runs before the sandbox is ready");
    machine.prepared();
    machine
}

fn start(name: &str) -> Action {
    Action::Start(name.to_owned())
}

/// Every started container runs at once.
fn run(machine: &mut Machine, now: Timestamp) -> Vec<String> {
    let mut names = Vec::new();
    for action in machine.advance(now) {
        if let Action::Start(name) = action {
            machine.started(&name, "id", now);
            names.push(name);
        }
    }
    machine.advance(now);
    names
}

fn end(machine: &mut Machine, name: &str, code: i32, now: Timestamp) {
    machine.ended(name, code, None, Failure::None, now);
}

#[test]
fn init_containers_run_in_order_and_sidecars_beside_the_others() {
    let parts: [(&str, Role, &[ProbeKind]); 4] = [
        ("first", Role::Init, &[]),
        ("side", Role::Sidecar, &[ProbeKind::Startup]),
        ("second", Role::Init, &[]),
        ("main", Role::Main, &[]),
    ];
    let mut machine = pod(RestartPolicy::Always, &parts);
    assert_eq!(run(&mut machine, at(0)), ["first"]);
    assert_eq!(machine.phase(), Phase::Pending);
    end(&mut machine, "first", 0, at(1));
    assert_eq!(run(&mut machine, at(1)), ["side"]);
    assert_eq!(run(&mut machine, at(2)), [""; 0], "its startup probe has not succeeded");
    machine.probed("side", ProbeKind::Startup, true, at(2));
    assert_eq!(run(&mut machine, at(2)), ["second"]);
    end(&mut machine, "second", 0, at(3));
    assert_eq!(run(&mut machine, at(3)), ["main"]);
    assert!(machine.is_initialized());
    assert_eq!(machine.phase(), Phase::Running);
}

#[test]
fn a_failed_init_container_fails_the_pod() {
    let parts: [(&str, Role, &[ProbeKind]); 2] =
        [("first", Role::Init, &[]), ("main", Role::Main, &[])];
    let mut machine = pod(RestartPolicy::Never, &parts);
    run(&mut machine, at(0));
    end(&mut machine, "first", 1, at(1));
    assert_eq!(run(&mut machine, at(1)), [""; 0]);
    assert_eq!(machine.phase(), Phase::Failed);
    let mut machine = pod(RestartPolicy::OnFailure, &parts);
    run(&mut machine, at(0));
    end(&mut machine, "first", 1, at(1));
    assert_eq!(run(&mut machine, at(1)), ["first"]);
}

#[test]
fn restart_back_off_grows_and_resets_after_a_long_run() {
    let mut machine = pod(RestartPolicy::Always, &[("main", Role::Main, &[])]);
    let mut now = 0;
    run(&mut machine, at(now));
    for wait in [0, 10, 20, 40, 80, 160, 300, 300] {
        end(&mut machine, "main", 1, at(now));
        if wait > 0 {
            let backing = Action::BackOff("main".to_owned(), seconds(wait));
            assert_eq!(machine.advance(at(now)), [backing]);
            assert_eq!(machine.next_deadline(), Some(at(now + wait)));
            assert_eq!(run(&mut machine, at(now + wait - 1)), [""; 0]);
            assert_eq!(machine.containers[0].backs_off(at(now)), Some(seconds(wait)));
            assert_eq!(machine.phase(), Phase::Running);
        }
        now += wait;
        assert_eq!(run(&mut machine, at(now)), ["main"], "after {wait} s");
    }
    assert_eq!(machine.containers[0].restarts, 8);
    now += 600;
    end(&mut machine, "main", 1, at(now));
    assert_eq!(run(&mut machine, at(now)), ["main"], "without back-off");
}

#[test]
fn restart_policies_decide_about_restarts() {
    for (policy, code, again, phase) in [
        (RestartPolicy::Always, 0, true, Phase::Running),
        (RestartPolicy::OnFailure, 0, false, Phase::Succeeded),
        (RestartPolicy::OnFailure, 1, true, Phase::Running),
        (RestartPolicy::Never, 1, false, Phase::Failed),
        (RestartPolicy::Never, 0, false, Phase::Succeeded),
    ] {
        let mut machine = pod(policy, &[("main", Role::Main, &[])]);
        run(&mut machine, at(0));
        end(&mut machine, "main", code, at(1));
        assert_eq!(!run(&mut machine, at(1)).is_empty(), again, "{policy:?} {code}");
        assert_eq!(machine.phase(), phase, "{policy:?} {code}");
    }
}

#[test]
fn sidecars_stop_after_the_last_main_container() {
    let parts: [(&str, Role, &[ProbeKind]); 2] =
        [("side", Role::Sidecar, &[]), ("main", Role::Main, &[])];
    let mut machine = pod(RestartPolicy::Never, &parts);
    run(&mut machine, at(0));
    run(&mut machine, at(0));
    end(&mut machine, "main", 0, at(1));
    assert_eq!(machine.advance(at(1)), [Action::Stop("side".to_owned(), seconds(30))]);
    end(&mut machine, "side", 143, at(2));
    assert_eq!(machine.advance(at(2)), []);
    assert!(machine.all_stopped());
    assert_eq!(machine.phase(), Phase::Succeeded);
}

#[test]
fn a_stop_becomes_a_kill_after_the_grace_period() {
    let parts: [(&str, Role, &[ProbeKind]); 2] =
        [("side", Role::Sidecar, &[]), ("main", Role::Main, &[])];
    let mut machine = pod(RestartPolicy::Always, &parts);
    run(&mut machine, at(0));
    run(&mut machine, at(0));
    machine.end(seconds(30), at(10));
    assert_eq!(machine.advance(at(10)), [Action::Stop("main".to_owned(), seconds(30))]);
    assert!(machine.containers[1].ready, "a stopping container is ready until it ends");
    assert_eq!(machine.advance(at(11)), []);
    machine.end(seconds(5), at(12));
    machine.advance(at(12));
    assert_eq!(machine.next_deadline(), Some(at(17)), "a later request shortens the time");
    machine.end(seconds(60), at(12));
    assert_eq!(machine.advance(at(17)), [Action::Kill("main".to_owned())]);
    end(&mut machine, "main", 137, at(17));
    let actions = machine.advance(at(17));
    assert_eq!(
        actions,
        [Action::Stop("side".to_owned(), seconds(0)), Action::Kill("side".to_owned())]
    );
    end(&mut machine, "side", 137, at(17));
    assert!(machine.all_stopped());
    assert_eq!(machine.advance(at(18)), [], "no restart");
}

#[test]
fn probes_start_after_the_startup_probe() {
    let probes = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];
    let mut machine = pod(RestartPolicy::Always, &[("main", Role::Main, &probes)]);
    assert_eq!(machine.advance(at(0)), [start("main")]);
    machine.started("main", "id", at(0));
    let first = Action::Probe("main".to_owned(), vec![ProbeKind::Startup]);
    assert_eq!(machine.advance(at(0)), [first]);
    machine.probed("main", ProbeKind::Startup, true, at(1));
    let others = vec![ProbeKind::Liveness, ProbeKind::Readiness];
    assert_eq!(machine.advance(at(1)), [Action::Probe("main".to_owned(), others)]);
    assert!(!machine.containers[0].ready);
    machine.probed("main", ProbeKind::Readiness, true, at(2));
    assert!(machine.containers[0].ready);
    let stop = machine.probed("main", ProbeKind::Liveness, false, at(3));
    assert_eq!(stop, [Action::Stop("main".to_owned(), seconds(30))]);
    assert_eq!(machine.advance(at(33)), [Action::Kill("main".to_owned())]);
    end(&mut machine, "main", 137, at(33));
    assert_eq!(machine.advance(at(33)), [start("main")]);
    machine.started("main", "id", at(33));
    assert_eq!(machine.next_deadline(), None, "the new run has no kill deadline");
}

#[test]
fn start_errors_are_retried_only_if_they_may_pass() {
    let mut machine = pod(RestartPolicy::Always, &[("main", Role::Main, &[])]);
    machine.advance(at(0));
    let error = |retry| StartError { reason: "No", message: String::new(), retry };
    machine.start_failed("main", &error(Retry::Soon), at(0));
    assert_eq!(machine.advance(at(0)), []);
    assert_eq!(machine.advance(at(2)), [start("main")]);
    machine.start_failed("main", &error(Retry::Never), at(2));
    assert_eq!(machine.advance(at(100_000)), []);
    assert_eq!(machine.phase(), Phase::Pending);
    assert_eq!(machine.containers[0].restarts, 0);
}

#[test]
fn a_crashing_sidecar_does_not_block_main_containers() {
    let parts: [(&str, Role, &[ProbeKind]); 2] =
        [("side", Role::Sidecar, &[]), ("main", Role::Main, &[])];
    let mut machine = pod(RestartPolicy::Always, &parts);
    run(&mut machine, at(0));
    run(&mut machine, at(0));
    end(&mut machine, "side", 1, at(1));
    assert_eq!(run(&mut machine, at(1)), ["side"]);
    end(&mut machine, "side", 1, at(2));
    end(&mut machine, "main", 1, at(2));
    assert_eq!(run(&mut machine, at(2)), ["main"], "the sidecar backs off alone");
    assert_eq!(run(&mut machine, at(12)), ["side"]);
}

#[test]
fn an_endless_grace_period_does_not_overflow() {
    let endless = seconds(1_000_000_000_000);
    let mut machine =
        pod(RestartPolicy::Always, &[("main", Role::Main, &[ProbeKind::Liveness][..])]);
    machine.grace = endless;
    run(&mut machine, at(0));
    let actions = machine.probed("main", ProbeKind::Liveness, false, at(1));
    assert!(matches!(actions[..], [Action::Stop(..)]), "{actions:?}");
    machine.end(endless, at(2));
    assert_eq!(machine.advance(at(3)), [], "already requested");
    assert_eq!(machine.next_deadline(), Some(Timestamp::MAX));
    machine.end(seconds(5), at(3));
    machine.advance(at(4));
    assert_eq!(machine.next_deadline(), Some(at(8)), "the shorter time wins");
}

#[test]
fn sidecars_with_an_endless_grace_period_are_stopped() {
    let parts: [(&str, Role, &[ProbeKind]); 2] =
        [("side", Role::Sidecar, &[]), ("main", Role::Main, &[])];
    let mut machine = pod(RestartPolicy::Never, &parts);
    machine.grace = seconds(i64::MAX);
    assert_eq!(run(&mut machine, at(0)), ["side"]);
    assert_eq!(run(&mut machine, at(0)), ["main"]);
    end(&mut machine, "main", 0, at(1));
    let actions = machine.advance(at(1));
    assert!(matches!(&actions[..], [Action::Stop(name, _)] if name == "side"), "{actions:?}");
}
