//! Requests of a Service, or defaults of a Namespace, that the API server stores and nearhop will
//! not follow, or that it does not store at all: warnings at the time of the write, in the words of
//! the condition Accepted.

use nearhop_core::intent::{IntentContext, check_distribution, decide_intent};
use nearhop_core::model::{Service, TopologySpec};
use nearhop_core::{Gate, Gates, Name, ServiceKey};
use serde_json::Value;

use super::extra::{MODE, OLD_MODE, disabled};
use super::view::View;
use crate::json::text;

/// Warnings about a Service as the client sent it, before fields with a disabled gate are dropped.
pub fn warn_ignored(new: &Value, old: Option<&Value>, gates: &Gates) -> Vec<String> {
    let dropped = disabled(new, old, gates);
    let say = |(field, gate): &(&str, Gate)| {
        let value = View::of(new).shown(field);
        format!("spec.{field}: {value} is not stored, because the feature gate {gate} is off")
    };
    let mut warnings: Vec<String> = dropped.iter().map(say).collect();
    let metadata = |field| Name::from(text(new, &["metadata", field]));
    let mut service = Service::new(ServiceKey::new(metadata("namespace"), metadata("name")));
    let is_stored = |field: &str| dropped.iter().all(|(dropped, _)| *dropped != field);
    service.topology = read_topology(View::of(new), is_stored);
    // The default of the Namespace may change; its own write causes a warning.
    let context = IntentContext { gates, namespace: None, cluster_default: None };
    warnings.extend(decide_intent(&service, context).ignored(&service.key));
    warnings
}

fn read_topology(view: View<'_>, is_stored: impl Fn(&str) -> bool) -> TopologySpec {
    let field =
        |name: &'static str| view.optional(name).filter(|_| is_stored(name)).map(Name::from);
    let keys = if is_stored("topologyKeys") { view.texts("topologyKeys") } else { Vec::new() };
    let annotation = |key| view.annotation(key).map(Name::from);
    TopologySpec {
        topology_mode: annotation(MODE),
        topology_aware_hints: annotation(OLD_MODE),
        traffic_policy: field("trafficPolicy"),
        topology_keys: keys.into_iter().map(Name::from).collect(),
        topology_keys_annotation: annotation("nearhop.dev/topology-keys"),
        traffic_distribution_annotation: annotation(DISTRIBUTION),
        traffic_distribution: field("trafficDistribution"),
        routing_preference: field("routingPreference"),
        routing_preference_annotation: annotation("nearhop.dev/routing-preference"),
        max_overload: annotation("nearhop.dev/max-overload"),
    }
}

const DISTRIBUTION: &str = "nearhop.dev/traffic-distribution";

/// Warnings about the default of a Namespace.
pub fn warn_namespace_default(namespace: &Value, gates: &Gates) -> Vec<String> {
    let value = text(namespace, &["metadata", "annotations", DISTRIBUTION]);
    let gate = Gate::ServiceTrafficDistribution;
    let wrong = match check_distribution(value, gates) {
        _ if value.is_empty() => None,
        Ok(()) if !gates.on(gate) => Some(format!("the feature gate {gate} is off")),
        checked => checked.err(),
    };
    let warning = wrong.map(|cause| {
        format!(
            "metadata.annotations[{DISTRIBUTION}]: {cause}; Services of the Namespace ignore it"
        )
    });
    warning.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn warned(annotations: Value, spec: Value) -> Vec<String> {
        let service = json!({
            "metadata": {"namespace": "shop", "name": "web", "annotations": annotations},
            "spec": spec,
        });
        warn_ignored(&service, None, &Gates::default())
    }

    #[test]
    fn a_dropped_field_names_its_gate() {
        assert_eq!(
            warned(json!({}), json!({"routingPreference": "Zone"})),
            [concat!(
                r#"spec.routingPreference: "Zone" is not stored, "#,
                "because the feature gate ServiceRoutingPreference is off"
            )]
        );
        let old = json!({"spec": {"routingPreference": "Zone"}});
        let kept = warn_ignored(&old, Some(&old), &Gates::default());
        assert!(kept[0].contains("is ignored, because the feature gate"), "{kept:?}");
        let on = Gates::default().with(Gate::ServiceRoutingPreference);
        assert!(warn_ignored(&old, None, &on).is_empty());
    }

    #[test]
    fn ignored_requests_have_the_words_of_the_condition() {
        let annotation = json!({DISTRIBUTION: "PreferSameNode"});
        assert_eq!(
            warned(annotation, json!({"trafficDistribution": "PreferSameZone"})),
            [concat!(
                r#"spec.trafficDistribution: "PreferSameZone" is ignored, because "#,
                "metadata.annotations[nearhop.dev/traffic-distribution] takes precedence"
            )]
        );
        let local = warned(json!({}), json!({"trafficPolicy": "Local"}));
        assert!(local[0].starts_with(r#"spec.trafficPolicy: "Local" has no effect"#), "{local:?}");
        let foreign = warned(json!({}), json!({"trafficDistribution": "example.com/Fast"}));
        assert!(foreign[0].contains("\"example.com/Fast\" is none of"), "{foreign:?}");
        for fine in ["PreferSameZone", "nearhop.dev/None", "nearhop.dev/Balanced"] {
            assert!(warned(json!({}), json!({"trafficDistribution": fine})).is_empty(), "{fine}");
        }
    }

    #[test]
    fn an_invalid_default_of_a_namespace_is_named() {
        let namespace = |value: &str| json!({"metadata": {"annotations": {DISTRIBUTION: value}}});
        let warned = warn_namespace_default(&namespace("Bogus"), &Gates::default());
        assert!(warned[0].starts_with("metadata.annotations[nearhop.dev/traffic-distribution]: "));
        assert!(warned[0].ends_with("Services of the Namespace ignore it"), "{warned:?}");
        assert!(warn_namespace_default(&namespace("PreferSameZone"), &Gates::default()).is_empty());
        assert!(warn_namespace_default(&json!({}), &Gates::default()).is_empty());
        let off = Gates::default().without(Gate::ServiceTrafficDistribution);
        let warned = warn_namespace_default(&namespace("PreferClose"), &off);
        assert!(warned[0].contains("feature gate ServiceTrafficDistribution is off"), "{warned:?}");
    }
}
