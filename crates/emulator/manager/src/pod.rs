//! The state of a Pod: active, ready, available. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::object;

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether it counts as a replica.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !object::is_deleting(&pod.metadata)
}

/// The node of the Pod; empty if it is not bound.
pub(crate) fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether a Pod has been ready for `minReadySeconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    NotReady,
    /// Ready, and available after this long.
    In(Duration),
    Available,
}

pub(crate) fn availability(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Availability {
    if !is_ready(pod) {
        return Availability::NotReady;
    }
    let wanted = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    if wanted.is_zero() {
        return Availability::Available;
    }
    let Some(since) = ready_since(pod) else { return Availability::In(wanted) };
    let lasted = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match wanted.checked_sub(lasted) {
        None | Some(Duration::ZERO) => Availability::Available,
        Some(rest) => Availability::In(rest),
    }
}

pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    availability(pod, min_ready_seconds, now) == Availability::Available
}

/// A Pod from a template, with a generated name.
pub(crate) fn from_template(
    template: &PodTemplateSpec,
    owner: &ObjectMeta,
    reference: OwnerReference,
) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", object::name(owner))),
            namespace: owner.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![reference]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, at};

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let mut pod = testing::pod("a", "n1");
        assert_eq!(availability(&pod, 0, at(100)), Availability::NotReady);
        testing::set_ready(&mut pod, true, at(100));
        for (wanted, now, expected) in [
            (0, 100, Availability::Available),
            (10, 100, Availability::In(Duration::from_secs(10))),
            (10, 107, Availability::In(Duration::from_secs(3))),
            (10, 110, Availability::Available),
            (10, 90, Availability::In(Duration::from_secs(10))),
        ] {
            assert_eq!(availability(&pod, wanted, at(now)), expected, "{wanted} at {now}");
        }
        testing::set_ready(&mut pod, false, at(120));
        assert_eq!(availability(&pod, 10, at(500)), Availability::NotReady);
    }

    #[test]
    fn finished_and_terminating_pods_are_not_active() {
        let mut pod = testing::pod("a", "n1");
        assert!(is_active(&pod));
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        assert!(!is_active(&pod));
        let mut pod = testing::pod("a", "n1");
        pod.metadata.deletion_timestamp = Some(object::time(at(1)));
        assert!(!is_active(&pod));
    }
}
