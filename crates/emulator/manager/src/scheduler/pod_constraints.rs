//! Constraints between Pods: required topology spread, affinity and anti-affinity, and the
//! anti-affinity of Pods that are already placed. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;

use super::filter::domain;
use super::{NodeInfo, Snapshot};
use crate::affinity;
use crate::object::{self, Labels};
use crate::taint;

/// The topology domains that a Pod may or may not use.
pub(super) struct PodConstraints<'a> {
    spreads: Vec<Spread<'a>>,
    /// Topology keys and values that the Pod's own anti-affinity forbids.
    forbidden: Vec<(String, &'a str)>,
    /// Those that the anti-affinity of other Pods forbids.
    forbidden_by_others: Vec<(String, &'a str)>,
    /// For each affinity term: the topology key, and its values with a matching pod.
    required: Vec<(String, Vec<&'a str>)>,
}

struct Spread<'a> {
    key: String,
    max_skew: i32,
    /// Matching Pods per eligible domain.
    counts: BTreeMap<&'a str, i32>,
    itself: i32,
    min_domains: i32,
}

impl<'a> PodConstraints<'a> {
    pub(super) fn of(pod: &'a Pod, snapshot: &Snapshot<'a>) -> Self {
        let hard: Vec<&TopologySpreadConstraint> = required_spreads(pod).collect();
        let spreads = hard.iter().map(|one| Spread::of(one, &hard, pod, snapshot)).collect();
        let mut forbidden = Vec::new();
        for term in anti_affinity_terms(pod) {
            forbidden.extend(
                domains_with_matches(term, pod, snapshot).into_iter().map(|d| (key(term), d)),
            );
        }
        let required = affinity_terms(pod)
            .map(|term| (key(term), domains_with_matches(term, pod, snapshot)))
            .collect::<Vec<_>>();
        let unmatched = required.iter().all(|(_, places)| places.is_empty());
        let own = affinity_terms(pod).all(|term| term_matches(term, pod, pod, snapshot));
        Self {
            spreads,
            forbidden,
            forbidden_by_others: forbidden_by_others(pod, snapshot),
            // The first pod of a group with affinity to itself has no pod to join yet.
            required: if unmatched && own { Vec::new() } else { required },
        }
    }

    /// Why the constraints exclude a node.
    pub(super) fn refusal(&self, info: &NodeInfo<'_>) -> Option<&'static str> {
        let at = |(key, value): &(String, &str)| domain(info, key) == Some(*value);
        let missing = |spread: &Spread<'_>| domain(info, &spread.key).is_none();
        if self.spreads.iter().any(missing) {
            return Some(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            );
        }
        if self.spreads.iter().any(|spread| spread.exceeds_skew(info)) {
            return Some("node(s) didn't match pod topology spread constraints");
        }
        let unmet = |(key, places): &(String, Vec<&str>)| {
            domain(info, key).is_none_or(|place| !places.contains(&place))
        };
        if self.required.iter().any(unmet) {
            return Some("node(s) didn't match pod affinity rules");
        }
        if self.forbidden.iter().any(at) {
            return Some("node(s) didn't match pod anti-affinity rules");
        }
        let forbidden = self.forbidden_by_others.iter().any(at);
        forbidden.then_some("node(s) didn't satisfy existing pods anti-affinity rules")
    }
}

impl<'a> Spread<'a> {
    fn of(
        constraint: &TopologySpreadConstraint,
        all: &[&TopologySpreadConstraint],
        pod: &'a Pod,
        snapshot: &Snapshot<'a>,
    ) -> Self {
        let wanted = with_label_keys(
            constraint.label_selector.as_ref(),
            constraint.match_label_keys.as_deref(),
            pod,
        );
        let counts_in = |other: &Pod| {
            other.metadata.namespace == pod.metadata.namespace
                && !object::is_deleting(&other.metadata)
                && object::selects(wanted.as_ref(), other.metadata.labels.as_ref())
        };
        let honour_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
        let honour_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
        let mut counts: BTreeMap<&'a str, i32> = BTreeMap::new();
        for info in &snapshot.nodes {
            let complete = all.iter().all(|other| domain(info, &other.topology_key).is_some());
            let allowed = pod.spec.as_ref().is_none_or(|spec| affinity::allows(spec, info.node));
            let clean = taint::first_untolerated(info.node, taint::tolerations(pod)).is_none();
            if !complete || honour_affinity && !allowed || honour_taints && !clean {
                continue;
            }
            let Some(place) = domain(info, &constraint.topology_key) else { continue };
            let here = info.pods.iter().filter(|other| counts_in(other)).count();
            let count = counts.entry(place).or_default();
            *count = count.saturating_add(i32::try_from(here).unwrap_or(i32::MAX));
        }
        Self {
            key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew,
            counts,
            itself: i32::from(counts_in(pod)),
            min_domains: constraint.min_domains.unwrap_or(1),
        }
    }

    fn exceeds_skew(&self, info: &NodeInfo<'_>) -> bool {
        let Some(place) = domain(info, &self.key) else { return true };
        let domains = i32::try_from(self.counts.len()).unwrap_or(i32::MAX);
        let least = self.counts.values().min().copied().unwrap_or(0);
        let least = if domains < self.min_domains { 0 } else { least };
        let here = self.counts.get(place).copied().unwrap_or(0);
        here.saturating_add(self.itself).saturating_sub(least) > self.max_skew
    }
}

/// Whether the binding of another Pod can make this one schedulable. Anti-affinity alone cannot.
pub(crate) fn depends_on_other_pods(pod: &Pod) -> bool {
    affinity_terms(pod).next().is_some() || required_spreads(pod).next().is_some()
}

fn required_spreads(pod: &Pod) -> impl Iterator<Item = &TopologySpreadConstraint> {
    let spec = pod.spec.as_ref();
    let all = spec.and_then(|spec| spec.topology_spread_constraints.as_ref());
    all.into_iter().flatten().filter(|one| one.when_unsatisfiable == "DoNotSchedule")
}

fn key(term: &PodAffinityTerm) -> String {
    term.topology_key.clone()
}

fn anti_affinity_terms(pod: &Pod) -> impl Iterator<Item = &PodAffinityTerm> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let anti = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let terms = anti.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    terms.into_iter().flatten()
}

fn affinity_terms(pod: &Pod) -> impl Iterator<Item = &PodAffinityTerm> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let pro = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let terms = pro.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    terms.into_iter().flatten()
}

