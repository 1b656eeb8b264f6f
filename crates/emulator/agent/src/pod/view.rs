//! The status of a Pod as a kubelet writes it. Pure.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as ContainerObject, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::machine::{Container, Ended, Machine, Phase, Role, State};

/// Inputs of the status besides the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusContext {
    pub(crate) node_addresses: Vec<IpAddr>,
    pub(crate) pod_addresses: Vec<IpAddr>,
    pub(crate) since: Option<Timestamp>,
}

/// The status; conditions keep their transition times.
pub(crate) fn status(
    pod: &Pod,
    machine: &Machine,
    context: &StatusContext,
    before: &[PodCondition],
    now: Timestamp,
) -> PodStatus {
    let spec = pod.spec.clone().unwrap_or_default();
    let phase = machine.phase();
    let of = |objects: &[ContainerObject]| -> Option<Vec<ContainerStatus>> {
        let found = objects.iter().filter_map(|object| {
            let named = |it: &&Container| it.description.name == object.name;
            let container = machine.containers.iter().find(named)?;
            Some(container_status(pod, object, container, now))
        });
        Some(found.collect()).filter(|list: &Vec<_>| !list.is_empty())
    };
    let text = |address: &IpAddr| address.to_string();
    let pod_ips = context.pod_addresses.iter().map(|it| PodIP { ip: it.to_string() });
    let host_ips = context.node_addresses.iter().map(|it| HostIP { ip: it.to_string() });
    PodStatus {
        phase: Some(phase.name().to_owned()),
        conditions: Some(conditions(pod, machine, context, before, now)),
        container_statuses: of(&spec.containers),
        init_container_statuses: of(&spec.init_containers.unwrap_or_default()),
        host_ip: context.node_addresses.first().map(text),
        host_ips: Some(host_ips.collect()),
        pod_ip: context.pod_addresses.first().map(text),
        pod_ips: Some(pod_ips.collect()).filter(|list: &Vec<_>| !list.is_empty()),
        start_time: context.since.map(Time),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

fn container_status(
    pod: &Pod,
    object: &ContainerObject,
    container: &Container,
    now: Timestamp,
) -> ContainerStatus {
    let image = object.image.clone().unwrap_or_default();
    ContainerStatus {
        name: object.name.clone(),
        image_id: if container.id.is_empty() {
            String::new()
        } else {
            format!("nearhop://{image}")
        },
        image,
        container_id: Some(container.id.clone()).filter(|id| !id.is_empty()),
        ready: container.ready || (container.description.role == Role::Init && is_done(container)),
        started: Some(container.started),
        restart_count: container.restarts,
        state: Some(state(pod, container, now)),
        last_state: last_state(container, now),
        ..ContainerStatus::default()
    }
}

fn is_done(container: &Container) -> bool {
    matches!(&container.state, State::Ended(ended) if ended.code == 0)
}

fn state(pod: &Pod, container: &Container, now: Timestamp) -> ContainerState {
    let waiting = |reason: &str, message: &str| ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        }),
        ..ContainerState::default()
    };
    match &container.state {
        State::Waiting { reason, message } => waiting(reason, message),
        State::Starting => waiting("ContainerCreating", ""),
        State::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(*since)) }),
            ..ContainerState::default()
        },
        State::Ended(ended) => match container.backs_off(now) {
            Some(wait) => {
                waiting("CrashLoopBackOff", &backoff_message(pod, container, wait.as_secs()))
            }
            None => terminated(ended),
        },
    }
}

/// The kubelet's message.
pub(crate) fn backoff_message(pod: &Pod, container: &Container, seconds: i64) -> String {
    let (minutes, rest) = (seconds / 60, seconds % 60);
    let wait = if minutes > 0 { format!("{minutes}m{rest}s") } else { format!("{rest}s") };
    format!(
        "back-off {wait} restarting failed container={} pod={}_{}({})",
        container.description.name,
        pod.metadata.name.as_deref().unwrap_or_default(),
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.uid.as_deref().unwrap_or_default()
    )
}

