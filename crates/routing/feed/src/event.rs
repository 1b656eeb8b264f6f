//! What a feed says.

use nearhop_api::{Meta, Version};
use nearhop_core::{Change, Problem, Roll};

use crate::kind::Kind;

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
        /// All their names, where something may have gone unseen: an object that is not on it is
        /// gone. Nothing can have been missed where nothing had arrived before.
        roll: Option<Box<Roll>>,
    },
}

/// An object, converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// What to apply, unless nobody could say what became of which object.
    pub change: Option<Change>,
    /// What the server says about it besides. Of one that is gone: with the version in which it
    /// went.
    pub meta: Meta,
    /// What could not be read.
    pub problems: Vec<Problem>,
}