/// The domains with a Pod that matches the term of `owner`.
fn domains_with_matches<'a>(
    term: &PodAffinityTerm,
    owner: &Pod,
    snapshot: &Snapshot<'a>,
) -> Vec<&'a str> {
    let has = |info: &&NodeInfo<'a>| {
        info.pods.iter().any(|other| term_matches(term, owner, other, snapshot))
    };
    let infos = snapshot.nodes.iter().filter(has);
    infos.filter_map(|info| domain(info, &term.topology_key)).collect()
}

/// The domains that the anti-affinity of placed Pods forbids.
fn forbidden_by_others<'a>(pod: &Pod, snapshot: &Snapshot<'a>) -> Vec<(String, &'a str)> {
    let mut found = Vec::new();
    for info in &snapshot.nodes {
        for other in &info.pods {
            let terms =
                anti_affinity_terms(other).filter(|term| term_matches(term, other, pod, snapshot));
            let at = |term: &PodAffinityTerm| Some((key(term), domain(info, &term.topology_key)?));
            found.extend(terms.filter_map(at));
        }
    }
    found
}

/// Whether the term of `owner` matches `other`.
fn term_matches(term: &PodAffinityTerm, owner: &Pod, other: &Pod, snapshot: &Snapshot<'_>) -> bool {
    let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
    let named = term.namespaces.as_deref().unwrap_or_default();
    let by_label = term.namespace_selector.as_ref().is_some_and(|wanted| {
        let labels: Option<&Labels> = snapshot.namespaces.get(namespace).copied().flatten();
        object::selects(object::selector(wanted).as_ref(), labels)
    });
    let own = named.is_empty() && term.namespace_selector.is_none();
    let within = by_label
        || named.iter().any(|name| name == namespace)
        || own && owner.metadata.namespace == other.metadata.namespace;
    let wanted =
        with_label_keys(term.label_selector.as_ref(), term.match_label_keys.as_deref(), owner);
    within && object::selects(wanted.as_ref(), other.metadata.labels.as_ref())
}

/// A selector with `matchLabelKeys` applied; `None` selects nothing.
fn with_label_keys(
    wanted: Option<&LabelSelector>,
    keys: Option<&[String]>,
    pod: &Pod,
) -> Option<Selector> {
    let mut wanted = wanted.cloned()?;
    for key in keys.unwrap_or_default() {
        let Some(value) = object::label(&pod.metadata, key) else { continue };
        wanted.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.to_owned()]),
        });
    }
    object::selector(&wanted)
}
