//! The topology that a Service requests, as one value with its reason.
//!
//! A Service can request topology in eight places, which five documents define. [`decide_intent`]
//! reads them in order of precedence. The first valid request wins; the decision lists the others,
//! each with the reason why it does not count.

use std::fmt;

use crate::gate::{Gate, Gates};
use crate::key::Name;
use crate::labels::well_known;
use crate::model::{Namespace, Service};
use crate::object::ObjectRef;
use crate::problem::{Problem, Subject, quote};
use crate::routing::split_keys;

/// The requested routing, independent of the field or annotation that requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing is requested: all endpoints are used equally.
    Default,
    /// Zone hints in proportion to CPU, with protection against overload (KEP-2433).
    Auto,
    /// Ordered label keys (KEP-536).
    Keys(TopologyKeys),
    /// The same zone if it has an endpoint (KEP-4444, KEP-3015).
    SameZone,
    /// The same node, else the same zone, else any endpoint (KEP-3015).
    SameNode,
    /// As much traffic as possible stays in the zone, without overload of any endpoint.
    Balanced(MaxOverload),
    /// Evenly over all endpoints, by explicit request (draft of KEP-4444).
    Spread,
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("Default"),
            Self::Auto => f.write_str("Auto"),
            Self::Keys(keys) => write!(f, "Keys [{keys}]"),
            Self::SameZone => f.write_str("SameZone"),
            Self::SameNode => f.write_str("SameNode"),
            Self::Balanced(max) => write!(f, "Balanced (max overload {max})"),
            Self::Spread => f.write_str("Spread"),
        }
    }
}

/// Ordered topology keys, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyKeys {
    /// Label keys in order of preference.
    pub keys: Vec<Name>,
    /// Whether a final `*` allows any endpoint.
    pub soft: bool,
}

impl TopologyKeys {
    fn nearest() -> Self {
        let keys = [well_known::HOSTNAME, well_known::ZONE, well_known::REGION];
        Self { keys: keys.map(Name::from).to_vec(), soft: true }
    }

    fn require_zone() -> Self {
        Self { keys: vec![Name::from(well_known::ZONE)], soft: false }
    }
}

impl fmt::Display for TopologyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = self.soft.then_some("*");
        let keys: Vec<&str> = self.keys.iter().map(Name::as_str).chain(any).collect();
        f.write_str(&keys.join(", "))
    }
}

/// The setting of Balanced: how far above the mean load an endpoint may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxOverload {
    /// In thousandths of the mean (200 is 20 %).
    Permille(u32),
    /// No limit: the same as SameZone.
    Unlimited,
}

impl Default for MaxOverload {
    fn default() -> Self {
        Self::Permille(200)
    }
}

impl MaxOverload {
    /// Reads `20%`, `12.5%`, `0%` or `inf`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("inf") {
            return Some(Self::Unlimited);
        }
        let (whole, fraction) = match text.strip_suffix('%')?.split_once('.') {
            Some((whole, fraction)) => (whole, fraction),
            None => (text.strip_suffix('%')?, "0"),
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 1 {
            return None;
        }
        let permille =
            whole.parse::<u32>().ok()?.checked_mul(10)? + fraction.parse::<u32>().ok()?;
        (permille <= 100_000).then_some(Self::Permille(permille))
    }
}

impl fmt::Display for MaxOverload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("inf"),
            Self::Permille(permille) if permille % 10 == 0 => write!(f, "{}%", permille / 10),
            Self::Permille(permille) => write!(f, "{}.{}%", permille / 10, permille % 10),
        }
    }
}

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

    fn gate(self) -> Option<Gate> {
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

/// Why a request that is present does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// Its feature gate is off.
    GateOff(Gate),
    /// A request with higher precedence decides.
    Overruled(Spelling),
    /// Its value is unknown or invalid, and counts as unset (KEP-3015).
    Refused,
}

/// Whether the request of the Service is accepted, for its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The request is accepted, or there is no request.
    Yes,
    /// A value is unknown or invalid.
    UnknownValue(Spelling),
    /// The Service requests two things that the KEPs do not allow together.
    Conflict(Spelling, &'static str),
}

