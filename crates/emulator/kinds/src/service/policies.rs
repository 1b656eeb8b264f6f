//! Validation of affinity, traffic policies and the load balancer's class.

use serde_json::Value;

use super::view::View;
use crate::errors::{Errors, Report as _};
use crate::names;

const POLICIES: [&str; 2] = ["Cluster", "Local"];
const AFFINITIES: [&str; 2] = ["ClientIP", "None"];

/// The longest affinity: a day.
const MAX_AFFINITY_SECONDS: i64 = 86_400;

pub(super) fn check_affinity(errors: &mut Errors, view: View<'_>) {
    let field = "spec.sessionAffinityConfig";
    match view.text("sessionAffinity") {
        "" => errors.required("spec.sessionAffinity", ""),
        "ClientIP" => check_client_ip(errors, view.get("sessionAffinityConfig"), field),
        "None" => {
            if view.get("sessionAffinityConfig").is_some() {
                errors.forbidden(field, "must not be set when session affinity is None");
            }
        }
        other => errors.not_supported("spec.sessionAffinity", other, &AFFINITIES),
    }
}

fn check_client_ip(errors: &mut Errors, config: Option<&Value>, field: &str) {
    let there = |value: &&Value| !value.is_null();
    let client_ip = config.and_then(|config| config.get("clientIP")).filter(there);
    let timeout = client_ip.and_then(|ip| ip.get("timeoutSeconds")).filter(there);
    let missing = match (config, client_ip, timeout) {
        (None, ..) => field.to_owned(),
        (_, None, _) => format!("{field}.clientIP"),
        (.., None) => format!("{field}.clientIP.timeoutSeconds"),
        (.., Some(timeout)) => {
            let seconds = timeout.as_i64().unwrap_or_default();
            if !(1..=MAX_AFFINITY_SECONDS).contains(&seconds) {
                let field = format!("{field}.clientIP.timeoutSeconds");
                let detail = format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
                errors.invalid(field, timeout, &detail);
            }
            return;
        }
    };
    errors.required(missing, "when session affinity type is ClientIP");
}

pub(super) fn check_external_policy(errors: &mut Errors, view: View<'_>) {
    let field = "spec.externalTrafficPolicy";
    match (view.text("externalTrafficPolicy"), view.is_externally_accessible()) {
        ("", true) => errors.required(field, ""),
        ("", false) => {}
        (policy, false) => {
            errors.invalid(field, policy, "may only be set for externally-accessible services");
        }
        (policy, true) => errors.supported(field, policy, &POLICIES),
    }
    let field = "spec.healthCheckNodePort";
    match (view.number("healthCheckNodePort"), view.needs_health_check()) {
        (0, true) => errors.required(field, ""),
        (0, false) => {}
        (port, true) => errors.invalid_each(field, port, names::port_number(port)),
        (port, false) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and \
                          `externalTrafficPolicy` is 'Local'";
            errors.invalid(field, port, detail);
        }
    }
}

pub(super) fn check_health_port_change(errors: &mut Errors, new: View<'_>, old: View<'_>) {
    let changed = new.number("healthCheckNodePort") != old.number("healthCheckNodePort");
    if changed && new.needs_health_check() && old.needs_health_check() {
        errors.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
}

/// An internal policy on an ExternalName Service is accepted, for compatibility.
pub(super) fn check_internal_policy(errors: &mut Errors, view: View<'_>) {
    let field = "spec.internalTrafficPolicy";
    match view.optional("internalTrafficPolicy") {
        None => {
            if view.has_cluster_ips() {
                errors.required(field, "");
            }
        }
        Some(policy) => errors.supported(field, policy, &POLICIES),
    }
}

pub(super) fn check_class(errors: &mut Errors, new: View<'_>, old: Option<View<'_>>) {
    let (name, field) = ("loadBalancerClass", "spec.loadBalancerClass");
    let fixed = old.is_some_and(|old| {
        old.is_load_balancer() && new.is_load_balancer() && old.get(name) != new.get(name)
    });
    if fixed {
        errors.invalid(field, new.shown(name), "may not change once set");
    }
    let Some(class) = new.optional(name) else { return };
    if new.is_load_balancer() {
        errors.invalid_each(field, class, names::qualified_name(class));
    } else {
        errors.forbidden(field, "may only be used when `type` is 'LoadBalancer'");
    }
}
