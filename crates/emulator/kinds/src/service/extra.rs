//! Fields and values that Kubernetes removed, or never had: `spec.topologyKeys`
//! (KEP-536), `spec.trafficPolicy` (KEP-2433), `spec.routingPreference` (KEP-4444's first draft), and
//! domain-prefixed values of `spec.trafficDistribution` (KEP-4444).
//!
//! They are part of the schema even if their gate is off, like gated fields of Kubernetes: a
//! disabled gate drops the field from new objects and keeps it in stored ones.

use std::sync::{Arc, LazyLock};

use nearhop_core::intent::NO_PREFERENCE;
use nearhop_core::routing::{ANY, MAX_KEYS};
use nearhop_core::{Gate, Gates};
use nearhop_object::{FieldError, Schema, Shape, builtin};
use serde_json::Value;

use super::view::{View, spec_mut};
use crate::errors::{Errors, Report as _};
use crate::names;

/// A field of `core.v1.ServiceSpec` that stock Kubernetes does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtraField {
    /// Its JSON name.
    pub name: &'static str,
    /// Its feature gate.
    pub gate: Gate,
    /// Its line in the text form of types.
    pub line: &'static str,
}

/// All extra fields. The number of `topologyKeys` is that of Kubernetes 1.21.
pub(crate) const EXTRA_FIELDS: [ExtraField; 3] = [
    ExtraField {
        name: "topologyKeys",
        gate: Gate::ServiceTopology,
        line: "topologyKeys 16 []string omitempty list=atomic",
    },
    ExtraField {
        name: "trafficPolicy",
        gate: Gate::TopologyAwareHints,
        line: "trafficPolicy 0 string omitempty",
    },
    ExtraField {
        name: "routingPreference",
        gate: Gate::ServiceRoutingPreference,
        line: "routingPreference 0 string omitempty",
    },
];

/// All extra fields in the text form of types, for `Types::with_fields("core.v1.ServiceSpec", …)`.
pub(crate) fn extra_field_lines() -> String {
    EXTRA_FIELDS.map(|field| field.line).join("\n")
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let types = builtin::types().with_fields("core.v1.ServiceSpec", &extra_field_lines());
    let types = types.expect("the lines are part of the program and their test reads them");
    let root = types.find("core.v1.Service").expect("the table has Service");
    Schema::new(Arc::new(types), Shape::Struct(root))
});

/// The shape of a Service with the extra fields.
pub fn schema() -> Schema {
    SCHEMA.clone()
}

/// Drops fields whose gate is off, unless the stored object has them.
pub(super) fn drop_disabled(new: &mut Value, old: Option<&Value>, gates: &Gates) {
    for (name, _) in disabled(new, old, gates) {
        spec_mut(new).map(|spec| spec.remove(name));
    }
}

/// The fields that [`drop_disabled`] drops, with their gates.
pub(super) fn disabled(
    new: &Value,
    old: Option<&Value>,
    gates: &Gates,
) -> Vec<(&'static str, Gate)> {
    let distribution = ("trafficDistribution", Gate::ServiceTrafficDistribution);
    let fields = EXTRA_FIELDS.iter().map(|field| (field.name, field.gate)).chain([distribution]);
    let is_set = |object: &Value, name: &str| View::of(object).get(name).is_some();
    let dropped = fields.filter(|(name, gate)| {
        !gates.on(*gate) && is_set(new, name) && !old.is_some_and(|old| is_set(old, name))
    });
    dropped.collect()
}

pub(super) const OLD_MODE: &str = "service.kubernetes.io/topology-aware-hints";
pub(super) const MODE: &str = "service.kubernetes.io/topology-mode";
const KEYS: &str = "nearhop.dev/topology-keys";
const OWN: [&str; 4] =
    ["nearhop.dev/Balanced", "nearhop.dev/Nearest", "nearhop.dev/RequireZone", NO_PREFERENCE];

/// Checks `spec.trafficDistribution`.
pub(super) fn check_distribution(errors: &mut Errors, view: View<'_>, gates: &Gates) {
    let Some(value) = view.optional("trafficDistribution") else { return };
    let standard: &[&str] = if gates.on(Gate::PreferSameTrafficDistribution) {
        &["PreferClose", "PreferSameZone", "PreferSameNode"]
    } else {
        &["PreferClose"]
    };
    check_preference(errors, "spec.trafficDistribution", value, standard);
}

/// Validates the extra fields, and the combinations that the KEPs forbid.
pub(super) fn check_extra(errors: &mut Errors, view: View<'_>, gates: &Gates) {
    check_keys(errors, view);
    if let Some(value) = view.optional("trafficPolicy") {
        let known = ["Cluster", "Local", "PreferZone"];
        errors.supported("spec.trafficPolicy", value, &known);
    }
    if let Some(value) = view.optional("routingPreference") {
        check_preference(errors, "spec.routingPreference", value, &["Default", "Spread", "Zone"]);
    }
    check_conflicts(errors, view, gates);
}

/// A standard value, or `<domain>/<heuristic>`: values of other implementations are accepted,
/// nearhop's own must exist.
fn check_preference(errors: &mut Errors, field: &str, value: &str, standard: &[&str]) {
    if standard.contains(&value) || OWN.contains(&value) {
        return;
    }
    match value.split_once('/') {
        None => errors.not_supported(field, value, standard),
        Some(("nearhop.dev", _)) => {
            let known: Vec<&str> = standard.iter().chain(&OWN).copied().collect();
            errors.not_supported(field, value, &known);
        }
        Some(_) => {
            errors.invalid_each(field, value, names::qualified_name(value));
        }
    }
}

