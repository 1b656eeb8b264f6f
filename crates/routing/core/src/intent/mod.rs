//! The topology that a Service requests, as one value with its reason.
//!
//! A Service can request topology in eight places, which five documents define. [`decide_intent`]
//! reads them in order of precedence. The first valid request wins; the decision lists the others,
//! each with the reason why it does not count.
//!
//! ```text
//!   spelling  the fields, annotations and flags
//!   value     what a value means in its place
//!   ignored   the requests that do not count, as sentences for conditions and API warnings
//! ```

mod ignored;
mod spelling;
mod value;

use std::fmt;

use crate::gate::{Gate, Gates};
use crate::key::Name;
use crate::labels::well_known;
use crate::model::{Namespace, Service};
use crate::object::ObjectRef;
use crate::problem::{Problem, Subject, quote};
pub use spelling::Spelling;
pub use value::{MaxOverload, NO_PREFERENCE, check_distribution};
use value::{Meaning, read_distribution, read_keys, read_mode, read_policy, read_preference};

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

/// A request that is present and does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// The field, annotation or flag.
    pub spelling: Spelling,
    /// The value as written.
    pub value: Name,
    /// Why it does not count.
    pub why: PassedOver,
}

/// Why a request that is present does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// Its feature gate is off.
    GateOff(Gate),
    /// A request with higher precedence decides.
    Overruled(Spelling),
    /// A request with higher precedence decides and means the same.
    Repeated(Spelling),
    /// Its value is unknown or invalid, and counts as unset (KEP-3015). The problems have the cause.
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
    pub passed_over: Vec<Ignored>,
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
    let decided = decision.spelling != Spelling::Nowhere;
    let why = match meaning {
        Meaning::Nothing => return,
        // A default concerns only Services without a request of their own, also if it is invalid.
        _ if decided && spelling.is_default() => PassedOver::Overruled(decision.spelling),
        _ if let Some(gate) = spelling.gate().filter(|gate| !gates.on(*gate)) => {
            PassedOver::GateOff(gate)
        }
        Meaning::Refused(cause) => {
            decision.problems.push(refused(spelling, service, cause));
            if decision.accepted == Accepted::Yes && spelling != Spelling::ClusterDefault {
                decision.accepted = Accepted::UnknownValue(spelling);
            }
            PassedOver::Refused
        }
        Meaning::Intent(intent) if !decided => {
            decision.intent = intent;
            decision.spelling = spelling;
            decision.value = value;
            return;
        }
        Meaning::Intent(intent) if intent == decision.intent => {
            PassedOver::Repeated(decision.spelling)
        }
        Meaning::Intent(_) => PassedOver::Overruled(decision.spelling),
    };
    decision.passed_over.push(Ignored { spelling, value, why });
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

fn read_max_overload(service: &Service, problems: &mut Vec<Problem>) -> MaxOverload {
    let Some(text) = &service.topology.max_overload else { return MaxOverload::default() };
    MaxOverload::parse(text).unwrap_or_else(|| {
        problems.push(Problem::new(
            ObjectRef::Service(service.key.clone()),
            ignored::MAX_OVERLOAD,
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
        decision.passed_over.iter().any(|ignored| {
            ignored.spelling == spelling
                && matches!(ignored.why, PassedOver::Overruled(by) if by <= Spelling::TrafficPolicyField)
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
