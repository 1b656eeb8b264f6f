//! What a Service asks for, as one value with its reason.
//!
//! Five documents gave a Service eight places to say it. [`decide_intent`] reads them from the
//! top; the first that applies wins, and what was passed over is kept with the reason.

use std::fmt;

use crate::gate::{Gate, Gates};
use crate::key::Name;
use crate::labels::well_known;
use crate::model::{Namespace, Service};
use crate::object::ObjectRef;
use crate::problem::{Problem, Subject, quote};
use crate::routing::split_keys;

/// What routing should do, whatever spelling asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing asked: all endpoints alike.
    Default,
    /// Zone hints in proportion to CPU, guarded against overload (KEP-2433).
    Auto,
    /// Ordered label keys (KEP-536).
    Keys(TopologyKeys),
    /// The same zone where it has an endpoint (KEP-4444, KEP-3015).
    SameZone,
    /// The same node, else the same zone, else any (KEP-3015).
    SameNode,
    /// As much as possible in the zone without overloading any endpoint.
    Balanced(MaxOverload),
    /// Evenly over all endpoints, asked for (KEP-4444's draft).
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

/// Ordered topology keys, checked.
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

/// Balanced's knob: how far above the mean an endpoint may be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxOverload {
    /// In thousandths of the mean (200 is 20 %).
    Permille(u32),
    /// Any: the same as SameZone.
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

/// Where an intent was spelled. The order is the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spelling {
    /// `service.kubernetes.io/topology-aware-hints`, the older name of the next.
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
    /// Nowhere.
    Nowhere,
}

impl Spelling {
    /// The field's path in its object.
    pub fn field(self) -> &'static str {
        match self {
            Self::TopologyAwareHintsAnnotation => {
                "metadata.annotations[service.kubernetes.io/topology-aware-hints]"
            }
            Self::TopologyModeAnnotation => {
                "metadata.annotations[service.kubernetes.io/topology-mode]"
            }
            Self::TrafficPolicyField => "spec.trafficPolicy",
            Self::TopologyKeysField => "spec.topologyKeys",
            Self::TopologyKeysAnnotation => "metadata.annotations[nearhop.dev/topology-keys]",
            Self::TrafficDistributionAnnotation | Self::NamespaceDefault => {
                "metadata.annotations[nearhop.dev/traffic-distribution]"
            }
            Self::TrafficDistributionField => "spec.trafficDistribution",
            Self::RoutingPreferenceField => "spec.routingPreference",
            Self::RoutingPreferenceAnnotation => {
                "metadata.annotations[nearhop.dev/routing-preference]"
            }
            Self::ClusterDefault => "--default-traffic-distribution",
            Self::Nowhere => "",
        }
    }

    fn gate(self) -> Option<Gate> {
        match self {
            Self::TopologyAwareHintsAnnotation
            | Self::TopologyModeAnnotation
            | Self::TrafficPolicyField => Some(Gate::TopologyAwareHints),
            Self::TopologyKeysField | Self::TopologyKeysAnnotation => Some(Gate::ServiceTopology),
            Self::RoutingPreferenceField | Self::RoutingPreferenceAnnotation => {
                Some(Gate::ServiceRoutingPreference)
            }
            Self::TrafficDistributionAnnotation
            | Self::TrafficDistributionField
            | Self::NamespaceDefault
            | Self::ClusterDefault => Some(Gate::ServiceTrafficDistribution),
            Self::Nowhere => None,
        }
    }
}

/// Why a spelling that was there did not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// Its gate is off.
    GateOff(Gate),
    /// One further up decided.
    Overruled(Spelling),
    /// Its value is not known or not valid, and counts as unset (KEP-3015).
    Refused,
}

/// Whether the Service's wish was accepted, for its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// As asked, or nothing was asked.
    Yes,
    /// Some value was not understood.
    UnknownValue(Spelling),
    /// Two things were asked that the documents forbid together.
    Conflict(Spelling, &'static str),
}

/// An intent with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentDecision {
    /// What routing should do.
    pub intent: Intent,
    /// Who said so.
    pub spelling: Spelling,
    /// The value as written (it appears in metric labels), empty if nothing was requested.
    pub value: Name,
    /// What else was said, in order of precedence, and why it did not decide.
    pub passed_over: Vec<(Spelling, PassedOver)>,
    /// For the Accepted condition.
    pub accepted: Accepted,
    /// What was not understood.
    pub problems: Vec<Problem>,
}

/// What intents are judged by besides the Service itself.
#[derive(Clone, Copy, Debug)]
pub struct IntentContext<'a> {
    /// Feature gates.
    pub gates: &'a Gates,
    /// The Service's namespace, if known.
    pub namespace: Option<&'a Namespace>,
    /// `--default-traffic-distribution`.
    pub cluster_default: Option<&'a Name>,
}

/// One value found in one place, and what it means there.
struct Said {
    spelling: Spelling,
    value: Name,
    meaning: Meaning,
}

enum Meaning {
    Intent(Intent),
    /// A known way of saying nothing (`Disabled`, `Default`, `Cluster`): read on.
    Nothing,
    /// Counts as unset, with what is wrong.
    Refused(String),
}

/// Decides what a Service asks for: the table of "What a Service can ask for", top to bottom.
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
    for said in everything_said(service, context, max_overload) {
        take(&mut decision, said, service, context.gates);
    }
    note_conflicts(&mut decision, service);
    decision
}

/// Takes in one spelling, in order of precedence.
fn take(decision: &mut IntentDecision, said: Said, service: &Service, gates: &Gates) {
    let Said { spelling, value, meaning } = said;
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

/// Every place where something is written, in order of precedence.
fn everything_said(
    service: &Service,
    context: IntentContext<'_>,
    max_overload: MaxOverload,
) -> Vec<Said> {
    let asks = &service.topology;
    let mut all = Vec::new();
    let mut say = |spelling, value: Option<&Name>, meaning: &dyn Fn(&Name) -> Meaning| {
        if let Some(value) = value {
            all.push(Said { spelling, value: value.clone(), meaning: meaning(value) });
        }
    };
    let distribution = |value: &Name| read_distribution(value, context.gates, max_overload);
    let preference = |value: &Name| read_preference(value, context.gates, max_overload);
    let older = asks.topology_aware_hints.as_ref();
    say(Spelling::TopologyAwareHintsAnnotation, older, &|value| read_mode(value));
    // Where both are there the older one decides, even when it says nothing.
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
        // KEP-2086's own values, which say nothing about zones.
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

/// The gate of nearhop's own values, wherever they stand.
const OWN_VALUES: Gate = Gate::ServiceTrafficDistribution;

/// nearhop's own values, allowed wherever a value can be domain-prefixed.
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

/// Whether a value of `trafficDistribution` means anything, with what is wrong if not.
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
/// ("Interoperability") forbid. The embedded API refuses them; elsewhere they are reported, the
/// upper row has won already, and Local keeps its own traffic.
fn note_conflicts(decision: &mut IntentDecision, service: &Service) {
    let overruled = |spelling| {
        decision.passed_over.iter().any(|(s, why)| {
            *s == spelling
                && matches!(why, PassedOver::Overruled(by) if *by <= Spelling::TrafficPolicyField)
        })
    };
    let keys = [Spelling::TopologyKeysField, Spelling::TopologyKeysAnnotation];
    let conflict = if let Some(spelling) = keys.into_iter().find(|spelling| overruled(*spelling)) {
        let cause = "topology keys and Auto exclude each other, and Auto decides";
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
