//! What a feed says.

use std::collections::BTreeSet;

use nearhop_api::{Changed, Version};
use nearhop_core::{Kind, ObjectRef};

/// What a feed says. Events of one kind are in order; those of different kinds are not.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An object is like this now, or is gone. May say again what is known already.
    Changed(Changed),
    /// All objects of this kind have arrived.
    Listed {
        /// The kind.
        kind: Kind,
        /// As of when; empty where the server does not know the kind, so that there are none.
        version: Version,
        /// All objects, for [`nearhop_core::Change::Listed`]: a deletion may have been missed. Absent
        /// before the first object, when no deletion can have been missed.
        objects: Option<BTreeSet<ObjectRef>>,
    },
}