fn last_state(container: &Container, now: Timestamp) -> Option<ContainerState> {
    match &container.state {
        State::Ended(ended) if container.backs_off(now).is_some() => Some(terminated(ended)),
        _ => container.last.as_ref().map(terminated),
    }
}

fn terminated(ended: &Ended) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: ended.code,
            signal: ended.signal,
            reason: Some(ended.reason.clone()),
            message: Some(ended.message.clone()).filter(|message| !message.is_empty()),
            started_at: ended.started.map(Time),
            finished_at: Some(Time(ended.finished)),
            container_id: Some(ended.id.clone()).filter(|id| !id.is_empty()),
        }),
        ..ContainerState::default()
    }
}

/// Type, value, and reason with message of a condition.
type Verdict = (&'static str, bool, Option<(&'static str, String)>);

fn conditions(
    pod: &Pod,
    machine: &Machine,
    context: &StatusContext,
    before: &[PodCondition],
    now: Timestamp,
) -> Vec<PodCondition> {
    let over = matches!(machine.phase(), Phase::Succeeded | Phase::Failed);
    let network = machine.is_prepared() && !context.pod_addresses.is_empty() && !over;
    let verdicts: [Verdict; 5] = [
        ("PodScheduled", true, None),
        ("PodReadyToStartContainers", network, None),
        initialized(machine),
        containers_ready(machine),
        ready(pod, machine),
    ];
    let completed = matches!(machine.phase(), Phase::Succeeded);
    verdicts
        .into_iter()
        .map(|(kind, value, why)| {
            let why = match (value, completed && kind != "PodReadyToStartContainers") {
                (false, true) => Some(("PodCompleted", String::new())),
                _ => why,
            };
            condition(pod, (kind, value, why), before, now)
        })
        .collect()
}

fn initialized(machine: &Machine) -> Verdict {
    let early = machine.containers.iter().filter(|it| it.description.role != Role::Main);
    let left =
        early.filter(|it| !is_done(it) && !it.started).map(|it| it.description.name.as_str());
    let left: Vec<&str> = left.collect();
    let done = machine.is_initialized();
    let message = format!("containers with incomplete status: [{}]", left.join(" "));
    ("Initialized", done, (!done).then_some(("ContainersNotInitialized", message)))
}

fn unready(machine: &Machine) -> Option<String> {
    let counted = machine.containers.iter().filter(|it| it.description.role != Role::Init);
    let names = counted.filter(|it| !it.ready).map(|it| it.description.name.as_str());
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| format!("containers with unready status: [{}]", names.join(" ")))
}

fn containers_ready(machine: &Machine) -> Verdict {
    let why = unready(machine).map(|message| ("ContainersNotReady", message));
    ("ContainersReady", why.is_none(), why)
}

/// Ready when the containers are ready and all readiness gates are True.
fn ready(pod: &Pod, machine: &Machine) -> Verdict {
    if let Some(message) = unready(machine) {
        return ("Ready", false, Some(("ContainersNotReady", message)));
    }
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let known = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let known: Vec<&PodCondition> = known.collect();
    let holds = |gate: &str| known.iter().any(|it| it.type_ == gate && it.status == "True");
    let closed = gates.map(|gate| gate.condition_type.as_str()).find(|gate| !holds(gate));
    let why = closed.map(|gate| {
        ("ReadinessGatesNotReady", format!("corresponding condition of pod readiness gate {gate:?} does not exist or is not True."))
    });
    ("Ready", why.is_none(), why)
}

fn condition(
    pod: &Pod,
    (kind, value, why): Verdict,
    before: &[PodCondition],
    now: Timestamp,
) -> PodCondition {
    let status = if value { "True" } else { "False" };
    let same = before.iter().find(|it| it.type_ == kind && it.status == status);
    let since = same.and_then(|it| it.last_transition_time.clone());
    let (reason, message) = why.map_or((None, None), |(reason, message)| {
        (Some(reason.to_owned()), Some(message).filter(|text| !text.is_empty()))
    });
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        last_probe_time: None,
        observed_generation: pod.metadata.generation,
    }
}

#[cfg(test)]
mod tests;
