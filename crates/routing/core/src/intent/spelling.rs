//! The fields, annotations and flags that request an intent.

use crate::gate::Gate;

/// The field, annotation or flag that requests an intent, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spelling {
    /// `service.kubernetes.io/topology-aware-hints`, the older name of `topology-mode`.
    TopologyAwareHintsAnnotation,
    /// `service.kubernetes.io/topology-mode`.
    TopologyModeAnnotation,
    /// `spec.trafficPolicy`.
    TrafficPolicyField,
    /// `spec.topologyKeys`.
    TopologyKeysField,
    /// `nearhop.dev/topology-keys`.
    TopologyKeysAnnotation,
    /// `nearhop.dev/traffic-distribution`.
    TrafficDistributionAnnotation,
    /// `spec.trafficDistribution`.
    TrafficDistributionField,
    /// `spec.routingPreference`.
    RoutingPreferenceField,
    /// `nearhop.dev/routing-preference`.
    RoutingPreferenceAnnotation,
    /// `nearhop.dev/traffic-distribution` on the Namespace.
    NamespaceDefault,
    /// `--default-traffic-distribution`.
    ClusterDefault,
    /// Nothing is requested.
    Nowhere,
}

impl Spelling {
    /// The field's path in its object.
    pub fn field(self) -> &'static str {
        self.place().0
    }

    /// Whether it is a default, and not a request of the Service itself.
    pub fn is_default(self) -> bool {
        matches!(self, Self::NamespaceDefault | Self::ClusterDefault)
    }

    /// The place of the request as a user finds it, for a Service in this namespace.
    pub fn origin(self, namespace: &str) -> String {
        match self {
            Self::NamespaceDefault => {
                format!("Namespace {namespace}'s annotation nearhop.dev/traffic-distribution")
            }
            Self::ClusterDefault => format!("the controller's flag {}", self.field()),
            own => own.field().to_owned(),
        }
    }

    pub(super) fn gate(self) -> Option<Gate> {
        self.place().1
    }

    fn place(self) -> (&'static str, Option<Gate>) {
        const AUTO: Option<Gate> = Some(Gate::TopologyAwareHints);
        const KEYS: Option<Gate> = Some(Gate::ServiceTopology);
        const DISTRIBUTION: Option<Gate> = Some(Gate::ServiceTrafficDistribution);
        const PREFERENCE: Option<Gate> = Some(Gate::ServiceRoutingPreference);
        match self {
            Self::TopologyAwareHintsAnnotation => {
                ("metadata.annotations[service.kubernetes.io/topology-aware-hints]", AUTO)
            }
            Self::TopologyModeAnnotation => {
                ("metadata.annotations[service.kubernetes.io/topology-mode]", AUTO)
            }
            Self::TrafficPolicyField => ("spec.trafficPolicy", AUTO),
            Self::TopologyKeysField => ("spec.topologyKeys", KEYS),
            Self::TopologyKeysAnnotation => {
                ("metadata.annotations[nearhop.dev/topology-keys]", KEYS)
            }
            Self::TrafficDistributionAnnotation | Self::NamespaceDefault => {
                ("metadata.annotations[nearhop.dev/traffic-distribution]", DISTRIBUTION)
            }
            Self::TrafficDistributionField => ("spec.trafficDistribution", DISTRIBUTION),
            Self::RoutingPreferenceField => ("spec.routingPreference", PREFERENCE),
            Self::RoutingPreferenceAnnotation => {
                ("metadata.annotations[nearhop.dev/routing-preference]", PREFERENCE)
            }
            Self::ClusterDefault => ("--default-traffic-distribution", DISTRIBUTION),
            Self::Nowhere => ("", None),
        }
    }
}