fn check_keys(errors: &mut Errors, view: View<'_>) {
    let keys = view.texts("topologyKeys");
    if keys.len() > MAX_KEYS {
        errors.push(FieldError::too_many("spec.topologyKeys", keys.len(), MAX_KEYS));
        return;
    }
    for (i, key) in keys.iter().enumerate() {
        let field = || format!("spec.topologyKeys[{i}]");
        if keys.iter().take(i).any(|earlier| earlier == key) {
            errors.duplicate(field(), key);
        }
        if *key == ANY {
            if i + 1 != keys.len() {
                errors.invalid(field(), key, r#""*" must be the last value specified"#);
            }
            continue;
        }
        errors.invalid_each(field(), key, names::qualified_name(key));
    }
}

/// KEP-536 ("Intersection with Local External Traffic Policy") and KEP-2433 ("Interoperability").
fn check_conflicts(errors: &mut Errors, view: View<'_>, gates: &Gates) {
    let keys = if !view.list("topologyKeys").is_empty() {
        "spec.topologyKeys"
    } else if view.annotation(KEYS).is_some_and(|keys| !keys.trim().is_empty()) {
        "metadata.annotations[nearhop.dev/topology-keys]"
    } else {
        return;
    };
    if !gates.on(Gate::ServiceTopology) {
        return;
    }
    if view.text("externalTrafficPolicy") == "Local" {
        errors.forbidden(keys, "may not be specified when `externalTrafficPolicy=Local`");
    }
    if !gates.on(Gate::TopologyAwareHints) {
        return;
    }
    // If both are set, the older one decides, even if it is empty.
    let mode = view.annotation(OLD_MODE).or_else(|| view.annotation(MODE));
    if matches!(mode, Some("Auto" | "auto")) {
        errors.forbidden(keys, &format!("may not be specified when annotation {MODE} is `Auto`"));
    }
    if view.text("trafficPolicy") == "PreferZone" {
        let detail = "may not be `PreferZone` when topology keys are specified";
        errors.forbidden("spec.trafficPolicy", detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(service: &Value, gates: &Gates) -> Vec<String> {
        let mut errors = Vec::new();
        check_distribution(&mut errors, View::of(service), gates);
        check_extra(&mut errors, View::of(service), gates);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn topology_keys_are_validated_by_kep_536() {
        let with = |keys: Value| check(&json!({"spec": {"topologyKeys": keys}}), &Gates::default());
        assert!(
            with(json!(["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"])).is_empty()
        );
        assert_eq!(
            with(json!(["*", "a", "a"])),
            [
                r#"spec.topologyKeys[0]: Invalid value: "*": "*" must be the last value specified"#,
                r#"spec.topologyKeys[2]: Duplicate value: "a""#,
            ]
        );
        let many: Vec<String> = (0..17).map(|i| format!("k{i}")).collect();
        assert_eq!(
            with(json!(many)),
            ["spec.topologyKeys: Too many: 17: must have at most 16 items"]
        );
        assert_eq!(with(json!(["not a key"])).len(), 1);
    }

    #[test]
    fn conflicting_fields_are_rejected() {
        let service = json!({
            "metadata": {"annotations": {MODE: "Auto"}},
            "spec": {
                "topologyKeys": ["*"],
                "externalTrafficPolicy": "Local",
                "trafficPolicy": "PreferZone",
            },
        });
        let wrong = check(&service, &Gates::default());
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert_eq!(
            wrong[0],
            "spec.topologyKeys: Forbidden: may not be specified when `externalTrafficPolicy=Local`"
        );
        let off = Gates::default().without(Gate::TopologyAwareHints);
        assert_eq!(check(&service, &off).len(), 1);
    }

    #[test]
    fn domain_prefixed_values_are_accepted() {
        let with = |value: &str| {
            check(&json!({"spec": {"trafficDistribution": value}}), &Gates::default())
        };
        for value in
            ["PreferClose", "nearhop.dev/Balanced", "nearhop.dev/None", "example.com/Fastest"]
        {
            assert!(with(value).is_empty(), "{value}");
        }
        assert_eq!(
            with("nearhop.dev/balanced"),
            [concat!(
                r#"spec.trafficDistribution: Unsupported value: "nearhop.dev/balanced": "#,
                r#"supported values: "PreferClose", "PreferSameZone", "PreferSameNode", "#,
                r#""nearhop.dev/Balanced", "nearhop.dev/Nearest", "nearhop.dev/RequireZone", "#,
                r#""nearhop.dev/None""#
            )]
        );
        assert_eq!(with("a b/c").len(), 1);
        let preference = json!({"spec": {"routingPreference": "Zoned"}});
        assert_eq!(check(&preference, &Gates::default()).len(), 1);
    }

    #[test]
    fn the_schema_contains_the_extra_fields() {
        let schema = schema();
        for field in EXTRA_FIELDS {
            let spec = schema.node().child("spec").unwrap();
            assert!(spec.child(field.name).is_some(), "{}", field.name);
            assert!(field.line.starts_with(field.name));
        }
    }

    #[test]
    fn disabled_feature_gates_drop_new_fields_and_keep_stored_ones() {
        let service =
            json!({"spec": {"topologyKeys": ["*"], "trafficDistribution": "PreferClose"}});
        let gates = Gates::default()
            .without(Gate::ServiceTopology)
            .without(Gate::ServiceTrafficDistribution);
        let mut new = service.clone();
        drop_disabled(&mut new, None, &gates);
        assert_eq!(new, json!({"spec": {}}));
        let mut new = service.clone();
        drop_disabled(&mut new, Some(&service), &gates);
        assert_eq!(new, service);
    }
}
