//! The IP families of a Service, from its spec, its stored object, and the cluster's ranges.

use nearhop_core::Family;
use serde_json::{Value, json};

use crate::errors::{Errors, Report as _};
use crate::ip::{family_of_text, other_family};
use crate::json::make;
use crate::service::{View, check_cluster_ips};

const POLICY: &str = "ipFamilyPolicy";
const SINGLE: &str = "SingleStack";

/// The families of a cluster; the first is the default.
pub(super) type Families<'a> = &'a [Family];

/// Sets `ipFamilies` and `ipFamilyPolicy`.
///
/// # Errors
/// Contradictory fields, or a family that the cluster does not have.
pub(super) fn resolve(
    new: &mut Value,
    old: Option<&Value>,
    cluster: Families<'_>,
) -> Result<(), Errors> {
    if View::of(new).is_external_name() || keeps_preference(new, old) {
        return Ok(());
    }
    settle_policy(new, old);
    let mut errors = Vec::new();
    check_cluster_ips(&mut errors, View::of(new), old.map(View::of));
    finish(errors)?;

    let mut errors = Vec::new();
    if let Some(old) = old {
        release_second(&mut errors, new, View::of(old));
    }
    check_single(&mut errors, View::of(new));
    let families = infer(&mut errors, View::of(new), cluster);
    finish(errors)?;

    let families = complete(View::of(new), families, cluster)?;
    let families: Vec<&str> = families.into_iter().map(Family::as_str).collect();
    *make(new, &["spec", "ipFamilies"]) = json!(families);
    Ok(())
}

/// Whether an update keeps PreferDualStack: the families do not follow a change of the cluster.
pub(super) fn keeps_preference(new: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old.map(View::of) else { return false };
    let new = View::of(new);
    let prefers = |policy: Option<&str>| policy == Some("PreferDualStack");
    new.kind() == old.kind()
        && new.has_cluster_ips()
        && prefers(new.optional(POLICY))
        && old.optional(POLICY).is_none_or(|policy| prefers(Some(policy)))
        && new.list("clusterIPs") == old.list("clusterIPs")
        && new.list("ipFamilies") == old.list("ipFamilies")
}

/// The policy if the client sends none: the stored one, or single stack. A headless Service without
/// selector requires dual stack, since its user writes the endpoints.
fn settle_policy(new: &mut Value, old: Option<&Value>) {
    let view = View::of(new);
    if view.get(POLICY).is_some() {
        return;
    }
    let policy = match old.and_then(|old| View::of(old).get(POLICY)) {
        Some(policy) => policy.clone(),
        None if is_free_form(view) => json!("RequireDualStack"),
        None => json!(SINGLE),
    };
    *make(new, &["spec", POLICY]) = policy;
}

/// Headless and without selector: the endpoints decide the families.
fn is_free_form(view: View<'_>) -> bool {
    view.text("clusterIP") == "None" && !view.has_selector()
}

/// Drops the second address and family if the policy became single stack; refuses to drop them
/// otherwise.
fn release_second(errors: &mut Errors, new: &mut Value, old: View<'_>) {
    let single = View::of(new).text(POLICY) == SINGLE;
    for (name, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let view = View::of(new);
        let (now, was) = (view.list(name), old.list(name));
        if single && now == was && now.len() > 1 {
            let first: Vec<Value> = now.iter().take(1).cloned().collect();
            *make(new, &["spec", name]) = Value::Array(first);
        } else if !single && !now.is_empty() && now.len() < was.len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            refuse_policy(errors, view, &detail);
        }
    }
}

fn check_single(errors: &mut Errors, view: View<'_>) {
    if view.text(POLICY) != SINGLE {
        return;
    }
    for (name, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if view.list(name).len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            refuse_policy(errors, view, &detail);
        }
    }
}

fn refuse_policy(errors: &mut Errors, view: View<'_>, detail: &str) {
    errors.invalid("spec.ipFamilyPolicy", view.shown(POLICY), detail);
}

/// The requested families, and those of the requested addresses.
fn infer(errors: &mut Errors, view: View<'_>, cluster: Families<'_>) -> Vec<Family> {
    let mut families: Vec<Family> =
        view.texts("ipFamilies").into_iter().filter_map(Family::parse).collect();
    for (i, ip) in view.texts("clusterIPs").into_iter().enumerate().skip(families.len()) {
        // `None` is not an address.
        let Some(family) = family_of_text(ip) else { break };
        if cluster.contains(&family) {
            families.push(family);
        } else {
            let detail = format!("{family} is not configured on this cluster");
            errors.invalid(format!("spec.clusterIPs[{i}]"), view.shown("clusterIPs"), &detail);
        }
    }
    families
}

/// Adds missing families that the cluster has.
fn complete(
    view: View<'_>,
    mut families: Vec<Family>,
    cluster: Families<'_>,
) -> Result<Vec<Family>, Errors> {
    let free_form = is_free_form(view);
    if !free_form {
        let mut errors = Vec::new();
        if view.text(POLICY) == "RequireDualStack" && cluster.len() < 2 {
            let detail = "this cluster is not configured for dual-stack services";
            refuse_policy(&mut errors, view, detail);
        }
        for (i, family) in families.iter().enumerate().filter(|(_, f)| !cluster.contains(f)) {
            let field = format!("spec.ipFamilies[{i}]");
            errors.invalid(field, family.as_str(), "not configured on this cluster");
        }
        finish(errors)?;
    }
    if families.is_empty() {
        families.extend(cluster.first());
    }
    let dual = view.text(POLICY) != SINGLE && (free_form || cluster.len() == 2);
    if let ([only], true) = (families.as_slice(), dual) {
        families.push(other_family(*only));
    }
    Ok(families)
}

fn finish(errors: Errors) -> Result<(), Errors> {
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
