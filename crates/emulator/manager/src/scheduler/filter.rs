//! Which nodes fit a Pod, and why the others do not. Pure.

use k8s_openapi::api::core::v1::{ContainerPort, Pod, PodSpec};

use super::pod_constraints::PodConstraints;
use super::{FitError, NodeInfo, Snapshot};
use crate::affinity;
use crate::object::name;
use crate::quantity::{Amounts, add, amounts, requests};
use crate::taint;

/// Rejects Pods with fields that this scheduler does not support.
pub(super) fn check_supported(pod: &Pod) -> Result<(), FitError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let claim =
        spec.volumes.iter().flatten().position(|volume| {
            volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
        });
    if let Some(index) = claim {
        return Err(FitError::Unsupported(format!(
            "spec.volumes[{index}] claims a PersistentVolume, which this scheduler does not support: use \
             emptyDir or a ConfigMap, or set spec.nodeName"
        )));
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Err(FitError::Unsupported(
            "this scheduler does not support spec.resourceClaims: remove them, or set \
             spec.nodeName"
                .to_owned(),
        ));
    }
    Ok(())
}

/// The requirements of a Pod, computed once for all nodes.
pub(super) struct Requirements<'a> {
    pod: &'a Pod,
    spec: Option<&'a PodSpec>,
    requests: Amounts,
    ports: Vec<&'a ContainerPort>,
    peers: PodConstraints<'a>,
}

impl<'a> Requirements<'a> {
    pub(super) fn of(pod: &'a Pod, snapshot: &Snapshot<'a>) -> Self {
        Self {
            pod,
            spec: pod.spec.as_ref(),
            requests: requests(pod),
            ports: host_ports(pod),
            peers: PodConstraints::of(pod, snapshot),
        }
    }

    /// Why the Pod does not fit the node; empty if it fits. As in Kubernetes, only the first
    /// failing check counts, and only resources list all reasons.
    pub(super) fn refusals(&self, info: &NodeInfo<'_>) -> Vec<String> {
        let Some(spec) = self.spec else { return Vec::new() };
        let only = |text: &str| vec![text.to_owned()];
        let tolerations = taint::tolerations(self.pod);
        let cordon = taint::taint(taint::UNSCHEDULABLE, taint::NO_SCHEDULE);
        if taint::is_cordoned(info.node) && !taint::is_tolerated(&cordon, tolerations) {
            return only("node(s) were unschedulable");
        }
        if let Some(taint) = taint::first_untolerated(info.node, tolerations) {
            let value = taint.value.unwrap_or_default();
            return vec![format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)];
        }
        if !affinity::allows(spec, info.node) {
            return only("node(s) didn't match Pod's node affinity/selector");
        }
        if self.ports.iter().any(|port| is_taken(port, info)) {
            return only("node(s) didn't have free ports for the requested pod ports");
        }
        let lacking = self.lacking(info);
        if !lacking.is_empty() {
            return lacking;
        }
        self.peers.refusal(info).map(only).unwrap_or_default()
    }

    fn lacking(&self, info: &NodeInfo<'_>) -> Vec<String> {
        let status = info.node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let all = amounts(allocatable.or_else(|| status?.capacity.as_ref()));
        let mut used = Amounts::new();
        info.pods.iter().for_each(|pod| add(&mut used, &requests(pod)));
        let of = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or(0);
        let mut why = Vec::new();
        // A node without `pods` in its capacity takes any number.
        let pods = i128::try_from(info.pods.len() + 1).unwrap_or(i128::MAX / 1000) * 1000;
        if all.contains_key("pods") && pods > of(&all, "pods") {
            why.push("Too many pods".to_owned());
        }
        for (name, amount) in self.requests.iter().filter(|(_, amount)| **amount > 0) {
            if amount.saturating_add(of(&used, name)) > of(&all, name) {
                why.push(format!("Insufficient {name}"));
            }
        }
        why
    }
}

fn host_ports(pod: &Pod) -> Vec<&ContainerPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let steps = spec.init_containers.iter().flatten();
    let lasting = steps.filter(|step| step.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(lasting).flat_map(|c| c.ports.iter().flatten());
    ports.filter(|port| port.host_port.unwrap_or(0) > 0).collect()
}

fn is_taken(port: &ContainerPort, info: &NodeInfo<'_>) -> bool {
    let text = |field: &Option<String>, default: &'static str| {
        field.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    let clash = |other: &&ContainerPort| {
        let (ip, others) = (text(&port.host_ip, "0.0.0.0"), text(&other.host_ip, "0.0.0.0"));
        port.host_port == other.host_port
            && text(&port.protocol, "TCP") == text(&other.protocol, "TCP")
            && (ip == others || ip == "0.0.0.0" || others == "0.0.0.0")
    };
    info.pods.iter().any(|pod| host_ports(pod).iter().any(clash))
}

/// The value of a topology key on a node; for the host name the node's name if the label is
/// missing.
pub(super) fn domain<'a>(info: &NodeInfo<'a>, key: &str) -> Option<&'a str> {
    let label = info.node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let host = (key == "kubernetes.io/hostname").then(|| name(&info.node.metadata));
    label.map(String::as_str).or(host)
}
