//! The policies of the demo and their descriptions.

use serde::Serialize;
use serde_json::{Value, json};

use super::judge::Measured;

/// A policy, or a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scenario {
    /// No policy.
    NothingSet,
    /// KEP-3015.
    PreferSameZone,
    /// KEP-3015.
    PreferSameNode,
    /// KEP-2433.
    TopologyModeAuto,
    /// KEP-536, with a label of the cluster's own.
    TopologyKeys,
    /// nearhop's own policy.
    Balanced,
    /// PreferSameZone, after the first zone's only Pod is deleted.
    LastEndpointLost,
}

impl Scenario {
    /// In order; the last one deletes a Pod.
    pub const ALL: [Self; 7] = [
        Self::NothingSet,
        Self::PreferSameZone,
        Self::PreferSameNode,
        Self::TopologyModeAuto,
        Self::TopologyKeys,
        Self::Balanced,
        Self::LastEndpointLost,
    ];

    /// What is set, as in a manifest.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NothingSet => "nothing set",
            Self::PreferSameZone => "trafficDistribution: PreferSameZone",
            Self::PreferSameNode => "trafficDistribution: PreferSameNode",
            Self::TopologyModeAuto => "service.kubernetes.io/topology-mode: Auto",
            Self::TopologyKeys => "topologyKeys: [rack, \"*\"]",
            Self::Balanced => "trafficDistribution: nearhop.dev/Balanced",
            Self::LastEndpointLost => "PreferSameZone, and zone-a loses its last endpoint",
        }
    }

    /// The merge patch that sets this and nothing else.
    pub(super) fn patch(self) -> Value {
        let distribution = match self {
            Self::PreferSameZone | Self::LastEndpointLost => json!("PreferSameZone"),
            Self::PreferSameNode => json!("PreferSameNode"),
            Self::Balanced => json!("nearhop.dev/Balanced"),
            Self::NothingSet | Self::TopologyModeAuto | Self::TopologyKeys => Value::Null,
        };
        let keys = match self {
            Self::TopologyKeys => json!(["rack", "*"]),
            _ => Value::Null,
        };
        let mode = match self {
            Self::TopologyModeAuto => json!("Auto"),
            _ => Value::Null,
        };
        json!({
            "metadata": {"annotations": {"service.kubernetes.io/topology-mode": mode}},
            "spec": {"trafficDistribution": distribution, "topologyKeys": keys},
        })
    }

    /// Describes the result.
    pub(crate) fn words(self, measured: &Measured) -> String {
        let crossed = format!("{:.0}%", measured.crossed * 100.0);
        let worst = format!("{:.2} times the mean", measured.worst);
        match self {
            Self::NothingSet => {
                format!(
                    "Every client uses every pod: {crossed} of the connections leave their zone."
                )
            }
            Self::PreferSameZone => format!(
                "No connection leaves its zone, and zone-a's only pod takes the load of half the CPU: {worst}."
            ),
            Self::PreferSameNode => format!(
                "The own node if it has a pod, else the own zone; the busiest pod has {worst}."
            ),
            Self::TopologyModeAuto => format!(
                "Pods are shared out by the zones' CPU: {crossed} cross, and no pod has more than {worst}."
            ),
            Self::TopologyKeys => format!(
                "The own rack if it has a pod, else anywhere, whatever the zone: {crossed} cross."
            ),
            Self::Balanced => format!(
                "As near as it goes without overload: {crossed} cross, and no pod has more than {worst}."
            ),
            Self::LastEndpointLost => format!(
                "zone-a's clients go to the other zones, and none is refused: {} failed.",
                measured.failed
            ),
        }
    }
}
