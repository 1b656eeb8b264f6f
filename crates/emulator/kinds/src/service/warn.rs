//! Warnings about Services.

use serde_json::Value;

use super::check::ingress;
use super::view::{NONE, View};
use crate::ip::{warn_cidr, warn_ip};
use crate::json::text;

/// Warnings about a Service. Kubernetes warns at every write, even without a change.
pub fn warnings(service: &Value) -> Vec<String> {
    let view = View::of(service);
    let mut all = Vec::new();
    if view.annotation("service.kubernetes.io/topology-aware-hints").is_some() {
        all.push(
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use \
             service.kubernetes.io/topology-mode instead"
                .to_owned(),
        );
    }
    if !matches!(view.text("clusterIP"), "" | NONE) {
        warn_list(&mut all, view, "clusterIPs");
    }
    warn_headless(&mut all, view);
    warn_external_ips(&mut all, view);
    let balancer = view.text("loadBalancerIP");
    if !balancer.is_empty() {
        all.extend(warn_ip("spec.loadBalancerIP", balancer));
    }
    for (i, cidr) in view.texts("loadBalancerSourceRanges").iter().enumerate() {
        all.extend(warn_cidr(&format!("spec.loadBalancerSourceRanges[{i}]"), cidr));
    }
    warn_by_type(&mut all, view);
    if view.text("trafficDistribution") == "PreferClose" {
        let text = r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#;
        all.push(text.to_owned());
    }
    all
}

/// Warnings about a write to `/status`.
pub fn status_warnings(service: &Value) -> Vec<String> {
    let ips = ingress(service).iter().enumerate().map(|(i, one)| (i, text(one, &["ip"])));
    ips.filter(|(_, ip)| !ip.is_empty())
        .filter_map(|(i, ip)| warn_ip(&format!("status.loadBalancer.ingress[{i}]"), ip))
        .collect()
}

fn warn_list(all: &mut Vec<String>, view: View<'_>, name: &str) {
    for (i, ip) in view.texts(name).iter().enumerate() {
        all.extend(warn_ip(&format!("spec.{name}[{i}]"), ip));
    }
}

fn is_headless(view: View<'_>) -> bool {
    view.is_cluster_ip() && view.text("clusterIP") == NONE
}

fn warn_headless(all: &mut Vec<String>, view: View<'_>) {
    let fields = [
        ("loadBalancerIP", !view.text("loadBalancerIP").is_empty()),
        ("externalIPs", !view.list("externalIPs").is_empty()),
        ("SessionAffinity", view.text("sessionAffinity") != "None"),
    ];
    for (field, _) in fields.iter().filter(|(_, set)| *set && is_headless(view)) {
        all.push(format!("spec.{field} is ignored for headless services"));
    }
}

fn warn_external_ips(all: &mut Vec<String>, view: View<'_>) {
    warn_list(all, view, "externalIPs");
    let used = !view.list("externalIPs").is_empty();
    if used && !is_headless(view) && !view.is_external_name() {
        let text =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        all.push(text.to_owned());
    }
}

/// Fields without effect for this type of Service.
fn warn_by_type(all: &mut Vec<String>, view: View<'_>) {
    if view.is_external_name() {
        if !view.list("externalIPs").is_empty() {
            let text = r#"spec.externalIPs is ignored when spec.type is "ExternalName""#;
            all.push(text.to_owned());
        }
    } else if !view.text("externalName").is_empty() {
        let text = r#"spec.externalName is ignored when spec.type is not "ExternalName""#;
        all.push(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn warnings_have_the_order_of_kubernetes() {
        let service = json!({
            "metadata": {"annotations": {"service.kubernetes.io/topology-aware-hints": "auto"}},
            "spec": {
                "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"],
                "sessionAffinity": "ClientIP", "externalIPs": ["FD00::1"], "externalName": "a",
                "trafficDistribution": "PreferClose",
            },
        });
        let all = warnings(&service);
        assert_eq!(all.len(), 6, "{all:#?}");
        assert!(all[0].starts_with("annotation"));
        assert!(all[3].starts_with("spec.externalIPs[0]: IPv6 address"));
        assert!(all[5].starts_with("spec.trafficDistribution"));
    }

    #[test]
    fn non_canonical_status_addresses_cause_warnings() {
        let service = json!({"status": {"loadBalancer": {"ingress": [{"ip": "010.0.0.1"}]}}});
        assert_eq!(status_warnings(&service).len(), 1);
        assert!(status_warnings(&json!({})).is_empty());
    }
}
