//! Feature gates: which topology requests are enabled.

use std::collections::BTreeSet;
use std::fmt;

/// A feature gate, by its Kubernetes name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// `service.kubernetes.io/topology-mode` and `spec.trafficPolicy` (KEP-2433).
    TopologyAwareHints,
    /// `spec.topologyKeys` (KEP-536).
    ServiceTopology,
    /// `spec.trafficDistribution` (KEP-4444).
    ServiceTrafficDistribution,
    /// `PreferSameZone` and `PreferSameNode` (KEP-3015).
    PreferSameTrafficDistribution,
    /// `spec.routingPreference` (first draft of KEP-4444).
    ServiceRoutingPreference,
    /// PodLocators (KEP-536).
    PodLocator,
    /// `spec.externalIPs` (KEP-5707): if the gate is off, they are ignored.
    AllowServiceExternalIPs,
}

impl Gate {
    /// All gates.
    pub const ALL: [Self; 7] = [
        Self::TopologyAwareHints,
        Self::ServiceTopology,
        Self::ServiceTrafficDistribution,
        Self::PreferSameTrafficDistribution,
        Self::ServiceRoutingPreference,
        Self::PodLocator,
        Self::AllowServiceExternalIPs,
    ];

    /// The gate's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TopologyAwareHints => "TopologyAwareHints",
            Self::ServiceTopology => "ServiceTopology",
            Self::ServiceTrafficDistribution => "ServiceTrafficDistribution",
            Self::PreferSameTrafficDistribution => "PreferSameTrafficDistribution",
            Self::ServiceRoutingPreference => "ServiceRoutingPreference",
            Self::PodLocator => "PodLocator",
            Self::AllowServiceExternalIPs => "AllowServiceExternalIPs",
        }
    }

    /// Whether it is on by default: all gates except the draft that was never accepted, and
    /// PodLocators, which need a CustomResourceDefinition in the cluster first.
    fn default_on(self) -> bool {
        !matches!(self, Self::ServiceRoutingPreference | Self::PodLocator)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The gates that are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates(BTreeSet<Gate>);

impl Default for Gates {
    fn default() -> Self {
        Self(Gate::ALL.into_iter().filter(|gate| gate.default_on()).collect())
    }
}

/// Why a `--feature-gates` value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// Not of the form `Name=true`.
    #[error("feature gate {0:?} is not of the form Name=true or Name=false")]
    Form(String),
    /// The gate does not exist.
    #[error("there is no feature gate {0:?}; known gates: {known}", known = known())]
    Unknown(String),
}

fn known() -> String {
    Gate::ALL.map(Gate::as_str).join(", ")
}

impl Gates {
    /// Whether a gate is on.
    pub fn on(&self, gate: Gate) -> bool {
        self.0.contains(&gate)
    }

    /// The same gates with one switched on.
    #[must_use]
    pub fn with(mut self, gate: Gate) -> Self {
        self.0.insert(gate);
        self
    }

    /// The same gates with one switched off.
    #[must_use]
    pub fn without(mut self, gate: Gate) -> Self {
        self.0.remove(&gate);
        self
    }

    /// Parses `Name=true,Other=false` and applies it to the defaults. Later entries win.
    pub fn parse(text: &str) -> Result<Self, GateError> {
        let mut gates = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, value) =
                entry.split_once('=').ok_or_else(|| GateError::Form(entry.to_owned()))?;
            let gate = Gate::ALL
                .into_iter()
                .find(|gate| gate.as_str() == name.trim())
                .ok_or_else(|| GateError::Unknown(name.trim().to_owned()))?;
            gates = match value.trim() {
                "true" => gates.with(gate),
                "false" => gates.without(gate),
                _ => return Err(GateError::Form(entry.to_owned())),
            };
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_gates_override_the_defaults() {
        let gates = Gates::parse("ServiceRoutingPreference=true, ServiceTopology=false").unwrap();
        assert!(gates.on(Gate::ServiceRoutingPreference));
        assert!(!gates.on(Gate::ServiceTopology));
        assert!(gates.on(Gate::TopologyAwareHints));
        assert_eq!(Gates::parse("").unwrap(), Gates::default());
    }

    #[test]
    fn errors_contain_the_invalid_part() {
        assert_eq!(Gates::parse("Nope=true"), Err(GateError::Unknown("Nope".into())));
        assert_eq!(
            Gates::parse("ServiceTopology=yes"),
            Err(GateError::Form("ServiceTopology=yes".into()))
        );
        assert_eq!(Gates::parse("ServiceTopology"), Err(GateError::Form("ServiceTopology".into())));
    }
}