/// An intent with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentDecision {
    /// The requested routing.
    pub intent: Intent,
    /// The field, annotation or flag that decides.
    pub spelling: Spelling,
    /// The value as written (it appears in metric labels); empty if nothing is requested.
    pub value: Name,
    /// The other requests, in order of precedence, and why they do not count.
    pub passed_over: Vec<(Spelling, PassedOver)>,
    /// The result for the Accepted condition.
    pub accepted: Accepted,
    /// Values that are unknown or invalid.
    pub problems: Vec<Problem>,
}

/// The input of [`decide_intent`] besides the Service itself.
#[derive(Clone, Copy, Debug)]
pub struct IntentContext<'a> {
    /// Feature gates.
    pub gates: &'a Gates,
    /// The Service's namespace, if known.
    pub namespace: Option<&'a Namespace>,
    /// `--default-traffic-distribution`.
    pub cluster_default: Option<&'a Name>,
}

/// One value found in one place, and its meaning there.
struct Request {
    spelling: Spelling,
    value: Name,
    meaning: Meaning,
}

enum Meaning {
    Intent(Intent),
    /// A known value that requests nothing (`Disabled`, `Default`, `Cluster`): the next place is
    /// read.
    Nothing,
    /// Counts as unset, with the reason.
    Refused(String),
}

/// Decides what a Service requests, by the table "What a Service can ask for", from top to bottom.
pub fn decide_intent(service: &Service, context: IntentContext<'_>) -> IntentDecision {
    let mut problems = Vec::new();
    let max_overload = read_max_overload(service, &mut problems);
    let mut decision = IntentDecision {
        intent: Intent::Default,
        spelling: Spelling::Nowhere,
        value: Name::from(""),
        passed_over: Vec::new(),
        accepted: Accepted::Yes,
        problems,
    };
    for request in requests(service, context, max_overload) {
        take(&mut decision, request, service, context.gates);
    }
    note_conflicts(&mut decision, service);
    decision
}

/// Adds one request to the decision, in order of precedence.
fn take(decision: &mut IntentDecision, request: Request, service: &Service, gates: &Gates) {
    let Request { spelling, value, meaning } = request;
    if let Some(gate) = spelling.gate().filter(|gate| !gates.on(*gate)) {
        decision.passed_over.push((spelling, PassedOver::GateOff(gate)));
        return;
    }
    match meaning {
        Meaning::Nothing => {}
        Meaning::Refused(cause) => {
            decision.passed_over.push((spelling, PassedOver::Refused));
            decision.problems.push(refused(spelling, service, cause));
            if decision.accepted == Accepted::Yes && spelling < Spelling::NamespaceDefault {
                decision.accepted = Accepted::UnknownValue(spelling);
            }
        }
        Meaning::Intent(intent) if decision.spelling == Spelling::Nowhere => {
            decision.intent = intent;
            decision.spelling = spelling;
            decision.value = value;
        }
        Meaning::Intent(_) => {
            decision.passed_over.push((spelling, PassedOver::Overruled(decision.spelling)));
        }
    }
}

