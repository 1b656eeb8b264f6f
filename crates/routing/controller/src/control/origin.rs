//! Where changes come from, and which object they are about.

use nearhop_core::{Change, ObjectRef, Roll};

/// Where a change came from; it decides how soon it is worked on. The order is that in which a
/// batch is taken in: what endpoints depend on before the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// Nodes and Namespaces.
    Place,
    Service,
    Pod,
    Slice,
    Locator,
}

impl Origin {
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::Service(_) | Change::ServiceGone(_) => Self::Service,
            Change::Pod(_) | Change::PodGone(_) => Self::Pod,
            Change::Slice(_) | Change::SliceGone(..) => Self::Slice,
            Change::Locator(_) | Change::LocatorGone(_) => Self::Locator,
            Change::Only(roll) => Self::of_roll(roll),
            Change::Node(_)
            | Change::NodeGone(_)
            | Change::Namespace(_)
            | Change::NamespaceGone(_)
            | Change::ServiceCidr(_)
            | Change::ServiceCidrGone(_)
            | Change::Planned(..) => Self::Place,
        }
    }

    pub(super) fn of_roll(roll: &Roll) -> Self {
        match roll {
            Roll::Services(_) => Self::Service,
            Roll::Pods(_) => Self::Pod,
            Roll::Slices(_) => Self::Slice,
            Roll::Locators(_) => Self::Locator,
            Roll::Nodes(_) | Roll::Namespaces(_) | Roll::ServiceCidrs(_) => Self::Place,
        }
    }
}

/// Whether a list names an object, or is not about its kind.
pub(super) fn is_listed(roll: &Roll, object: &ObjectRef) -> bool {
    match (roll, object) {
        (Roll::Services(names), ObjectRef::Service(key)) => names.contains(key),
        (Roll::Pods(names), ObjectRef::Pod(key))
        | (Roll::Locators(names), ObjectRef::Locator(key)) => names.contains(key),
        (Roll::Nodes(names), ObjectRef::Node(name))
        | (Roll::Namespaces(names), ObjectRef::Namespace(name))
        | (Roll::ServiceCidrs(names), ObjectRef::ServiceCidr(name)) => names.contains(name),
        (Roll::Slices(names), ObjectRef::Slice(namespace, name)) => {
            names.contains(&(namespace.clone(), name.clone()))
        }
        _ => true,
    }
}

pub(super) fn object_of(change: &Change) -> Option<ObjectRef> {
    Some(match change {
        Change::Service(service) => ObjectRef::Service(service.key.clone()),
        Change::ServiceGone(key) => ObjectRef::Service(key.clone()),
        Change::Pod(pod) => ObjectRef::Pod(pod.key.clone()),
        Change::PodGone(key) => ObjectRef::Pod(key.clone()),
        Change::Node(node) => ObjectRef::Node(node.name.clone()),
        Change::NodeGone(name) => ObjectRef::Node(name.clone()),
        Change::Namespace(namespace) => ObjectRef::Namespace(namespace.name.clone()),
        Change::NamespaceGone(name) => ObjectRef::Namespace(name.clone()),
        Change::ServiceCidr(cidr) => ObjectRef::ServiceCidr(cidr.name.clone()),
        Change::ServiceCidrGone(name) => ObjectRef::ServiceCidr(name.clone()),
        Change::Slice(slice) => ObjectRef::Slice(slice.namespace.clone(), slice.name.clone()),
        Change::SliceGone(namespace, name) => ObjectRef::Slice(namespace.clone(), name.clone()),
        Change::Locator(locator) => ObjectRef::Locator(locator.key.clone()),
        Change::LocatorGone(key) => ObjectRef::Locator(key.clone()),
        Change::Planned(..) | Change::Only(_) => return None,
    })
}
