//! The names that a list gives, gathered while it arrives.

use std::collections::BTreeSet;

use nearhop_core::{Change, ObjectRef, Roll};

use crate::event::Changed;
use crate::kind::Kind;

/// A roll of this kind with nobody on it.
pub(crate) fn empty(kind: Kind) -> Roll {
    match kind {
        Kind::Services => Roll::Services(BTreeSet::new()),
        Kind::Pods => Roll::Pods(BTreeSet::new()),
        Kind::Nodes => Roll::Nodes(BTreeSet::new()),
        Kind::Namespaces => Roll::Namespaces(BTreeSet::new()),
        Kind::ServiceCidrs => Roll::ServiceCidrs(BTreeSet::new()),
        Kind::PodLocators => Roll::Locators(BTreeSet::new()),
        Kind::EndpointSlices => Roll::Slices(BTreeSet::new()),
    }
}

/// Puts an object on the roll, or takes one off that went while the list arrived.
///
/// One that cannot be read is there all the same, as long as its problem can name it.
pub(crate) fn note(roll: &mut Roll, changed: &Changed) {
    match &changed.change {
        Some(change) => note_change(roll, change),
        None => changed.problems.iter().for_each(|problem| note_object(roll, &problem.object)),
    }
}

fn note_change(roll: &mut Roll, change: &Change) {
    match (roll, change) {
        (Roll::Services(all), Change::Service(service)) => _ = all.insert(service.key.clone()),
        (Roll::Services(all), Change::ServiceGone(key)) => _ = all.remove(key),
        (Roll::Pods(all), Change::Pod(pod)) => _ = all.insert(pod.key.clone()),
        (Roll::Pods(all), Change::PodGone(key)) => _ = all.remove(key),
        (Roll::Nodes(all), Change::Node(node)) => _ = all.insert(node.name.clone()),
        (Roll::Nodes(all), Change::NodeGone(name)) => _ = all.remove(name),
        (Roll::Namespaces(all), Change::Namespace(namespace)) => {
            _ = all.insert(namespace.name.clone());
        }
        (Roll::ServiceCidrs(all), Change::ServiceCidr(cidr)) => _ = all.insert(cidr.name.clone()),
        (Roll::ServiceCidrs(all), Change::ServiceCidrGone(name)) => _ = all.remove(name),
        (Roll::Locators(all), Change::Locator(locator)) => _ = all.insert(locator.key.clone()),
        (Roll::Locators(all), Change::LocatorGone(key)) => _ = all.remove(key),
        (Roll::Namespaces(all), Change::NamespaceGone(name)) => _ = all.remove(name),
        (Roll::Slices(all), Change::Slice(slice)) => {
            _ = all.insert((slice.namespace.clone(), slice.name.clone()));
        }
        (Roll::Slices(all), Change::SliceGone(namespace, name)) => {
            _ = all.remove(&(namespace.clone(), name.clone()));
        }
        // A list has one kind.
        _ => {}
    }
}

fn note_object(roll: &mut Roll, object: &ObjectRef) {
    match (roll, object) {
        (Roll::Services(all), ObjectRef::Service(key)) => _ = all.insert(key.clone()),
        (Roll::Pods(all), ObjectRef::Pod(key)) => _ = all.insert(key.clone()),
        (Roll::Nodes(all), ObjectRef::Node(name)) => _ = all.insert(name.clone()),
        (Roll::ServiceCidrs(all), ObjectRef::ServiceCidr(name)) => _ = all.insert(name.clone()),
        (Roll::Locators(all), ObjectRef::Locator(key)) => _ = all.insert(key.clone()),
        (Roll::Namespaces(all), ObjectRef::Namespace(name)) => _ = all.insert(name.clone()),
        (Roll::Slices(all), ObjectRef::Slice(namespace, name)) => {
            _ = all.insert((namespace.clone(), name.clone()));
        }
        _ => {}
    }
}