/// All places that contain a value, in order of precedence.
fn requests(
    service: &Service,
    context: IntentContext<'_>,
    max_overload: MaxOverload,
) -> Vec<Request> {
    let asks = &service.topology;
    let mut all = Vec::new();
    let mut say = |spelling, value: Option<&Name>, meaning: &dyn Fn(&Name) -> Meaning| {
        if let Some(value) = value {
            all.push(Request { spelling, value: value.clone(), meaning: meaning(value) });
        }
    };
    let distribution = |value: &Name| read_distribution(value, context.gates, max_overload);
    let preference = |value: &Name| read_preference(value, context.gates, max_overload);
    let older = asks.topology_aware_hints.as_ref();
    say(Spelling::TopologyAwareHintsAnnotation, older, &|value| read_mode(value));
    // If both annotations are present, the older one decides, even if it requests nothing.
    let mode = asks.topology_mode.as_ref().filter(|_| older.is_none());
    say(Spelling::TopologyModeAnnotation, mode, &|value| read_mode(value));
    say(Spelling::TrafficPolicyField, asks.traffic_policy.as_ref(), &|value| read_policy(value));
    let field = (!asks.topology_keys.is_empty()).then(|| join(&asks.topology_keys));
    say(Spelling::TopologyKeysField, field.as_ref(), &|_| read_keys(&asks.topology_keys));
    let annotation = asks.topology_keys_annotation.as_ref();
    say(Spelling::TopologyKeysAnnotation, annotation, &|value| read_keys(&split(value)));
    let annotation = asks.traffic_distribution_annotation.as_ref();
    say(Spelling::TrafficDistributionAnnotation, annotation, &distribution);
    say(Spelling::TrafficDistributionField, asks.traffic_distribution.as_ref(), &distribution);
    say(Spelling::RoutingPreferenceField, asks.routing_preference.as_ref(), &preference);
    let annotation = asks.routing_preference_annotation.as_ref();
    say(Spelling::RoutingPreferenceAnnotation, annotation, &preference);
    let namespace = context.namespace.and_then(|ns| ns.traffic_distribution.as_ref());
    say(Spelling::NamespaceDefault, namespace, &distribution);
    say(Spelling::ClusterDefault, context.cluster_default, &distribution);
    all
}

fn join(keys: &[Name]) -> Name {
    Name::from(keys.iter().map(Name::as_str).collect::<Vec<_>>().join(","))
}

fn split(value: &str) -> Vec<Name> {
    value.split(',').map(|key| Name::from(key.trim())).collect()
}

fn read_mode(value: &str) -> Meaning {
    match value {
        "Auto" | "auto" => Meaning::Intent(Intent::Auto),
        "Disabled" | "disabled" | "" => Meaning::Nothing,
        _ => Meaning::Refused(format!("{} is not Auto or Disabled", quote(value))),
    }
}

fn read_policy(value: &str) -> Meaning {
    match value {
        "PreferZone" => Meaning::Intent(Intent::Auto),
        // The values of KEP-2086, which do not concern zones.
        "Cluster" | "Local" | "" => Meaning::Nothing,
        _ => Meaning::Refused(format!("{} is not Cluster, Local or PreferZone", quote(value))),
    }
}

fn read_keys(keys: &[Name]) -> Meaning {
    match split_keys(keys) {
        Ok((keys, soft)) => Meaning::Intent(Intent::Keys(TopologyKeys { keys, soft })),
        Err(cause) => Meaning::Refused(cause),
    }
}

/// The feature gate of nearhop's own values, in all places.
const OWN_VALUES: Gate = Gate::ServiceTrafficDistribution;

/// nearhop's own values, allowed in every place that allows a domain prefix.
fn read_own_value(value: &str, max_overload: MaxOverload) -> Option<Intent> {
    match value {
        "nearhop.dev/Balanced" => Some(Intent::Balanced(max_overload)),
        "nearhop.dev/Nearest" => Some(Intent::Keys(TopologyKeys::nearest())),
        "nearhop.dev/RequireZone" => Some(Intent::Keys(TopologyKeys::require_zone())),
        _ => None,
    }
}

fn read_distribution(value: &str, gates: &Gates, max_overload: MaxOverload) -> Meaning {
    let same = gates.on(Gate::PreferSameTrafficDistribution);
    match value {
        "PreferClose" => Meaning::Intent(Intent::SameZone),
        "PreferSameZone" if same => Meaning::Intent(Intent::SameZone),
        "PreferSameNode" if same => Meaning::Intent(Intent::SameNode),
        "PreferSameZone" | "PreferSameNode" => {
            let gate = Gate::PreferSameTrafficDistribution;
            Meaning::Refused(format!("{} needs the feature gate {gate}", quote(value)))
        }
        "" => Meaning::Nothing,
        _ => read_own_value(value, max_overload).map_or_else(
            || {
                Meaning::Refused(format!(
                    "{} is not PreferSameZone, PreferSameNode, PreferClose or nearhop.dev/Balanced, \
                     nearhop.dev/Nearest, nearhop.dev/RequireZone",
                    quote(value)
                ))
            },
            Meaning::Intent,
        ),
    }
}

