//! Validation of cluster IPs and IP families, and of their changes.

use nearhop_core::Family;

use super::view::{NONE, View};
use crate::errors::{Errors, Report as _};
use crate::ip::{check_legacy_ip, family_of_text};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const IPS: &str = "spec.clusterIPs";

/// Validates `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` together.
pub(crate) fn check_cluster_ips(errors: &mut Errors, view: View<'_>, old: Option<View<'_>>) {
    if view.is_external_name() {
        return;
    }
    let ips = view.texts("clusterIPs");
    let mut refuse = |detail: &str| {
        errors.invalid(IPS, view.shown("clusterIPs"), detail);
    };
    match (view.text("clusterIP"), ips.first()) {
        ("", None) => {}
        ("", Some(_)) => refuse("must be empty when `clusterIP` is not specified"),
        (_, None) => errors.required(IPS, ""),
        (one, Some(first)) if one != *first => refuse("first value must match `clusterIP`"),
        _ => {}
    }
    check_families(errors, view);
    if check_addresses(errors, view, &ips, old) == Spelling::Wrong {
        return;
    }
    if let [first, rest @ ..] = ips.as_slice()
        && !rest.is_empty()
    {
        let other = rest.iter().any(|ip| family_of_text(ip) != family_of_text(first));
        if !other {
            let detail = "may specify no more than one IP for each IP family";
            errors.invalid(IPS, view.shown("clusterIPs"), detail);
        }
    }
    if !view.is_headless() {
        check_pairs(errors, view, &ips);
    }
}

fn check_families(errors: &mut Errors, view: View<'_>) {
    let families = view.texts("ipFamilies");
    for (i, family) in families.iter().enumerate() {
        let field = || format!("spec.ipFamilies[{i}]");
        errors.supported(field(), family, &FAMILIES);
        if families.iter().take(i).any(|earlier| earlier == family) {
            errors.duplicate(field(), family);
        }
    }
    if let Some(policy) = view.optional("ipFamilyPolicy").filter(|p| !POLICIES.contains(p)) {
        errors.not_supported("spec.ipFamilyPolicy", policy, &POLICIES);
    }
}

/// Whether the addresses can be checked further.
#[derive(PartialEq)]
enum Spelling {
    Right,
    Wrong,
}

fn check_addresses(
    errors: &mut Errors,
    view: View<'_>,
    ips: &[&str],
    old: Option<View<'_>>,
) -> Spelling {
    let before = errors.len();
    let was_there = old.map(|old| old.texts("clusterIPs")).unwrap_or_default();
    for (i, ip) in ips.iter().enumerate() {
        if i > 0 || *ip != NONE {
            errors.extend(check_legacy_ip(&format!("{IPS}[{i}]"), ip, &was_there));
        } else if ips.len() > 1 {
            let detail = "'None' must be the first and only value";
            errors.invalid(IPS, view.shown("clusterIPs"), detail);
        }
    }
    let spelling = if errors.len() == before { Spelling::Right } else { Spelling::Wrong };
    if ips.len() > 2 {
        errors.invalid(IPS, view.shown("clusterIPs"), "may only hold up to 2 values");
    }
    spelling
}

fn check_pairs(errors: &mut Errors, view: View<'_>, ips: &[&str]) {
    for (i, (ip, family)) in ips.iter().zip(view.texts("ipFamilies")).enumerate() {
        let is = family_of_text(ip).unwrap_or(Family::Ipv4);
        if Family::parse(family).is_some_and(|wanted| wanted != is) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            errors.invalid(format!("{IPS}[{i}]"), *ip, &detail);
        }
    }
}

/// The primary address cannot change; a secondary one can be added, and removed with the policy.
pub(super) fn check_cluster_ips_change(errors: &mut Errors, new: View<'_>, old: View<'_>) {
    if new.is_external_name() || old.is_external_name() || (new.is_headless() && old.is_headless())
    {
        return;
    }
    let (now, was) = (new.texts("clusterIPs"), old.texts("clusterIPs"));
    let mut refuse = |i: usize, detail: &str| {
        errors.invalid(format!("{IPS}[{i}]"), new.shown("clusterIPs"), detail);
    };
    if now.len() == was.len() {
        for (i, _) in was.iter().zip(&now).enumerate().filter(|(_, (was, now))| was != now) {
            refuse(i, "may not change once set");
        }
        return;
    }
    if now.is_empty() {
        refuse(0, "primary clusterIP can not be unset");
    }
    if let (Some(now), Some(was)) = (now.first(), was.first())
        && now != was
    {
        refuse(0, "may not change once set");
    }
    if was.len() > 1 && now.len() == 1 {
        require_single_stack(errors, new, "releasing the secondary clusterIP");
    }
}

/// The same for families; headless Services can change them.
pub(super) fn check_families_change(errors: &mut Errors, new: View<'_>, old: View<'_>) {
    if new.is_external_name() || old.is_external_name() || new.is_headless() || old.is_headless() {
        return;
    }
    let (now, was) = (new.texts("ipFamilies"), old.texts("ipFamilies"));
    // If the number changes, Kubernetes reports the addresses instead of the families.
    let mut refuse = |shown: &str, detail: &str| {
        errors.invalid("spec.ipFamilies[0]", new.shown(shown), detail);
    };
    if now.len() == was.len() {
        for _ in was.iter().zip(&now).filter(|(was, now)| was != now) {
            refuse("ipFamilies", "may not change once set");
        }
        return;
    }
    if was.len() > now.len() && new.list("clusterIPs").is_empty() {
        refuse("ipFamilies", "primary ipFamily can not be unset");
    }
    if let (Some(now), Some(was)) = (now.first(), was.first())
        && now != was
    {
        refuse("clusterIPs", "may not change once set");
    }
    if was.len() > 1 && now.len() == 1 {
        require_single_stack(errors, new, "releasing the secondary ipFamily");
    }
}

fn require_single_stack(errors: &mut Errors, new: View<'_>, when: &str) {
    if new.text("ipFamilyPolicy") != "SingleStack" {
        let detail = format!("must be set to 'SingleStack' when {when}");
        let shown = new.shown("ipFamilyPolicy");
        errors.invalid("spec.ipFamilyPolicy", &shown, &detail);
    }
}
