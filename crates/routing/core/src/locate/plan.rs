//! The desired PodLocator of a Pod (KEP-536 "New PodLocator controller").
//!
//! This module writes nothing. A PodLocator does not contain readiness, heartbeats or other
//! frequent changes, so they cause no write.

use std::collections::BTreeSet;

use crate::key::Name;
use crate::labels::{Labels, well_known};
use crate::model::{Addresses, Locator, Node, Pod};
use crate::problem::quote;
use crate::routing::is_label_key;

/// Labels that are always copied: the well-known topology keys.
pub(crate) const WELL_KNOWN_KEYS: [&str; 3] =
    [well_known::HOSTNAME, well_known::ZONE, well_known::REGION];

/// Which Node labels the operator wants in PodLocators (`--locator-labels`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocatorLabels {
    /// The well-known topology keys, and every key in the topologyKeys of a Service.
    #[default]
    Topology,
    /// Only these labels.
    Only(BTreeSet<Name>),
    /// All labels, as in the KEP.
    All,
}

/// Why a `--locator-labels` value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocatorLabelsError {
    /// The value is empty.
    #[error("no label is named; give keys such as topology.kubernetes.io/zone,rack, or * for all")]
    Empty,
    /// Not a valid label key.
    #[error("{} is not a label key; give keys such as topology.kubernetes.io/zone,rack", quote(.0))]
    NotAKey(String),
    /// `*` together with keys.
    #[error("* means all labels and must be alone; leave it out, or the keys beside it")]
    AllAndMore,
}

impl LocatorLabels {
    /// Parses `*`, or a comma-separated list of keys.
    pub fn parse(text: &str) -> Result<Self, LocatorLabelsError> {
        let keys: Vec<&str> =
            text.split(',').map(str::trim).filter(|key| !key.is_empty()).collect();
        match keys.as_slice() {
            [] => return Err(LocatorLabelsError::Empty),
            ["*"] => return Ok(Self::All),
            keys if keys.contains(&"*") => return Err(LocatorLabelsError::AllAndMore),
            _ => {}
        }
        if let Some(bad) = keys.iter().find(|key| !is_label_key(key)) {
            return Err(LocatorLabelsError::NotAKey((*bad).to_owned()));
        }
        Ok(Self::Only(keys.into_iter().map(Name::from).collect()))
    }
}

/// The Node labels that are copied now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelKeys {
    /// All labels.
    All,
    /// Labels with these keys.
    Only(BTreeSet<Name>),
}

impl LabelKeys {
    /// Copies the labels that PodLocators contain.
    pub fn copy(&self, labels: &Labels) -> Labels {
        match self {
            Self::All => labels.clone(),
            Self::Only(keys) => {
                let copied = labels.iter().filter(|(key, _)| keys.contains(*key));
                copied.map(|(key, value)| (key.clone(), value.clone())).collect()
            }
        }
    }

    /// Whether the copies of two label sets differ.
    pub fn differ(&self, before: &Labels, now: &Labels) -> bool {
        match self {
            Self::All => before != now,
            Self::Only(keys) => keys.iter().any(|key| before.get(key) != now.get(key)),
        }
    }
}

/// The PodLocator of a Pod. It does not name an unknown node: its labels are unknown, and the KEP
/// requires that the name and labels of a deleted node are reset.
pub fn plan_locator(pod: &Pod, node: Option<&Node>, keys: &LabelKeys) -> Locator {
    Locator {
        key: pod.key.clone(),
        owner: (!pod.uid.is_empty()).then(|| pod.uid.clone()),
        ips: located_ips(pod),
        node: node.map(|node| node.name.clone()),
        node_labels: node.map(|node| keys.copy(&node.labels)).unwrap_or_default(),
    }
}

/// The addresses of a Pod; none if its phase is terminal, because another Pod may have them now.
fn located_ips(pod: &Pod) -> Addresses {
    if pod.terminal { Addresses::Many(Box::default()) } else { pod.ips.clone() }
}

/// Whether a change of a Pod changes its PodLocator.
pub(crate) fn pod_differs(before: &Pod, now: &Pod) -> bool {
    let shown = |pod: &Pod| (located_ips(pod), pod.node.clone(), pod.uid.clone());
    shown(before) != shown(now)
}

/// The operation for a Pod's PodLocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocatorPlan {
    /// Nothing.
    Keep,
    /// It does not exist: create this one.
    Create(Locator),
    /// It exists and differs: update it to this one.
    Update(Locator),
    /// Its Pod does not exist: delete it.
    Delete,
}