/// Whether a value of `trafficDistribution` is valid; the error says what is wrong.
pub fn check_distribution(value: &str, gates: &Gates) -> Result<(), String> {
    match read_distribution(value, gates, MaxOverload::default()) {
        Meaning::Refused(why) => Err(why),
        Meaning::Intent(_) | Meaning::Nothing => Ok(()),
    }
}

fn read_preference(value: &str, gates: &Gates, max_overload: MaxOverload) -> Meaning {
    match value {
        "Default" | "" => Meaning::Nothing,
        "Spread" => Meaning::Intent(Intent::Spread),
        "Zone" => Meaning::Intent(Intent::SameZone),
        _ => match read_own_value(value, max_overload) {
            Some(intent) if gates.on(OWN_VALUES) => Meaning::Intent(intent),
            Some(_) => {
                Meaning::Refused(format!("{} needs the feature gate {OWN_VALUES}", quote(value)))
            }
            None => Meaning::Refused(format!(
                "{} is not Default, Spread, Zone or nearhop.dev/Balanced, nearhop.dev/Nearest, \
                 nearhop.dev/RequireZone",
                quote(value)
            )),
        },
    }
}

fn read_max_overload(service: &Service, problems: &mut Vec<Problem>) -> MaxOverload {
    let Some(text) = &service.topology.max_overload else { return MaxOverload::default() };
    MaxOverload::parse(text).unwrap_or_else(|| {
        problems.push(Problem::new(
            ObjectRef::Service(service.key.clone()),
            "metadata.annotations[nearhop.dev/max-overload]",
            format!("{} is not a percentage", quote(text)),
            "write it as 20%, 12.5% or inf; 20% is used until then",
        ));
        MaxOverload::default()
    })
}

fn refused(spelling: Spelling, service: &Service, cause: String) -> Problem {
    let subject = match spelling {
        Spelling::NamespaceDefault => ObjectRef::Namespace(service.key.namespace.clone()).into(),
        Spelling::ClusterDefault => Subject::Setting(Name::from(spelling.field())),
        _ => ObjectRef::Service(service.key.clone()).into(),
    };
    Problem::new(subject, spelling.field(), cause, "correct or remove it; it counts as unset")
}

/// Combinations that KEP-536 ("Intersection with Local External Traffic Policy") and KEP-2433
/// ("Interoperability") forbid. The embedded API rejects them. On other API servers nearhop reports
/// them: the request with higher precedence decides, and the Local policy still applies to its own
/// traffic.
fn note_conflicts(decision: &mut IntentDecision, service: &Service) {
    let overruled = |spelling| {
        decision.passed_over.iter().any(|(s, why)| {
            *s == spelling
                && matches!(why, PassedOver::Overruled(by) if *by <= Spelling::TrafficPolicyField)
        })
    };
    let keys = [Spelling::TopologyKeysField, Spelling::TopologyKeysAnnotation];
    let conflict = if let Some(spelling) = keys.into_iter().find(|spelling| overruled(*spelling)) {
        let cause = "topology keys and Auto exclude each other; Auto applies";
        Some((spelling, cause, "remove one of the two"))
    } else if keys.contains(&decision.spelling) && service.external_policy_local() {
        let cause = "topology keys and externalTrafficPolicy: Local exclude each other";
        let cure = "remove one of the two; until then external traffic follows Local, internal \
                    traffic the keys";
        Some((decision.spelling, cause, cure))
    } else {
        None
    };
    if let Some((spelling, cause, cure)) = conflict {
        decision.accepted = Accepted::Conflict(spelling, cause);
        let object = ObjectRef::Service(service.key.clone());
        decision.problems.push(Problem::new(object, spelling.field(), cause, cure));
    }
}
