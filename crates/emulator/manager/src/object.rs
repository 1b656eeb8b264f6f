//! Metadata helpers: keys, owners, versions, labels. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, ObjectMeta, OwnerReference, Time,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt as _};
use serde::Serialize;

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectKey {
    #[must_use]
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[must_use]
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), name(meta))
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// Labels or annotations.
pub(crate) type Labels = BTreeMap<String, String>;

pub(crate) fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

pub(crate) fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// The resourceVersion as a number; Kubernetes guarantees since 1.35 that it is one.
pub(crate) fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

pub(crate) fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn is_deleting(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

/// The owner reference with `controller: true`.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub(crate) fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// A controller owner reference to an object of apps/v1.
pub(crate) fn owned_by(kind: &str, owner: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: kind.to_owned(),
        name: name(owner).to_owned(),
        uid: uid(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A selector to match with; a malformed one is `None`, which matches nothing.
pub(crate) fn selector(selector: &LabelSelector) -> Option<Selector> {
    Selector::try_from(selector.clone()).ok()
}

/// The selector of a workload, for which an empty one matches nothing.
pub(crate) fn workload_selector(selector: &LabelSelector) -> Option<Selector> {
    let is_empty = selector.match_labels.as_ref().is_none_or(Labels::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if is_empty { None } else { self::selector(selector) }
}

pub(crate) fn selects(selector: Option<&Selector>, labels: Option<&Labels>) -> bool {
    let matches = |selector: &Selector| match labels {
        Some(labels) => selector.matches(labels),
        None => selector.matches(&Labels::new()),
    };
    selector.is_some_and(matches)
}

/// Whether an object has all of these labels.
pub(crate) fn has_labels(meta: &ObjectMeta, labels: &Labels) -> bool {
    labels.iter().all(|(key, value)| label(meta, key) == Some(value))
}

/// A time in whole seconds, as the API stores it.
pub(crate) fn time(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// `None` for zero, as Go's `omitempty` writes counts.
pub(crate) fn unless_zero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// A saturating sum: users control the counts.
pub(crate) fn sum(counts: impl Iterator<Item = i32>) -> i32 {
    counts.fold(0, i32::saturating_add)
}

/// Resolves an absolute number or a percentage of `total`.
pub(crate) fn scaled(value: &IntOrString, total: i32, round: Round) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%').and_then(|n| n.parse().ok()).unwrap_or(0);
            let hundredfold = percent.saturating_mul(i64::from(total));
            let whole = match round {
                Round::Up => hundredfold.saturating_add(99).div_euclid(100),
                Round::Down => hundredfold.div_euclid(100),
            };
            let end = if whole < 0 { i32::MIN } else { i32::MAX };
            i32::try_from(whole).unwrap_or(end)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Up,
    Down,
}

/// A short hash in Kubernetes' alphabet, which has no vowels and so spells no words.
pub(crate) fn hash(value: &impl Serialize, salt: Option<i32>) -> String {
    let mut bytes = serde_json::to_vec(value).expect("API objects can be written as JSON");
    if let Some(salt) = salt {
        bytes.extend(salt.to_le_bytes());
    }
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    spell(sum)
}

/// A number as ten letters of Kubernetes' alphabet for generated names.
fn spell(mut number: u64) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // FNV leaves little entropy in the low bits.
    number ^= number >> 32;
    let mut text = String::with_capacity(10);
    for _ in 0..10 {
        text.push(char::from(LETTERS[(number % 27) as usize]));
        number /= 27;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        let percent = |text: &str| IntOrString::String(text.to_owned());
        for (value, total, up, down) in [
            (IntOrString::Int(3), 10, 3, 3),
            (percent("25%"), 10, 3, 2),
            (percent("25%"), 4, 1, 1),
            (percent("0%"), 9, 0, 0),
            (percent("100%"), 9, 9, 9),
            (percent("1%"), 1, 1, 0),
            (percent("9223372036854775807%"), 2, i32::MAX, i32::MAX),
            (percent("-9223372036854775808%"), 2, i32::MIN, i32::MIN),
            (percent("100%"), i32::MAX, i32::MAX, i32::MAX),
        ] {
            assert_eq!(scaled(&value, total, Round::Up), up, "{value:?} of {total}");
            assert_eq!(scaled(&value, total, Round::Down), down, "{value:?} of {total}");
        }
    }

    #[test]
    fn hashes_differ_by_value_and_salt() {
        let a = hash(&"a", None);
        assert_eq!(a, hash(&"a", None));
        assert_eq!(a.len(), 10);
        assert_ne!(a, hash(&"b", None));
        assert_ne!(a, hash(&"a", Some(1)));
    }
}