impl LocatorPlan {
    /// The operation from the current PodLocator to the desired one.
    pub fn between(there: Option<&Locator>, wanted: Option<Locator>) -> Self {
        match (there, wanted) {
            (None, None) => Self::Keep,
            (Some(there), Some(wanted)) if *there == wanted => Self::Keep,
            (None, Some(wanted)) => Self::Create(wanted),
            (Some(_), Some(wanted)) => Self::Update(wanted),
            (Some(_), None) => Self::Delete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PodKey;

    fn keys(names: &[&str]) -> BTreeSet<Name> {
        names.iter().map(|name| Name::from(*name)).collect()
    }

    fn pod() -> Pod {
        let ips = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().expect("a valid address"));
        let (uid, node) = (Name::from("u"), Some(Name::from("n1")));
        Pod { uid, node, ips: ips.into_iter().collect(), ..Pod::new(PodKey::new("ns", "p")) }
    }

    fn node() -> Node {
        let labels = [("rack", "r1"), (well_known::ZONE, "a"), ("colour", "red")];
        Node { labels: labels.into_iter().collect(), ..Node::new("n1") }
    }

    #[test]
    fn a_locator_has_the_addresses_node_and_labels_of_its_pod() {
        let only = LabelKeys::Only(keys(&["rack", "row", well_known::ZONE]));
        let locator = plan_locator(&pod(), Some(&node()), &only);
        assert_eq!((locator.key.clone(), locator.ips.clone()), (pod().key, pod().ips));
        assert_eq!((locator.owner.as_deref(), locator.node.as_deref()), (Some("u"), Some("n1")));
        let labels = [("rack", "r1"), (well_known::ZONE, "a")].into_iter().collect();
        assert_eq!(locator.node_labels, labels);
        let all = plan_locator(&pod(), Some(&node()), &LabelKeys::All);
        assert_eq!(all.node_labels, node().labels);
    }

    #[test]
    fn an_unknown_node_is_omitted() {
        let locator = plan_locator(&pod(), None, &LabelKeys::All);
        assert_eq!((locator.node, locator.node_labels), (None, Labels::default()));
        assert_eq!(locator.ips, pod().ips);
    }

    #[test]
    fn a_terminal_pod_has_no_addresses() {
        let done = Pod { terminal: true, ..pod() };
        let locator = plan_locator(&done, Some(&node()), &LabelKeys::All);
        assert!(locator.ips.as_slice().is_empty());
        assert_eq!(locator.node.as_deref(), Some("n1"));
        assert!(pod_differs(&pod(), &done));
    }

    #[test]
    fn only_copied_labels_are_compared() {
        let (before, now) = (node().labels, [("rack", "r1"), (well_known::ZONE, "a")]);
        let now = now.into_iter().collect();
        assert!(LabelKeys::All.differ(&before, &now));
        assert!(!LabelKeys::Only(keys(&["rack", "row"])).differ(&before, &now));
        assert!(LabelKeys::Only(keys(&["colour"])).differ(&before, &now));
    }

    #[test]
    fn the_flag_is_parsed_or_rejected() {
        use LocatorLabelsError as Error;
        let parse = LocatorLabels::parse;
        assert_eq!(parse("*"), Ok(LocatorLabels::All));
        let both = LocatorLabels::Only(keys(&["rack", well_known::ZONE]));
        assert_eq!(parse(" rack, topology.kubernetes.io/zone ,"), Ok(both));
        assert_eq!(parse(" ,"), Err(Error::Empty));
        assert_eq!(parse("rack,*"), Err(Error::AllAndMore));
        assert_eq!(parse("rack,a b"), Err(Error::NotAKey("a b".to_owned())));
    }

    #[test]
    fn a_plan_creates_updates_deletes_or_keeps() {
        let (old, new) = (
            plan_locator(&pod(), None, &LabelKeys::All),
            plan_locator(&pod(), Some(&node()), &LabelKeys::All),
        );
        let between = LocatorPlan::between;
        assert_eq!(between(None, None), LocatorPlan::Keep);
        assert_eq!(between(Some(&new), Some(new.clone())), LocatorPlan::Keep);
        assert_eq!(between(None, Some(new.clone())), LocatorPlan::Create(new.clone()));
        assert_eq!(between(Some(&old), Some(new.clone())), LocatorPlan::Update(new));
        assert_eq!(between(Some(&old), None), LocatorPlan::Delete);
    }
}
