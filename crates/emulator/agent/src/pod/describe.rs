//! The initial state machine of a Pod object. Pure.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::machine::{ContainerInfo, Machine, RestartPolicy, Role};
use super::probe;

pub(crate) fn machine(pod: &Pod) -> Machine {
    let spec = pod.spec.clone().unwrap_or_default();
    let policy = match spec.restart_policy.as_deref() {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    };
    let describe = |container: &Container, role| ContainerInfo {
        name: container.name.clone(),
        role,
        probes: probe::kinds(container),
    };
    let early = spec.init_containers.iter().flatten().map(|container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        describe(container, if sidecar { Role::Sidecar } else { Role::Init })
    });
    let main = spec.containers.iter().map(|container| describe(container, Role::Main));
    let grace = spec.termination_grace_period_seconds.unwrap_or(30).max(0);
    let mut machine =
        Machine::new(policy, SignedDuration::from_secs(grace), early.chain(main).collect());
    remember(&mut machine, pod);
    machine
}

/// Continues the restart counts of an earlier agent.
fn remember(machine: &mut Machine, pod: &Pod) {
    let Some(status) = &pod.status else { return };
    let statuses = status.container_statuses.iter().flatten();
    for known in statuses.chain(status.init_container_statuses.iter().flatten()) {
        let Some(container) = machine.container(&known.name) else { continue };
        let ran = known.container_id.is_some();
        container.restarts = known.restart_count.saturating_add(i32::from(ran));
    }
}
